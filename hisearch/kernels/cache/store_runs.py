"""Runs: what a store holds of a trace-tree node, as a list in order of depth; ``deepest_cached`` has the first.

A run is as many whole pages as are held without a gap. Its last use, its count of uses, its age and what else its place
in the store's order depends on are those of all its pages. Runs that come to touch become one, which keeps the foremost
one's age and uses, and the highest priority: pages that come behind a run join it, and are no use of it; such as come
before one are a run without uses, which that one joins.

Ticks and ages are numbers of operations and, of runs of the same operation, such that the deepest goes first.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.base.policies import EVICTIONS
from hisearch.kernels.cache import eviction, tree
from hisearch.kernels.core.dispatch import dispatcher

#: Depth at which attention makes a token cost twice that of the first: Qwen3-32B in bf16 on one H100, by roofline.
ATTENTION_TOKENS = 23_000
#: More than there are tokens on a path.
DEPTHS = 2**30
#: Bits of the policies under which the deepest of what was used together goes last.
_NEWEST_FIRST = EVICTIONS.mask(lambda policy: policy.newest_first)

_moves_on = dispatcher(EVICTIONS, "moves_on", "sim, d", otherwise="False")


@kernel
def pages(sim, tokens):
    """Whole pages in ``tokens`` tokens."""
    return tokens // sim.config.page_tokens


@kernel
def top(sim, s, end):
    """End of the whole pages up to ``end`` that complete in trace-tree node ``s``."""
    return tree.floor_page(sim, min(end, sim.trace.end_tokens[s]))


@kernel
def bottom(sim, s, begin):
    """Begin of the whole pages from ``begin`` on that complete in ``s``."""
    return max(begin, tree.floor_page(sim, sim.trace.start_tokens[s]))


@kernel
def tier_of(sim, v):
    """The settings of store ``v``."""
    return sim.store_tiers[sim.trees[v].tier]


@kernel
def stamp(sim, v, tick, begin):
    """``tick``, such that of runs of the same one the deepest goes first."""
    cache = sim.trees[v]
    return tick * DEPTHS + (begin if _NEWEST_FIRST >> cache.eviction & 1 else DEPTHS - 1 - begin)


@kernel
def row(sim, v, d):
    """Which heap run ``d`` is in: those of a second queue have one of their own (``store_queues``)."""
    return sim.trees[v].shadows if sim.hosted[d].queue == 1 else v


@kernel
def sift(sim, v, d):
    """Run ``d`` has another place in the order."""
    if sim.nodes[d].heap_slot >= 0:
        eviction.moved(sim, row(sim, v, d), d)


@kernel
def _resize(sim, v, d, more):
    """Run ``d`` has so many pages more; or less."""
    cache = sim.trees[v]
    cache.free_pages -= more
    if sim.hosted[d].queue == 0:
        cache.once_pages += more


@kernel
def reaches(sim, v, d, end):
    """A sequence of ``end`` tokens uses run ``d``: what it can do without begins there at the earliest (tlru)."""
    tier = tier_of(sim, v)
    spare_from = end + tier.turn_tokens - tier.tail_tokens
    if sim.hosted[d].spare_from < spare_from:
        sim.hosted[d].spare_from = spare_from
        sift(sim, v, d)


@kernel
def renew(sim, v, d, now, priority):
    """Run ``d`` is as new as this operation."""
    node = sim.nodes[d]
    hosted = sim.hosted[d]
    node.tick = stamp(sim, v, sim.trees[v].tick, node.begin)
    hosted.at_s = now
    depth = 0.5 * (node.begin + node.end)
    hosted.value = sim.trees[v].worth + (node.hits + 1) * (1.0 + depth / ATTENTION_TOKENS)
    if sim.tiers.priorities:
        sim.standings[d].priority = max(sim.standings[d].priority, priority)
    sift(sim, v, d)


@kernel
def use(sim, v, d, now, priority):
    """Run ``d`` is used now."""
    sim.nodes[d].hits += 1
    if sim.hosted[d].queue == 0 and _moves_on(sim.trees[v].eviction, sim, d):
        move_on(sim, v, d)
    renew(sim, v, d, now, priority)


@kernel
def move_on(sim, v, d):
    """Run ``d`` moves from the first queue into the second one."""
    node = sim.nodes[d]
    eviction.withdraw(sim, v, d)
    sim.trees[v].once_pages -= pages(sim, node.end - node.begin)
    sim.hosted[d].queue = 1
    eviction.enter(sim, row(sim, v, d), d)


@kernel
def remove(sim, v, d):
    """Take run ``d`` out."""
    node = sim.nodes[d]
    eviction.withdraw(sim, row(sim, v, d), d)
    if node.prev >= 0:
        sim.nodes[node.prev].next = node.next
    else:
        sim.deepest_cached[v, node.trace_node] = node.next
    if node.next >= 0:
        sim.nodes[node.next].prev = node.prev
    _resize(sim, v, d, -pages(sim, node.end - node.begin))
    tree.release_node(sim, d)


@kernel
def trim(sim, v, d, count):
    """Take the last ``count`` pages of run ``d`` out, or all of it."""
    node = sim.nodes[d]
    if pages(sim, node.end - node.begin) <= count:
        remove(sim, v, d)
        return
    node.end -= count * sim.config.page_tokens
    _resize(sim, v, d, -count)
    sift(sim, v, d)


@kernel
def _insert(sim, v, s, before, begin, end, queue):
    """A run of trace-tree node ``s`` behind ``before``, or as its first."""
    d = tree.acquire_node(sim)
    node = sim.nodes[d]
    after = sim.nodes[before].next if before >= 0 else sim.deepest_cached[v, s]
    node.trace_node = s
    node.begin = begin
    node.end = end
    node.parent = -1
    node.prev = before
    node.next = after
    node.hits = 0
    sim.hosted[d].queue = queue
    node.serial = stamp(sim, v, sim.trees[v].tick, begin)
    if before >= 0:
        sim.nodes[before].next = d
    else:
        sim.deepest_cached[v, s] = d
    if after >= 0:
        sim.nodes[after].prev = d
    _resize(sim, v, d, pages(sim, end - begin))
    return d


@kernel
def _lead(sim, v, d, begin, queue):
    """A new run of ``queue``, from ``begin`` on, comes before run ``d``, which joins it."""
    node = sim.nodes[d]
    eviction.withdraw(sim, row(sim, v, d), d)
    _resize(sim, v, d, -pages(sim, node.end - node.begin))
    node.begin = begin
    node.hits = 0
    sim.hosted[d].queue = queue
    node.serial = stamp(sim, v, sim.trees[v].tick, begin)
    _resize(sim, v, d, pages(sim, node.end - begin))
    eviction.enter(sim, row(sim, v, d), d)


@kernel
def hold(sim, v, s, begin, end, now, priority, queue):
    """Hold the pages in (begin, end] of trace-tree node ``s``, which there is room for; ``queue``: of a run to be made.

    Runs that they overlap or touch become one with them.
    """
    before = -1
    d = sim.deepest_cached[v, s]
    while d >= 0 and sim.nodes[d].end < begin:
        before = d
        d = sim.nodes[d].next
    if d < 0 or sim.nodes[d].begin > end:
        d = _insert(sim, v, s, before, begin, end, queue)
        sim.hosted[d].spare_from = -DEPTHS
        if sim.tiers.priorities:
            sim.standings[d].priority = priority
        renew(sim, v, d, now, priority)
        eviction.enter(sim, row(sim, v, d), d)
        return
    node = sim.nodes[d]
    if begin < node.begin:
        _lead(sim, v, d, begin, queue)
    while node.end < end:
        after = node.next
        upto = end
        if after >= 0 and sim.nodes[after].begin <= end:
            upto = sim.nodes[after].end
            sim.hosted[d].spare_from = max(sim.hosted[d].spare_from, sim.hosted[after].spare_from)
            if sim.tiers.priorities:
                sim.standings[d].priority = max(sim.standings[d].priority, sim.standings[after].priority)
            remove(sim, v, after)
        more = pages(sim, upto - node.end)
        node.end = upto
        _resize(sim, v, d, more)
    renew(sim, v, d, now, priority)


@kernel
def _split(sim, v, d, at):
    """Cut run ``d`` at ``at``; the part behind is alike in all but where it begins."""
    end = sim.nodes[d].end
    trim(sim, v, d, pages(sim, end - at))
    e = _insert(sim, v, sim.nodes[d].trace_node, d, at, end, sim.hosted[d].queue)
    sim.nodes[e].hits = sim.nodes[d].hits
    sim.nodes[e].tick = stamp(sim, v, sim.nodes[d].tick // DEPTHS, at)
    sim.nodes[e].serial = stamp(sim, v, sim.nodes[d].serial // DEPTHS, at)
    sim.hosted[e].at_s = sim.hosted[d].at_s
    sim.hosted[e].value = sim.hosted[d].value
    sim.hosted[e].spare_from = sim.hosted[d].spare_from
    if sim.tiers.priorities:
        sim.standings[e].priority = sim.standings[d].priority
    eviction.enter(sim, row(sim, v, e), e)


@kernel
def cut(sim, v, s, begin, end):
    """Take what is held in (begin, end] of trace-tree node ``s`` out; returns how many tokens that was."""
    taken = 0
    d = sim.deepest_cached[v, s]
    while d >= 0 and sim.nodes[d].begin < end:
        node = sim.nodes[d]
        after = node.next
        if node.end > begin:
            if node.end > end:
                _split(sim, v, d, end)
                after = -1
            out = node.end - max(node.begin, begin)
            trim(sim, v, d, pages(sim, out))
            taken += out
        d = after
    return taken
