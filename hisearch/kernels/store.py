"""A store of KV pages by the path that they lie on: a disk, a remote pool. It knows nothing of who asks.

What it holds of a trace-tree node is a list of runs of whole pages, in order of depth; ``cover`` has the first. A page
can be held without the one before it. A run's last use is that of its newest part; runs that come to touch become one,
which keeps the foremost one's age and hits. Room is made by trimming runs from their ends, in the order of the store's
policy; of runs used together, the deepest first.

tlru (Zhang et al. 2025): of a sequence of L tokens, pages from L + turn_tokens - tail_tokens on may go first: its next
prompt would still have no more than tail_tokens to compute. gdsf: a token at depth d costs 1 + d / ``ATTENTION_TOKENS``
to compute again.

With a time to live, a run expires so long after its last use: it is not found any more (reclaim lazy drops it when it
is looked up, periodic at set times, pressure when room is wanted, before anything else), and what is written over it or
next to it is written anew.
"""

from __future__ import annotations

from hisearch.kernels import eviction, tree
from hisearch.kernels import hicache_layout as hl
from hisearch.kernels import layout as la
from hisearch.kernels.jit import kernel

#: Depth at which attention makes a token cost twice that of the first: Qwen3-32B in bf16 on one H100, by roofline.
ATTENTION_TOKENS = 23_000
#: More than there are tokens on a path.
_DEPTHS = 2**30


@kernel
def _pages(sim, tokens):
    return tokens // sim.config.page_tokens


@kernel
def _top(sim, s, end):
    """End of the whole pages up to ``end`` that complete in trace-tree node ``s``."""
    return tree.floor_page(sim, min(end, sim.trace.end_tokens[s]))


@kernel
def _bottom(sim, s, begin):
    """Begin of the whole pages from ``begin`` on that complete in ``s``."""
    return max(begin, tree.floor_page(sim, sim.trace.start_tokens[s]))


@kernel
def _expired(sim, d, now):
    return now - sim.hosted[d].at_s > sim.tiers.ttl_s


@kernel
def _stamp(sim, v, begin):
    """The present tick, such that of runs of the same one the deepest goes first."""
    cache = sim.trees[v]
    last_goes_first = cache.eviction == la.MRU or cache.eviction == la.FILO
    return cache.tick * _DEPTHS + (begin if last_goes_first else _DEPTHS - 1 - begin)


@kernel
def _used_now(sim, v, d):
    return sim.nodes[d].tick >= sim.trees[v].tick * _DEPTHS


@kernel
def _value(sim, v, d):
    """What run ``d`` is worth under gdsf."""
    node = sim.nodes[d]
    depth = 0.5 * (node.begin + node.end)
    sim.hosted[d].value = sim.trees[v].worth + (node.hits + 1) * (1.0 + depth / ATTENTION_TOKENS)


@kernel
def reach(sim, v, static, end):
    """A sequence of ``end`` tokens on the path to ``static`` uses what is held of it (tlru)."""
    s = static
    while s > 0:
        d = sim.cover[v, s]
        while d >= 0:
            if sim.nodes[d].begin < end and sim.hosted[d].reach < end:
                sim.hosted[d].reach = end
                eviction.sift(sim, v, sim.nodes[d].heap_slot)
            d = sim.nodes[d].next
        s = sim.trace.parent[s]


@kernel
def _use(sim, v, d, now):
    """Run ``d`` is used now."""
    node = sim.nodes[d]
    node.tick = _stamp(sim, v, node.begin)
    node.hits += 1
    sim.hosted[d].at_s = now
    _value(sim, v, d)
    if node.heap_slot >= 0:
        eviction.sift(sim, v, node.heap_slot)


@kernel
def _free(sim, v, tokens):
    sim.trees[v].free_pages += _pages(sim, tokens)


@kernel
def _remove(sim, v, d):
    """Take run ``d`` out."""
    node = sim.nodes[d]
    eviction.withdraw(sim, v, d)
    if node.prev >= 0:
        sim.nodes[node.prev].next = node.next
    else:
        sim.cover[v, node.static] = node.next
    if node.next >= 0:
        sim.nodes[node.next].prev = node.prev
    _free(sim, v, node.end - node.begin)
    tree.release_node(sim, d)


@kernel
def _expire(sim, v, d):
    sim.trees[v].expired_tokens += sim.nodes[d].end - sim.nodes[d].begin
    _remove(sim, v, d)


@kernel
def _expire_near(sim, v, static, begin, end, now):
    """Drop what has expired of all that pages in (begin, end] on the path to ``static`` would join."""
    s = static
    while s > 0:
        bottom = _bottom(sim, s, begin)
        top = _top(sim, s, end)
        d = sim.cover[v, s] if top > bottom else -1
        while d >= 0:
            after = sim.nodes[d].next
            if sim.nodes[d].begin <= top and sim.nodes[d].end >= bottom and _expired(sim, d, now):
                _expire(sim, v, d)
            d = after
        if sim.trace.start_tokens[s] <= begin:
            break
        s = sim.trace.parent[s]


@kernel
def sweep(sim, v, now):
    """Drop all that has expired."""
    cache = sim.trees[v]
    dropped = True
    while dropped:
        dropped = False
        for slot in range(cache.heap_size - 1, -1, -1):
            # Dropping one moves another into its slot, or further up; hence once more, until nothing is found.
            if slot < cache.heap_size and _expired(sim, sim.evict_heap[v, slot], now):
                _expire(sim, v, sim.evict_heap[v, slot])
                dropped = True


@kernel
def _first_missing(sim, v, s, begin, end, now):
    """Where the pages held without a gap from ``begin`` on end, at most ``end``, within trace-tree node ``s``."""
    d = sim.cover[v, s]
    while d >= 0 and begin < end:
        node = sim.nodes[d]
        after = node.next
        if _expired(sim, d, now):
            if sim.tiers.reclaim == hl.LAZY:
                _expire(sim, v, d)
        elif node.begin > begin:
            return begin
        elif node.end > begin:
            begin = node.end
        d = after
    return min(begin, end)


@kernel
def leading(sim, v, static, begin, end, now):
    """Tokens held without a gap behind ``begin`` on the path to ``static``, up to ``end``."""
    limit = end
    s = static
    while s > 0:
        bottom = _bottom(sim, s, begin)
        top = _top(sim, s, end)
        if top > bottom:
            found = _first_missing(sim, v, s, bottom, top, now)
            if found < top:
                limit = found
        if sim.trace.start_tokens[s] <= begin:
            break
        s = sim.trace.parent[s]
    return limit - begin


@kernel
def touch(sim, v, static, begin, end, now):
    """What is held in (begin, end] on the path to ``static`` is used now."""
    sim.trees[v].tick += 1
    s = static
    while s > 0:
        if _top(sim, s, end) > _bottom(sim, s, begin):
            d = sim.cover[v, s]
            while d >= 0:
                if sim.nodes[d].begin < end and sim.nodes[d].end > begin:
                    _use(sim, v, d, now)
                d = sim.nodes[d].next
        if sim.trace.start_tokens[s] <= begin:
            break
        s = sim.trace.parent[s]


@kernel
def _missing(sim, v, static, begin, end):
    """Tokens in (begin, end] on the path to ``static`` that are not held."""
    missing = end - begin
    s = static
    while s > 0:
        top = _top(sim, s, end)
        bottom = _bottom(sim, s, begin)
        if top > bottom:
            d = sim.cover[v, s]
            while d >= 0:
                missing -= max(min(sim.nodes[d].end, top) - max(sim.nodes[d].begin, bottom), 0)
                d = sim.nodes[d].next
        if sim.trace.start_tokens[s] <= begin:
            break
        s = sim.trace.parent[s]
    return missing


@kernel
def _make_room(sim, v, pages, now):
    """Free ``pages`` pages, of runs not used at this tick alone. Returns whether there are so many."""
    cache = sim.trees[v]
    if cache.free_pages < pages and sim.tiers.reclaim == hl.PRESSURE:
        sweep(sim, v, now)
    spared = -1
    while cache.free_pages < pages and cache.heap_size > 0:
        d = sim.evict_heap[v, 0]
        node = sim.nodes[d]
        if _used_now(sim, v, d):
            eviction.withdraw(sim, v, d)
            sim.hosted[d].below = spared
            spared = d
            continue
        if cache.eviction == la.CLOCK and node.hits > 0:
            node.hits = 0
            node.serial = _stamp(sim, v, node.begin)
            eviction.sift(sim, v, 0)
            continue
        here = _pages(sim, node.end - node.begin)
        wanted = pages - cache.free_pages
        if cache.eviction == la.GDSF:
            cache.worth = max(cache.worth, sim.hosted[d].value)
        elif cache.eviction == la.TLRU:
            spare = _pages(sim, node.end - max(eviction.spare_from(sim, d), node.begin))
            if 0 < spare < here:
                wanted = min(wanted, spare)
        cache.evicted_tokens += min(here, wanted) * sim.config.page_tokens
        if here <= wanted:
            _remove(sim, v, d)
        else:
            node.end -= wanted * sim.config.page_tokens
            cache.free_pages += wanted
            eviction.sift(sim, v, 0)
    while spared >= 0:
        eviction.enter(sim, v, spared)
        spared = sim.hosted[spared].below
    return cache.free_pages >= pages


@kernel
def _new_run(sim, v, s, before, after, begin, end, now):
    d = tree.acquire_node(sim)
    node = sim.nodes[d]
    node.static = s
    node.begin = begin
    node.end = end
    node.parent = -1
    node.prev = before
    node.next = after
    node.tick = _stamp(sim, v, begin)
    node.serial = node.tick
    if before >= 0:
        sim.nodes[before].next = d
    else:
        sim.cover[v, s] = d
    if after >= 0:
        sim.nodes[after].prev = d
    sim.hosted[d].at_s = now
    sim.hosted[d].reach = end
    _value(sim, v, d)
    eviction.enter(sim, v, d)


@kernel
def _put_in(sim, v, s, begin, end, now):
    """Hold the pages in (begin, end] of trace-tree node ``s``, which there is room for."""
    before = -1
    d = sim.cover[v, s]
    while d >= 0 and sim.nodes[d].end < begin:
        before = d
        d = sim.nodes[d].next
    if d < 0 or sim.nodes[d].begin > end:
        _new_run(sim, v, s, before, d, begin, end, now)
        sim.trees[v].free_pages -= _pages(sim, end - begin)
        return
    # Runs that it overlaps or touches become one with it.
    node = sim.nodes[d]
    taken = 0
    if begin < node.begin:
        taken += node.begin - begin
        node.begin = begin
    while node.end < end:
        after = node.next
        if after >= 0 and sim.nodes[after].begin <= end:
            taken += sim.nodes[after].begin - node.end
            node.end = sim.nodes[after].end
            _free(sim, v, sim.nodes[after].begin - sim.nodes[after].end)
            _remove(sim, v, after)
        else:
            taken += end - node.end
            node.end = end
    sim.trees[v].free_pages -= _pages(sim, taken)
    if not _used_now(sim, v, d):
        _use(sim, v, d, now)


@kernel
def put(sim, v, static, begin, end, now):
    """Hold the whole pages in (begin, end] on the path to ``static``, or as many of the first of them as have room."""
    cache = sim.trees[v]
    if sim.counters[la.NODES_LEFT] < la.NODES_PER_REQUEST + (end - begin) // sim.config.page_tokens:
        sim.counters[la.FAULT] = la.NODE_POOL_FULL
        return
    if sim.tiers.ttl_s < la.FOREVER_S:
        _expire_near(sim, v, static, begin, end, now)
    touch(sim, v, static, begin, end, now)
    missing = _missing(sim, v, static, begin, end)
    if not _make_room(sim, v, _pages(sim, missing), now):
        while _pages(sim, missing) > cache.free_pages:
            # Each page less that is put is one missing page less, or none.
            end -= missing - cache.free_pages * sim.config.page_tokens
            missing = _missing(sim, v, static, begin, end) if end > begin else 0
        if end <= begin:
            return
    cache.stored_tokens += missing
    s = static
    while s > 0:
        bottom = _bottom(sim, s, begin)
        top = _top(sim, s, end)
        if top > bottom:
            _put_in(sim, v, s, bottom, top, now)
        if sim.trace.start_tokens[s] <= begin:
            break
        s = sim.trace.parent[s]
    cache.peak_pages = max(cache.peak_pages, cache.capacity_pages - cache.free_pages)
    if cache.eviction == la.TLRU:
        reach(sim, v, static, end)


@kernel
def reset(sim, v, pages, policy):
    """An empty store of ``pages`` pages."""
    cache = sim.trees[v]
    cache.capacity_pages = pages
    cache.free_pages = pages
    cache.eviction = policy
