"""One deployment on one workload: ``hisearch.simulate_deployment(...)``, all that ``hisearch simulate`` does."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hisearch.api.tiers import tier_rows
from hisearch.api.workload import load_trace
from hisearch.hardware.prices import CostBreakdown, deployment_cost
from hisearch.score.evaluate import Score, evaluate
from hisearch.score.terms import check_to_dict
from hisearch.simulate.engine import simulate
from hisearch.simulate.plan import WorkerPlan, plan_worker
from hisearch.simulate.result import Outcome, Result
from hisearch.specs.catalogue import Catalogue
from hisearch.specs.resolve import load_deployment
from hisearch.specs.resolved import ResolvedDeployment
from hisearch.specs.slo import SloSpec
from hisearch.traces.compiled import CompiledTrace
from hisearch.traces.stats import requests_over_window

if TYPE_CHECKING:
    import pandas as pd

#: A promise that every simulation keeps: what is scored where there is no SLO. Not valid as a document.
_NO_SLO = SloSpec.model_construct(terms=[], max_rejected_fraction=1.0)

#: Figures that mean nothing without an SLO.
_SLO_FIGURES = ("goodput_rps", "attainment")


@dataclass(frozen=True)
class SimulatedDeployment:
    """A deployment, what it was simulated on, and what came of it.

    slo: None where none was asked for; ``metrics`` then lacks goodput and attainment. load: factor on the arrival
    rate. horizon_s: simulated seconds after which it was stopped, infinite where it ran to its end.
    """

    resolved: ResolvedDeployment
    trace: CompiledTrace
    slo: SloSpec | None
    plan: WorkerPlan
    result: Result
    cost: CostBreakdown
    load: float
    seed: int
    horizon_s: float

    @cached_property
    def score(self) -> Score:
        """The figures and the verdict; without an SLO every simulation passes."""
        return evaluate(
            self.result,
            self.slo or _NO_SLO,
            usd_per_hour=self.cost.total,
            over_window=requests_over_window(self.trace, self.plan.max_request_tokens),
        )

    @property
    def metrics(self) -> dict[str, float]:
        """See ``hisearch.score.metrics``."""
        figures = self.score.metrics
        return figures if self.slo is not None else {k: v for k, v in figures.items() if k not in _SLO_FIGURES}

    @property
    def feasible(self) -> bool | None:
        """Whether the SLO is met; None where there is none."""
        return self.score.feasible if self.slo is not None else None

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a reader should know of the trace and of the figures."""
        return (*self.trace.warnings, *self.result.warnings, *self.score.warnings)

    def outcomes(self) -> dict[str, int]:
        """How many requests ended how: ``finished``, ``in_flight``, ``too_large``, ``unreached``."""
        counts = np.bincount(self.result.requests.outcome, minlength=len(Outcome))
        return {outcome.name.lower(): int(counts[outcome]) for outcome in Outcome}

    def requests_frame(self) -> pd.DataFrame:
        """One row per request: its id in the trace, times in seconds, tokens, worker, outcome.

        TPOT is missing where there is no second output token.
        """
        frame = self.result.requests.to_pandas()
        frame["tpot_s"] = frame["tpot_s"].where(frame["output_tokens"] >= 2)
        frame.insert(0, "id", self.trace.request_ids)
        return frame

    def workers(self) -> list[dict[str, Any]]:
        """One row per worker; see docs/cli.md for the keys."""
        requests, workers = self.result.requests, self.result.workers
        count, span_s = len(workers.steps), self.result.makespan_s
        routed = requests.worker >= 0
        owner = requests.worker[routed]
        hits = np.bincount(owner, weights=requests.hit_tokens[routed], minlength=count)
        per_s = 1.0 / span_s if span_s > 0 else 0.0
        return [
            {
                "worker": worker,
                "requests": int(workers.requests[worker]),
                "steps": int(workers.steps[worker]),
                "utilisation": float(workers.busy_s[worker] * per_s),
                "prefill_tokens": int(workers.prefill_tokens[worker]),
                "decode_tokens": int(workers.decode_tokens[worker]),
                "hit_tokens": int(hits[worker]),
                "host_hit_tokens": int(workers.host_hit_tokens[worker]),
                "evicted_tokens": int(workers.evicted_tokens[worker]),
                "preemptions": int(workers.preemptions[worker]),
                "peak_kv_tokens": int(workers.peak_kv_tokens[worker]),
                "kv_capacity_tokens": self.result.kv_capacity_tokens,
                "mean_w": float(self.result.idle_w + workers.energy_j[worker] * per_s),
            }
            for worker in range(count)
        ]

    def to_dict(self) -> dict[str, Any]:
        """All but the single requests, as plain values; see docs/cli.md."""
        costs, memory, profile = self.plan.costs, self.plan.memory, self.resolved.profile.spec
        slo = None
        if self.slo is not None:
            slo = {
                "feasible": self.feasible,
                "max_rejected_fraction": self.slo.max_rejected_fraction,
                "terms": [check_to_dict(check) for check in self.score.slo],
            }
        return {
            "deployment": {"name": self.resolved.name, "spec": self.resolved.deployment.model_dump(mode="json")},
            "trace": {
                "name": self.trace.name,
                "digest": self.trace.digest,
                "requests": len(self.trace),
                "skipped_rows": self.trace.skipped_rows,
            },
            "load": self.load,
            "seed": self.seed,
            "horizon_s": self.horizon_s,
            "horizon_reached": self.result.horizon_reached,
            "requests": self.outcomes(),
            "metrics": self.metrics,
            "slo": slo,
            "cost": {**asdict(self.cost), "usd_per_hour": self.cost.total},
            "memory": {**asdict(memory), "host_capacity_tokens": self.plan.host_capacity_tokens},
            "workers": self.workers(),
            "tiers": tier_rows(self),
            "objects": [asdict(use) for use in self.result.objects],
            "profile": {
                "name": costs.profile,
                "evidence": costs.evidence,
                "relative_error": costs.relative_error,
                "source": profile.provenance.source,
            },
            "warnings": list(self.warnings),
        }


def simulate_deployment(
    deployment: str | Path | ResolvedDeployment,
    trace: str | Path | CompiledTrace,
    *,
    slo: str | Path | SloSpec | None = None,
    overrides: Iterable[str] = (),
    load: float = 1.0,
    seed: int = 0,
    horizon_s: float = math.inf,
    log: bool = False,
    catalogue: Catalogue | None = None,
) -> SimulatedDeployment:
    """Replay a workload on one deployment.

    Args:
        deployment: a catalogue name, a path, or one that is resolved already.
        trace: a catalogue name, the path of a workload's YAML or of a trace file, or a compiled trace.
        slo: what to hold it against, by name, path or value.
        overrides: ``key.path=value`` settings on the deployment, as of ``--set``.
        load: factor on the arrival rate of first turns.
        seed: of the workload and of the router's random stream.
        horizon_s: simulated seconds after which it stops; unfinished requests count as infinitely late.
        log: keep every step (``result.log``): what ``result.series``, exact ITL and a timeline are made from.
        catalogue: where names are looked up; the working directory and what ships where None.

    Raises:
        SpecError, TraceError: with file, line and key.
        DoesNotFit: the model leaves no room for KV; says how many bytes are short.
        InvalidParallelism: the model cannot be split so.
        ValueError: ``load`` or ``horizon_s`` is not positive, or ``overrides`` for a deployment that is resolved
            already.
    """
    if not horizon_s > 0:
        raise ValueError(f"horizon_s must be a positive number of seconds, not {horizon_s:g}")
    catalogue = catalogue or Catalogue()
    settings = tuple(overrides)
    if isinstance(deployment, ResolvedDeployment):
        if settings:
            raise ValueError("overrides apply while a deployment is loaded; this one is resolved already")
        resolved = deployment
    else:
        resolved = load_deployment(deployment, settings, catalogue)
    promise: SloSpec | None = catalogue.get("SLO", str(slo)).spec if isinstance(slo, str | Path) else slo
    plan = plan_deployment(resolved)
    compiled = trace if isinstance(trace, CompiledTrace) else load_trace(trace, seed=seed, catalogue=catalogue)
    spec = resolved.deployment
    result = simulate(
        plan,
        compiled,
        replicas=spec.pool.replicas,
        router=spec.router,
        seed=seed,
        horizon_s=horizon_s,
        load=load,
        log=log,
    )
    cost = deployment_cost(
        spec,
        {name: document.spec for name, document in resolved.accelerators.items()},
        {name: document.spec for name, document in resolved.hosts.items()},
        {name: document.spec for name, document in resolved.media.items()},
    )
    return SimulatedDeployment(resolved, compiled, promise, plan, result, cost, load, seed, horizon_s)


def plan_deployment(resolved: ResolvedDeployment) -> WorkerPlan:
    """One worker of the deployment, compiled; errors as of ``simulate_deployment``."""
    pool = resolved.deployment.pool
    accelerator = resolved.accelerators[pool.accelerator].spec
    host_name = pool.host or accelerator.host
    return plan_worker(
        pool,
        model=resolved.model.spec,
        accelerator=accelerator,
        host=resolved.hosts[host_name].spec if host_name is not None else None,
        media={name: document.spec for name, document in resolved.media.items()},
        profile=resolved.profile.spec,
        profile_name=resolved.profile.name,
    )
