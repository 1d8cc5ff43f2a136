"""Runs of pages of a trace node in a store, as a list in order of depth; ``deepest_cached`` has the first.

A run is a maximal sequence of whole pages held without a gap. All its pages share its last use, use count, age and the
other keys of the store's order. Runs that touch are joined. The joined run keeps the age and uses of the foremost, and
the highest priority. Pages added behind a run join it without counting as a use. Pages added before a run form a run
without uses, which that run joins.

Ticks and ages are operation numbers; among runs of the same operation they let the deepest be evicted first.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.base.policies import EVICTIONS
from hisearch.kernels.cache import eviction, tree
from hisearch.kernels.core.dispatch import dispatcher
from hisearch.kernels.core.linked_list import linked_list

#: Depth at which attention makes a token cost twice the first one: Qwen3-32B in bf16 on one H100, by roofline.
ATTENTION_TOKENS = 23_000
#: An upper bound of the tokens on a path.
DEPTHS = 2**30
#: Bits of the policies under which the deepest of what was used together goes last.
_NEWEST_FIRST = EVICTIONS.mask(lambda policy: policy.newest_first)

_link, _unlink = linked_list()
_moves_on = dispatcher(EVICTIONS, "moves_on", "sim, d", otherwise="False")


@kernel
def pages(sim, tokens):
    """Whole pages in ``tokens`` tokens."""
    return tokens // sim.config.page_tokens


@kernel
def top(sim, s, end):
    """End of the whole pages up to ``end`` that complete in trace node ``s``."""
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
    """``tick`` combined with a depth, such that of runs with the same tick the deepest is evicted first."""
    cache = sim.trees[v]
    return tick * DEPTHS + (begin if _NEWEST_FIRST >> cache.eviction & 1 else DEPTHS - 1 - begin)


@kernel
def row(sim, v, d):
    """Heap of run ``d``: a second queue has one of its own (``store_queues``)."""
    return sim.trees[v].shadows if sim.hosted[d].queue == 1 else v


@kernel
def sift(sim, v, d):
    """Move run ``d`` to its new place in the order."""
    if sim.nodes[d].heap_slot >= 0:
        eviction.moved(sim, row(sim, v, d), d)


@kernel
def _resize(sim, v, d, more):
    """Account for ``more`` pages added to run ``d``; negative: removed."""
    cache = sim.trees[v]
    cache.free_pages -= more
    if sim.hosted[d].queue == 0:
        cache.once_pages += more


@kernel
def reaches(sim, v, d, end):
    """A sequence of ``end`` tokens uses run ``d``: raise the token from which the run is dispensable (tlru)."""
    tier = tier_of(sim, v)
    dispensable_from = end + tier.turn_tokens - tier.tail_tokens
    if sim.hosted[d].dispensable_from < dispensable_from:
        sim.hosted[d].dispensable_from = dispensable_from
        sift(sim, v, d)


@kernel
def renew(sim, v, d, now, priority):
    """Set the recency of run ``d`` to the present operation."""
    node = sim.nodes[d]
    hosted = sim.hosted[d]
    node.tick = stamp(sim, v, sim.trees[v].tick, node.begin)
    hosted.at_s = now
    depth = 0.5 * (node.begin + node.end)
    hosted.value = sim.trees[v].worth + (node.hits + 1) * (1.0 + depth / ATTENTION_TOKENS)
    if sim.tiers.priorities:
        sim.node_ranks[d].priority = max(sim.node_ranks[d].priority, priority)
    sift(sim, v, d)


@kernel
def use(sim, v, d, now, priority):
    """Note a use of run ``d`` now."""
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
    s = node.trace_node
    sim.deepest_cached[v, s], _ = _unlink(sim.nodes, sim.deepest_cached[v, s], -1, d)
    _resize(sim, v, d, -pages(sim, node.end - node.begin))
    tree.release_node(sim, d)


@kernel
def trim(sim, v, d, count):
    """Take the last ``count`` pages out of run ``d``, or the whole run if it has no more."""
    node = sim.nodes[d]
    if pages(sim, node.end - node.begin) <= count:
        remove(sim, v, d)
        return
    node.end -= count * sim.config.page_tokens
    _resize(sim, v, d, -count)
    sift(sim, v, d)


@kernel
def _insert(sim, v, s, before, begin, end, queue):
    """Insert a run of trace node ``s`` behind ``before``; -1: as its first."""
    d = tree.acquire_node(sim)
    node = sim.nodes[d]
    node.trace_node = s
    node.begin = begin
    node.end = end
    node.parent = -1
    node.hits = 0
    sim.hosted[d].queue = queue
    node.serial = stamp(sim, v, sim.trees[v].tick, begin)
    sim.deepest_cached[v, s], _ = _link(sim.nodes, sim.deepest_cached[v, s], -1, before, d)
    _resize(sim, v, d, pages(sim, end - begin))
    return d


@kernel
def _lead(sim, v, d, begin, queue):
    """Join run ``d`` to a new run of ``queue``, from ``begin`` on, that comes directly before it."""
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
    """Insert the pages in (begin, end] of trace node ``s``, which must fit; ``queue``: of a newly made run.

    Runs that they overlap or touch are joined with them.
    """
    before = -1
    d = sim.deepest_cached[v, s]
    while d >= 0 and sim.nodes[d].end < begin:
        before = d
        d = sim.nodes[d].next
    if d < 0 or sim.nodes[d].begin > end:
        d = _insert(sim, v, s, before, begin, end, queue)
        sim.hosted[d].dispensable_from = -DEPTHS
        if sim.tiers.priorities:
            sim.node_ranks[d].priority = priority
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
            sim.hosted[d].dispensable_from = max(sim.hosted[d].dispensable_from, sim.hosted[after].dispensable_from)
            if sim.tiers.priorities:
                sim.node_ranks[d].priority = max(sim.node_ranks[d].priority, sim.node_ranks[after].priority)
            remove(sim, v, after)
        more = pages(sim, upto - node.end)
        node.end = upto
        _resize(sim, v, d, more)
    renew(sim, v, d, now, priority)


@kernel
def _split(sim, v, d, at):
    """Cut run ``d`` at ``at``; the part behind it keeps all keys except the begin."""
    end = sim.nodes[d].end
    trim(sim, v, d, pages(sim, end - at))
    e = _insert(sim, v, sim.nodes[d].trace_node, d, at, end, sim.hosted[d].queue)
    sim.nodes[e].hits = sim.nodes[d].hits
    sim.nodes[e].tick = stamp(sim, v, sim.nodes[d].tick // DEPTHS, at)
    sim.nodes[e].serial = stamp(sim, v, sim.nodes[d].serial // DEPTHS, at)
    sim.hosted[e].at_s = sim.hosted[d].at_s
    sim.hosted[e].value = sim.hosted[d].value
    sim.hosted[e].dispensable_from = sim.hosted[d].dispensable_from
    if sim.tiers.priorities:
        sim.node_ranks[e].priority = sim.node_ranks[d].priority
    eviction.enter(sim, row(sim, v, e), e)


@kernel
def cut(sim, v, s, begin, end):
    """Take the pages in (begin, end] of trace node ``s`` out of the store; returns the tokens removed."""
    taken = 0
    d = sim.deepest_cached[v, s]
    while d >= 0 and sim.nodes[d].begin < end:
        node = sim.nodes[d]
        after = node.next
        if node.end > begin:
            if node.end > end:
                _split(sim, v, d, end)
                after = -1
            removed = node.end - max(node.begin, begin)
            trim(sim, v, d, pages(sim, removed))
            taken += removed
        d = after
    return taken
