"""From a simulation's result to its figures and its verdict under an SLO."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hisearch.score.energy import joules_total
from hisearch.score.percentiles import Latencies
from hisearch.score.terms import TermCheck
from hisearch.simulate.result import Outcome, RequestTable, Result
from hisearch.specs.slo import SloSpec

#: Percentiles that every score carries, whatever the SLO asks for.
PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True)
class Score:
    """Figures of one simulation, see ``hisearch.score.metrics`` for the keys of ``metrics``.

    slo: one check per SLO term, in the SLO's order.
    feasible: every term holds, and no more requests were rejected than the SLO allows.
    """

    metrics: dict[str, float]
    slo: tuple[TermCheck, ...]
    feasible: bool

    @property
    def worst_margin(self) -> float:
        """Smallest margin over the SLO's terms."""
        return min(check.margin for check in self.slo)


def evaluate(result: Result, slo: SloSpec, *, usd_per_hour: float = math.nan) -> Score:
    """Score a simulation.

    Rejected and unfinished requests are not good. Requests still in flight when the simulation stopped count as
    infinitely late in every percentile and mean (``hisearch.score.percentiles``); requests that had not arrived by then
    are left out.

    Args:
        result: a finished simulation.
        slo: the promise to hold it against.
        usd_per_hour: price of the deployment; the cost figures are NaN without it.
    """
    requests = result.requests
    counts = np.bincount(requests.outcome, minlength=len(Outcome))
    unfinished = int(counts[Outcome.IN_FLIGHT])
    rejected = int(counts[Outcome.TOO_LARGE])
    arrived = int(counts[Outcome.FINISHED]) + unfinished + rejected

    values = _latency_values(requests)
    latencies = _latencies(requests, values, unfinished)
    good = int(_good_requests(values, slo).sum())

    metrics = _latency_metrics(latencies)
    metrics |= _rates(result, good, arrived, rejected)
    metrics |= _costs(result, usd_per_hour, metrics["total_tokens_per_s"])
    checks = tuple(
        TermCheck(term.label, latencies[term.metric].percentile(term.percentile), term.at_most_s) for term in slo.terms
    )
    feasible = all(check.holds for check in checks) and metrics["rejected_fraction"] <= slo.max_rejected_fraction
    return Score(metrics, checks, feasible)


def _latency_values(requests: RequestTable) -> dict[str, np.ndarray]:
    """Latencies in seconds of finished requests, by metric, shape (finished,)."""
    finished = requests.finished
    return {
        "ttft_s": requests.ttft_s[finished],
        "tpot_s": requests.tpot_s[finished],
        "e2e_s": requests.e2e_s[finished],
    }


def _latencies(requests: RequestTable, values: Mapping[str, np.ndarray], unfinished: int) -> dict[str, Latencies]:
    """Sorted latencies by metric; TPOT over requests with at least two output tokens only."""
    several = requests.output_tokens >= 2
    in_flight_several = int(((requests.outcome == Outcome.IN_FLIGHT) & several).sum())
    tpot = Latencies.of(values["tpot_s"][several[requests.finished]], in_flight_several)
    if len(tpot) == 0 and len(values["tpot_s"]):
        tpot = Latencies(np.zeros(1))  # one-token outputs only: no gap between tokens was ever waited for
    return {
        "ttft_s": Latencies.of(values["ttft_s"], unfinished),
        "tpot_s": tpot,
        "e2e_s": Latencies.of(values["e2e_s"], unfinished),
    }


def _good_requests(values: Mapping[str, np.ndarray], slo: SloSpec) -> np.ndarray:
    """Mask over finished requests, shape (finished,): each own latency is within every term's bound."""
    good = np.ones(len(values["ttft_s"]), dtype=bool)
    for term in slo.terms:
        good &= values[term.metric] <= term.at_most_s
    return good


def _latency_metrics(latencies: Mapping[str, Latencies]) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for name, values in latencies.items():
        stem = name.removesuffix("_s")
        metrics[f"{stem}_mean_s"] = values.mean()
        for percent in PERCENTILES:
            metrics[f"{stem}_p{percent}_s"] = values.percentile(percent)
    return metrics


def _rates(result: Result, good: int, arrived: int, rejected: int) -> dict[str, float]:
    """Figures per second and per request."""
    requests, workers = result.requests, result.workers
    finished = requests.finished
    count = int(finished.sum())
    output = int(requests.output_tokens[finished].sum())
    prompt = int(requests.input_tokens[finished].sum())
    span_s = result.makespan_s
    per_s = 1.0 / span_s if span_s > 0 else 0.0
    host_hits = int(requests.host_hit_tokens.sum())
    return {
        "goodput_rps": good * per_s,
        "attainment": good / arrived if arrived else 0.0,
        "throughput_rps": count * per_s,
        "output_tokens_per_s": output * per_s,
        "total_tokens_per_s": (prompt + output) * per_s,
        "hit_rate": result.hit_rate,
        "host_hit_rate": host_hits / result.prompt_tokens if result.prompt_tokens else 0.0,
        "rejected_fraction": rejected / arrived if arrived else 0.0,
        "preemptions": float(requests.preemptions.sum()) / count if count else 0.0,
        "utilisation": float(workers.busy_s.sum()) * per_s / max(len(workers.busy_s), 1),
        "makespan_s": span_s,
    }


def _costs(result: Result, usd_per_hour: float, total_tokens_per_s: float) -> dict[str, float]:
    """Dollars and joules; per token they are infinite where no token was served."""
    tokens = total_tokens_per_s * result.makespan_s
    usd_per_token = usd_per_hour / 3600.0 / total_tokens_per_s if total_tokens_per_s > 0 else math.inf
    return {
        "usd_per_hour": usd_per_hour,
        "usd_per_million_tokens": usd_per_token * 1e6,
        "joules_per_token": joules_total(result) / tokens if tokens > 0 else math.inf,
    }
