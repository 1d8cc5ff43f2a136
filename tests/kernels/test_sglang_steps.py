"""SGLang's kernel against the slow reference, every logged step of random systems, bit for bit, in every setting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisearch.kernels.fleet import cluster
from hisearch.kernels.layout import sim as la
from hisearch.simulate import Result, simulate
from hisearch.simulate import engine as engine_arrays
from hisearch.simulate.engine import EngineOutOfMemory
from hisearch.simulate.plans.fleet import FleetPlan, PoolPlan
from hisearch.specs.deployments.deployment import EngineSpec, PoolSpec
from hisearch.traces.compiler import compile_trace
from hisearch.traces.trace import make_trace
from tests.kernels.systems import System, compiled, crowded, examples, plan, sglang_engines, systems
from tests.kernels.test_limits import AMPLE, serialised, single_request, token_paths
from tests.reference.cluster import ClusterOutcome
from tests.reference.random_traces import TraceShape, random_trace
from tests.reference.restatement.recording import Step
from tests.reference.restatement.sglang_cache import OutOfMemoryError
from tests.reference.restatement.vllm import StuckError

KINDS = {"prefill": la.PREFILL_STEP, "decode": la.DECODE_STEP, "mixed": la.MIXED_STEP}
REQUEST_COLUMNS = (
    "outcome", "worker", "arrival_s", "scheduled_s", "first_token_s", "finish_s", "hit_tokens", "preemptions",
)  # fmt: skip
WORKER_COUNTS = (
    "steps", "requests", "preemptions", "prefill_tokens", "decode_tokens", "peak_kv_tokens", "evicted_tokens",
)  # fmt: skip

#: Declared outputs beyond what admission reserves for, and below it.
BEYOND_THE_CLIP = TraceShape(requests=30, rate_rps=50.0, prompt_tokens=100, output_tokens=90, slack=90.0)
#: A queue of many short prompts that share a head.
LONG_QUEUE = TraceShape(requests=150, rate_rps=400.0, prompt_tokens=60, output_tokens=6, follow_up=0.1)
#: Everybody at once: many end in the same step, several are retracted together or behind a prefill.
TOGETHER = [
    TraceShape(
        requests=60, rate_rps=300.0, prompt_tokens=prompt, output_tokens=output, follow_up=0.2, same_time=0.7, slack=1.0
    )
    for prompt, output in ((12, 40), (30, 12), (12, 20))
]


def pressed() -> st.SearchStrategy[System]:
    """Small pools under requests that arrive together."""
    return st.builds(
        System,
        seed=st.integers(0, 1 << 20),
        engine=st.builds(
            lambda engine, caching: engine.model_copy(
                update={"max_running_requests": 16, "schedule_conservativeness": 0.02, "prefix_caching": caching}
            ),
            sglang_engines(mixed=True),
            st.sampled_from([True, True, False]),
        ),
        capacity_tokens=st.sampled_from([120, 240, 400]),
        shape=st.sampled_from(TOGETHER),
        rugged=st.booleans(),
        ignore_eos=st.booleans(),
    )


def logged_steps(result: Result, worker: int) -> list[tuple[Any, ...]]:
    """A worker's steps: kind, times, entries, retractions, pool, ratio."""
    log = result.log
    assert log is not None
    rows = []
    for k in np.flatnonzero(log.steps["worker"] == worker).tolist():
        step = log.steps[k]
        entries = [(int(e["request"]), int(e["computed"]), int(e["tokens"])) for e in log.batch(k)]
        times = tuple(float(step[name]) for name in ("scheduled_s", "start_s", "end_s"))
        pool = (int(step["free_tokens"]), int(step["evictable_tokens"]))
        rows.append((int(step["kind"]), times, entries, log.lost_in(k).tolist(), pool, float(step["ratio"])))
    return rows


def reference_steps(steps: Sequence[Step]) -> list[tuple[Any, ...]]:
    """The same of the reference."""
    return [
        (
            KINDS[step.kind],
            (step.scheduled_s, step.start_s, step.end_s),
            [(entry.id, entry.computed, entry.new) for entry in step.batch],
            step.preempted,
            step.pool,
            step.ratio,
        )
        for step in steps
    ]


def simulated(system: System, log: bool) -> Result | None:
    """None where the engine runs out of memory, or stands still for ever (``EngineStuck``)."""
    try:
        return system.simulate(log=log)
    except EngineOutOfMemory:
        return None


def referred(system: System) -> ClusterOutcome | None:
    """None where the engine runs out of memory, or a request can never be admitted."""
    try:
        return system.reference()
    except (OutOfMemoryError, StuckError):
        return None


def assert_equal_steps(system: System) -> Result | None:
    """Every step and every total of a system's run is that of the reference, with and without a log."""
    result, outcome = simulated(system, log=True), referred(system)
    assert (result is None) == (outcome is None)
    if result is None or outcome is None:
        assert simulated(system, log=False) is None
        return None
    for w, worker in enumerate(outcome.workers):
        mine, theirs = logged_steps(result, w), reference_steps(worker.steps)
        for k, (step, expected_step) in enumerate(zip(mine, theirs, strict=False)):
            assert step == expected_step, f"worker {w}, step {k}"
        assert len(mine) == len(theirs)
    for name in REQUEST_COLUMNS:
        theirs = [getattr(request, name) for request in outcome.requests.values()]
        expected = np.array([np.nan if value is None else value for value in theirs], float)
        np.testing.assert_array_equal(getattr(result.requests, name), expected, err_msg=name)
    for name in WORKER_COUNTS:
        counted = [len(w.steps) if name == "steps" else getattr(w, name) for w in outcome.workers]
        assert getattr(result.workers, name).tolist() == counted, name
    # Sums of the same durations, added run by run in the kernels and step by step in the reference.
    busy = [worker.busy_s for worker in outcome.workers]
    np.testing.assert_allclose(result.workers.busy_s, busy, rtol=1e-9, atol=1e-12)
    unlogged = simulated(system, log=False)
    assert unlogged is not None
    for name in REQUEST_COLUMNS:
        np.testing.assert_array_equal(getattr(unlogged.requests, name), getattr(result.requests, name))
    for name in WORKER_COUNTS:
        np.testing.assert_array_equal(getattr(unlogged.workers, name), getattr(result.workers, name))
    return result


@examples(200)
@given(system=systems(sglang_engines(mixed=True, version=None), repeats=True))
def test_every_step_equals_the_reference(system: System) -> None:
    assert_equal_steps(system)


@examples(60)
@given(system=systems(sglang_engines(mixed=True, version="0.5.23"), repeats=True))
def test_every_step_of_the_newest_release_equals_the_reference(system: System) -> None:
    assert_equal_steps(system)


@pytest.mark.parametrize(("count", "least"), [(20, 20), pytest.param(100, 200, marks=pytest.mark.slow)])
def test_every_step_equals_the_reference_while_memory_is_short(count: int, least: int) -> None:
    retracted = 0

    @examples(count, always=True)
    @given(system=crowded("sglang"))
    def check(system: System) -> None:
        nonlocal retracted
        result = assert_equal_steps(system)
        retracted += 0 if result is None else int(result.workers.preemptions.sum())

    check()
    assert retracted > least


@pytest.mark.slow
def test_every_step_equals_the_reference_while_many_press() -> None:
    together = 0

    @examples(200, always=True)
    @given(system=pressed())
    def check(system: System) -> None:
        nonlocal together
        result = assert_equal_steps(system)
        together += 0 if result is None or result.log is None else int((result.log.steps["lost"] > 1).sum())

    check()
    assert together > 5


@examples(60)
@given(seed=st.integers(0, 1 << 20), engine=sglang_engines(mixed=True), capacity=st.sampled_from([5000, 9000, 40_000]))
def test_outputs_beyond_the_clip_equal_the_reference(seed: int, engine: EngineSpec, capacity: int) -> None:
    assert_equal_steps(System(seed, engine, capacity, shape=BEYOND_THE_CLIP))


@pytest.mark.parametrize("schedule", ["lpm", "dfs-weight", "random", "lof", "priority"])
def test_long_queues_are_ordered_as_by_the_reference(schedule: str) -> None:
    @examples(12)
    @given(seed=st.integers(0, 1 << 20), page=st.sampled_from([1, 4]), overlap=st.booleans())
    def check(seed: int, page: int, overlap: bool) -> None:
        engine = EngineSpec.model_validate(
            {"name": "sglang", "schedule": schedule, "page_tokens": page, "max_running_requests": 8, "overlap": overlap}
        )
        system = System(seed, engine, 1500, shape=LONG_QUEUE)
        ordered = assert_equal_steps(system)
        plain = replace(system, engine=engine.model_copy(update={"schedule": "fcfs"})).simulate()
        assert ordered is not None
        assert ordered.requests.scheduled_s.tolist() != plain.requests.scheduled_s.tolist()

    check()


@examples(30)
@given(prompt=st.integers(1, 2000), output=st.integers(1, 200), chunk=st.sampled_from([64, 8192]))
def test_l7_overlap_adds_one_decode_to_a_lone_request(prompt: int, output: int, chunk: int) -> None:
    """Its results are one pass late: the times are those without overlap, and one more step is run."""
    runs = [
        simulate(
            plan(EngineSpec(name="sglang", chunk_tokens=chunk, overlap=overlap), AMPLE), single_request(prompt, output)
        )
        for overlap in (True, False)
    ]
    for name in ("scheduled_s", "first_token_s", "finish_s"):
        np.testing.assert_array_equal(*(getattr(run.requests, name) for run in runs))
    late, plain = (run.workers for run in runs)
    assert late.steps[0] == plain.steps[0] + 1
    assert late.decode_tokens[0] == plain.decode_tokens[0] + 1
    extra_s = 0.005 + 2e-5 + 1e-9 * (prompt + output)
    assert late.busy_s[0] == pytest.approx(plain.busy_s[0] + extra_s, rel=1e-9)
    assert late.energy_j[0] == pytest.approx(300 * late.busy_s[0], rel=1e-9)


@examples(10)
@given(seed=st.integers(0, 1000), page=st.sampled_from([1, 4, 16]))
def test_l7_overlap_caches_the_last_output_token_too(seed: int, page: int) -> None:
    arrays = serialised(random_trace(seed))
    table = simulate(plan(EngineSpec(name="sglang", page_tokens=page), AMPLE), compiled(arrays)).requests
    paths = token_paths(arrays)
    for k, prompt in enumerate(arrays.input_tokens.tolist()):
        best = 0
        for earlier in paths[:k]:
            limit = min(len(earlier), prompt - 1)
            best = max(best, next((i for i in range(limit) if earlier[i] != paths[k][i]), limit))
        assert table.hit_tokens[k] == best // page * page


@pytest.mark.parametrize("version", ["0.5.9", "0.5.23"])
def test_urgent_requests_preempt_far_less_urgent_ones(version: str) -> None:
    trace = random_trace(1)
    late = np.arange(len(trace.priority)) >= 10
    priorities = np.where(late, 0, 11).astype(np.int32)
    for threshold, preempts in ((11, False), (10, True)):
        engine = EngineSpec(
            name="sglang",
            version=version,
            schedule="priority",
            preemption_threshold=threshold,
            max_running_requests=2,
        )
        table = simulate(plan(engine, AMPLE), compiled(trace._replace(priority=priorities))).requests
        assert table.finished.all()
        assert (table.preemptions.sum() > 0) == preempts


@pytest.mark.parametrize("schedule", ["lpm", "dfs-weight"])
def test_too_few_node_records_void_a_run_or_change_nothing(schedule: str) -> None:
    """Looking up the whole queue may split a node for each request in it, more than a pass is given records for."""
    engine = EngineSpec.model_validate({"name": "sglang", "schedule": schedule, "max_running_requests": 4})
    system = System(3, engine, 1500, shape=LONG_QUEUE)
    expected = system.simulate().requests.finish_s
    voided = 0
    for records in range(80, 400, 16):
        fleet, (sim,) = engine_arrays.allocate(
            FleetPlan((PoolPlan(system.plan),), system.router), system.trace, [records], seed=system.seed
        )
        cluster.run(fleet)
        assert sim.counters[la.NODES_USED] <= len(sim.nodes)
        if sim.counters[la.FAULT]:
            assert sim.counters[la.FAULT] == la.NODE_POOL_FULL
            voided += 1
        else:
            np.testing.assert_array_equal(sim.requests["finish_s"], expected)
    assert 0 < voided < 20


def test_policies_of_eviction_differ() -> None:
    """Each policy leads to hits of its own on some trace, but for those that are lru without a host tier."""
    base = {"name": "sglang", "max_running_requests": 4, "schedule_conservativeness": 0.2}
    hits: dict[str, list[list[int]]] = {}
    for policy in ("lru", "lfu", "fifo", "mru", "filo", "slru", "priority"):
        engine = EngineSpec.model_validate({**base, "eviction": policy})
        runs = [System(seed, engine, 600).simulate() for seed in range(8)]
        hits[policy] = [run.requests.hit_tokens.tolist() for run in runs]
    assert hits["lru"] == hits["lfu"] == hits["slru"]
    distinct = [hits[policy] for policy in ("lru", "fifo", "mru", "filo", "priority")]
    assert all(a != b for k, a in enumerate(distinct) for b in distinct[:k])


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("interval", [1, 7, 30])
def test_what_comes_while_others_decode_is_looked_for_every_so_often(interval: int, overlap: bool) -> None:
    """The pass behind a prefill looks; from there on every ``interval``-th of those behind decodes."""
    engine = EngineSpec(name="sglang", receive_interval=interval, overlap=overlap, prefix_caching=False)
    trace = make_trace(
        arrival_s=np.array([0.0, 0.05]), input_tokens=np.array([40, 40]), output_tokens=np.array([200, 4])
    )
    result = simulate(plan(engine, AMPLE), compile_trace(trace, "two", "two"), log=True)
    assert result.log is not None
    kinds = result.log.steps["kind"].tolist()
    second = kinds.index(la.PREFILL_STEP, 1)
    assert kinds[1:second] == [la.DECODE_STEP] * (second - 1)
    assert second > 1
    assert (second - 1) % interval == 0


def test_a_receive_interval_is_sglangs_and_of_single_batches() -> None:
    with pytest.raises(ValueError, match="receive_interval"):
        EngineSpec(name="vllm", receive_interval=2)
    with pytest.raises(ValueError, match="receive_interval"):
        PoolSpec.model_validate(
            {
                "accelerator": "h100-sxm",
                "engine": {"name": "sglang", "receive_interval": 2},
                "attention_data_parallel": 2,
            }
        )
