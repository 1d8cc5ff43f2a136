"""vLLM 0.33's offloading manager: the blocks that host memory holds, their uses by requests, and their eviction.

Rules and sources: ``tests.reference.vllm_offload_chunks_store``. Every block has a slot of block table v. Its ``users``
are the loads that read it; ``chunk_uses.PENDING`` marks one that is being copied. ``count`` is its rank: that of the
request that stored or used it last; ``pins`` is its number on that request's path.

Under lru a request's blocks are next to each other, behind a slot without a key, its *place*, and the last block first.
With a store threshold, block table ``stores + v`` counts the offers of single blocks.
"""

from __future__ import annotations

import numpy as np

from hisearch.base.jit import kernel
from hisearch.kernels.cache import block_table, host_runs
from hisearch.kernels.layout import tiers as tl
from hisearch.kernels.traffic import lists
from hisearch.kernels.vllm import chunk_uses

# ---- look-ups and loads ----------------------------------------------------------------------------------------------


@kernel
def lookup(sim, v, trace_node, begin, end):
    """Number of consecutive blocks from ``begin`` on that can be loaded; -1: one before the first miss is pending."""
    pending = False
    k = begin
    while k < end:
        slot = chunk_uses.held(sim, v, block_table.key_at(sim, trace_node, k))
        if slot < 0:
            break
        pending |= sim.blocks[v, slot].users == chunk_uses.PENDING
        k += 1
    return -1 if pending else k - begin


@kernel
def begin_load(sim, v, r, begin, end):
    """Begin to load blocks of ``r``, all of which can be hit."""
    block_table.fill_path(sim, lists.path_end(sim, r), begin, end)
    before = chunk_uses.read_flags(sim, r, begin, end)
    for k in range(begin, end):
        slot = block_table.find(sim, v, sim.path[0, k - begin])
        block = sim.blocks[v, slot]
        if block.users == 0:
            sim.stores[v].evictable -= 1
        block.users += 1
        chunk_uses.use_block(sim, v, r, k, begin, slot, chunk_uses.SEEN | chunk_uses.REUSED)
    chunk_uses.write_flags(sim, r, before, begin, end)


@kernel
def end_load(sim, v, r, begin, end):
    """End the load of blocks of ``r``."""
    block_table.fill_path(sim, lists.path_end(sim, r), begin, end)
    for k in range(begin, end):
        block = sim.blocks[v, block_table.find(sim, v, sim.path[0, k - begin])]
        block.users -= 1
        if block.users == 0:
            sim.stores[v].evictable += 1


# ---- stores ----------------------------------------------------------------------------------------------------------


@kernel
def _count_offers(sim, v, blocks):
    """Count an offer of each of the ``blocks`` whose keys are in ``sim.path``."""
    c = sim.offloading.stores + v
    keys = sim.path[0]
    others = block_table.size(sim, c, tl.RECENT)
    for k in range(blocks):
        slot = block_table.find(sim, c, keys[k])
        if slot >= 0:
            sim.blocks[c, slot].count += 1
            block_table.move(sim, c, slot, tl.RECENT)
            others -= 1
    for k in range(blocks):
        if block_table.find(sim, c, keys[k]) >= 0:
            continue
        if block_table.size(sim, c, tl.RECENT) >= sim.block_tables[c].capacity:
            if others == 0:
                continue
            block_table.drop(sim, c, block_table.first(sim, c, tl.RECENT))
            others -= 1
        slot = block_table.new(sim, c, keys[k])
        sim.blocks[c, slot].count = 1
        block_table.append(sim, c, slot, tl.RECENT)


@kernel
def _is_eligible(sim, v, key):
    if sim.offloading.threshold == 0:
        return True
    c = sim.offloading.stores + v
    slot = block_table.find(sim, c, key)
    return slot >= 0 and sim.blocks[c, slot].count >= sim.offloading.threshold


@kernel
def _learn(sim, v, key):
    """ARC: adapt the target size of T1 to a miss of ``key``, if its ghost is kept."""
    slot = block_table.find(sim, v, key)
    if slot < 0:
        return
    store = sim.stores[v]
    recent = block_table.size(sim, v, tl.RECENT_GHOSTS)
    frequent = block_table.size(sim, v, tl.FREQUENT_GHOSTS)
    ghosts = sim.blocks[v, slot].list
    if ghosts == tl.RECENT_GHOSTS:
        store.target = min(store.target + max(1.0, frequent / recent), np.float64(store.capacity))
    else:
        store.target = max(store.target - max(1.0, recent / frequent), 0.0)
    block_table.move(sim, v, slot, ghosts)


@kernel
def begin_store(sim, v, r, begin, end, transfer):
    """Offer blocks of ``r``, which ``transfer`` would copy. Returns how many it copies, -1 if they do not fit."""
    if not host_runs.enough(sim, end - begin + 8):
        return -1
    trace_node = lists.path_end(sim, r)
    block_table.fill_path(sim, trace_node, begin, end)
    if sim.offloading.threshold > 0:
        _count_offers(sim, v, end - begin)
    before = chunk_uses.read_flags(sim, r, begin, end)
    missing, idle = _use_offered(sim, v, r, begin, end)
    if sim.offloading.arc:
        _learn_misses(sim, v, begin, end)
    fits = _make_space(sim, v, missing, idle, begin, end)
    if missing > 0 and fits:
        _store(sim, v, r, begin, end, transfer)
    chunk_uses.write_flags(sim, r, before, begin, end)
    if not fits:
        return -1
    store = sim.stores[v]
    store.held += missing
    store.stored += missing
    store.peak = max(store.peak, store.held)
    return missing


@kernel
def _use_offered(sim, v, r, begin, end):
    """Note that ``r`` offers blocks, whose keys are in ``sim.path``.

    Returns how many are missing and may be stored, and how many are held that could be evicted, were they not offered.
    """
    missing = 0
    idle = 0
    for k in range(begin, end):
        key = sim.path[0, k - begin]
        slot = chunk_uses.held(sim, v, key)
        if slot >= 0:
            users = sim.blocks[v, slot].users
            if users != chunk_uses.PENDING:
                idle += users == 0
                chunk_uses.use_block(sim, v, r, k, begin, slot, chunk_uses.SEEN | chunk_uses.REUSED)
        elif _is_eligible(sim, v, key):
            missing += 1
            chunk_uses.use_block(sim, v, r, k, begin, -1, chunk_uses.SEEN | chunk_uses.MISSING)
    return missing, idle


@kernel
def _learn_misses(sim, v, begin, end):
    """ARC: adapt to those missing blocks that the request misses for the first time, the last one first."""
    flags = sim.path[1]
    for k in range(end - begin - 1, -1, -1):
        if flags[k] & chunk_uses.MISSING and not flags[k] & chunk_uses.MISSED:
            flags[k] |= chunk_uses.MISSED
            _learn(sim, v, sim.path[0, k])


@kernel
def _store(sim, v, r, begin, end, transfer):
    """Insert the missing blocks."""
    keys = sim.path[0]
    flags = sim.path[1]
    for k in range(begin, end):
        if not flags[k - begin] & chunk_uses.MISSING:
            continue
        if sim.offloading.arc:
            _forget_ghost(sim, v, keys[k - begin])
        slot = block_table.new(sim, v, keys[k - begin])
        block = sim.blocks[v, slot]
        block.users = chunk_uses.PENDING
        block.writer = transfer
        block.pins = k
        if sim.offloading.arc:
            block_table.append(sim, v, slot, tl.RECENT)
        else:
            chunk_uses.insert(sim, v, r, k, slot)
        flags[k - begin] |= chunk_uses.INSERTED


@kernel
def _forget_ghost(sim, v, key):
    slot = block_table.find(sim, v, key)
    if slot >= 0:
        block_table.drop(sim, v, slot)


@kernel
def end_store(sim, v, r, begin, end, transfer):
    """Let look-ups find the blocks of ``r`` that ``transfer`` copied."""
    block_table.fill_path(sim, lists.path_end(sim, r), begin, end)
    for k in range(begin, end):
        slot = chunk_uses.held(sim, v, sim.path[0, k - begin])
        if slot >= 0 and sim.blocks[v, slot].users == chunk_uses.PENDING and sim.blocks[v, slot].writer == transfer:
            sim.blocks[v, slot].users = 0
            sim.stores[v].evictable += 1


@kernel
def is_copied_by(sim, v, key, transfer):
    """Whether ``transfer`` is to copy the block."""
    slot = chunk_uses.held(sim, v, key)
    return slot >= 0 and sim.blocks[v, slot].users == chunk_uses.PENDING and sim.blocks[v, slot].writer == transfer


# ---- eviction --------------------------------------------------------------------------------------------------------


@kernel
def _next_idle(sim, v, slot, begin, end):
    """The first slot from ``slot`` on in its list that may be evicted and is not of the offered blocks, or -1."""
    while slot >= 0:
        block = sim.blocks[v, slot]
        if block.users == 0 and not (begin <= block.pins < end and sim.path[0, block.pins - begin] == block.key):
            break
        slot = block.next
    return slot


@kernel
def _make_space(sim, v, missing, idle, begin, end):
    """Evict for ``missing`` more blocks, or nothing; returns whether they fit.

    None of the blocks offered now is evicted, whose keys are in ``sim.path``: ``idle`` of them could be.
    """
    store = sim.stores[v]
    short = store.held + missing - store.capacity
    if short <= 0:
        return True
    if short > store.evictable - idle:
        return False
    recent = _next_idle(sim, v, block_table.first(sim, v, tl.RECENT), begin, end)
    frequent = _next_idle(sim, v, block_table.first(sim, v, tl.FREQUENT), begin, end)
    recent_blocks = block_table.size(sim, v, tl.RECENT)
    for _ in range(short):
        if recent >= 0 and (recent_blocks >= np.int64(store.target) or frequent < 0):
            after = _next_idle(sim, v, sim.blocks[v, recent].next, begin, end)
            _evict(sim, v, recent, tl.RECENT_GHOSTS)
            recent = after
            recent_blocks -= 1
        else:
            after = _next_idle(sim, v, sim.blocks[v, frequent].next, begin, end)
            _evict(sim, v, frequent, tl.FREQUENT_GHOSTS)
            frequent = after
    if sim.offloading.arc:
        for k in (tl.RECENT_GHOSTS, tl.FREQUENT_GHOSTS):
            while block_table.size(sim, v, k) > store.capacity:
                block_table.drop(sim, v, block_table.first(sim, v, k))
    store.evicted += short
    store.evictable -= short
    store.held -= short
    return True


@kernel
def _evict(sim, v, slot, ghosts):
    if sim.offloading.arc:
        block_table.move(sim, v, slot, ghosts)
    else:
        block_table.drop(sim, v, slot)
