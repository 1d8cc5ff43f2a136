"""The result of a simulated deployment: metrics, SLO verdict, warnings, and a row per request."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from hisearch.api.deployments.replay import (
    NO_SLO,
    ModelShare,
    Replay,
    outcome_counts,
    pool_prices,
    stated_metrics,
)
from hisearch.base.dtypes import I4
from hisearch.base.shown import Shown
from hisearch.hardware.prices import CostBreakdown
from hisearch.score.classes import ClassShare, shares_of_classes
from hisearch.score.evaluate import Score
from hisearch.score.fairness import ServiceDifference, largest_service_difference
from hisearch.score.steady_state import Stretch, format_growth, measured, queue_growth_rps, span_needed_s
from hisearch.search.model.deployments import describe
from hisearch.simulate.plans.fleet import FleetPlan
from hisearch.simulate.plans.plan import WorkerPlan
from hisearch.simulate.results.result import Result
from hisearch.specs.checks.setting_notes import setting_notes
from hisearch.specs.deployments.engine_rules import rules_note
from hisearch.specs.documents.resolved import ResolvedDeployment
from hisearch.specs.studies.slo import SloSpec
from hisearch.traces.agents import label
from hisearch.traces.changes.continuation import continuation_of, period_s
from hisearch.traces.compiled import CompiledTrace


@dataclass(frozen=True, repr=False)
class SimulatedRun(Shown):
    """A deployment, its workload, and the result of the simulation.

    slo: None where none was given; ``metrics`` then lacks goodput and attainment. load: factor on the arrival rate.
    horizon_s: simulated seconds after which it was stopped; infinite where it ran to its end. stretch: parts of a run
    that carries its workload on to show a steady state.
    """

    resolved: ResolvedDeployment
    trace: CompiledTrace
    slo: SloSpec | None
    fleet: FleetPlan
    result: Result
    cost: CostBreakdown
    load: float
    seed: int
    horizon_s: float
    stretch: Stretch | None = None

    def facts(self) -> dict[str, str]:
        """See ``Shown``."""
        outcomes = self.outcomes()
        facts = {
            "deployment": describe(self.resolved.deployment),
            "trace": f"{self.trace.name}, {len(self.trace):,} requests, {outcomes['finished']:,} finished",
            "price": f"${self.cost.total:,.2f} per hour",
        }
        if self.feasible is not None:
            facts["SLO"] = "met" if self.feasible else "missed"
        latencies = ("ttft_p50_s", "ttft_p99_s", "tpot_p50_s", "tpot_p99_s")
        return facts | {name: f"{self.metrics[name]:.3g} s" for name in latencies if name in self.metrics}

    @property
    def plan(self) -> WorkerPlan:
        """A worker of the first pool."""
        return self.fleet.pools[0].plan

    @property
    def asked(self) -> I4:
        """Index into ``fleet.models`` of each request's model, shape (N,)."""
        assert self.result.asked is not None
        return self.result.asked.model

    @cached_property
    def models(self) -> list[ModelShare]:
        """The share of each model; of a single model, everything."""
        return self._replay.shares(self.trace, self.result)

    @cached_property
    def _replay(self) -> Replay:
        resolved = self.resolved
        return Replay(
            resolved.deployment, self.fleet, pool_prices(resolved.hardware, resolved.deployment), self.slo or NO_SLO
        )

    @cached_property
    def score(self) -> Score:
        """The metrics and the verdict; without an SLO every simulation passes."""
        shares = self.models if len(self.fleet.models) > 1 else None
        return self._replay.score(self.trace, self.result, shares, self.stretch)

    @property
    def too_short(self) -> str:
        """That the arrivals of an open loop span less than a steady state takes to show; "" where they do not."""
        stay_s = self.metrics["e2e_p99_s"]
        if self.stretch is not None or math.isinf(stay_s) or continuation_of(self.trace) is None:
            return ""
        span_s, needed_s = period_s(self.trace) / self.load, span_needed_s(stay_s)
        if math.isfinite(self.horizon_s) or span_s >= needed_s:
            return ""
        return (
            f"arrivals span {span_s:,.0f} s; whether the queue grows shows after {needed_s:,.0f} s, with "
            f"{math.ceil(len(self.trace) * needed_s / span_s):,} requests"
        )

    @property
    def steadiness(self) -> str:
        """What a carried-on run shows, as a sentence; "" of any other."""
        if self.stretch is None:
            return ""
        growth = queue_growth_rps(self.result.requests, self.stretch)
        run = (
            f"The workload was carried on: {len(self.trace):,} requests, measured for {self.stretch.measured_s:,.0f} s "
            f"after a warm-up of {self.stretch.warm_up_s:,.0f} s"
        )
        if growth > 0:
            return f"{run}. This load is an overload: {format_growth(growth)}."
        return f"{run}. The queue does not grow."

    @property
    def metrics(self) -> dict[str, float]:
        """See ``hisearch.score.metrics``."""
        return stated_metrics(self.score, with_slo=self.slo is not None)

    @property
    def feasible(self) -> bool | None:
        """Whether the SLO is met; None where there is none."""
        if self.slo is None:
            return None
        overloaded = self.stretch is not None and queue_growth_rps(self.result.requests, self.stretch) > 0
        return self.score.feasible and not overloaded

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about the deployment, the trace and the metrics."""
        notes = (str(note) for note in setting_notes(self.resolved))
        engines = [pool.engine for pool in self.resolved.deployment.pools]
        releases = dict.fromkeys(rules_note(engine.name, engine.version) for engine in engines)
        steady = [self.too_short] if self.too_short else []
        return (
            *filter(None, releases), *notes, *self.trace.cautions, *self.result.warnings, *self.score.warnings, *steady
        )  # fmt: skip

    def outcomes(self) -> dict[str, int]:
        """Number of requests by outcome: ``finished``, ``in_flight``, ``too_large``, ``unreached``."""
        return outcome_counts(self.result)

    def classes(self, by: str) -> list[ClassShare]:
        """What the requests of each ``priority``, or of each ``tenant``, get and cost.

        Goodput and attainment are by the terms that concern them, of the SLO of the model that a request asks for; NaN
        without an SLO.
        """
        slos = []
        if self.slo is not None:
            slos = [(self.asked == k, self.slo.of(model.names)) for k, model in enumerate(self.fleet.models)]
        return shares_of_classes(self._measured, by, slos, self.score.metrics["usd_per_hour"])

    def fairness(self) -> ServiceDifference | None:
        """The largest difference of service of two tenants; None where no two wait at the same time."""
        return largest_service_difference(self._measured)

    @property
    def _measured(self) -> Result:
        """The run, without the warm-up of one that carries its workload on."""
        return self.result if self.stretch is None else measured(self.result, self.stretch)

    def requests_frame(self) -> pd.DataFrame:
        """One row per request: its id in the trace, its agent, times in seconds, tokens, worker, outcome.

        TPOT is missing where there is no second output token.
        """
        frame = self.result.requests.to_pandas()
        frame["tpot_s"] = frame["tpot_s"].where(frame["output_tokens"] >= 2)
        frame.insert(0, "id", list(self.trace.request_ids))
        if len(self.fleet.models) > 1:
            frame.insert(1, "model", np.array([model.name for model in self.fleet.models])[self.asked])
        if (agents := self.trace.agents) is not None:
            frame.insert(1, "agent", [label(agents.names, agent) for agent in agents.agent.tolist()])
        return frame
