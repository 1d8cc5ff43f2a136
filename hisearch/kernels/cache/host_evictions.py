"""Room in the host memory of vLLM's offloading manager: which blocks are evicted, under lru or arc.

Arguments as in ``host_blocks``.
"""

from __future__ import annotations

import numpy as np

from hisearch.base.jit import kernel
from hisearch.kernels.cache import block_table, host_runs, host_use
from hisearch.kernels.layout import tiers as tl

# Results of an eviction.
TOO_FEW, DONE, UNSETTLED = 0, 1, 2


@kernel
def _protect(sim, v, trace_node, begin, end):
    """Protect those of the blocks that are held from eviction by the present call."""
    call = sim.stores[v].protecting_calls
    s = trace_node
    while s > 0:
        d = sim.run_deepest_cached[v, s] if host_runs.low(sim, s) < end else -1
        while d >= 0 and sim.runs[d].end > begin:
            if sim.runs[d].begin < end:
                d = host_runs.cut_out(sim, v, d, begin, end)
                sim.runs[d].protected_by = call
            d = sim.runs[d].higher
        if sim.trace.start_tokens[s] <= begin * sim.offloading.block_tokens:
            break
        s = sim.trace.parent[s]


@kernel
def _is_idle(sim, v, d):
    run = sim.runs[d]
    return run.owner < 0 and run.users == 0 and run.protected_by != sim.stores[v].protecting_calls


@kernel
def _idle(sim, v, k, enough):
    """Evictable blocks of list ``k``, at most ``enough``; -1 where a run with a pending use comes first."""
    count = 0
    d = host_runs.first(sim, v, k)
    while d >= 0 and count < enough:
        if sim.runs[d].age == sim.stores[v].age:
            return -1
        if _is_idle(sim, v, d):
            count += host_runs.length(sim, d)
        d = sim.runs[d].next
    return min(count, enough)


@kernel
def _evictable(sim, v):
    """Blocks that no load reads and that no request is storing."""
    count = 0
    for k in (tl.RECENT, tl.FREQUENT):
        d = host_runs.first(sim, v, k)
        while d >= 0:
            if sim.runs[d].owner < 0 and sim.runs[d].users == 0:
                count += host_runs.length(sim, d)
            d = sim.runs[d].next
    return count


@kernel
def _evict_from(sim, v, k, count):
    d = host_runs.first(sim, v, k)
    while count > 0:
        after = sim.runs[d].next
        if _is_idle(sim, v, d):
            length = host_runs.length(sim, d)
            taken = min(length, count)
            count -= taken
            if sim.offloading.arc:
                if taken < length:
                    host_runs.cut(sim, v, d, sim.runs[d].end - taken)
                host_runs.move(sim, v, d, k + tl.RECENT_GHOSTS)
            elif taken < length:
                host_runs.trim(sim, v, d, taken)
            else:
                host_runs.drop(sim, v, d)
        d = after


@kernel
def _cut_ghosts(sim, v, k):
    """Forget the oldest ghosts beyond the capacity."""
    while True:
        over = host_runs.size(sim, v, k) - sim.stores[v].capacity
        if over <= 0:
            return
        d = host_runs.first(sim, v, k)
        if host_runs.length(sim, d) <= over:
            host_runs.drop(sim, v, d)
        else:
            host_runs.trim(sim, v, d, over)


@kernel
def _evict(sim, v, count):
    """Evict ``count`` blocks that are not protected, or none. Returns ``DONE``, ``TOO_FEW`` or ``UNSETTLED``.

    ARC evicts from T1, one by one, while T1 is not below its target, and the rest from T2.
    """
    store = sim.stores[v]
    most = count
    if sim.offloading.arc:
        most = min(count, max(host_runs.size(sim, v, tl.RECENT) - np.int64(store.target) + 1, 0))
    recent = _idle(sim, v, tl.RECENT, most)
    if recent < 0:
        return UNSETTLED
    if _idle(sim, v, tl.FREQUENT, count - recent) < count - recent:
        return TOO_FEW
    _evict_from(sim, v, tl.RECENT, recent)
    _evict_from(sim, v, tl.FREQUENT, count - recent)
    if sim.offloading.arc:
        _cut_ghosts(sim, v, tl.RECENT_GHOSTS)
        _cut_ghosts(sim, v, tl.FREQUENT_GHOSTS)
    store.evicted += count
    store.evictable -= count
    return DONE


@kernel
def _is_eligible(sim, v, key):
    slot = block_table.find(sim, v, key)
    return slot >= 0 and sim.blocks[v, slot].count >= sim.offloading.threshold


@kernel
def next_eligible(sim, v, begin, end, offset):
    """The first range of blocks from ``begin`` on whose look-ups reach the threshold; (end, end) without one."""
    keys = sim.path[0]
    while begin < end and not _is_eligible(sim, v, keys[begin - offset]):
        begin += 1
    until = begin
    while until < end and _is_eligible(sim, v, keys[until - offset]):
        until += 1
    return begin, until


@kernel
def _protect_eligible(sim, v, trace_node, begin, end):
    """Protect those of the blocks that reach the threshold from eviction by the present call."""
    sim.stores[v].protecting_calls += 1
    if sim.offloading.threshold == 0:
        _protect(sim, v, trace_node, begin, end)
        return
    low, high = next_eligible(sim, v, begin, end, begin)
    while low < high:
        _protect(sim, v, trace_node, low, high)
        low, high = next_eligible(sim, v, high, end, begin)


@kernel
def evict_for(sim, v, trace_node, begin, end, missing):
    """Evict for ``missing`` more blocks, but none of the blocks to be stored; returns whether they fit.

    While running requests fill the store, every one of their steps asks in vain. Only the end of a store or a load
    makes more blocks evictable, so the list is searched once between two of these.
    """
    store = sim.stores[v]
    held = host_runs.size(sim, v, tl.RECENT) + host_runs.size(sim, v, tl.FREQUENT)
    short = held + missing - store.capacity
    if short <= 0:
        return True
    if short > store.evictable:
        return False
    if missing == end - begin and not sim.offloading.arc and trim_first(sim, v, short):
        return True
    _protect_eligible(sim, v, trace_node, begin, end)
    verdict = _evict(sim, v, short)
    if verdict == UNSETTLED:
        host_use.settle(sim, v)
        _protect_eligible(sim, v, trace_node, begin, end)
        verdict = _evict(sim, v, short)
    if verdict == TOO_FEW:
        store.evictable = _evictable(sim, v)
    return verdict == DONE


@kernel
def trim_first(sim, v, short):
    """Trim ``short`` blocks off the first run in eviction order; False where that run alone does not suffice."""
    d = host_runs.first(sim, v, tl.RECENT)
    if d < 0 or sim.runs[d].age == sim.stores[v].age or sim.runs[d].owner >= 0 or sim.runs[d].users > 0:
        return False
    if host_runs.length(sim, d) <= short:
        return False
    host_runs.trim(sim, v, d, short)
    sim.stores[v].evicted += short
    sim.stores[v].evictable -= short
    return True
