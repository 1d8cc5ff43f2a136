"""The kernels against the slow reference: step by step and request by request, bit for bit, on random systems."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from hisearch.base.policies import ROUTERS
from hisearch.latency.step_cost import step_seconds
from hisearch.simulate import Result
from hisearch.simulate.arrays import offload as offload_arrays
from hisearch.simulate.engine import EngineOutOfMemory, EngineStuck
from hisearch.specs.deployments.deployment import EngineSpec
from tests.kernels.systems import (
    ENGINES,
    System,
    any_engines,
    compiled,
    crowded,
    examples,
    lmcache_systems,
    offload_systems,
    routed,
    router_with,
    sglang_engines,
    systems,
    trtllm_drafts_systems,
    trtllm_engines,
    trtllm_host_systems,
    vllm_engines,
)
from tests.reference import lmcache
from tests.reference.cluster import ClusterOutcome
from tests.reference.random_traces import TraceShape
from tests.reference.restatement.recording import step_seconds as batch_seconds
from tests.reference.restatement.sglang_cache import OutOfMemoryError
from tests.reference.restatement.transfers import CopyLaw
from tests.reference.restatement.vllm import StuckError
from tests.reference.vllm_offload_store import OffloadConfig
from tests.simulate.logged import assert_first_visible

#: Policies that learn from workers, whether their caches, their metrics or the ends of their prefills.
LOOKING = tuple(name for name, policy in ROUTERS.items() if policy.asks_workers)

#: Few requests, of which some follow others.
_FEW = TraceShape(
    requests=5, rate_rps=5.0, prompt_tokens=20, output_tokens=8, shared_prefixes=3, follow_up=0.3, fork=0.1,
    same_time=0.1, repeat=0.0,
)  # fmt: skip


def _request_rows(outcome: ClusterOutcome) -> list[tuple[float, ...]]:
    def number(value: float | None) -> float:
        return np.nan if value is None else value

    return [
        (
            request.outcome, request.worker, request.arrival_s, number(request.scheduled_s),
            number(request.first_token_s), number(request.finish_s), request.hit_tokens, request.preemptions,
        )
        for request in outcome.requests.values()
    ]  # fmt: skip


def _simulated_rows(result: Result) -> list[tuple[float, ...]]:
    table = result.requests
    hits = table.hit_tokens + table.host_hit_tokens + table.storage_hit_tokens
    columns = (
        table.outcome, table.worker, table.arrival_s, table.scheduled_s,
        table.first_token_s, table.finish_s, hits, table.preemptions,
    )  # fmt: skip
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _worker_rows(outcome: ClusterOutcome) -> list[tuple[int, ...]]:
    return [
        (
            len(worker.steps), worker.requests, worker.preemptions, worker.prefill_tokens, worker.decode_tokens,
            worker.peak_kv_tokens, worker.evicted_tokens,
        )
        for worker in outcome.workers
    ]  # fmt: skip


def _simulated_worker_rows(result: Result) -> list[tuple[int, ...]]:
    table = result.workers
    columns = (
        table.steps, table.requests, table.preemptions, table.prefill_tokens, table.decode_tokens,
        table.peak_kv_tokens, table.evicted_tokens,
    )  # fmt: skip
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _joules(system: System, outcome: ClusterOutcome) -> list[float]:
    """Energy by the same law as the seconds', step by step."""
    if system.drafts is not None:
        return [sum(step_seconds(system.costs.joules, *step) for step in engine.priced) for engine in outcome.engines]

    def cost(chunks: Any, decodes: Any, sampling: int) -> float:
        return step_seconds(system.costs.joules, chunks, [context + 1 for context in decodes], sampling)

    return [sum(batch_seconds(cost, step.batch) for step in worker.steps) for worker in outcome.workers]


def _assert_same_steps(result: Result, outcome: ClusterOutcome) -> None:
    """Batches in order, times and losses of every step."""
    log = result.log
    assert log is not None
    mine: list[list[int]] = [[] for _ in outcome.workers]
    for k, w in enumerate(log.steps["worker"].tolist()):
        mine[w].append(k)
    for w, worker in enumerate(outcome.workers):
        for k, step in zip(mine[w], worker.steps, strict=False):
            record = log.steps[k]
            batch = [tuple(row) for row in log.batch(k)[["request", "computed", "tokens"]].tolist()]
            assert batch == [(entry.id, entry.computed, entry.new) for entry in step.batch], f"step at {step.start_s}"
            assert sorted(log.lost_in(k).tolist()) == sorted(step.preempted), f"step at {step.start_s}"
            times = (record["scheduled_s"], record["start_s"], record["end_s"])
            assert times == (step.scheduled_s, step.start_s, step.end_s)
        assert len(mine[w]) == len(worker.steps)


def _assert_equal(system: System) -> Result:
    try:
        outcome = system.reference()
    except (StuckError, OutOfMemoryError) as error:
        with pytest.raises(EngineStuck if isinstance(error, StuckError) else EngineOutOfMemory):
            system.simulate()
        assume(False)
    result = system.simulate(log=True)
    _assert_same_steps(result, outcome)
    assert_first_visible(result, {index: request.token_s for index, request in outcome.requests.items()})
    for k, (mine, theirs) in enumerate(zip(_simulated_rows(result), _request_rows(outcome), strict=True)):
        assert np.array_equal(mine, theirs, equal_nan=True), f"request {k}: kernel {mine}, reference {theirs}"
    assert _simulated_worker_rows(result) == _worker_rows(outcome)
    # Sums of the same durations, added run by run in the kernels and step by step in the reference.
    np.testing.assert_allclose(result.workers.busy_s, [w.busy_s for w in outcome.workers], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(result.workers.energy_j, _joules(system, outcome), rtol=1e-9)
    return result


@examples(200)
@given(system=systems(vllm_engines(), repeats=True))
def test_vllm_equals_its_reference(system: System) -> None:
    _assert_equal(system)


def asked_between_arrivals() -> System:
    """Two requests at once: the second worker has the first of them in its inbox when the router asks for its load."""
    engine = EngineSpec(
        name="sglang", version="0.5.9", max_running_requests=1, chunk_tokens=16, max_prefill_tokens=64, overlap=False
    )
    shape = TraceShape(requests=5, rate_rps=5.0, prompt_tokens=20, output_tokens=8, shared_prefixes=3, fork=0.1)
    router = router_with("power_of_two", load_poll_s=0.0)
    return System(
        0, engine, capacity_tokens=150, workers=2, router=router, shape=replace(shape, follow_up=0.3, repeat=0.0)
    )


@examples(200)
@given(system=systems(sglang_engines(version=None), repeats=True))
@example(system=asked_between_arrivals())
def test_sglang_equals_its_reference(system: System) -> None:
    _assert_equal(system)


def uncut_prompts_of_equal_length() -> System:
    """Two prompts, each a step longer than the limits, have the same number of tokens."""
    engine = EngineSpec(
        name="sglang", version="0.5.9", max_running_requests=1, chunk_tokens=16, chunked_prefill=False,
        max_prefill_tokens=64, overlap=False,
    )  # fmt: skip
    shape = replace(_FEW, requests=30, prompt_tokens=150, slack=1.0)
    return System(0, engine, capacity_tokens=150, shape=shape)


@examples(100)
@given(system=systems(sglang_engines(version=None), repeats=True), kernel_compile_s=st.sampled_from([0.003, 0.05]))
@example(system=uncut_prompts_of_equal_length(), kernel_compile_s=0.003)
def test_sglang_that_compiles_for_new_lengths_equals_its_reference(system: System, kernel_compile_s: float) -> None:
    _assert_equal(replace(system, kernel_compile_s=kernel_compile_s))


def test_sglang_comes_to_a_halt_where_a_request_can_never_be_admitted() -> None:
    """Without radix cache it reserves the whole output limit of a request that ignores the end of sequence."""
    engine = EngineSpec(
        name="sglang", version="0.5.23", max_running_requests=1, chunk_tokens=16, max_prefill_tokens=64,
        prefix_caching=False, overlap=False,
    )  # fmt: skip
    shape = TraceShape(
        requests=20, rate_rps=5.0, prompt_tokens=20, output_tokens=60, shared_prefixes=3, follow_up=0.3, fork=0.1,
        same_time=0.1, repeat=0.1, slack=3.0,
    )  # fmt: skip
    system = System(0, engine, capacity_tokens=150, shape=shape, ignore_eos=True)
    with pytest.raises(StuckError):
        system.reference()
    with pytest.raises(EngineStuck, match="waits for ever; with its output limit it reserves more than 150 KV tokens"):
        system.simulate()


@examples(200)
@given(system=systems(trtllm_engines(), repeats=True))
def test_trtllm_equals_its_reference(system: System) -> None:
    _assert_equal(system)


@examples(200)
@given(system=systems(trtllm_engines(by_priority=True), repeats=True))
def test_trtllm_by_priority_equals_its_reference(system: System) -> None:
    _assert_equal(system)


@examples(200)
@given(
    system=systems(trtllm_engines(gathers=True) | trtllm_engines(gathers=True, by_priority=True), repeats=True)
    | trtllm_host_systems(gathers=True)
)
def test_trtllm_whose_passes_wait_for_requests_equals_its_reference(system: System) -> None:
    _assert_equal(system)


@examples(300)
@given(system=trtllm_drafts_systems())
def test_trtllm_with_drafts_equals_its_reference(system: System) -> None:
    _assert_equal(system)


def _assert_same_without_log(system: System, logged: Result) -> None:
    """Where nothing asks for every step, runs of them may end later; what comes of it is the same."""
    result = system.simulate()
    np.testing.assert_array_equal(_simulated_rows(result), _simulated_rows(logged))
    assert _simulated_worker_rows(result) == _simulated_worker_rows(logged)
    assert (result.stores, result.links, result.makespan_s) == (logged.stores, logged.links, logged.makespan_s)


def _in_a_pool(system: System, slots: int) -> System:
    """The first requests at once, the others pooled behind them; prompts may hold outputs still being generated."""
    pooled = replace(system, pooled=True)
    arrays = pooled.trace.arrays
    index = np.arange(len(arrays.arrival_s))
    think_s = np.where(index < slots, 0.0, np.random.default_rng(system.seed).choice([0.0, 0.01, 0.3], len(index)))
    previous = np.where(index < slots, -1, index - slots).astype(np.int32)
    arrival_s = np.where(index < slots, 0.0, np.nan)
    traced = arrays._replace(arrival_s=arrival_s, previous=previous, think_s=think_s)
    object.__setattr__(pooled, "trace", compiled(traced))
    return pooled


@examples(150)
@given(system=systems(any_engines(), repeats=True), slots=st.integers(1, 8))
def test_requests_in_a_pool_equal_their_reference(system: System, slots: int) -> None:
    """The next one comes when any has ended; never are more in flight than there are slots (L1)."""
    pooled = _in_a_pool(system, slots)
    result = _assert_equal(pooled)
    _assert_same_without_log(pooled, result)
    table = result.requests
    came, ended = np.sort(table.arrival_s), np.sort(np.where(table.finished, table.finish_s, table.arrival_s))
    assert (came[slots:] >= ended[: max(len(ended) - slots, 0)]).all()


@examples(200)
@given(system=trtllm_host_systems())
def test_trtllm_with_its_host_cache_equals_its_reference(system: System) -> None:
    _assert_equal(system)


def reuse_under_pressure() -> System:
    """A prompt misses and is stored; others fill the cache; then it comes again."""
    shape = TraceShape(
        requests=5, rate_rps=5.0, prompt_tokens=20, output_tokens=8, shared_prefixes=3, follow_up=0.3, fork=0.1,
        same_time=0.5, repeat=0.0,
    )  # fmt: skip
    engine = EngineSpec(name="vllm", page_tokens=1, max_running_requests=1, chunk_tokens=64, prefix_caching=False)
    free = CopyLaw(0.0, 0.0)
    return System(
        seed=213,
        engine=engine.model_copy(update={"overlap": False}),
        capacity_tokens=150,
        shape=shape,
        rugged=False,
        offload=OffloadConfig(64, free, free),
    )


def shared_store_of_idle_workers() -> System:
    """A worker waits for a block that the other, which has nothing to do, is copying to the store of both."""
    offload = OffloadConfig(64, CopyLaw(0.0, 4e-6), CopyLaw(0.0, 0.0))
    return _on_one_request(replace(_FEW, follow_up=0.6), 150, offload, workers=2, overlap=False)


def flush_without_a_batch() -> System:
    """A pass that forms no batch waits for copies; a request comes meanwhile."""
    offload = OffloadConfig(300, CopyLaw(0.0, 0.001), CopyLaw(0.0, 0.0))
    return _on_one_request(replace(_FEW, prompt_tokens=150), 300, offload, workers=1, overlap=True)


def _on_one_request(
    shape: TraceShape, capacity_tokens: int, offload: OffloadConfig, *, workers: int, overlap: bool
) -> System:
    """vLLM 0.33.0 with one running request at a time; workers share their store."""
    engine = EngineSpec(name="vllm", version="0.33.0", page_tokens=1, max_running_requests=1, chunk_tokens=16)
    return System(
        seed=0,
        engine=engine.model_copy(update={"overlap": overlap}),
        capacity_tokens=capacity_tokens,
        workers=workers,
        sharing=workers,
        shape=shape,
        rugged=False,
        offload=offload,
    )


@examples(200)
@given(system=offload_systems(), uses=st.sampled_from([1, 3, 20, 4096]))
@example(system=reuse_under_pressure(), uses=4096)
@example(system=shared_store_of_idle_workers(), uses=4096)
@example(system=flush_without_a_batch(), uses=4096)
def test_offloading_equals_its_reference(system: System, uses: int) -> None:
    with mock.patch.object(offload_arrays, "USES", uses):
        _assert_same_without_log(system, _assert_equal(system))


def chunks_shortened_by_an_arrival() -> System:
    """The first that waits does not fit with a third of the budget. With a fourth, after an arrival, it does."""
    engine = EngineSpec(
        name="vllm", page_tokens=16, max_running_requests=2, chunk_tokens=64, long_prefill_tokens=5,
        long_prefill_adaptive=True, reserve_full_prompt=False, watermark=0.0,
    )  # fmt: skip
    shape = TraceShape(
        requests=20, rate_rps=5.0, prompt_tokens=150, output_tokens=60, shared_prefixes=3, follow_up=0.6, fork=0.1,
        same_time=0.1, repeat=0.0, slack=3.0,
    )  # fmt: skip
    at_once = CopyLaw(0.0, 0.0)
    tier = lmcache.LmcacheTier(1000, at_once, at_once, "lru", "worker", False)
    store = lmcache.LmcacheConfig(at_once, at_once, (tier,), chunk_tokens=16, network=at_once)
    return System(3573, engine, capacity_tokens=600, shape=shape, rugged=True, lmcache=store)


def each_step_saves() -> System:
    """What a step saves keeps the results of the step before it waiting, and no results of an earlier one."""
    engine = EngineSpec(name="vllm", page_tokens=1, max_running_requests=2, chunk_tokens=16)
    at_once = CopyLaw(0.0, 0.0)
    tier = lmcache.LmcacheTier(64, at_once, at_once)
    store = lmcache.LmcacheConfig(at_once, at_once, (tier,), chunk_tokens=16, network=at_once)
    shape = replace(_FEW, requests=20, prompt_tokens=150, slack=1.0)
    return System(0, engine, capacity_tokens=300, shape=shape, lmcache=store)


def a_router_hears_of_late_prefills() -> System:
    """It counts a prompt until its first token is taken in, also where the step that makes it has ended."""
    saves = each_step_saves()
    shape = replace(_FEW, requests=30, rate_rps=100.0, slack=1.0)
    router = router_with("dynamo_kv", overlap_weight=0.5)
    store = replace(saves.lmcache, to_host=CopyLaw(0.003, 0.0))
    return System(7824, saves.engine, 150, workers=3, router=router, shape=shape, rugged=True, lmcache=store)


@examples(200)
@given(system=lmcache_systems())
@example(system=chunks_shortened_by_an_arrival())
@example(system=each_step_saves())
@example(system=a_router_hears_of_late_prefills())
def test_lmcache_equals_its_reference(system: System) -> None:
    _assert_same_without_log(system, _assert_equal(system))


@pytest.mark.parametrize(
    "behind",
    [
        systems(vllm_engines(), repeats=True),
        systems(sglang_engines(version=None), repeats=True),
        systems(trtllm_engines(), repeats=True),
        offload_systems(),
        trtllm_host_systems(),
    ],
    ids=["vllm", "sglang", "trtllm", "offload", "trtllm_host"],
)
def test_a_router_that_looks_into_caches_equals_its_reference(behind: st.SearchStrategy[System]) -> None:
    """With caches or metrics as of now, even within a fast-forward and unfinished outputs, or of some time ago."""

    @examples(150)
    @given(system=routed(behind, LOOKING))
    def check(system: System) -> None:
        _assert_same_without_log(system, _assert_equal(system))

    check()


@pytest.mark.parametrize("name", ENGINES)
def test_engines_short_of_memory_equal_their_references(name: str) -> None:
    preempted: list[int] = []

    @examples(100)
    @given(system=crowded(name))
    def check(system: System) -> None:
        preempted.append(int(_assert_equal(system).workers.preemptions.sum()))

    check()
    assert sum(preempted) > len(preempted)
