"""Measured runs for the fit of host work, from every kind of campaign, in one form.

A case has its engine, version, campaign, GPU and model. It gives its errors under given host work: logarithms of
simulated over measured TTFT and step time (TPOT, ITL). ``counts`` excludes figures that measure something else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.latency.host import front_end_of, launches_of, with_host_times
from hisearch.latency.served_errors import plain_name
from hisearch.simulate.engine import simulate
from hisearch.simulate.plans.plan import WorkerPlan
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.machines.host import HostTimes
from hisearch.specs.models.model import ModelSpec
from hisearch.validate import e2e, open_loop
from hisearch.validate.e2e_case import read_case
from hisearch.validate.silicon.conditions import INFERENCEMAX, Conditions, conditions_of, host_version
from hisearch.validate.silicon.pricing import SYSTEMS, NotPriced, Pricer
from hisearch.validate.silicon.reach import beyond_reach
from hisearch.validate.silicon.report import START_UP
from hisearch.validate.silicon.rows import UNKNOWN_VERSION, SiliconRow

#: Kinds of runs; campaigns of the last two, whose files name none.
CLOSED_LOOP, OPEN_LOOP, SERVED = "closed loop", "open loop", "served"
OPEN_LOOP_CAMPAIGN, SERVED_CAMPAIGN = "open-loop", "served workloads"
#: Scales of the errors of TTFT and step time: for operators priced by laws, and by tables measured on the card.
#: Laws miss operators by 7 to 15 % (docs/accuracy-details.md, closed loop), tables a batch by 1 to 3 (single batches).
OF_LAWS, OF_TABLES = (0.15, 0.07), (0.03, 0.02)


class Case(Protocol):
    """One measured run; ``kind``: of the names above.

    counts: whether its TTFT, and its step time, count in the fit. scale: unit of both errors.
    """

    @property
    def kind(self) -> str: ...  # noqa: D102
    @property
    def engine(self) -> str: ...  # noqa: D102
    @property
    def version(self) -> str: ...  # noqa: D102
    @property
    def campaign(self) -> str: ...  # noqa: D102
    @property
    def gpu(self) -> str: ...  # noqa: D102
    @property
    def model(self) -> str: ...  # noqa: D102
    @property
    def counts(self) -> tuple[bool, bool]: ...  # noqa: D102
    @property
    def scale(self) -> tuple[float, float]: ...  # noqa: D102
    def errors(self, times: HostTimes) -> F8:
        """log(simulated / measured) of TTFT and step time under ``times``, shape (2,)."""
        ...


@dataclass(frozen=True)
class ClosedLoopCase:
    """A row of measured closed-loop runs."""

    row: SiliconRow
    pricer: Pricer
    campaign: str
    counts: tuple[bool, bool]
    scale: tuple[float, float] = OF_LAWS
    kind: str = CLOSED_LOOP

    @property
    def engine(self) -> str:
        """Its name."""
        return self.row.backend

    @property
    def version(self) -> str:
        """Of the engine, as the key of its host work."""
        return host_version(self.row)

    @property
    def gpu(self) -> str:
        """Its name in the catalogue."""
        return SYSTEMS.get(self.row.system, self.row.system)

    @property
    def model(self) -> str:
        """See ``plain_name``."""
        return plain_name(self.row.model)

    def errors(self, times: HostTimes) -> F8:
        """See ``Case``."""
        price = self.pricer.with_times(self.row, times)
        return np.log([price.ttft_s / self.row.measured_ttft_s, price.tpot_s / self.row.measured_tpot_s])


@dataclass(frozen=True)
class OpenLoopCase:
    """An open-loop run; ``worker`` without host work."""

    run: open_loop.OpenLoopRun
    worker: WorkerPlan
    measured: open_loop.Measured
    graph_batches: tuple[int, ...]
    architecture: ModelSpec
    campaign: str = OPEN_LOOP_CAMPAIGN
    counts: tuple[bool, bool] = (True, True)
    scale: tuple[float, float] = OF_LAWS
    kind: str = OPEN_LOOP

    @property
    def engine(self) -> str:
        """Its name."""
        return self.run.engine

    @property
    def version(self) -> str:
        """Of the engine."""
        return self.run.engine_version

    @property
    def gpu(self) -> str:
        """Its name in the catalogue."""
        return self.run.accelerator

    @property
    def model(self) -> str:
        """See ``plain_name``."""
        return plain_name(self.architecture.huggingface_id)

    def errors(self, times: HostTimes) -> F8:
        """See ``Case``; the step time is taken from E2E, whose tokens are known."""
        launches = launches_of(self.architecture, self.worker.split, None, self.run.engine, list(self.graph_batches))
        costs = self.worker.costs
        seconds = with_host_times(costs.seconds, times, launches, overlap=self.worker.engine.overlap)
        worker = replace(self.worker, costs=replace(costs, seconds=seconds, front_end=front_end_of(times)))
        trace, _ = open_loop.trace_of(self.run)
        table = simulate(worker, trace).requests
        simulated_ms = open_loop.figures(table, table.finished)
        names = ("ttft_mean", "e2e_mean")
        measured_ms = [self.measured[self.run.set, self.run.id, open_loop.WHOLE, name] for name in names]
        return np.log([simulated_ms[name] / ms for name, ms in zip(names, measured_ms, strict=True)])


@dataclass(frozen=True)
class ServedCase:
    """A served workload with its own operator tables; ``ready`` without host work."""

    ready: e2e.ReadyCase
    campaign: str = SERVED_CAMPAIGN
    counts: tuple[bool, bool] = (True, True)
    scale: tuple[float, float] = OF_TABLES
    kind: str = SERVED

    @property
    def engine(self) -> str:
        """Its name."""
        return self.ready.case.engine.name

    @property
    def version(self) -> str:
        """Of the engine."""
        return self.ready.case.engine_version

    @property
    def gpu(self) -> str:
        """Its name in the catalogue."""
        return self.ready.case.accelerator

    @property
    def model(self) -> str:
        """See ``plain_name``."""
        return plain_name(self.ready.case.model.huggingface_id)

    def errors(self, times: HostTimes) -> F8:
        """See ``Case``; by the engine's own clock."""
        case, costs = self.ready.case, self.ready.costs
        graphs = list(self.ready.worker.overhead.graph_batches)
        launches = launches_of(case.model, case.split, case.weight_dtype, self.engine, graphs)
        seconds = with_host_times(costs.seconds, times, launches, overlap=case.engine.overlap)
        simulated = self.ready.simulated(replace(costs, seconds=seconds))
        simulated_metrics, measured_metrics = (
            e2e.metrics_of(case, request_times) for request_times in (simulated, e2e.measured_times(case))
        )
        return np.log(
            [simulated_metrics[name]["mean"] / measured_metrics[name]["mean"] for name in ("ttft_s", "tpot_s")]
        )


def closed_loop_cases(rows: Iterable[SiliconRow], pricer: Pricer) -> list[ClosedLoopCase]:
    """Aggregated rows that can be simulated and that their GPU can reach; others are left out."""
    cases = []
    for row in rows:
        if row.mode != "agg":
            continue
        try:
            pricer.price(row)
            conditions = conditions_of(row)
            if beyond_reach(row, pricer.worker(row, conditions), conditions):
                continue
        except NotPriced:
            continue
        cases.append(ClosedLoopCase(row, pricer, conditions.campaign, (not starts_cold(row, conditions), True)))
    return cases


def starts_cold(row: SiliconRow, conditions: Conditions) -> bool:
    """Whether a row's TTFT includes one-time work of the server, which no constant models.

    So do the first scripts of InferenceMAX, whose rows state no version and which sent no warm-up; and ``START_UP``.
    """
    unwarmed = conditions.campaign == INFERENCEMAX and row.version == UNKNOWN_VERSION
    return unwarmed or (row.backend, row.version) in START_UP


def open_loop_cases(folders: Sequence[Path], catalogue: Catalogue) -> list[OpenLoopCase]:
    """Runs of ``folders`` whose whole-run means are measured."""
    cases = []
    for folder in folders:
        runs, measured = open_loop.read_folder(folder)
        for run in runs:
            name = f"{run.engine}-{run.accelerator}"
            profile = catalogue.get("LatencyProfile", name).spec
            overhead = profile.engines[run.engine]
            alone = profile.model_copy(
                update={
                    "engines": {
                        run.engine: overhead.with_times(HostTimes(step_s=0.0)).model_copy(update={"versions": {}})
                    }
                }
            )
            worker = open_loop.worker_of(run, folder, catalogue, name, alone)
            model = open_loop.model_of(run, folder, catalogue)
            if all((run.set, run.id, open_loop.WHOLE, metric) in measured for metric in ("ttft_mean", "e2e_mean")):
                cases.append(OpenLoopCase(run, worker, measured, tuple(overhead.graph_batches), model))
    return cases


def served_cases(folders: Sequence[Path], catalogue: Catalogue) -> list[ServedCase]:
    """Served workloads of ``folders``, with the measured KV capacity if known."""
    cases = []
    for folder in folders:
        case = read_case(folder, catalogue.names("Accelerator"))
        accelerator = catalogue.get("Accelerator", case.accelerator).spec
        shipped = e2e.estimator_of(case, catalogue).profile.engines[case.engine.name]
        bare = shipped.with_times(HostTimes(step_s=0.0)).model_copy(update={"versions": {}})
        estimator = e2e.estimator_of(case, catalogue, overhead=bare)
        cases.append(ServedCase(e2e.prepare(case, accelerator, estimator, e2e.kv_capacity_tokens(case, accelerator))))
    return cases
