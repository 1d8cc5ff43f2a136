"""Benchmarks that compare two or three variants of a simulation.

Their points are timed in turns, round after round, so that other load on the machine affects all of them.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hisearch.api.bench.cases import CASES, Run, generator_of, plan_of, replay, simulation_of
from hisearch.specs.documents.catalogue import Catalogue

if TYPE_CHECKING:
    from hisearch.latency.costs import StepCosts
    from hisearch.simulate.plans.plan import WorkerPlan
    from hisearch.traces.trace import Trace

#: Lengths of the traces of ``flat``; all are heads of one trace.
_FLAT_REQUESTS = (10_000, 100_000, 1_000_000)
#: ``long-prompts``: requests, factor on prompts, seconds of every step (fixed, so that the schedule does not change).
_LONG_REQUESTS, _LONGER, _LONG_STEP_S = 20_000, 10, 0.03
#: ``threads``: simulations of a round, on one and on this many threads.
_BATCH, _THREADS = 16, 2

#: The comparison that needs several cores.
THREADS = "threads"


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Median, smallest and largest."""
    return {"median": statistics.median(seconds), "min": min(seconds), "max": max(seconds)}


@dataclass(frozen=True)
class Point:
    """One variant: (requests, steps) of a run, and wall time of each run, seconds."""

    label: str
    requests: int
    steps: int | None
    wall_s: tuple[float, ...]

    @property
    def median_s(self) -> float:
        """Median wall time of a run, seconds."""
        return statistics.median(self.wall_s)

    @property
    def request_s(self) -> float:
        """Median wall time per simulated request, seconds."""
        return self.median_s / self.requests

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return asdict(self) | {"wall_s": spread(self.wall_s), "us_per_request": 1e6 * self.request_s}


@dataclass(frozen=True)
class Comparison:
    """Points and their ratio.

    quantity: the name of ``ratio``. goal: its bound, an upper one unless ``more_is_better``.
    """

    quantity: str
    points: tuple[Point, ...]
    ratio: float
    goal: float
    more_is_better: bool = False

    @property
    def met(self) -> bool:
        """True where the ratio is within its goal."""
        return self.ratio >= self.goal if self.more_is_better else self.ratio <= self.goal

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return asdict(self) | {"points": [point.to_dict() for point in self.points], "met": self.met}


def time_in_turns(
    runs: Mapping[str, Callable[[], tuple[int, int | None]]],
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[Point, ...]:
    """Warm every run up, then time all of them in each round; a point per run, by its label.

    Args:
        runs: label -> a call that returns (requests, steps).
        rounds: timed runs of each.
        clock: seconds; wall time by default.
    """
    counts = {label: run() for label, run in runs.items()}
    wall_s: dict[str, list[float]] = {label: [] for label in runs}
    for _ in range(rounds):
        for label, run in runs.items():
            started = clock()
            run()
            wall_s[label].append(clock() - started)
    return tuple(Point(label, *counts[label], tuple(wall_s[label])) for label in runs)


def flat(case_name: str, rounds: int) -> Comparison:
    """Time per request at ten thousand to a million requests: same deployment and arrival rate, longer spans."""
    from hisearch.traces.changes.selection import head
    from hisearch.traces.compiler import compile_trace
    from hisearch.traces.generate import generate_trace

    case, catalogue = CASES[case_name], Catalogue()
    generator = generator_of(case.workload, catalogue)
    assert generator.arrivals is not None  # no case of a benchmark has classes
    steady = generator.model_copy(
        update={
            "requests": _FLAT_REQUESTS[-1],
            "arrivals": generator.arrivals.model_copy(update={"diurnal_amplitude": 0.0}),
        }
    )
    full_trace = compile_trace(generate_trace(steady), case.workload)
    plan = plan_of(case, catalogue)
    runs = {f"{count:,} requests": replay(case, plan, head(full_trace, count)) for count in _FLAT_REQUESTS}
    points = time_in_turns(runs, rounds)
    times = [point.request_s for point in points]
    return Comparison("time per request, largest over smallest", points, max(times) / min(times), 1.5)


def long_prompts(case_name: str, rounds: int) -> Comparison:
    """Time of a simulation with prompts ten times as long, in as many steps.

    Prompt chunks and KV memory grow with them, and every step takes the same simulated time. The difference is the
    simulator's own cost of longer prompts.
    """
    from hisearch.traces.compiler import compile_trace
    from hisearch.traces.generate import generate_trace

    case, catalogue = CASES[case_name], Catalogue()
    generator = generator_of(case.workload, catalogue)
    trace = _prompts_alone(generate_trace(generator.model_copy(update={"requests": _LONG_REQUESTS})))
    plan = plan_of(case, catalogue)
    runs = {
        label: replay(case, _scaled(plan, factor), compile_trace(_stretched(trace, factor), case.workload))
        for label, factor in (("prompts as they are", 1), (f"{_LONGER} times as long", _LONGER))
    }
    points = time_in_turns(runs, rounds)
    return Comparison("time, long over short", points, points[1].median_s / points[0].median_s, 2.0)


def _prompts_alone(trace: Trace) -> Trace:
    """The trace with follow-ups that share their predecessor's prompt but not its output, so that it scales."""
    shared = np.minimum(trace.shared_tokens, trace.input_tokens[np.maximum(trace.shares_with, 0)])
    return replace(trace, shared_tokens=shared)


def _stretched(trace: Trace, factor: int) -> Trace:
    return replace(trace, input_tokens=factor * trace.input_tokens, shared_tokens=factor * trace.shared_tokens)


def _scaled(plan: WorkerPlan, factor: int) -> WorkerPlan:
    """The worker with budgets and memory for prompts ``factor`` times as long, and steps of equal length."""
    from hisearch.simulate.plans.plan import NO_WINDOW

    engine = plan.engine
    budgets = {name: factor * getattr(engine, name) for name in ("chunk_tokens", "max_prefill_tokens")}
    seconds = _even(plan.costs.seconds)._replace(host_s=_LONG_STEP_S)
    return replace(
        plan,
        engine=engine.model_copy(update=budgets),
        costs=replace(plan.costs, seconds=seconds, joules=_even(plan.costs.joules)),
        kv_capacity_tokens=factor * plan.kv_capacity_tokens,
        max_request_tokens=NO_WINDOW,
    )


def _even(costs: StepCosts) -> StepCosts:
    """Costs of the same shape that do not depend on the batch."""
    tables: dict[str, Any] = {
        name: np.zeros_like(value) for name, value in costs._asdict().items() if isinstance(value, np.ndarray)
    }
    return costs._replace(host_per_sequence_s=0.0, **tables)


def enough_cores() -> bool:
    """True where this process may use as many cores as ``threads`` needs."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores >= _THREADS


def threads(case_name: str, rounds: int) -> Comparison:
    """Throughput of two threads over one: many simulations of one compiled trace.

    Raises:
        ValueError: the process may use too few cores.
    """
    if not enough_cores():
        raise ValueError(f"it needs {_THREADS} cores; this process may use fewer")
    simulation = simulation_of(case_name)
    with ThreadPoolExecutor(1) as single, ThreadPoolExecutor(_THREADS) as many:
        runs = {"1 thread": _batch(single, simulation), f"{_THREADS} threads": _batch(many, simulation)}
        points = time_in_turns(runs, rounds)
    speed_up = points[0].median_s / points[1].median_s
    return Comparison("throughput, two threads over one", points, speed_up, 1.8, more_is_better=True)


def _batch(pool: ThreadPoolExecutor, simulation: Run) -> Run:
    def run() -> tuple[int, int]:
        counts = [future.result() for future in [pool.submit(simulation) for _ in range(_BATCH)]]
        return sum(requests for requests, _ in counts), sum(steps for _, steps in counts)

    return run


#: Name -> (comparison, case).
COMPARISONS: dict[str, tuple[Callable[[str, int], Comparison], str]] = {
    "flat": (flat, "million"),
    "flat-vllm": (flat, "million-vllm"),
    "long-prompts": (long_prompts, "million"),
    "long-prompts-vllm": (long_prompts, "million-vllm"),
    THREADS: (threads, "chat-multiturn"),
}
