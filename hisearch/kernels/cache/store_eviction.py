"""Room in a store: what goes, in the order of its policy, trimmed from the ends of runs; and what has expired.

Nothing goes that the present operation has used.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.base.policies import EVICTIONS
from hisearch.kernels.cache import eviction, store_queues, store_runs
from hisearch.kernels.core.dispatch import dispatcher
from hisearch.kernels.layout import hicache as hl
from hisearch.kernels.traffic import moves

#: Bits of the policies with two queues (``store_queues``).
QUEUES = EVICTIONS.mask(lambda policy: policy.queues)

_second_chance = dispatcher(EVICTIONS, "second_chance", "sim, v, d", otherwise="0")
_goes_for = dispatcher(EVICTIONS, "goes_for", "sim, d, s, begin", otherwise="True")
_pages_to_go = dispatcher(EVICTIONS, "pages_to_go", "sim, v, d, wanted", otherwise="wanted")
_going = dispatcher(EVICTIONS, "going", "sim, v, d", otherwise="None")


@kernel
def expired(sim, v, d, now):
    """Whether run ``d``'s time to live is over."""
    return now - sim.hosted[d].at_s > store_runs.tier_of(sim, v).ttl_s


@kernel
def expire(sim, v, d):
    """Run ``d``'s time is over: it goes."""
    sim.trees[v].expired_tokens += sim.nodes[d].end - sim.nodes[d].begin
    store_runs.remove(sim, v, d)


@kernel
def _sweep_leaves(sim, v, h, now):
    cache = sim.trees[h]
    for place in range(cache.line_begin, cache.line_end):
        d = sim.evict_heap[cache.first_place + place]
        if d >= 0 and expired(sim, v, d, now):
            expire(sim, v, d)
    dropped = True
    while dropped:
        dropped = False
        for slot in range(cache.heap_size - 1, -1, -1):
            # Dropping one moves another into its slot, or further up; hence once more, until nothing is found.
            place = cache.first_place + cache.line_places + slot
            if slot < cache.heap_size and expired(sim, v, sim.evict_heap[place], now):
                expire(sim, v, sim.evict_heap[place])
                dropped = True


@kernel
def sweep(sim, v, now):
    """Drop all that has expired."""
    _sweep_leaves(sim, v, v, now)
    if QUEUES >> sim.trees[v].eviction & 1:
        _sweep_leaves(sim, v, sim.trees[v].shadows, now)


@kernel
def used_now(sim, v, d):
    """Whether the present operation has used run ``d``, or made it."""
    return sim.nodes[d].tick >= sim.trees[v].began * store_runs.DEPTHS


@kernel
def _put_aside(sim, h, d, spared):
    """Take run ``d`` out of heap ``h`` for now; ``spared``: the one put aside before it."""
    eviction.withdraw(sim, h, d)
    sim.hosted[d].below = spared
    return d


@kernel
def _put_back(sim, h, spared):
    while spared >= 0:
        eviction.enter(sim, h, spared)
        spared = sim.hosted[spared].below


@kernel
def _go_round(sim, v, d, chance):
    """Run ``d``, which has a second chance, goes to the end of its queue, or of the second one."""
    cache = sim.trees[v]
    if chance == hl.MOVES_ON:
        store_runs.move_on(sim, v, d)
    sim.nodes[d].serial = store_runs.stamp(sim, v, cache.tick + 1, sim.nodes[d].begin)
    # What comes after it, others sent round among them, is behind it in the line.
    cache.tick += 2
    store_runs.sift(sim, v, d)


@kernel
def _to_go(sim, v, d, wanted):
    """How many pages go from the end of run ``d`` before another one's turn may come."""
    node = sim.nodes[d]
    most = _pages_to_go(sim.trees[v].eviction, sim, v, d, wanted)
    return min(store_runs.pages(sim, node.end - node.begin), most)


@kernel
def let_go(sim, v, d, count):
    """The last ``count`` pages of run ``d`` go."""
    tokens = count * sim.config.page_tokens
    sim.trees[v].evicted_tokens += tokens
    if sim.tiers.exclusive and sim.trees[v].tier == 0:
        node = sim.nodes[d]
        priority = sim.node_ranks[d].priority if sim.tiers.priorities else 0
        moves.note_demoted(sim, v, node.trace_node, node.end - tokens, node.end, priority)
    store_runs.trim(sim, v, d, count)


@kernel
def make(sim, v, s, begin, wanted, now):
    """Free ``wanted`` pages, for such behind ``begin`` in trace-tree node ``s``. Returns whether there are so many."""
    cache = sim.trees[v]
    if cache.free_pages < wanted and store_runs.tier_of(sim, v).reclaim == hl.PRESSURE:
        sweep(sim, v, now)
    spared = -1
    while cache.free_pages < wanted and eviction.some(sim, v):
        d = eviction.first(sim, v)
        if used_now(sim, v, d):
            spared = _put_aside(sim, v, d, spared)
            continue
        chance = _second_chance(cache.eviction, sim, v, d)
        if chance != hl.GOES:
            _go_round(sim, v, d, chance)
        elif not _goes_for(cache.eviction, sim, d, s, begin):
            break
        else:
            _going(cache.eviction, sim, v, d)
            let_go(sim, v, d, _to_go(sim, v, d, wanted - cache.free_pages))
    _put_back(sim, v, spared)
    return cache.free_pages >= wanted


@kernel
def _go_from(sim, v, h):
    """Let a page of the runs in heap ``h``, of one of two queues, go; returns whether there was one that may."""
    spared = -1
    while eviction.some(sim, h):
        d = eviction.first(sim, h)
        if used_now(sim, v, d):
            spared = _put_aside(sim, h, d, spared)
            continue
        chance = _second_chance(sim.trees[v].eviction, sim, v, d)
        if chance == hl.GOES:
            store_queues.remember(sim, v, d)
            let_go(sim, v, d, 1)
            _put_back(sim, h, spared)
            return True
        _go_round(sim, v, d, chance)
    _put_back(sim, h, spared)
    return False


@kernel
def free_one_page(sim, v, recalled, now):
    """Free a page where none is free (two queues), for one that was ``recalled``. Returns whether there is one."""
    if sim.trees[v].free_pages == 0 and store_runs.tier_of(sim, v).reclaim == hl.PRESSURE:
        sweep(sim, v, now)
    if sim.trees[v].free_pages > 0:
        return True
    first = store_queues.first_heap(sim, v, recalled)
    return _go_from(sim, v, first) or _go_from(sim, v, v + sim.trees[v].shadows - first)
