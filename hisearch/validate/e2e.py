"""End to end against served workloads: the measured requests replayed on steps priced by the case's operator tables.

The simulation gets the measurement's inputs: the tables of that accelerator and model, the requests and when they were
sent. Host overheads are one set per engine version, fabric constants one set per machine. Both come from a
LatencyProfile; none is fitted to a single case.

TTFT and latency count from the time the scheduler took the request in, as engines' own clocks do. Until then it waits
for the engine's loop, which is busy with a step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.latency.costs import CompiledCosts
from hisearch.latency.device_memory.plan import plan_memory
from hisearch.latency.estimators.tables import TablesEstimator, TablesWorker
from hisearch.latency.priced import PricedWorker
from hisearch.simulate import WorkerPlan, simulate
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.machines.hardware import AcceleratorSpec
from hisearch.specs.machines.host import EngineOverhead
from hisearch.specs.machines.profile import LatencyProfileSpec
from hisearch.traces.compiled import CompiledTrace
from hisearch.traces.reading.source import Requests
from hisearch.validate.e2e_case import MeasuredCase, read_case
from hisearch.validate.recorded_trace import trace_of

#: Default profile with an engine's and a machine's constants; those of single machines add the accelerator's name.
PROFILE = "vllm-tables"
STATISTICS = ("mean", "p50", "p90", "p95", "p99")


@dataclass(frozen=True)
class Figure:
    """One figure, measured and simulated; error is relative to the measured. peer_error: another simulator's."""

    measured: float
    simulated: float
    error: float
    peer_error: float | None = None


@dataclass(frozen=True)
class E2eCase:
    """One case at one KV capacity.

    Attributes:
        capacity: ``measured`` or ``predicted``.
        kv_capacity_tokens: of one engine; kv_capacity_error: of the predicted one, if the engine's is known.
        metrics: ttft_s, tpot_s and latency_s, each by statistic.
        mean_abs_error: over these figures. peer_mean_abs_error: of the other simulator, over its figures.
    """

    case: str
    capacity: str
    kv_capacity_tokens: int
    kv_capacity_error: float | None
    metrics: dict[str, dict[str, Figure]]
    output_tokens_per_s: Figure
    makespan_s: Figure
    mean_abs_error: float
    peer_mean_abs_error: float | None
    engine_version: str
    accelerator: str
    profile: str
    warnings: tuple[str, ...] = ()


class Times(NamedTuple):
    """Seconds by request, shape (N,): queued in the scheduler, first token, last token."""

    queued_s: F8
    first_s: F8
    last_s: F8


def validate_cases(folders: Iterable[Path], profile: str | None = None) -> Iterator[E2eCase]:
    """Rows of every case: with the KV capacity as measured, if known, and as predicted.

    Args:
        folders: see ``e2e_case``.
        profile: name or path of a LatencyProfile with the constants; the machine's where None.

    Raises:
        SpecError: a case or profile that cannot be used.
        ValueError: tables that do not price the case.
    """
    catalogue = Catalogue()
    for case in [read_case(folder, catalogue.names("Accelerator")) for folder in folders]:
        yield from _validate(case, catalogue, profile)


def _validate(case: MeasuredCase, catalogue: Catalogue, profile: str | None) -> Iterator[E2eCase]:
    accelerator = catalogue.get("Accelerator", case.accelerator).spec
    estimator = estimator_of(case, catalogue, profile)
    predicted = _predicted_tokens(case, accelerator)
    error = None if case.kv_capacity_tokens is None else predicted / case.kv_capacity_tokens - 1
    measured = [] if case.kv_capacity_tokens is None else [("measured", case.kv_capacity_tokens)]
    for capacity, tokens in [*measured, ("predicted", predicted)]:
        prepared = prepare(case, accelerator, estimator, tokens)
        yield _row(case, capacity, tokens, error, prepared.simulated(prepared.costs), prepared.costs)


@dataclass(frozen=True)
class ReadyCase:
    """A case whose steps are priced: operators, costs with the profile's host work, and KV tokens of one engine."""

    case: MeasuredCase
    worker: TablesWorker
    costs: CompiledCosts
    kv_capacity_tokens: int

    def simulated(self, costs: CompiledCosts) -> Times:
        """Its requests on steps of ``costs``."""
        return _served(self.case, costs, self.kv_capacity_tokens)


def estimator_of(
    case: MeasuredCase, catalogue: Catalogue, profile: str | None = None, overhead: EngineOverhead | None = None
) -> TablesEstimator:
    """Prices a case by its operator tables and the constants of a profile.

    Args:
        case: whose tables.
        catalogue: of profiles.
        profile: name or path; the machine's where None.
        overhead: in place of the profile's host work.

    Raises:
        SpecError: no such profile.
        ValueError: its estimator has no use for tables.
    """
    name = profile or _profile_name(case, catalogue)
    constants: LatencyProfileSpec = catalogue.get("LatencyProfile", name).spec
    if constants.estimator != "tables":
        raise ValueError(
            f"profile {name}: expected estimator tables, whose constants go with a case's operator tables, not "
            f"{constants.estimator}"
        )
    changed: dict[str, Any] = {"operators": str(case.operators)}
    if overhead is not None:
        changed["engines"] = {"vllm": overhead}
    return TablesEstimator(name, constants.model_copy(update=changed))


def prepare(case: MeasuredCase, accelerator: AcceleratorSpec, estimator: TablesEstimator, tokens: int) -> ReadyCase:
    """Price the steps of a case whose engines have KV for ``tokens`` tokens each."""
    priced = _priced(case, accelerator, tokens)
    return ReadyCase(case, estimator.worker(priced), estimator.compile(priced), tokens)


def kv_capacity_tokens(case: MeasuredCase, accelerator: AcceleratorSpec) -> int:
    """Of one engine: as measured, else as predicted."""
    return _predicted_tokens(case, accelerator) if case.kv_capacity_tokens is None else case.kv_capacity_tokens


def _profile_name(case: MeasuredCase, catalogue: Catalogue) -> str:
    machine_profile = f"{PROFILE}-{case.accelerator}"
    return machine_profile if machine_profile in catalogue.names("LatencyProfile") else PROFILE


def _predicted_tokens(case: MeasuredCase, accelerator: AcceleratorSpec) -> int:
    return plan_memory(
        case.model,
        accelerator,
        tensor_parallel=case.arguments.tensor_parallel_size,
        parallelism=case.split,
        weight_dtype=case.weight_dtype,
        kv_dtype=case.kv_dtype,
        engine=case.engine,
        accelerator_name=case.accelerator,
        engine_version=case.engine_version,
        eager=case.arguments.enforce_eager,
    ).kv_capacity_tokens


def _priced(case: MeasuredCase, accelerator: AcceleratorSpec, capacity_tokens: int) -> PricedWorker:
    return PricedWorker(
        case.model,
        accelerator,
        case.split,
        case.weight_dtype,
        case.kv_dtype,
        case.engine,
        max_tokens=max(case.engine.chunk_tokens, case.engine.max_running_requests),
        max_sequences=case.engine.max_running_requests,
        max_context_tokens=capacity_tokens,
    )


def _trace(case: MeasuredCase) -> CompiledTrace:
    block = case.arguments.block_size
    requests = Requests()
    for row in case.requests:
        requests.add(
            row.sent_s, row.input_tokens, row.output_tokens, request_id=str(row.id), ids=row.block_ids,
            known_tokens=block * len(row.block_ids),
        )  # fmt: skip
    return trace_of(requests, block, case.name)


def _served(case: MeasuredCase, costs: CompiledCosts, capacity_tokens: int) -> Times:
    """Serve with a replica for each data-parallel engine, or a single one whose engines step together."""
    # A simulation does not read the memory plan of a worker.
    plan = WorkerPlan(case.engine, costs, None, capacity_tokens, ignore_eos=True, split=case.split)  # type: ignore[arg-type]
    replicas = case.arguments.data_parallel_size // case.split.attention_data
    result = simulate(plan, _trace(case), replicas=replicas, log=True)
    assert result.log is not None
    requests = result.requests
    if not requests.finished.all():
        raise ValueError(f"{case.path}: {int((~requests.finished).sum())} requests do not fit into the predicted KV")
    passes = np.unique(result.log.steps["scheduled_s"])
    # The first pass at or after its arrival takes a request in; an idle engine makes a pass at once.
    at = np.searchsorted(passes, requests.arrival_s)
    queued = np.minimum(passes[np.minimum(at, len(passes) - 1)], requests.scheduled_s)
    return Times(np.maximum(queued, requests.arrival_s), requests.first_token_s, requests.finish_s)


def _row(
    case: MeasuredCase, capacity: str, tokens: int, error: float | None, simulated: Times, costs: CompiledCosts
) -> E2eCase:
    measured = measured_times(case)
    measured_metrics, simulated_metrics = metrics_of(case, measured), metrics_of(case, simulated)
    metrics = {
        name: {
            statistic: _figure(
                measured_metrics[name][statistic], simulated_metrics[name][statistic], case.peer.get((name, statistic))
            )
            for statistic in STATISTICS
        }
        for name in measured_metrics
    }
    outputs = sum(row.output_tokens for row in case.requests)
    spans = [float(times.last_s.max() - times.queued_s.min()) for times in (measured, simulated)]
    errors = [abs(figure.error) for figures in metrics.values() for figure in figures.values()]
    return E2eCase(
        case=case.name,
        capacity=capacity,
        kv_capacity_tokens=tokens,
        kv_capacity_error=error if capacity == "predicted" else None,
        metrics=metrics,
        output_tokens_per_s=_figure(*(outputs / span for span in spans)),
        makespan_s=_figure(*spans),
        mean_abs_error=float(np.mean(errors)),
        peer_mean_abs_error=float(np.mean(np.abs(list(case.peer.values())))) if case.peer else None,
        engine_version=case.engine_version,
        accelerator=case.accelerator,
        profile=costs.profile,
        warnings=(*case.warnings, *costs.warnings),
    )


def measured_times(case: MeasuredCase) -> Times:
    """Times by the engine's own clock."""
    names = ("queued_s", "first_token_s", "last_token_s")
    return Times(*(np.array([getattr(row.measured, name) for row in case.requests]) for name in names))


def _figure(measured: float, simulated: float, peer_error: float | None = None) -> Figure:
    return Figure(measured, simulated, simulated / measured - 1, peer_error)


def metrics_of(case: MeasuredCase, times: Times) -> dict[str, dict[str, float]]:
    """ttft_s, tpot_s and latency_s, each by statistic."""
    outputs = np.array([row.output_tokens for row in case.requests])
    several = outputs > 1
    tpot = (times.last_s - times.first_s)[several] / (outputs[several] - 1)
    return {
        "ttft_s": _statistics(times.first_s - times.queued_s),
        "tpot_s": _statistics(tpot),
        "latency_s": _statistics(times.last_s - times.queued_s),
    }


def _statistics(values: F8) -> dict[str, float]:
    percentiles = np.percentile(values, [50, 90, 95, 99])
    return dict(zip(STATISTICS, [float(values.mean()), *map(float, percentiles)], strict=True))
