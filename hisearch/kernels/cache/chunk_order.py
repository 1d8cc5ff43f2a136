"""Eviction order of a store of LMCache: lru, mru, fifo or lfu.

All chunks are in one list of the store's block table: in order of arrival (fifo), of last use (lru, mru) or of use
count (lfu). Under lfu the chunks with equal counts form a *group*, in the order in which they reached the count. The
last chunk of each group is known, so all operations take constant time.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import block_table
from hisearch.kernels.layout import sim as la
from hisearch.kernels.layout import tiers as tl


@kernel
def _new_group(sim, v):
    table = sim.block_tables[v]
    group = table.free_group
    if group >= 0:
        table.free_group = sim.groups[v, group].tail
    else:
        group = table.groups
        table.groups = group + 1
    return group


@kernel
def _enter(sim, v, slot, count, before):
    """Put a chunk used ``count`` times last in its group; ``before``: the last chunk with a smaller count, or -1."""
    after = sim.blocks[v, before].next if before >= 0 else block_table.first(sim, v, tl.RECENT)
    if after >= 0 and sim.blocks[v, after].count == count:
        group = sim.blocks[v, after].group
        before = sim.groups[v, group].tail
    else:
        group = _new_group(sim, v)
    sim.groups[v, group].tail = slot
    sim.blocks[v, slot].group = group
    sim.blocks[v, slot].count = count
    block_table.insert(sim, v, slot, tl.RECENT, before)


@kernel
def put(sim, v, slot):
    """Insert the chunk, which is in no list; look-ups find it from now on."""
    if sim.block_tables[v].eviction == la.LFU:
        _enter(sim, v, slot, 1, -1)
    else:
        block_table.append(sim, v, slot, tl.RECENT)


@kernel
def take_out(sim, v, slot):
    """Take the chunk out of the list."""
    if sim.block_tables[v].eviction == la.LFU:
        group = sim.blocks[v, slot].group
        if sim.groups[v, group].tail == slot:
            before = sim.blocks[v, slot].prev
            if before >= 0 and sim.blocks[v, before].group == group:
                sim.groups[v, group].tail = before
            else:
                sim.groups[v, group].tail = sim.block_tables[v].free_group
                sim.block_tables[v].free_group = group
    block_table.take_out(sim, v, slot)


@kernel
def use(sim, v, slot):
    """Note a use of the chunk."""
    eviction = sim.block_tables[v].eviction
    if eviction == la.LFU:
        count = sim.blocks[v, slot].count
        before = sim.groups[v, sim.blocks[v, slot].group].tail
        if before == slot:
            before = sim.blocks[v, slot].prev
        take_out(sim, v, slot)
        _enter(sim, v, slot, count + 1, before)
    elif eviction != la.FIFO:
        block_table.move(sim, v, slot, tl.RECENT)


@kernel
def victim(sim, v):
    """The next chunk to evict: the first in the policy's order without pins and with at most one user; or -1."""
    newest_first = sim.block_tables[v].eviction == la.MRU
    slot = block_table.last(sim, v, tl.RECENT) if newest_first else block_table.first(sim, v, tl.RECENT)
    while slot >= 0 and (sim.blocks[v, slot].users > 1 or sim.blocks[v, slot].pins > 0):
        slot = sim.blocks[v, slot].prev if newest_first else sim.blocks[v, slot].next
    return slot
