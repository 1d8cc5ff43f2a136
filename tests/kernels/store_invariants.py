"""What stores of KV pages hold, checked against what they say of it: slow walks over their runs."""

from __future__ import annotations

from hisearch.base.policies import EVICTIONS
from hisearch.kernels.cache import store_runs
from hisearch.kernels.layout import sim as la
from tests.kernels import invariants as shared


def stores(sim: la.Sim) -> range:
    """Indices of the stores of all tiers."""
    first = int(sim.config.workers)
    return range(first, first + sum(int(tier.stores) for tier in sim.store_tiers))


def runs_of(sim: la.Sim, v: int) -> list[int]:
    """All runs of a store, checked: each list is ordered by depth, disjoint, and within its trace-tree node."""
    page = int(sim.config.page_tokens)
    runs = []
    for s in range(len(sim.trace.parent)):
        chain = shared._chain(sim.nodes, int(sim.deepest_cached[v, s]))
        before, end = -1, int(sim.trace.start_tokens[s]) // page * page - 1
        for d in chain:
            node = sim.nodes[d]
            assert (int(node.trace_node), int(node.prev)) == (s, before)
            assert node.begin % page == node.end % page == 0
            assert end < node.begin < node.end <= sim.trace.end_tokens[s]
            before, end = d, int(node.end)
        runs += chain
    return runs


def check_store(sim: la.Sim, v: int, runs: list[int]) -> None:
    """Free pages and pages of runs are all there are, any run may go, none was used later than now (L3)."""
    cache = sim.trees[v]
    held = sum(shared._node_pages(sim, d) for d in runs)
    assert cache.free_pages >= 0
    assert cache.free_pages + held == cache.capacity_pages == sim.store_tiers[cache.tier].pages
    assert held <= cache.peak_pages <= cache.capacity_pages
    assert all(sim.nodes[d].tick < (cache.tick + 1) * store_runs.DEPTHS for d in runs)
    page = int(sim.config.page_tokens)
    policy = int(sim.store_tiers[cache.tier].eviction)
    if list(EVICTIONS.values())[policy].queues:
        _check_queues(sim, v, runs, policy)
    else:
        shared.check_leaves(sim, v, runs, policy)
    assert held * page == cache.stored_tokens - cache.evicted_tokens - cache.expired_tokens - cache.given_tokens


def _check_queues(sim: la.Sim, v: int, runs: list[int], policy: int) -> None:
    """Each queue has its heap; what is remembered is bounded, and is not held."""
    cache = sim.trees[v]
    once = [d for d in runs if sim.hosted[d].queue == 0]
    shared.check_leaves(sim, v, once, policy)
    shared.check_leaves(sim, int(cache.shadows), [d for d in runs if d not in once], policy)
    assert cache.once_pages == sum(shared._node_pages(sim, d) for d in once)
    gone = []
    for g in (int(cache.shadows) + 1, int(cache.shadows) + 2):
        ghosts = runs_of(sim, g)
        shared.check_leaves(sim, g, ghosts, la.LRU)
        gone.append(sum(shared._node_pages(sim, d) for d in ghosts))
        assert sim.trees[g].capacity_pages - sim.trees[g].free_pages == gone[-1]
    if policy == EVICTIONS.code("arc"):
        assert cache.once_pages + gone[0] <= cache.capacity_pages or gone[0] == 0
        assert cache.capacity_pages - cache.free_pages + sum(gone) <= 2 * cache.capacity_pages
    else:
        assert gone[0] <= cache.capacity_pages
        assert gone[1] == 0
    pages = [page for g in (v, int(cache.shadows) + 1, int(cache.shadows) + 2) for page in pages_of(sim, g)]
    assert len(set(pages)) == len(pages)
    assert 0 <= cache.target <= cache.capacity_pages


def pages_of(sim: la.Sim, v: int) -> set[tuple[int, int]]:
    """The pages that a store holds: the trace-tree node in which each completes, and where it ends."""
    page = int(sim.config.page_tokens)
    pages = set()
    for d in runs_of(sim, v):
        node = sim.nodes[d]
        pages |= {(int(node.trace_node), end) for end in range(int(node.begin) + page, int(node.end) + 1, page)}
    return pages
