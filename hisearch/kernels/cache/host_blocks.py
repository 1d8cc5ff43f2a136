"""vLLM's offloading manager: look-ups of the blocks that host memory holds, their uses, and stores of new ones.

The rules and their sources: ``tests.reference.vllm_offload_store``. Arguments ``begin`` and ``end`` (excluded) are
block numbers on the path to trace node ``trace_node``. With a store threshold, block table v counts look-ups of single
blocks.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import block_table, host_evictions, host_runs, host_use
from hisearch.kernels.layout import tiers as tl

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
        bottom = max(begin, host_runs.low(sim, s))
        at = min(end, host_runs.high(sim, s))
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
def use(sim, v, trace_node, begin, end, loads):
    """Add ``loads`` to the loads that read the blocks, all of which are held."""
    if loads < 0:
        sim.stores[v].evictable = sim.stores[v].capacity
    s = trace_node
    while s > 0:
        d = sim.run_deepest_cached[v, s] if host_runs.low(sim, s) < end else -1
        while d >= 0 and sim.runs[d].end > begin:
            if sim.runs[d].begin < end:
                d = host_runs.cut_out(sim, v, d, begin, end)
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
        d = sim.run_deepest_cached[v, s] if host_runs.low(sim, s) < end else -1
        while d >= 0 and sim.runs[d].end > begin:
            if sim.runs[d].list <= tl.FREQUENT:
                held += max(min(sim.runs[d].end, end) - max(sim.runs[d].begin, begin), 0)
            d = sim.runs[d].higher
        if sim.trace.start_tokens[s] <= begin * sim.offloading.block_tokens:
            break
        s = sim.trace.parent[s]
    return held


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
            host_runs.extend(sim, v, d, end - top)
        elif top < end:
            deeper = host_runs.insert(sim, v, s, top, end, deeper)
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
            d = host_runs.cut_out(sim, v, d, begin, end)
            higher = sim.runs[d].higher
            host_runs.drop(sim, v, d)
            d = higher
        else:
            d = sim.runs[d].higher


@kernel
def _store_range(sim, v, trace_node, begin, end, r):
    """Insert the blocks that are not held; ``r`` stores them."""
    s = trace_node
    while s > 0:
        bottom = max(begin, host_runs.low(sim, s))
        top = min(end, host_runs.high(sim, s))
        if top > bottom:
            if sim.offloading.arc:
                _forget_ghosts(sim, v, s, bottom, top)
            _fill(sim, v, s, bottom, top, r)
        if sim.trace.start_tokens[s] <= begin * sim.offloading.block_tokens:
            break
        s = sim.trace.parent[s]


@kernel
def _missing(sim, v, trace_node, begin, end):
    """Number of the blocks that reach the threshold and are not held."""
    if sim.offloading.threshold == 0:
        return end - begin - _held(sim, v, trace_node, begin, end)
    block_table.fill_path(sim, trace_node, begin, end)
    missing = 0
    low, high = host_evictions.next_eligible(sim, v, begin, end, begin)
    while low < high:
        missing += high - low - _held(sim, v, trace_node, low, high)
        low, high = host_evictions.next_eligible(sim, v, high, end, begin)
    return missing


@kernel
def begin_store(sim, v, trace_node, begin, end, r):
    """Insert missing blocks that reach the threshold, for request ``r``; returns how many, -1 if they do not fit."""
    store = sim.stores[v]
    if not host_runs.enough(sim, 2 * (end - begin) + 8):
        return -1
    missing = _missing(sim, v, trace_node, begin, end)
    if missing == 0:
        return 0
    if not host_evictions.evict_for(sim, v, trace_node, begin, end, missing):
        return -1
    if sim.offloading.threshold == 0:
        _store_range(sim, v, trace_node, begin, end, r)
    else:
        low, high = host_evictions.next_eligible(sim, v, begin, end, begin)
        while low < high:
            _store_range(sim, v, trace_node, low, high, r)
            low, high = host_evictions.next_eligible(sim, v, high, end, begin)
    store.stored += missing
    store.peak = max(store.peak, host_runs.size(sim, v, tl.RECENT) + host_runs.size(sim, v, tl.FREQUENT))
    return missing


@kernel
def _extendable_run(sim, v, trace_node, begin, end, r):
    """The run that ends before block ``begin``, stored and used last by ``r``, if the blocks only extend it; or -1.

    This is the case for a request that decodes. The run's use is pending, so the blocks may join it (``_continues``).
    It is the deepest run of its trace node, so none of the blocks is held.
    """
    if host_runs.low(sim, trace_node) > begin or end > host_runs.high(sim, trace_node):
        return -1
    d = sim.run_deepest_cached[v, trace_node]
    if d < 0 or not _continues(sim, v, d, begin, r):
        return -1
    offloaded = sim.offloaded[r]
    if offloaded.use_age != sim.stores[v].age or sim.uses[v, offloaded.use_at].end != begin:
        return -1
    return d


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
    held = host_runs.size(sim, v, tl.RECENT)
    short = held + count - store.capacity
    if short > 0 and not host_evictions.trim_first(sim, v, short):
        return False
    host_runs.extend(sim, v, d, count)
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
        d = sim.run_deepest_cached[v, s] if host_runs.low(sim, s) < end else -1
        while d >= 0:
            if sim.runs[d].owner == r:
                sim.runs[d].owner = -1
            d = sim.runs[d].higher
        s = sim.trace.parent[s]
