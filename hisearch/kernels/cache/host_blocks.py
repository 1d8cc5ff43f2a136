"""vLLM's offloading manager: the blocks that host memory holds, their uses, and their eviction (lru or arc).

The rules and their sources: ``tests.reference.vllm_offload_store``. Arguments ``begin`` and ``end`` (excluded) are
block numbers on the path to trace node ``trace_node``. With a store threshold, block table v counts look-ups of single
blocks.
"""

from __future__ import annotations

import numpy as np

from hisearch.base.jit import kernel
from hisearch.kernels.cache import block_table, host_use
from hisearch.kernels.cache import host_runs as runs
from hisearch.kernels.layout import tiers as tl

# Results of an eviction.
TOO_FEW, DONE, UNSETTLED = 0, 1, 2


# ---- look-ups and loads ----------------------------------------------------------------------------------------------


@kernel
def _count(sim, v, trace_node, begin, end):
    """Count a look-up of each block."""
    block_table.fill_path(sim, trace_node, begin, end)
    keys = sim.path[0]
    for k in range(end - begin):
        slot = block_table.find(sim, v, keys[k])
        if slot >= 0:
            sim.blocks[v, slot].count += 1
            block_table.move(sim, v, slot, tl.RECENT)
            continue
        if block_table.size(sim, v, tl.RECENT) >= sim.block_tables[v].capacity:
            block_table.drop(sim, v, block_table.first(sim, v, tl.RECENT))
        slot = block_table.new(sim, v, keys[k])
        sim.blocks[v, slot].count = 1
        block_table.append(sim, v, slot, tl.RECENT)


@kernel
def _is_visible(sim, d):
    return sim.runs[d].list <= tl.FREQUENT and sim.runs[d].owner < 0


@kernel
def lookup(sim, v, trace_node, begin, end):
    """Number of consecutive blocks from ``begin`` on that can be loaded."""
    if sim.offloading.threshold > 0:
        _count(sim, v, trace_node, begin, end)
    missing = end
    s = trace_node
    while s > 0:
        bottom = max(begin, runs.low(sim, s))
        at = min(end, runs.high(sim, s))
        if at > bottom:
            d = sim.run_deepest_cached[v, s]
            while d >= 0 and sim.runs[d].end > bottom:
                run = sim.runs[d]
                if run.begin < at:
                    if run.end < at:
                        missing = max(run.end, bottom)
                    at = max(run.begin, bottom)
                    if not _is_visible(sim, d):
                        missing = at
                d = run.higher
            if at > bottom:
                missing = bottom
        if sim.trace.start_tokens[s] <= begin * sim.offloading.block_tokens:
            break
        s = sim.trace.parent[s]
    return missing - begin


@kernel
def _cut_out(sim, v, d, begin, end):
    """Cut the part of run ``d`` within (begin, end) out as a run of its own; returns it."""
    if sim.runs[d].end > end:
        d = runs.cut(sim, v, d, end)
    if sim.runs[d].begin < begin:
        runs.cut(sim, v, d, begin)
    return d


@kernel
def use(sim, v, trace_node, begin, end, loads):
    """Add ``loads`` to the loads that read the blocks, all of which are held."""
    if loads < 0:
        sim.stores[v].evictable = sim.stores[v].capacity
    s = trace_node
    while s > 0:
        d = sim.run_deepest_cached[v, s] if runs.low(sim, s) < end else -1
        while d >= 0 and sim.runs[d].end > begin:
            if sim.runs[d].begin < end:
                d = _cut_out(sim, v, d, begin, end)
                sim.runs[d].users += loads
            d = sim.runs[d].higher
        if sim.trace.start_tokens[s] <= begin * sim.offloading.block_tokens:
            break
        s = sim.trace.parent[s]


# ---- stores ----------------------------------------------------------------------------------------------------------


@kernel
def _held(sim, v, trace_node, begin, end):
    """Number of the blocks that are held."""
    held = 0
    s = trace_node
    while s > 0:
        d = sim.run_deepest_cached[v, s] if runs.low(sim, s) < end else -1
        while d >= 0 and sim.runs[d].end > begin:
            if sim.runs[d].list <= tl.FREQUENT:
                held += max(min(sim.runs[d].end, end) - max(sim.runs[d].begin, begin), 0)
            d = sim.runs[d].higher
        if sim.trace.start_tokens[s] <= begin * sim.offloading.block_tokens:
            break
        s = sim.trace.parent[s]
    return held


@kernel
def _protect(sim, v, trace_node, begin, end):
    """Protect those of the blocks that are held from eviction by the present call."""
    mark = sim.stores[v].marks
    s = trace_node
    while s > 0:
        d = sim.run_deepest_cached[v, s] if runs.low(sim, s) < end else -1
        while d >= 0 and sim.runs[d].end > begin:
            if sim.runs[d].begin < end:
                d = _cut_out(sim, v, d, begin, end)
                sim.runs[d].mark = mark
            d = sim.runs[d].higher
        if sim.trace.start_tokens[s] <= begin * sim.offloading.block_tokens:
            break
        s = sim.trace.parent[s]


@kernel
def _is_idle(sim, v, d):
    run = sim.runs[d]
    return run.owner < 0 and run.users == 0 and run.mark != sim.stores[v].marks


@kernel
def _idle(sim, v, k, enough):
    """Evictable blocks of list ``k``, at most ``enough``; -1 where a run with a pending use comes first."""
    count = 0
    d = runs.first(sim, v, k)
    while d >= 0 and count < enough:
        if sim.runs[d].age == sim.stores[v].age:
            return -1
        if _is_idle(sim, v, d):
            count += runs.length(sim, d)
        d = sim.runs[d].next
    return min(count, enough)


@kernel
def _evictable(sim, v):
    """Blocks that no load reads and that no request is storing."""
    count = 0
    for k in (tl.RECENT, tl.FREQUENT):
        d = runs.first(sim, v, k)
        while d >= 0:
            if sim.runs[d].owner < 0 and sim.runs[d].users == 0:
                count += runs.length(sim, d)
            d = sim.runs[d].next
    return count


@kernel
def _evict_from(sim, v, k, count):
    d = runs.first(sim, v, k)
    while count > 0:
        after = sim.runs[d].next
        if _is_idle(sim, v, d):
            length = runs.length(sim, d)
            taken = min(length, count)
            count -= taken
            if sim.offloading.arc:
                if taken < length:
                    runs.cut(sim, v, d, sim.runs[d].end - taken)
                runs.move(sim, v, d, k + tl.RECENT_GHOSTS)
            elif taken < length:
                runs.trim(sim, v, d, taken)
            else:
                runs.drop(sim, v, d)
        d = after


@kernel
def _cut_ghosts(sim, v, k):
    """Forget the oldest ghosts beyond the capacity."""
    while True:
        over = runs.size(sim, v, k) - sim.stores[v].capacity
        if over <= 0:
            return
        d = runs.first(sim, v, k)
        if runs.length(sim, d) <= over:
            runs.drop(sim, v, d)
        else:
            runs.trim(sim, v, d, over)


@kernel
def _evict(sim, v, count):
    """Evict ``count`` blocks that are not protected, or none. Returns ``DONE``, ``TOO_FEW`` or ``UNSETTLED``.

    ARC evicts from T1, one by one, while T1 is not below its target, and the rest from T2.
    """
    store = sim.stores[v]
    most = count
    if sim.offloading.arc:
        most = min(count, max(runs.size(sim, v, tl.RECENT) - np.int64(store.target) + 1, 0))
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
def _continues(sim, v, d, top, r):
    """Whether blocks from ``top`` on that ``r`` stores next will be part of run ``d`` once its uses are settled."""
    run = sim.runs[d]
    pending = run.age == sim.stores[v].age
    return pending and run.end == top and run.owner == r and run.users == 0


@kernel
def _fill(sim, v, s, begin, end, r):
    """Insert the blocks of trace node ``s`` from ``begin`` to ``end`` that are not held; ``r`` stores them."""
    deeper = -1
    d = sim.run_deepest_cached[v, s]
    while d >= 0 and sim.runs[d].begin >= end:
        deeper = d
        d = sim.runs[d].higher
    while end > begin:
        # Run d is the deepest one that begins before ``end``; ``deeper`` is the one below it.
        top = max(sim.runs[d].end, begin) if d >= 0 else begin
        if top < end and d >= 0 and _continues(sim, v, d, top, r):
            runs.extend(sim, v, d, end - top)
        elif top < end:
            deeper = runs.insert(sim, v, s, top, end, deeper)
            sim.runs[deeper].owner = r
        if d < 0:
            return
        end = min(end, sim.runs[d].begin)
        deeper = d
        d = sim.runs[d].higher


@kernel
def _forget_ghosts(sim, v, s, begin, end):
    d = sim.run_deepest_cached[v, s]
    while d >= 0 and sim.runs[d].end > begin:
        if sim.runs[d].begin < end and sim.runs[d].list > tl.FREQUENT:
            d = _cut_out(sim, v, d, begin, end)
            higher = sim.runs[d].higher
            runs.drop(sim, v, d)
            d = higher
        else:
            d = sim.runs[d].higher


@kernel
def _store_range(sim, v, trace_node, begin, end, r):
    """Insert the blocks that are not held; ``r`` stores them."""
    s = trace_node
    while s > 0:
        bottom = max(begin, runs.low(sim, s))
        top = min(end, runs.high(sim, s))
        if top > bottom:
            if sim.offloading.arc:
                _forget_ghosts(sim, v, s, bottom, top)
            _fill(sim, v, s, bottom, top, r)
        if sim.trace.start_tokens[s] <= begin * sim.offloading.block_tokens:
            break
        s = sim.trace.parent[s]


@kernel
def _is_eligible(sim, v, key):
    slot = block_table.find(sim, v, key)
    return slot >= 0 and sim.blocks[v, slot].count >= sim.offloading.threshold


@kernel
def _next_eligible(sim, v, begin, end, offset):
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
    sim.stores[v].marks += 1
    if sim.offloading.threshold == 0:
        _protect(sim, v, trace_node, begin, end)
        return
    low, high = _next_eligible(sim, v, begin, end, begin)
    while low < high:
        _protect(sim, v, trace_node, low, high)
        low, high = _next_eligible(sim, v, high, end, begin)


@kernel
def _evict_for(sim, v, trace_node, begin, end, missing):
    """Evict for ``missing`` more blocks, but none of the blocks to be stored; returns whether they fit.

    While running requests fill the store, every one of their steps asks in vain. Only the end of a store or a load
    makes more blocks evictable, so the list is searched once between two of these.
    """
    store = sim.stores[v]
    held = runs.size(sim, v, tl.RECENT) + runs.size(sim, v, tl.FREQUENT)
    short = held + missing - store.capacity
    if short <= 0:
        return True
    if short > store.evictable:
        return False
    if missing == end - begin and not sim.offloading.arc and _trim_first(sim, v, short):
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
def _missing(sim, v, trace_node, begin, end):
    """Number of the blocks that reach the threshold and are not held."""
    if sim.offloading.threshold == 0:
        return end - begin - _held(sim, v, trace_node, begin, end)
    block_table.fill_path(sim, trace_node, begin, end)
    missing = 0
    low, high = _next_eligible(sim, v, begin, end, begin)
    while low < high:
        missing += high - low - _held(sim, v, trace_node, low, high)
        low, high = _next_eligible(sim, v, high, end, begin)
    return missing


@kernel
def begin_store(sim, v, trace_node, begin, end, r):
    """Insert missing blocks that reach the threshold, for request ``r``; returns how many, -1 if they do not fit."""
    store = sim.stores[v]
    if not runs.enough(sim, 2 * (end - begin) + 8):
        return -1
    missing = _missing(sim, v, trace_node, begin, end)
    if missing == 0:
        return 0
    if not _evict_for(sim, v, trace_node, begin, end, missing):
        return -1
    if sim.offloading.threshold == 0:
        _store_range(sim, v, trace_node, begin, end, r)
    else:
        low, high = _next_eligible(sim, v, begin, end, begin)
        while low < high:
            _store_range(sim, v, trace_node, low, high, r)
            low, high = _next_eligible(sim, v, high, end, begin)
    store.stored += missing
    store.peak = max(store.peak, runs.size(sim, v, tl.RECENT) + runs.size(sim, v, tl.FREQUENT))
    return missing


@kernel
def _extendable_run(sim, v, trace_node, begin, end, r):
    """The run that ends before block ``begin``, stored and used last by ``r``, if the blocks only extend it; or -1.

    This is the case for a request that decodes. The run's use is pending, so the blocks may join it (``_continues``).
    It is the deepest run of its trace node, so none of the blocks is held.
    """
    if runs.low(sim, trace_node) > begin or end > runs.high(sim, trace_node):
        return -1
    d = sim.run_deepest_cached[v, trace_node]
    if d < 0 or not _continues(sim, v, d, begin, r):
        return -1
    offloaded = sim.offloaded[r]
    if offloaded.use_age != sim.stores[v].age or sim.uses[v, offloaded.use_at].end != begin:
        return -1
    return d


@kernel
def _trim_first(sim, v, short):
    """Trim ``short`` blocks off the first run in eviction order; False where that run alone does not suffice."""
    d = runs.first(sim, v, tl.RECENT)
    if d < 0 or sim.runs[d].age == sim.stores[v].age or sim.runs[d].owner >= 0 or sim.runs[d].users > 0:
        return False
    if runs.length(sim, d) <= short:
        return False
    runs.trim(sim, v, d, short)
    sim.stores[v].evicted += short
    sim.stores[v].evictable -= short
    return True


@kernel
def extend(sim, v, trace_node, begin, end, r):
    """``begin_store`` and ``host_use.touch`` in one, where they only move the ends of two runs; returns whether it did.

    Most blocks are stored this way: those completed by decodes, under lru and without a threshold.
    """
    if sim.offloading.arc or sim.offloading.threshold > 0:
        return False
    store = sim.stores[v]
    d = _extendable_run(sim, v, trace_node, begin, end, r)
    if d < 0 or store.uses == sim.uses.shape[1]:
        return False
    count = end - begin
    held = runs.size(sim, v, tl.RECENT)
    short = held + count - store.capacity
    if short > 0 and not _trim_first(sim, v, short):
        return False
    runs.extend(sim, v, d, count)
    store.stored += count
    store.peak = max(store.peak, held + count - max(short, 0))
    host_use.move_last(sim, v, trace_node, end, r)
    return True


@kernel
def end_store(sim, v, trace_node, end, r):
    """Let look-ups find the blocks before ``end`` that request ``r`` stores."""
    sim.stores[v].evictable = sim.stores[v].capacity
    s = trace_node
    while s > 0:
        d = sim.run_deepest_cached[v, s] if runs.low(sim, s) < end else -1
        while d >= 0:
            if sim.runs[d].owner == r:
                sim.runs[d].owner = -1
            d = sim.runs[d].higher
        s = sim.trace.parent[s]
