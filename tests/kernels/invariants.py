"""A simulation's arrays checked against themselves, wherever a run stops (L1, L3): slow walks over everything.

HiCache's: ``tier_invariants``.

Holders are requests that hold KV: those that decode, and those with a chunk in a step now running.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import numpy as np
from hypothesis import assume

from hisearch.kernels.cache import eviction
from hisearch.kernels.fleet import cluster
from hisearch.kernels.layout import sim as la
from hisearch.simulate import engine
from hisearch.simulate.plans.fleet import FleetPlan, PoolPlan
from tests.kernels import sglang_invariants as sglang
from tests.kernels.systems import System


def run_until(system: System, horizon_s: float = math.inf) -> la.Sim:
    """Run a system's kernels and return all their arrays."""
    fleet = FleetPlan((PoolPlan(system.plan, system.workers),), system.router)
    node_records = 50 * len(system.trace) + 1000
    shared, (sim,) = engine.allocate(fleet, system.trace, [node_records], seed=system.seed, horizon_s=horizon_s)
    cluster.run(shared)
    # Settings with which requests preempt each other for ever, or what is being copied fills all memory, are not looked
    # at.
    assume(sim.counters[la.FAULT] not in (la.STUCK, la.OUT_OF_MEMORY))
    # Nor is a queue whose first request SGLang can never admit.
    ended = math.isinf(horizon_s) and sim.config.engine == la.SGLANG
    assume(not (ended and (sim.requests["outcome"] == la.IN_FLIGHT).any()))
    assert not sim.counters[la.FAULT]
    return sim


def check(sim: la.Sim) -> None:
    """Raise AssertionError unless everything adds up."""
    workers = int(sim.config.workers)
    free_records = _chain(sim.nodes, int(sim.counters[la.FREE_NODE]))
    records = range(len(sim.trees), int(sim.counters[la.NODES_USED]))
    assert set(free_records) <= set(records)
    used = set(records) - set(free_records)
    by_tree: dict[int, list[int]] = {v: [] for v in range(len(sim.trees))}
    empty_runs = set()
    redirects = set()
    for d in used:
        if sim.nodes[d].trace_node == 0:
            empty_runs.add(d)
        elif sim.nodes[d].trace_node == REDIRECT:
            redirects.add(d)
        else:
            by_tree[_root_of(sim, d)].append(d)
    queued_empty: set[int] = set()
    for v, nodes in by_tree.items():
        _check_shape(sim, v, nodes)
        _check_deepest_cached(sim, v, nodes)
        if v >= workers or sim.config.engine == la.VLLM:
            queued_empty |= _check_queue(sim, v, nodes)
        else:
            _check_hbm_leaves(sim, v, nodes)
    assert queued_empty == empty_runs
    for w in range(workers):
        holders = _check_lists(sim, w)
        if sim.config.engine == la.VLLM:
            redirects -= _check_paths(sim, w, by_tree[w], holders)
        else:
            _check_locks(sim, w, by_tree[w], holders)
        _check_pages(sim, w, by_tree[w], holders)
        if len(sim.trees) > workers:
            _check_locks(sim, workers + w, by_tree[workers + w], [])
            assert sim.trees[workers + w].free_pages == sim.trees[workers + w].capacity_pages
    assert not redirects
    _check_events(sim)


def check_at_rest(sim: la.Sim) -> None:
    """``check``, and nothing is left over once every request has ended."""
    check(sim)
    assert set(sim.requests["outcome"].tolist()) <= {la.FINISHED, la.TOO_LARGE}
    for w in range(int(sim.config.workers)):
        worker = sim.workers[w]
        assert worker.phase == la.IDLE
        assert worker.waiting == worker.decoding == worker.running - worker.finished_pending == 0
        member = sim.fleet.members[w]
        assert member.inflight_requests == member.inflight_tokens == member.outstanding_tokens == 0
        assert not sim.residue[w].any()
        free = sim.trees[w].free_pages + sim.trees[w].evictable_pages
        assert free == sim.trees[w].capacity_pages


def _chain(nodes: object, first: int) -> list[int]:
    """Indices along ``next``."""
    indices: list[int] = []
    while first >= 0:
        indices.append(first)
        assert len(indices) <= len(nodes)  # type: ignore[arg-type]  # no circle
        first = int(nodes[first].next)  # type: ignore[index]
    return indices


#: ``trace_node`` of a record that is a redirect to a duplicate block, not a node (see ``kernels.cache.queue``).
REDIRECT = -2


def _root_of(sim: la.Sim, d: int) -> int:
    while d >= len(sim.trees):
        d = int(sim.nodes[d].parent)
    return d


def _path(sim: la.Sim, trace_node: int) -> list[int]:
    """Trace-tree nodes from ``trace_node`` up to below the root."""
    path = []
    while trace_node > 0:
        path.append(trace_node)
        trace_node = int(sim.trace.parent[trace_node])
    return path


def _pages(sim: la.Sim, tokens: int) -> int:
    return -(-int(tokens) // int(sim.config.page_tokens))


def _node_pages(sim: la.Sim, d: int) -> int:
    return int(sim.nodes[d].end - sim.nodes[d].begin) // int(sim.config.page_tokens)


def _check_shape(sim: la.Sim, v: int, nodes: list[int]) -> None:
    """Whole pages, each node where its parent ends, its last page completing in its static node, children counted."""
    page = sim.config.page_tokens
    children = Counter(int(sim.nodes[d].parent) for d in nodes)
    for d in nodes:
        node = sim.nodes[d]
        assert node.begin < node.end
        assert node.begin % page == node.end % page == 0
        assert node.begin == sim.nodes[node.parent].end
        assert sim.trace.start_tokens[node.trace_node] < node.end <= sim.trace.end_tokens[node.trace_node]
        if node.first >= 0:
            _check_group(sim, int(node.first))
        if node.parent != v:
            assert sim.nodes[node.parent].trace_node in _path(sim, int(node.trace_node))
        assert node.children == children[d]


def _check_group(sim: la.Sim, first: int) -> None:
    """Duplicate blocks cover the same pages, the first one is a copy, and tombstones are last."""
    members = [first]
    while sim.nodes[members[-1]].duplicate_block >= 0:
        members.append(int(sim.nodes[members[-1]].duplicate_block))
    assert len(members) > 1
    nodes = sim.nodes
    assert {(int(nodes[d].begin), int(nodes[d].end), int(nodes[d].trace_node)) for d in members} == {
        (int(nodes[first].begin), int(nodes[first].end), int(nodes[first].trace_node))
    }
    assert all(nodes[d].first == first for d in members)
    ghosts = [nodes[d].queued == la.TOMBSTONE for d in members]
    assert ghosts == sorted(ghosts)
    assert not ghosts[0]
    assert all(nodes[d].children > 0 and nodes[d].lock == 0 for d in members if nodes[d].queued == la.TOMBSTONE)


def _check_deepest_cached(sim: la.Sim, v: int, nodes: list[int]) -> None:
    """``deepest_cached`` is what walking over every cached page gives; of several copies it shows the first."""
    page = int(sim.config.page_tokens)
    deepest: dict[int, tuple[int, int]] = {}
    seen: set[tuple[int, int]] = set()
    for d in nodes:
        if sim.nodes[d].first not in (-1, d):
            continue
        path = _path(sim, int(sim.nodes[d].trace_node))
        for end in range(int(sim.nodes[d].begin) + page, int(sim.nodes[d].end) + 1, page):
            trace_node = next(s for s in path if sim.trace.start_tokens[s] < end <= sim.trace.end_tokens[s])
            assert (trace_node, end) not in seen
            seen.add((trace_node, end))
            deepest[trace_node] = max(deepest.get(trace_node, (0, -1)), (end, d))
    expected = [deepest[s][1] if s in deepest else -1 for s in range(len(sim.trace.parent))]
    assert sim.deepest_cached[v].tolist() == expected


def _check_queue(sim: la.Sim, v: int, nodes: list[int]) -> set[int]:
    """The free queue holds what nobody holds, children before parents; returns its empty runs."""
    store = sim.trees[v]
    queue = _chain(sim.nodes, int(store.head))
    assert (queue[-1] if queue else -1) == store.tail
    assert [int(sim.nodes[d].prev) for d in queue] == [-1, *queue[:-1]][: len(queue)]
    assert sum(_node_pages(sim, d) for d in queue) == store.free_pages
    empty = {d for d in queue if sim.nodes[d].trace_node == 0}
    ghosts = {d for d in nodes if sim.nodes[d].queued == la.TOMBSTONE}
    assert set(queue) - empty == {d for d in nodes if sim.nodes[d].lock == 0} - ghosts
    position = {d: k for k, d in enumerate(queue)}
    for d in set(nodes) - ghosts:
        assert sim.nodes[d].queued == (d in position)
        parent = int(sim.nodes[d].parent)
        if d in position and parent in position and sim.nodes[parent].first < 0:
            assert position[d] < position[parent]
    assert store.copies == sum(sim.nodes[d].first not in (-1, d) for d in nodes)
    return empty


def leaves_of(sim: la.Sim, v: int) -> tuple[list[int], list[int]]:
    """What cache ``v`` may evict: its line, in order, without the places that are empty, and its heap."""
    cache = sim.trees[v]
    row = eviction.places(sim, v).tolist()
    line = row[cache.line_begin : cache.line_end]
    heap = row[cache.line_places : cache.line_places + cache.heap_size]
    assert 0 <= cache.line_begin <= cache.line_end <= cache.line_places
    assert not line or (line[0] >= 0 and line[-1] >= 0)
    for places in (enumerate(line, eviction.LINE + int(cache.line_begin)), enumerate(heap)):
        assert all(sim.nodes[d].heap_slot == place for place, d in places if d >= 0)
    return [d for d in line if d >= 0], heap


def check_leaves(sim: la.Sim, v: int, expected: list[int], policy: int) -> None:
    """What cache ``v`` may evict is what is expected, in the order of its policy."""
    line, heap = leaves_of(sim, v)
    assert sorted(line + heap) == sorted(expected)
    keys = [sglang.eviction_key(sim, d, policy) for d in line]
    assert all(before < after for before, after in pairwise(keys))
    keys = [sglang.eviction_key(sim, d, policy) for d in heap]
    assert all(keys[(slot - 1) // 2] < keys[slot] for slot in range(1, len(keys)))
    assert sim.trees[v].eviction == policy


def _check_hbm_leaves(sim: la.Sim, v: int, nodes: list[int]) -> None:
    """What may be evicted are the unlocked leaves; nothing else has a place among them."""
    cache = sim.trees[v]
    leaves = [d for d in nodes if sim.nodes[d].lock == 0 and sim.nodes[d].children == 0]
    check_leaves(sim, v, leaves, int(sim.config.eviction))
    assert all((sim.nodes[d].heap_slot >= 0) == (d in leaves) for d in nodes)
    if not sim.config.keeps_creation:
        assert len({sim.nodes[d].serial for d in nodes}) == len(nodes)
    assert cache.evictable_pages == sum(_node_pages(sim, d) for d in nodes if sim.nodes[d].lock == 0)


def _check_lists(sim: la.Sim, w: int) -> list[int]:
    """Waiting and running lists, decode clock and router's view; returns the holders."""
    worker = sim.workers[w]
    waiting = _linked(sim, int(worker.waiting_head), int(worker.waiting_tail))
    running = _linked(sim, int(worker.running_head), int(worker.running_tail))
    assert len(waiting) == worker.waiting
    assert len(running) == worker.running
    if sim.config.engine == la.VLLM:
        decoding, batch = _check_vllm_lists(sim, w, waiting, running)
    else:
        finished_pending = [r for r in running if sim.requests[r].outcome == la.FINISHED]
        assert len(finished_pending) == worker.finished_pending
        sglang.check_reserves(sim, w)
        draining = sglang.draining(sim, w)
        unjoined = [r for r in sglang.unjoined(sim, w) if r not in draining]
        decoding = [r for r in running if r not in unjoined and r not in finished_pending]
        assert len(decoding) == worker.decoding
        batch = unjoined + draining
    mine = [r for r in range(len(sim.requests)) if sim.requests[r].worker == w]
    live = [r for r in mine if sim.requests[r].outcome == la.IN_FLIGHT]
    held = []
    r = int(worker.held_head)
    while r >= 0:
        held.append(r)
        r = int(sim.requests[r].next) if r != worker.held_tail else -1
    assert sorted(live) == sorted([*{*waiting, *decoding, *batch}, *held])
    _check_member(sim, w // int(sim.config.schedulers))
    assert worker.requests == len(mine)
    assert worker.context_tokens == sum(_known(sim, w, r) for r in decoding)
    page = int(sim.config.page_tokens)
    residues = Counter((_known(sim, w, r) - 1 - int(worker.clock)) % page for r in decoding)
    assert sim.residue[w].tolist() == [residues[k] for k in range(page)]
    heap = sim.finish_heap[w, : worker.finish_heap_size].tolist()
    assert sorted(heap) == sorted(decoding)
    assert all(sim.requests[r].heap_slot == k for k, r in enumerate(heap))
    keys = [(sim.requests[r].finish_clock, sim.requests[r].order) for r in heap]
    assert all(keys[(slot - 1) // 2] < keys[slot] for slot in range(1, len(keys)))
    return decoding + batch


def _check_member(sim: la.Sim, m: int) -> None:
    """A worker's requests in flight are those of its schedulers."""
    member, schedulers = sim.fleet.members[m], int(sim.config.schedulers)
    mine = (sim.requests["worker"] // schedulers == m) & (sim.requests["worker"] >= 0)
    live = np.flatnonzero(mine & (sim.requests["outcome"] == la.IN_FLIGHT))
    assert member.inflight_requests == len(live)
    assert member.inflight_tokens == int(sim.trace.input_tokens[live].sum())


def _check_vllm_lists(sim: la.Sim, w: int, waiting: list[int], running: list[int]) -> tuple[list[int], list[int]]:
    """Every request in the list of its status; returns those that decode, and other running ones."""
    worker, requests = sim.workers[w], sim.requests
    by_status: dict[int, list[int]] = {}
    for r in waiting + running:
        by_status.setdefault(int(requests[r].status), []).append(r)
    assert set(by_status) <= {la.WAITING, la.PROMPT, la.DECODING, la.DRAINING, la.DRAINED}
    assert {r for r in waiting if requests[r].status in (la.WAITING, la.DRAINED)} == set(waiting)
    prompts = _aside(sim, int(worker.prompts_head))
    assert prompts == by_status.get(la.PROMPT, [])
    assert (prompts[-1] if prompts else -1) == worker.prompts_tail
    draining = by_status.get(la.DRAINING, [])
    assert len(draining) == worker.draining
    endings = _aside(sim, int(worker.endings_new)) + _aside(sim, int(worker.endings_old))
    assert sorted(endings) == sorted(draining + by_status.get(la.DRAINED, []))
    assert worker.skipped_head == -1
    orders = [int(requests[r].order) for r in running]
    assert orders == sorted(orders)
    return by_status.get(la.DECODING, []), prompts + draining


def _aside(sim: la.Sim, first: int) -> list[int]:
    requests = []
    while first >= 0:
        requests.append(first)
        first = int(sim.requests[first].next_aside)
    return requests


def _linked(sim: la.Sim, head: int, tail: int) -> list[int]:
    requests = _chain(sim.requests, head)
    assert (requests[-1] if requests else -1) == tail
    assert [int(sim.requests[r].prev) for r in requests] == [-1, *requests[:-1]][: len(requests)]
    return requests


def _known(sim: la.Sim, w: int, r: int) -> int:
    """Prompt and output so far of a decoding request."""
    left = int(sim.requests[r].finish_clock) - int(sim.workers[w].clock)
    # With overlap the last token may be in flight; decodes of a lockstep step count as made when it starts.
    late = int(sim.config.overlap) + (sim.config.scheduler_kind == la.LOCKSTEP) if sim.config.engine == la.SGLANG else 0
    assert 1 - late <= left < sim.trace.output_tokens[r]
    return int(sim.trace.input_tokens[r] + sim.trace.output_tokens[r]) - left


def _check_locks(sim: la.Sim, v: int, nodes: list[int], holders: list[int]) -> None:
    """A lock count is the holders of a node and its locked children; the root has one more."""
    direct = Counter(int(sim.requests[r].node) for r in holders)
    locked_children = Counter(int(sim.nodes[d].parent) for d in nodes if sim.nodes[d].lock > 0)
    for d in [v, *nodes]:
        assert sim.nodes[d].lock == direct[d] + locked_children[d] + (d == v)
    for r in holders:
        assert sim.nodes[sim.requests[r].node].end == sim.requests[r].locked_tokens


def _check_paths(sim: la.Sim, w: int, nodes: list[int], holders: list[int]) -> set[int]:
    """A lock count is the holders whose path to the root contains the node; return the redirects of all paths."""
    counts: Counter[int] = Counter()
    redirects: set[int] = set()
    for r in holders:
        d, redirect = int(sim.requests[r].node), int(sim.requests[r].redirect)
        assert sim.nodes[d].end == sim.requests[r].locked_tokens
        while d >= len(sim.trees):
            if redirect >= 0 and sim.nodes[redirect].end == sim.nodes[d].end:
                redirects.add(redirect)
                d, redirect = int(sim.nodes[redirect].parent), int(sim.nodes[redirect].next)
            assert sim.nodes[d].queued == 0
            counts[d] += 1
            d = int(sim.nodes[d].parent)
        assert redirect == -1
    for d in nodes:
        assert sim.nodes[d].lock == counts[d]
    return redirects


def _check_pages(sim: la.Sim, w: int, nodes: list[int], holders: list[int]) -> None:
    """Free pages, cached pages and pages that requests hold for themselves are all pages there are (L3)."""
    cache, worker = sim.trees[w], sim.workers[w]
    is_vllm = sim.config.engine == la.VLLM
    # A free page may be cached in vLLM's queue, and never is in SGLang's count.
    cached = sum(_node_pages(sim, d) for d in nodes if not is_vllm or sim.nodes[d].lock > 0)
    private = sum(_private_pages(sim, w, r) for r in holders)
    assert cache.free_pages >= 0
    assert cache.free_pages + cached + private == cache.capacity_pages
    assert worker.peak_pages <= cache.capacity_pages


def _private_pages(sim: la.Sim, w: int, r: int) -> int:
    """Pages of ``r`` outside the tree."""
    worker, request = sim.workers[w], sim.requests[r]
    if sim.config.engine == la.SGLANG:
        tokens = sglang.committed_tokens(sim, w, r)
    else:
        decodes = request.heap_slot >= 0
        tokens = _known(sim, w, r) - 1 if decodes else int(request.computed)
        # A fast-forward's first step has its pages, and is accounted for with the others.
        tokens += decodes and worker.phase == la.FAST_FORWARDING
    private = _pages(sim, tokens) - _pages(sim, request.locked_tokens)
    assert private >= 0
    return private


def _check_events(sim: la.Sim) -> None:
    heap = sim.event_heap[: sim.counters[la.EVENT_HEAP]].tolist()
    assert sorted(heap) == [w for w in range(len(sim.workers)) if sim.workers[w].phase != la.IDLE]
    assert all(sim.workers[w].event_slot == slot for slot, w in enumerate(heap))
    assert all(sim.workers[heap[(k - 1) // 2]].event_s <= sim.workers[heap[k]].event_s for k in range(1, len(heap)))
