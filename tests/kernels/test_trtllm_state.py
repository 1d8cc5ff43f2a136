"""The state of a TensorRT-LLM run, checked wherever it stops (L1, L3): pages, counters, lists."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisearch.kernels.layout import sim as la
from tests.kernels.invariants import run_until
from tests.kernels.systems import (
    System,
    crowded,
    examples,
    systems,
    trtllm_drafts_systems,
    trtllm_engines,
    trtllm_host_systems,
)


def _chain(records: la.Array, first: int, link: str = "next") -> list[int]:
    indices: list[int] = []
    while first >= 0:
        indices.append(first)
        assert len(indices) <= len(records)  # type: ignore[arg-type]  # no circle
        first = int(records[first][link])  # type: ignore[index]
    return indices


def _pages(sim: la.Sim, tokens: int) -> int:
    return -(-int(tokens) // int(sim.config.page_tokens))


def _node_pages(sim: la.Sim, d: int) -> int:
    return int(sim.nodes[d].end - sim.nodes[d].begin) // int(sim.config.page_tokens)


def _path(sim: la.Sim, d: int) -> list[int]:
    """Cache nodes from ``d`` up to below the root."""
    path = []
    while d >= len(sim.trees):
        path.append(d)
        d = int(sim.nodes[d].parent)
    return path


def _known(sim: la.Sim, w: int, r: int) -> int:
    request = sim.requests[r]
    generated = int(request.generated)
    if request.status == la.DECODING:
        generated = int(sim.trace.output_tokens[r] - (request.finish_clock - sim.workers[w].clock))
    return int(sim.trace.input_tokens[r]) + generated


def _held_pages(sim: la.Sim, w: int, r: int) -> int:
    """Pages of a started request: all of its prompt's, or those of its computed tokens.

    In a fast-forward the pages of its first step are taken, its token is not counted yet. A request that decodes once
    more behind its last token has a page for that, too. With drafts it has pages for those of the steps in flight.
    """
    if sim.requests[r].status == la.VERIFYING:
        return _pages(sim, sim.requests[r].reserved_tokens)
    if sim.requests[r].status == la.PROMPT:
        return _pages(sim, _known(sim, w, r) + sim.config.lookahead_tokens)
    if sim.requests[r].status == la.DECODING:
        ahead = 1 if sim.workers[w].phase == la.FAST_FORWARDING else 0
        return _pages(sim, _known(sim, w, r) - 1 + ahead)
    late = int(sim.requests[r].late_tokens) if sim.requests[r].status == la.DRAINING else 0
    return _pages(sim, sim.requests[r].computed + late)


def check(sim: la.Sim) -> None:
    """Raise AssertionError unless everything adds up."""
    for w in range(int(sim.config.workers)):
        worker, store = sim.workers[w], sim.trees[w]
        running = _chain(sim.requests, int(worker.running_head))
        waiting = _chain(sim.requests, int(worker.waiting_head))
        for listed, count in ((running, worker.running), (waiting, worker.waiting)):
            orders = [int(sim.requests[r].order) for r in listed]
            assert orders == sorted(orders)
            assert len(listed) == count
        assert worker.running <= sim.config.max_running
        prompts = _chain(sim.requests, int(worker.prompts_head), "next_aside")
        assert prompts == [r for r in running if sim.requests[r].status == la.PROMPT]
        assert worker.allocated_pages == sum(_held_pages(sim, w, r) for r in running)
        declared = [int(sim.trace.input_tokens[r] + sim.trace.max_output_tokens[r]) for r in running]
        assert worker.promised_pages == sum(_pages(sim, tokens) for tokens in declared)
        if sim.config.capacity_policy == la.GUARANTEED_NO_EVICT:
            assert worker.promised_pages - worker.allocated_pages <= store.free_pages
        locks = Counter(d for r in running for d in _path(sim, int(sim.requests[r].node)))
        assert all(sim.nodes[d].lock == count for d, count in locks.items())
        private = sum(
            _held_pages(sim, w, r) - int(sim.requests[r].locked_tokens) // int(sim.config.page_tokens) for r in running
        )
        queue = _chain(sim.nodes, int(store.head))
        assert sum(_node_pages(sim, d) for d in queue) == store.free_pages >= 0
        assert not set(queue) & set(locks)
        position = {d: k for k, d in enumerate(queue)}
        for d in queue:
            parent = int(sim.nodes[d].parent)
            assert sim.nodes[d].trace_node == 0 or parent not in position or position[d] < position[parent]
        # A router that looked into a fast-forward had its pages taken (see ``kernels.routing.outlook``).
        taken = private + int(worker.fast_forward_pages)
        assert store.free_pages + sum(_node_pages(sim, d) for d in locks) + taken == store.capacity_pages
        assert store.copies == 0
        if sim.config.host_pages:
            _check_host(sim, w, set(queue) | set(locks))


def _check_host(sim: la.Sim, w: int, in_hbm: set[int]) -> None:
    """Every host page is in its queue, deeper ones before those above them, and nothing in HBM is below any."""
    pool = sim.trees[int(sim.config.workers) + w]
    queue = _chain(sim.nodes, int(pool.head))
    assert sum(_node_pages(sim, d) for d in queue) == pool.free_pages == pool.capacity_pages
    filled = [d for d in queue if sim.nodes[d].trace_node != 0]
    assert sum(_node_pages(sim, d) for d in filled) == pool.evictable_pages <= pool.peak_pages <= pool.capacity_pages
    position = {d: k for k, d in enumerate(queue)}
    for d in filled:
        parent = int(sim.nodes[d].parent)
        assert sim.nodes[d].queued == la.ON_HOST
        assert sim.nodes[d].lock == 0
        assert parent < len(sim.trees) or parent in in_hbm or position[d] < position[parent]
    assert not any(int(sim.nodes[d].parent) in position for d in in_hbm)


@pytest.mark.parametrize(
    "deployments",
    [
        systems(trtllm_engines(), repeats=True),
        systems(trtllm_engines(by_priority=True) | trtllm_engines(gathers=True), repeats=True),
        crowded("trtllm"),
        trtllm_host_systems(),
        trtllm_drafts_systems(),
    ],
    ids=["any", "queued", "crowded", "host", "drafts"],
)
def test_state_is_consistent_wherever_a_run_stops(deployments: st.SearchStrategy[System]) -> None:
    @examples(100)
    @given(system=deployments, stop=st.floats(0.0, 1.0))
    def check_stops(system: System, stop: float) -> None:
        finished = run_until(system)
        check(finished)
        assert set(finished.requests["outcome"].tolist()) <= {la.FINISHED, la.TOO_LARGE}
        assert not finished.workers["running"].any()
        assert not finished.workers["allocated_pages"].any()
        check(run_until(system, stop * float(max(finished.workers["event_s"]))))

    check_stops()


@examples(100)
@given(system=trtllm_host_systems())
def test_the_host_cache_and_its_links_do_what_the_reference_s_do(system: System) -> None:
    result, outcome = system.simulate(log=True), system.reference()
    assert result.log is not None
    held = result.log.steps
    assert [int(tokens) for tokens in result.requests.host_hit_tokens] == [
        outcome.engines[row.worker].onboarded_tokens.get(r, 0) if row.worker >= 0 else 0
        for r, row in outcome.requests.items()
    ]
    page = system.engine.page_size
    stores = [store for store in result.stores if store.tier == 1]
    for w, engine in enumerate(outcome.engines):
        pool = engine.pool
        if pool.host_blocks:
            counted = (pool.host_stored_blocks, pool.host_read_blocks, pool.host_evicted_blocks)
            assert (stores[w].stored_tokens, stores[w].read_tokens, stores[w].evicted_tokens) == tuple(
                blocks * page for blocks in counted
            )
            assert held["host_tokens"][held["worker"] == w].max(initial=0) <= stores[w].peak_tokens
            links = [link for link in result.links if link.index == w]
            for link, theirs in zip(links, (pool.to_host, pool.to_device), strict=True):
                assert (link.tokens, link.busy_s) == (theirs.tokens, theirs.busy_s)


@examples(60)
@given(system=systems(trtllm_engines(), repeats=True))
def test_guaranteed_no_evict_never_pauses(system: System) -> None:
    result = system.simulate()
    if system.engine.capacity_policy == "guaranteed_no_evict":
        assert not result.workers.preemptions.any()
