"""Uses of blocks in host memory by requests of vLLM's offloading connector as of 0.33, and the order that they give.

Rules, sources and notation: ``chunk_store``. A request's uses are records of ``Sim.runs``, in order of its blocks:
``begin`` is the block's number, ``mark`` has the flags.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import block_table
from hisearch.kernels.cache import host_runs as runs
from hisearch.kernels.layout import sim as la
from hisearch.kernels.layout import tiers as tl
from hisearch.kernels.traffic import lists

PENDING = -1
# Flags of a request's use of a block: seen; stored by it; found; missed, to be stored.
SEEN, INSERTED, REUSED, MISSED = 1, 2, 4, 8


@kernel
def held(sim, v, key):
    """The slot of ``key`` in host memory, or -1; ghosts are not held."""
    slot = block_table.find(sim, v, key)
    return slot if slot >= 0 and sim.blocks[v, slot].list <= tl.FREQUENT else -1


@kernel
def first_use(sim, r, begin):
    """The last of ``r``'s uses, which are in order, of a block before ``begin``; -1: there is none."""
    u = sim.offloaded[r].uses_tail
    if u >= 0 and sim.runs[u].begin < begin:
        return u
    before = -1
    u = sim.offloaded[r].uses_head
    while u >= 0 and sim.runs[u].begin < begin:
        before = u
        u = sim.runs[u].next
    return before


@kernel
def use_block(sim, v, r, before, k, slot, flags):
    """Note that ``r`` uses its block ``k`` (slot -1: not held), behind its use ``before``; returns the use."""
    offloaded = sim.offloaded[r]
    u = sim.runs[before].next if before >= 0 else offloaded.uses_head
    if u < 0 or sim.runs[u].begin != k:
        after = u
        u = runs.acquire(sim)
        sim.runs[u].begin = k
        sim.runs[u].mark = 0
        sim.runs[u].next = after
        if before >= 0:
            sim.runs[before].next = u
        else:
            offloaded.uses_head = u
        if after < 0:
            offloaded.uses_tail = u
    use = sim.runs[u]
    if not use.mark & SEEN and not sim.offloading.arc:
        _take_place(sim, v, r)
        if slot >= 0 and sim.blocks[v, slot].count < offloaded.rank:
            block_table.take_out(sim, v, slot)
            insert(sim, v, r, k, slot)
    if flags & REUSED and use.mark & INSERTED:
        flags &= ~REUSED
    use.mark |= flags
    return u


@kernel
def _next_rank(sim, v):
    sim.stores[v].newest_rank += 1
    return sim.stores[v].newest_rank


@kernel
def _take_place(sim, v, r):
    """Give ``r`` a place in the order, at its end."""
    offloaded = sim.offloaded[r]
    if offloaded.place >= 0:
        return
    offloaded.rank = _next_rank(sim, v)
    if sim.block_tables[v].free_slot < 0 and sim.block_tables[v].slots >= sim.blocks.shape[1]:
        sim.counters[la.FAULT] = la.NODE_POOL_FULL
        return
    offloaded.place = block_table.new_without_key(sim, v)
    sim.blocks[v, offloaded.place].users = PENDING
    sim.blocks[v, offloaded.place].pins = -1
    block_table.append(sim, v, offloaded.place, tl.RECENT)


@kernel
def insert(sim, v, r, k, slot):
    """Put ``r``'s block ``k``, which is in no list, behind those of its blocks that come after it."""
    offloaded = sim.offloaded[r]
    before = offloaded.place
    while True:
        after = sim.blocks[v, before].next
        if after < 0 or sim.blocks[v, after].count != offloaded.rank or sim.blocks[v, after].pins <= k:
            break
        before = after
    sim.blocks[v, slot].count = offloaded.rank
    sim.blocks[v, slot].pins = k
    block_table.insert(sim, v, slot, tl.RECENT, before)


@kernel
def finish(sim, v, r):
    """End ``r``: its blocks move to the end of the order, its first block last."""
    offloaded = sim.offloaded[r]
    if offloaded.uses_head < 0:
        return
    trace_node = lists.path_end(sim, r)
    if sim.offloading.arc:
        _finish_arc(sim, v, r, trace_node)
    else:
        block_table.move(sim, v, offloaded.place, tl.RECENT)
        rank = _next_rank(sim, v)
        u = offloaded.uses_head
        while u >= 0:
            slot = held(sim, v, block_table.key_at(sim, trace_node, sim.runs[u].begin))
            if slot >= 0:
                sim.blocks[v, slot].count = rank
                block_table.take_out(sim, v, slot)
                block_table.insert(sim, v, slot, tl.RECENT, offloaded.place)
            u = sim.runs[u].next
        block_table.drop(sim, v, offloaded.place)
        offloaded.place = -1
    u = offloaded.uses_head
    while u >= 0:
        after = sim.runs[u].next
        runs.release(sim, u)
        u = after
    offloaded.uses_head = -1
    offloaded.uses_tail = -1


@kernel
def _finish_arc(sim, v, r, trace_node):
    """Under arc, found blocks move to the end of T2, others of ``r`` to their list's: each behind its later ones."""
    u = _reverse_uses(sim, r)
    while u >= 0:
        slot = held(sim, v, block_table.key_at(sim, trace_node, sim.runs[u].begin))
        if slot >= 0 and sim.runs[u].mark & (REUSED | INSERTED):
            to = tl.FREQUENT if sim.runs[u].mark & REUSED else sim.blocks[v, slot].list
            block_table.take_out(sim, v, slot)
            block_table.append(sim, v, slot, to)
        u = sim.runs[u].next


@kernel
def _reverse_uses(sim, r):
    """Put ``r``'s uses in order of their blocks, the last one first; returns the first of them."""
    offloaded = sim.offloaded[r]
    reversed_head = -1
    u = offloaded.uses_head
    while u >= 0:
        after = sim.runs[u].next
        sim.runs[u].next = reversed_head
        reversed_head = u
        u = after
    offloaded.uses_head = reversed_head
    return reversed_head
