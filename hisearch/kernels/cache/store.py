"""A store of KV pages by the path that they lie on: a disk, a remote pool. It knows nothing of who asks.

What it holds of a trace-tree node is a list of runs of whole pages (``store_runs``). A page can be held without the one
before it. Room is made by trimming runs from their ends, in the order of the store's policy (``store_eviction``); of
runs used together, the deepest first. A ``put`` holds its pages from the first to the last, and stops where no room can
be had.

With a time to live, a run expires so long after its last use: it is not found any more (reclaim lazy drops it when it
is looked up, periodic at set times, pressure when room is wanted, before anything else), and what is written over it or
next to it is written anew.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.base.policies import EVICTIONS
from hisearch.kernels.cache import eviction, foresight, store_eviction, store_queues, store_runs
from hisearch.kernels.layout import hicache as hl
from hisearch.kernels.layout import sim as la

#: Bits of the policies that ask how far sequences reach, and of those that know the trace.
REACH = EVICTIONS.mask(lambda policy: policy.reach)
_NEXT_USE = EVICTIONS.mask(lambda policy: policy.next_use)


@kernel
def reach(sim, v, trace_node, end):
    """A sequence of ``end`` tokens on the path to ``trace_node`` uses what is held of it, where the policy asks."""
    s = trace_node
    while s > 0:
        d = sim.deepest_cached[v, s]
        while d >= 0:
            if sim.nodes[d].begin < end:
                store_runs.reaches(sim, v, d, end)
            d = sim.nodes[d].next
        s = sim.trace.parent[s]


@kernel
def _expire_near(sim, v, trace_node, begin, end, now):
    """Drop what has expired of all that pages in (begin, end] on the path to ``trace_node`` would join."""
    s = trace_node
    while s > 0:
        bottom = store_runs.bottom(sim, s, begin)
        top = store_runs.top(sim, s, end)
        d = sim.deepest_cached[v, s] if top > bottom else -1
        while d >= 0:
            after = sim.nodes[d].next
            near = sim.nodes[d].begin <= top and sim.nodes[d].end >= bottom
            if near and store_eviction.expired(sim, v, d, now):
                store_eviction.expire(sim, v, d)
            d = after
        if sim.trace.start_tokens[s] <= begin:
            break
        s = sim.trace.parent[s]


@kernel
def _first_missing(sim, v, s, begin, end, now):
    """Where the pages held without a gap from ``begin`` on end, at most ``end``, within trace-tree node ``s``."""
    d = sim.deepest_cached[v, s]
    while d >= 0 and begin < end:
        node = sim.nodes[d]
        after = node.next
        if store_eviction.expired(sim, v, d, now):
            if store_runs.tier_of(sim, v).reclaim == hl.LAZY:
                store_eviction.expire(sim, v, d)
        elif node.begin > begin:
            return begin
        elif node.end > begin:
            begin = node.end
        d = after
    return min(begin, end)


@kernel
def leading(sim, v, trace_node, begin, end, now):
    """Tokens held without a gap behind ``begin`` on the path to ``trace_node``, up to ``end``."""
    limit = end
    s = trace_node
    while s > 0:
        bottom = store_runs.bottom(sim, s, begin)
        top = store_runs.top(sim, s, end)
        if top > bottom:
            missing = _first_missing(sim, v, s, bottom, top, now)
            if missing < top:
                limit = missing
        if sim.trace.start_tokens[s] <= begin:
            break
        s = sim.trace.parent[s]
    return limit - begin


@kernel
def _first_held(sim, v, s, begin, end, now):
    """Where the first page behind ``begin`` that is held begins, at most ``end``, within trace-tree node ``s``."""
    d = sim.deepest_cached[v, s]
    while d >= 0:
        if sim.nodes[d].end > begin and not store_eviction.expired(sim, v, d, now):
            return min(max(sim.nodes[d].begin, begin), end)
        d = sim.nodes[d].next
    return end


@kernel
def gap(sim, v, trace_node, begin, end, now):
    """Tokens behind ``begin`` on the path to ``trace_node``, up to ``end``, before the first page that is held."""
    limit = end
    s = trace_node
    while s > 0:
        bottom = store_runs.bottom(sim, s, begin)
        top = store_runs.top(sim, s, end)
        if top > bottom:
            held = _first_held(sim, v, s, bottom, top, now)
            if held < top:
                limit = held
        if sim.trace.start_tokens[s] <= begin:
            break
        s = sim.trace.parent[s]
    return limit - begin


@kernel
def touch(sim, v, trace_node, begin, end, now, priority):
    """What is held in (begin, end] on the path to ``trace_node`` is used now, by a request of ``priority``."""
    cache = sim.trees[v]
    cache.tick += 1
    cache.began = cache.tick
    s = trace_node
    while s > 0:
        if store_runs.top(sim, s, end) > store_runs.bottom(sim, s, begin):
            d = sim.deepest_cached[v, s]
            while d >= 0:
                if sim.nodes[d].begin < end and sim.nodes[d].end > begin:
                    store_runs.use(sim, v, d, now, priority)
                d = sim.nodes[d].next
        if sim.trace.start_tokens[s] <= begin:
            break
        s = sim.trace.parent[s]


@kernel
def _missing(sim, v, s, begin, end):
    """Tokens in (begin, end] of trace-tree node ``s`` that are not held."""
    missing = end - begin
    d = sim.deepest_cached[v, s]
    while d >= 0:
        missing -= max(min(sim.nodes[d].end, end) - max(sim.nodes[d].begin, begin), 0)
        d = sim.nodes[d].next
    return missing


@kernel
def _older_before(sim, v, s, begin):
    """Whether a run of trace-tree node ``s`` that this operation has not used ends at ``begin``."""
    d = sim.deepest_cached[v, s]
    while d >= 0 and sim.nodes[d].end < begin:
        d = sim.nodes[d].next
    return d >= 0 and sim.nodes[d].end == begin and not store_eviction.used_now(sim, v, d)


@kernel
def _put_together(sim, v, s, begin, end, now, priority):
    """Hold the pages in (begin, end] of trace-tree node ``s``; returns the end of those that there is room for."""
    cache = sim.trees[v]
    missing = _missing(sim, v, s, begin, end)
    if store_runs.pages(sim, missing) > cache.free_pages and _older_before(sim, v, s, begin):
        # What the first page joins is as new as it from then on, and makes no room for the others.
        if not store_eviction.make(sim, v, s, begin, 1, now):
            return begin
        first = begin + sim.config.page_tokens
        cache.stored_tokens += sim.config.page_tokens
        store_runs.hold(sim, v, s, begin, first, now, priority, 0)
        missing -= sim.config.page_tokens
        begin = first
    if not store_eviction.make(sim, v, s, begin, store_runs.pages(sim, missing), now):
        while store_runs.pages(sim, missing) > cache.free_pages:
            # Each page less that is put is one missing page less, or none.
            end -= missing - cache.free_pages * sim.config.page_tokens
            missing = _missing(sim, v, s, begin, end)
    if end > begin:
        cache.stored_tokens += missing
        store_runs.hold(sim, v, s, begin, end, now, priority, 0)
    return end


@kernel
def _put_by_page(sim, v, s, begin, end, now, priority):
    """``_put_together`` with two queues, page by page."""
    page = sim.config.page_tokens
    at = begin
    while at < end:
        if _missing(sim, v, s, at, at + page) > 0:
            recalled = store_queues.recall(sim, v, s, at)
            if not store_eviction.free_one_page(sim, v, recalled, now):
                break
            sim.trees[v].stored_tokens += page
            store_runs.hold(sim, v, s, at, at + page, now, priority, 1 if recalled else 0)
            store_queues.forget(sim, v)
        at += page
    return at


@kernel
def _enough_records(sim, v, pages):
    """Whether there are node records for so many pages: with two queues each may also be remembered, and recalled."""
    each = 3 if store_eviction.QUEUES >> sim.trees[v].eviction & 1 else 1
    if sim.counters[la.NODES_LEFT] < la.NODES_PER_REQUEST + each * pages:
        sim.counters[la.FAULT] = la.NODE_POOL_FULL
        return False
    return True


@kernel
def put(sim, v, trace_node, begin, end, now, priority):
    """Hold the whole pages in (begin, end] on the path to ``trace_node``, or as many of the first of them as have room.

    ``priority``: of the request that they are of.
    """
    if not _enough_records(sim, v, store_runs.pages(sim, end - begin)):
        return
    cache = sim.trees[v]
    if store_runs.tier_of(sim, v).ttl_s < la.FOREVER_S:
        _expire_near(sim, v, trace_node, begin, end, now)
    touch(sim, v, trace_node, begin, end, now, priority)
    at = begin
    while at < end:
        s = trace_node
        while sim.trace.start_tokens[s] >= at + sim.config.page_tokens:
            s = sim.trace.parent[s]
        top = store_runs.top(sim, s, end)
        if store_eviction.QUEUES >> cache.eviction & 1:
            stop = _put_by_page(sim, v, s, at, top, now, priority)
        else:
            stop = _put_together(sim, v, s, at, top, now, priority)
        at = stop
        if stop < top:
            break
    cache.peak_pages = max(cache.peak_pages, cache.capacity_pages - cache.free_pages)
    if REACH >> cache.eviction & 1 and at > begin:
        reach(sim, v, trace_node, at)


@kernel
def take_out(sim, v, trace_node, begin, end):
    """What is held in (begin, end] on the path to ``trace_node`` is held by another store from now on."""
    s = trace_node
    while s > 0:
        bottom = store_runs.bottom(sim, s, begin)
        top = store_runs.top(sim, s, end)
        if sim.counters[la.NODES_LEFT] < la.NODES_PER_REQUEST:
            sim.counters[la.FAULT] = la.NODE_POOL_FULL
            return
        if top > bottom:
            sim.trees[v].given_tokens += store_runs.cut(sim, v, s, bottom, top)
        if sim.trace.start_tokens[s] <= begin:
            break
        s = sim.trace.parent[s]


@kernel
def _next_use_moved(sim, s):
    """What is held of trace-tree node ``s`` has another place wherever its next use counts."""
    for t in range(sim.tiers.storage):
        tier = sim.store_tiers[t]
        if not _NEXT_USE >> tier.eviction & 1:
            continue
        for v in range(tier.first, tier.first + tier.stores):
            d = sim.deepest_cached[v, s]
            while d >= 0:
                store_runs.sift(sim, v, d)
                d = sim.nodes[d].next


@kernel
def come_up(sim, r):
    """Request ``r`` has come up (an oracle's store): what its prompt uses is used later from now on."""
    if sim.users.shape[0] == 0:
        return
    s = sim.trace.prompt_node[r]
    while s > 0:
        if foresight.pass_by(sim, s):
            _next_use_moved(sim, s)
        s = sim.trace.parent[s]


@kernel
def _clear_leaves(sim, v, h):
    while eviction.some(sim, h):
        store_runs.remove(sim, v, eviction.first(sim, h))


@kernel
def clear(sim, v):
    """All that is held is gone; what an adaptive policy has learned stays."""
    _clear_leaves(sim, v, v)
    if store_eviction.QUEUES >> sim.trees[v].eviction & 1:
        _clear_leaves(sim, v, sim.trees[v].shadows)


@kernel
def reset(sim, v, tier):
    """An empty store of tier ``tier``."""
    cache = sim.trees[v]
    cache.tier = tier
    cache.capacity_pages = sim.store_tiers[tier].pages
    cache.free_pages = cache.capacity_pages
    eviction.begin(sim, v, sim.store_tiers[tier].eviction)
    cache.gone_head = -1
    if store_eviction.QUEUES >> cache.eviction & 1:
        cache.shadows = sim.store_tiers[tier].first_shadow + store_queues.SHADOWS * (v - sim.store_tiers[tier].first)
        store_queues.reset(sim, v)
