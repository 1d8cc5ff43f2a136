"""A synthetic study with trials like those of a search."""

from __future__ import annotations

import random
from typing import Any

import pytest

from hisearch.report.data.closeup import (
    SHARES,
    CacheMark,
    ClassFigures,
    Closeup,
    IdealCache,
    LatencyCurve,
    LoadPoint,
    StoreSeries,
    TierCurve,
    TierPoint,
    TierTimeline,
    TierUse,
    WorkerSeries,
    WorkerTimeline,
)
from hisearch.report.data.inputs import CostRow, PriceNote, ProfileNote, ReportInput, RunRecord
from hisearch.score.fairness import ServiceDifference
from hisearch.score.terms import RejectionCheck, TermCheck
from hisearch.search.model.trial import Recommendation, Trial
from hisearch.specs.deployments.deployment import DeploymentSpec
from hisearch.specs.studies.slo import SloTerm

OBJECTIVES = ("ttft_p99", "goodput", "usd_per_hour")
SLO = (
    SloTerm(metric="ttft_s", percentile=99, at_most_s=2.0),
    SloTerm(metric="tpot_s", percentile=99, at_most_s=0.05),
)
PRICES = {"h100-sxm": 2.49, "h200": 3.29, "l40s": 0.99}
SPEED = {"h100-sxm": 1.0, "h200": 1.3, "l40s": 0.35}


def make_deployment(rng: random.Random, stage: int, accelerator: str | None = None) -> DeploymentSpec:
    """A random deployment; later stages also choose a router and a host tier."""
    engine = rng.choice(["sglang", "vllm"])
    return DeploymentSpec.model_validate(
        {
            "model": "qwen3-32b",
            "pools": [
                {
                    "accelerator": accelerator or rng.choice(list(PRICES)),
                    "tensor_parallel": rng.choice([1, 2, 4]),
                    "replicas": rng.randint(1, 8),
                    "engine": {
                        "name": engine,
                        "chunk_tokens": rng.choice([2048, 8192]),
                        "max_running_requests": rng.choice([64, 256]),
                        "memory_fraction": round(rng.uniform(0.85, 0.92), 4) if stage == 3 else 0.9,
                    },
                    "tiers": [
                        {"medium": "ddr5", "gib": gib, "scope": "worker"}
                        for gib in ([rng.choice([0.0, 128.0, 256.0])] if stage == 3 else [])
                        if gib
                    ],
                }
            ],
            "router": {
                "policy": rng.choice(["round_robin", "power_of_two", "cache_aware"]) if stage > 1 else "round_robin"
            },
        }
    )


def make_trial(number: int, stage: int, rng: random.Random, accelerator: str | None = None) -> Trial:
    """A trial whose latency falls and whose cost rises with the hardware."""
    deployment = make_deployment(rng, stage, accelerator)
    pool = deployment.pool
    count = pool.replicas * pool.tensor_parallel
    power = count * SPEED.get(pool.accelerator, 1.0) * (1.0 + 0.08 * stage) * rng.uniform(0.85, 1.15)
    ttft, tpot = 0.25 + 9.0 / power**1.4, 0.012 + 0.14 / power
    usd = count * PRICES.get(pool.accelerator, 2.0) * 1.05
    terms = (TermCheck("ttft_p99", ttft, 2.0), TermCheck("tpot_p99", tpot, 0.05), RejectionCheck(0.0, 4000))
    feasible = all(term.holds for term in terms)
    good = min(9.4, 0.75 * power) if feasible else min(9.4, 0.4 * power)
    metrics = {
        "ttft_p99_s": ttft,
        "tpot_p99_s": tpot,
        "e2e_p99_s": ttft + 400 * tpot,
        "goodput_rps": good,
        "attainment": good / 9.5,
        "throughput_rps": min(9.5, good * 1.02),
        "hit_rate": 0.31 + 0.05 * stage,
        "host_hit_rate": 0.04,
        "rejected_fraction": 0.0,
        "preemptions": 0.02,
        "utilisation": min(0.97, 7.0 / power),
        "usd_per_hour": usd,
        "usd_per_million_tokens": usd / (3.6 * good * 2.1),
        "makespan_s": 1800.0,
    }
    return Trial(number, stage, deployment, {}, metrics, terms, feasible)


def front_of(trials: list[Trial]) -> tuple[Trial, ...]:
    """Trials that none of the others dominates (minimised: TTFT and cost; maximised: goodput), feasible ones if any."""
    comparable = [t for t in trials if t.comparable]
    feasible = [t for t in comparable if t.feasible] or comparable

    def vector(trial: Trial) -> tuple[float, float, float]:
        return trial.metrics["ttft_p99_s"], -trial.metrics["goodput_rps"], trial.metrics["usd_per_hour"]

    def dominated(trial: Trial) -> bool:
        mine = vector(trial)
        return any(o is not trial and all(a <= b for a, b in zip(vector(o), mine, strict=True)) for o in feasible)

    return tuple(t for t in feasible if not dominated(t))


def make_record(**changes: Any) -> RunRecord:
    """A record with an assumed profile and assumed prices."""
    values: dict[str, Any] = {
        "profile": ProfileNote("roofline", "assumed", 0.2, "data sheets, stated efficiencies"),
        "versions": {"hisearch": "0.1.0", "python": "3.11.2", "numba": "0.68.0"},
        "seeds": {"study": 0},
        "inputs": {"studies/quickstart.yaml": "sha256:5f1d…", "traces/chat-multiturn.yaml": "sha256:a77c…"},
        "wall_time_s": 48.2,
        "cpu_cores": 2,
        "prices": (
            PriceNote("h100-sxm", 2.49, "USD/hour", "assumed", "typical on-demand list price", "2026-01-15"),
            PriceNote("ddr5", 0.004, "USD/GiB/hour", "assumed", "amortised over three years", "2026-01-15"),
            PriceNote("l40s", 0.99, "USD/hour", "published", "provider price list", "2026-01-15"),
        ),
        "warnings": ("12 prompts are longer than the profile was fitted for (16,384 tokens).",),
        "settings": {"load": "1.0 × the trace's arrival rate", "simulations": "300"},
    }
    return RunRecord(**(values | changes))


def make_closeup(trial: int = 0) -> Closeup:
    """A closer look at a deployment with two workers and one tier, whose TPOT breaks first, at load 1.5."""
    loads = tuple(
        LoadPoint(
            load,
            1 / (1 + (load / 1.6) ** 8),
            6.1 * load / (1 + (load / 1.6) ** 8),
            (TermCheck("ttft_p99", 0.9 * load, 2.0), TermCheck("tpot_p99", 0.036 * load, 0.05)),
        )
        for load in (0.5, 1.0, 1.5, 3.0)
    )
    latencies = tuple(
        LatencyCurve(metric, tuple(scale * (0.01 + share**4) for share in SHARES), 4000)
        for metric, scale in (("ttft", 1.8), ("tpot", 0.048), ("itl", 0.08), ("e2e", 20.0))
    )
    worker = WorkerSeries((0.5, 1.0, 0.25), (0.1, 0.9, 0.3), (0, 7, 1))
    sizes = ((64.0, 0.30), (128.0, 0.42), (256.0, 0.44))
    tier = TierCurve(
        "ddr5, per worker",
        128.0,
        tuple(TierPoint(gib, rate, rate - 0.2, 1.0 / rate, 900.0 * (1 - rate), 0.005 * gib) for gib, rate in sizes),
        device_s=1800.0,
        machines_usd_per_hour=10.0,
    )
    ideal = IdealCache(
        (1000, 100_000, 1_000_000, 4_000_000), (0.1, 0.3, 0.5, 0.6), 131072.0,
        (CacheMark("HBM", 100_000), CacheMark("with ddr5", 1_000_000)), 0.41,
    )  # fmt: skip
    uses = (TierUse("hbm", 0.2, 1.0), TierUse("ddr5", 0.21, 0.95, 120.0, 40.0, 0.07, 0.02))
    occupancy = TierTimeline(
        (0.0, 5.0, 10.0), tuple(StoreSeries(f"ddr5 {k}", 1, (0.0, 0.4 + k / 2, 0.95)) for k in (0, 1))
    )
    workers = WorkerTimeline(5.0, (worker, worker))
    classes = tuple(
        ClassFigures(name, requests, ttft_p95_s, None, 0.97, 1.5, 2.5)
        for name, requests, ttft_p95_s in (
            ("priority 0", 900, 0.4),
            ("priority 1", 100, None),
            ("tenant <b>3</b>", 9, 1.0),
        )
    )
    return Closeup(
        trial, loads, latencies, workers, (tier,), ideal, tier_uses=uses, tier_timeline=occupancy, classes=classes,
        service_difference=ServiceDifference(12_345.0, 3, 0, 10.0, 55.0, 0.4),
    )  # fmt: skip


def make_costs(trials: tuple[Trial, ...]) -> tuple[CostRow, ...]:
    """Nine tenths for accelerators, the rest for a tier."""
    return tuple(
        CostRow(
            trial.number,
            (("Accelerators", 0.9 * trial.metrics["usd_per_hour"]), ("ddr5", 0.1 * trial.metrics["usd_per_hour"])),
            4200.0,
        )
        for trial in trials
    )


def make_input(count: int = 300, *, seed: int = 7, feasible: bool = True, **changes: Any) -> ReportInput:
    """A study of ``count`` trials; with ``feasible`` False no trial meets the SLO."""
    rng = random.Random(seed)
    stages = [1 + (3 * i) // count for i in range(count)]
    trials = [make_trial(i, stage, rng) for i, stage in enumerate(stages)]
    if not feasible:
        trials = [_worse(trial) for trial in trials]
    front = front_of(trials)
    recommendation = _recommend(front) if feasible else None
    nearest = None if feasible else min(trials, key=lambda t: t.worst_violation)
    shown = recommendation.trial if recommendation else nearest
    assert shown is not None
    closeup = make_closeup(shown.number)
    values: dict[str, Any] = {
        "title": "Quickstart: chat on Qwen3-32B",
        "study": "quickstart",
        "workload": "chat-multiturn",
        "model_id": "Qwen/Qwen3-32B",
        "objectives": OBJECTIVES,
        "slo": SLO,
        "trials": tuple(trials),
        "front": front,
        "recommendation": recommendation,
        "nearest_miss": nearest,
        "failure": "" if feasible else "Of 300 deployments none meets the SLO.",
        "headroom": closeup.headroom,
        "closeup": closeup,
        "costs": make_costs((shown, *([t for t, _ in recommendation.runner_ups] if recommendation else []))),
        "progress": {n: 1.0 - 0.9 ** (1 + n / 8) for n in range(count)},
        "provenance": make_record(),
    }
    return ReportInput(**(values | changes))


def _worse(trial: Trial) -> Trial:
    terms = tuple(
        TermCheck(t.label, t.value_s * 1.5 + t.bound_s, t.bound_s) if isinstance(t, TermCheck) else t for t in trial.slo
    )
    return Trial(trial.number, trial.stage, trial.deployment, {}, trial.metrics, terms, False)


def _recommend(front: tuple[Trial, ...]) -> Recommendation:
    by_cost = sorted(front, key=lambda t: t.metrics["usd_per_hour"])
    chosen = by_cost[min(2, len(by_cost) - 1)]
    others = [t for t in by_cost if t is not chosen][:3]
    return Recommendation(
        chosen,
        "Cheapest deployment whose goodput is within 2 % of the best that meets the SLO.",
        tuple((t, "Cheaper, but with less head-room under the TTFT bound.") for t in others),
    )


@pytest.fixture
def build_input() -> Any:
    """``make_input``."""
    return make_input


@pytest.fixture
def build_closeup() -> Any:
    """``make_closeup``."""
    return make_closeup


@pytest.fixture
def build_record() -> Any:
    """``make_record``."""
    return make_record


@pytest.fixture
def build_trial() -> Any:
    """``make_trial``."""
    return make_trial
