"""In which order a store of LMCache gives up its chunks: by lru, mru, fifo or lfu.

All are in one list of the store's ledger: as they came (fifo), as they were used last (lru, mru), or by how often they
were used (lfu), those used equally often as they came to be. These form a *group*, whose last chunk is known, so that
everything takes the same time however many chunks there are.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import block_table
from hisearch.kernels.layout import sim as la
from hisearch.kernels.layout import tiers as tl


@kernel
def _new_group(sim, v):
    book = sim.block_tables[v]
    group = book.free_group
    if group >= 0:
        book.free_group = sim.groups[v, group].tail
    else:
        group = book.groups
        book.groups = group + 1
    return group


@kernel
def _enter(sim, v, slot, count, before):
    """Put a chunk used ``count`` times last in its group; ``before``: the last of those used less often, or -1."""
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
    """The chunk, which is in no list, can be found from now on."""
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
    """The chunk is used."""
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
    """The chunk to go: the first in the policy's order that nobody has pinned and one user at most uses; or -1."""
    newest_first = sim.block_tables[v].eviction == la.MRU
    slot = block_table.last(sim, v, tl.RECENT) if newest_first else block_table.first(sim, v, tl.RECENT)
    while slot >= 0 and (sim.blocks[v, slot].users > 1 or sim.blocks[v, slot].pins > 0):
        slot = sim.blocks[v, slot].prev if newest_first else sim.blocks[v, slot].next
    return slot
