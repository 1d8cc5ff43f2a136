"""Measured runs for the fit of host work, from every kind of campaign, in one form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.latency.host import front_end_of, launches_of, with_host_times
from hisearch.latency.served_errors import plain_name
from hisearch.simulate.engine import simulate
from hisearch.simulate.plans.plan import WorkerPlan
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.machines.host import EngineOverhead, HostTimes
from hisearch.specs.models.model import ModelSpec
from hisearch.validate import e2e, open_loop
from hisearch.validate.e2e_case import read_case
from hisearch.validate.open_loop_file import (
    WHOLE,
    Measured,
    OpenLoopFailure,
    OpenLoopFileError,
    OpenLoopRun,
    read_entries,
)
from hisearch.validate.silicon.campaigns import INFERENCEMAX, Conditions
from hisearch.validate.silicon.conditions import conditions_of, host_version
from hisearch.validate.silicon.pricing import SYSTEMS, NotPriced, Pricer
from hisearch.validate.silicon.reach import beyond_reach
from hisearch.validate.silicon.report import START_UP
from hisearch.validate.silicon.rows import UNKNOWN_VERSION, SiliconRow
from refit.host_fit.prompts import PromptWeights, prompt_weights

#: Kinds of runs; campaigns of the last two, whose files name none.
CLOSED_LOOP, OPEN_LOOP, SERVED = "closed loop", "open loop", "served"
OPEN_LOOP_CAMPAIGN, SERVED_CAMPAIGN = "open-loop", "served workloads"
#: Scales of the errors of TTFT and step time: for operators priced by laws, and by tables measured on the card.
#: Laws miss operators by 7 to 15 % (docs/accuracy-details.md, closed loop), tables a batch by 1 to 3 (single batches).
OF_LAWS, OF_TABLES = (0.15, 0.07), (0.03, 0.02)


@dataclass(frozen=True)
class Case:
    """One measured run.

    kind: of the names above. version: of the engine, as the key of its host work. gpu: its name in the catalogue.
    model: see ``plain_name``. errors: log(simulated / measured) of TTFT and step time (TPOT, ITL) under given host
    work, shape (2,). counts: whether its TTFT, and its step time, count in the fit; the others measure something else.
    scale: unit of both errors. prompts: what it tells of the time that prompts take; None: nothing.
    """

    kind: str
    engine: str
    version: str
    campaign: str
    gpu: str
    model: str
    errors: Callable[[HostTimes], F8]
    counts: tuple[bool, bool] = (True, True)
    scale: tuple[float, float] = OF_LAWS
    prompts: PromptWeights | None = None


def closed_loop_cases(rows: Iterable[SiliconRow], pricer: Pricer) -> list[Case]:
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
        gpu, errors = SYSTEMS.get(row.system, row.system), partial(_closed_loop_errors, row, pricer)
        counts = (not starts_cold(row, conditions), True)
        case = (host_version(row), conditions.campaign, gpu, plain_name(row.model))
        prompts = prompt_weights(row, pricer) if counts[0] else None
        cases.append(Case(CLOSED_LOOP, row.backend, *case, errors, counts, prompts=prompts))
    return cases


def _closed_loop_errors(row: SiliconRow, pricer: Pricer, times: HostTimes) -> F8:
    price = pricer.with_times(row, times)
    return np.log([price.ttft_s / row.measured_ttft_s, price.tpot_s / row.measured_tpot_s])


def starts_cold(row: SiliconRow, conditions: Conditions) -> bool:
    """Whether a row's TTFT includes one-time work of the server, which no constant models.

    So do the first scripts of InferenceMAX, whose rows state no version and which sent no warm-up; and ``START_UP``.
    """
    unwarmed = conditions.campaign == INFERENCEMAX and row.version == UNKNOWN_VERSION
    return unwarmed or (row.backend, row.version) in START_UP


def read_folder(folder: Path) -> tuple[list[OpenLoopRun], Measured]:
    """Runs of ``folder`` and their measurements.

    Raises:
        OpenLoopFileError: a file cannot be read, or a run or a figure is not valid.
    """
    entries, measured = read_entries(folder)
    for entry in entries:
        if isinstance(entry, OpenLoopFailure):
            raise OpenLoopFileError(entry.reason)
    return [entry for entry in entries if isinstance(entry, OpenLoopRun)], measured


def open_loop_cases(folders: Sequence[Path], catalogue: Catalogue) -> list[Case]:
    """Runs of ``folders`` whose whole-run means are measured."""
    cases = []
    for folder in folders:
        runs, measured = read_folder(folder)
        for run in runs:
            name = f"{run.engine}-{run.accelerator}"
            profile = catalogue.get("LatencyProfile", name).spec
            overhead = profile.engines[run.engine]
            alone = profile.model_copy(update={"engines": {run.engine: _without_host_work(overhead)}})
            worker = open_loop.worker_of(run, folder, catalogue, name, alone)
            model = open_loop.model_of(run, folder, catalogue)
            keys = [(run.set, run.id, WHOLE, metric) for metric in ("ttft_mean", "e2e_mean")]
            if all(key in measured for key in keys):
                means_ms = [measured[key] for key in keys]
                errors = partial(_open_loop_errors, run, worker, overhead, model, means_ms)
                case = (run.engine_version, OPEN_LOOP_CAMPAIGN, run.accelerator, plain_name(model.huggingface_id))
                cases.append(Case(OPEN_LOOP, run.engine, *case, errors))
    return cases


def _open_loop_errors(
    run: OpenLoopRun,
    worker: WorkerPlan,
    overhead: EngineOverhead,
    model: ModelSpec,
    means_ms: Sequence[float],
    times: HostTimes,
) -> F8:
    """The step time is taken from E2E, whose tokens are known; ``worker``: without host work."""
    launches = launches_of(model, worker.split, None, worker.engine, list(overhead.graph_batches))
    costs = worker.costs
    seconds = with_host_times(
        costs.seconds, times.on_processor(overhead.host_scale), launches, overlap=worker.engine.overlap
    )
    worker = replace(worker, costs=replace(costs, seconds=seconds, front_end=front_end_of(times)))
    trace, _ = open_loop.trace_of(run)
    table = simulate(worker, trace).requests
    simulated_ms = open_loop.figures(table, table.finished)
    return np.log([simulated_ms[name] / ms for name, ms in zip(("ttft_mean", "e2e_mean"), means_ms, strict=True)])


def served_cases(folders: Sequence[Path], catalogue: Catalogue) -> list[Case]:
    """Served workloads of ``folders`` on their own operator tables, with the measured KV capacity if known."""
    cases = []
    for folder in folders:
        case = read_case(folder, catalogue.names("Accelerator"))
        accelerator = catalogue.get("Accelerator", case.accelerator).spec
        shipped = e2e.estimator_of(case, catalogue).profile.engines[case.engine.name]
        estimator = e2e.estimator_of(case, catalogue, overhead=_without_host_work(shipped))
        ready = e2e.prepare(case, accelerator, estimator, e2e.kv_capacity_tokens(case, accelerator))
        cases.append(
            Case(
                SERVED, case.engine.name, case.engine_version, SERVED_CAMPAIGN, case.accelerator,
                plain_name(case.model.huggingface_id), partial(_served_errors, ready), scale=OF_TABLES,
            )
        )  # fmt: skip
    return cases


def _served_errors(ready: e2e.ReadyCase, times: HostTimes) -> F8:
    """By the engine's own clock; ``ready``: without host work."""
    case, costs = ready.case, ready.costs
    graphs = list(ready.worker.overhead.graph_batches)
    launches = launches_of(case.model, case.split, case.weight_dtype, case.engine, graphs)
    times = times.on_processor(ready.worker.overhead.host_scale)
    seconds = with_host_times(costs.seconds, times, launches, overlap=case.engine.overlap)
    simulated = ready.simulated(replace(costs, seconds=seconds))
    metrics = [e2e.metrics_of(case, request_times) for request_times in (simulated, e2e.measured_times(case))]
    return np.log([metrics[0][name]["mean"] / metrics[1][name]["mean"] for name in ("ttft_s", "tpot_s")])


def _without_host_work(overhead: EngineOverhead) -> EngineOverhead:
    return overhead.with_times(HostTimes(step_s=0.0)).model_copy(update={"versions": {}})
