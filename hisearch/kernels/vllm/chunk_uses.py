"""Uses of blocks in host memory by requests of vLLM's offloading connector as of 0.33, and the order that they give.

Rules, sources and notation: ``chunk_store``. A request's uses are records of ``Sim.runs``, in order of its blocks:
``begin`` to ``end`` (excluded) are numbers of blocks, ``flags`` has the flags that these share. Calls that change flags
read them block by block into ``Sim.path[1]``, and write them back.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import block_table, host_runs
from hisearch.kernels.layout import sim as la
from hisearch.kernels.layout import tiers as tl
from hisearch.kernels.traffic import lists

PENDING = -1
# Flags of a request's use of a block: seen; stored by it; found; missed, to be stored.
SEEN, INSERTED, REUSED, MISSED = 1, 2, 4, 8
#: In ``Sim.path[1]`` alone: the block is missing, and may be stored.
MISSING = 16


@kernel
def held(sim, v, key):
    """The slot of ``key`` in host memory, or -1; ghosts are not held."""
    slot = block_table.find(sim, v, key)
    return slot if slot >= 0 and sim.blocks[v, slot].list <= tl.FREQUENT else -1


@kernel
def read_flags(sim, r, begin, end):
    """Write the flags of ``r``'s uses of blocks ``begin`` to ``end`` to ``sim.path[1]``, 0 without a use.

    Returns the last use that begins before block ``begin``, or -1.
    """
    flags = sim.path[1]
    flags[: end - begin] = 0
    u = sim.offloaded[r].uses_tail
    if u >= 0 and sim.runs[u].end <= begin:
        return u
    before = -1
    u = sim.offloaded[r].uses_head
    while u >= 0 and sim.runs[u].begin < end:
        use = sim.runs[u]
        if use.begin < begin:
            before = u
        flags[max(use.begin - begin, 0) : max(min(use.end, end) - begin, 0)] = use.use_flags
        u = use.next
    return before


@kernel
def _link(sim, r, before, u):
    """Let ``r``'s use ``u`` follow its use ``before``; -1: the first, or none."""
    if before >= 0:
        sim.runs[before].next = u
    else:
        sim.offloaded[r].uses_head = u
    if u < 0:
        sim.offloaded[r].uses_tail = before


@kernel
def _new_use(sim, begin, end, flags, after):
    u = host_runs.acquire(sim)
    sim.runs[u].begin = begin
    sim.runs[u].end = end
    sim.runs[u].use_flags = flags
    sim.runs[u].next = after
    return u


@kernel
def _clear(sim, r, before, begin, end):
    """Remove ``r``'s uses of blocks ``begin`` to ``end``, behind its use ``before``; returns the first one behind."""
    after = sim.runs[before].next if before >= 0 else sim.offloaded[r].uses_head
    if before >= 0 and sim.runs[before].end > begin:
        if sim.runs[before].end > end:
            is_last = after < 0
            after = _new_use(sim, end, sim.runs[before].end, sim.runs[before].use_flags, after)
            if is_last:
                sim.offloaded[r].uses_tail = after
        sim.runs[before].end = begin
    while after >= 0 and sim.runs[after].end <= end:
        behind = sim.runs[after].next
        host_runs.release(sim, after)
        after = behind
    if after >= 0 and sim.runs[after].begin < end:
        sim.runs[after].begin = end
    _link(sim, r, before, after)
    return after


@kernel
def write_flags(sim, r, before, begin, end):
    """Let ``r``'s uses of blocks ``begin`` to ``end`` have the flags in ``sim.path[1]``; ``before``: of the reading.

    Takes at most ``end - begin + 1`` records, which the caller has ensured that there are.
    """
    after = _clear(sim, r, before, begin, end)
    k = begin
    while k < end:
        flags = sim.path[1, k - begin] & ~MISSING
        until = k + 1
        while until < end and sim.path[1, until - begin] & ~MISSING == flags:
            until += 1
        if flags:
            if before >= 0 and sim.runs[before].end == k and sim.runs[before].use_flags == flags:
                sim.runs[before].end = until
            else:
                u = _new_use(sim, k, until, flags, after)
                _link(sim, r, before, u)
                before = u
        k = until
    if after < 0:
        sim.offloaded[r].uses_tail = before


@kernel
def use_block(sim, v, r, k, begin, slot, flags):
    """Note in ``sim.path[1]``, read from block ``begin`` on, that ``r`` uses its block ``k`` (slot -1: not held)."""
    before = sim.path[1, k - begin]
    if not before & SEEN and not sim.offloading.arc:
        _take_place(sim, v, r)
        if slot >= 0 and sim.blocks[v, slot].count < sim.offloaded[r].rank:
            block_table.take_out(sim, v, slot)
            insert(sim, v, r, k, slot)
    if before & INSERTED:
        flags &= ~REUSED
    sim.path[1, k - begin] = before | flags


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
        _finish_lru(sim, v, r, trace_node)
    u = offloaded.uses_head
    while u >= 0:
        after = sim.runs[u].next
        host_runs.release(sim, u)
        u = after
    offloaded.uses_head = -1
    offloaded.uses_tail = -1


@kernel
def _finish_lru(sim, v, r, trace_node):
    """Under lru, ``r``'s blocks move to the end of the order, its first block last.

    Those next to its place that follow each other on its path move together; the others are looked up.
    """
    offloaded = sim.offloaded[r]
    blocks = sim.blocks[v]
    place, rank = offloaded.place, _next_rank(sim, v)
    last = place
    slot = blocks[place].next
    while slot >= 0 and blocks[slot].count == offloaded.rank:
        if last != place and blocks[slot].pins != blocks[last].pins - 1:
            break
        blocks[slot].count = rank
        last = slot
        slot = blocks[slot].next
    low = blocks[last].pins if last != place else 0
    high = blocks[blocks[place].next].pins + 1 if last != place else 0
    block_table.move_all(sim, v, place, last)
    begin, end = sim.runs[offloaded.uses_head].begin, sim.runs[offloaded.uses_tail].end
    if begin < low or end > high:
        block_table.fill_path(sim, trace_node, begin, end)
        u = offloaded.uses_head
        while u >= 0:
            use = sim.runs[u]
            _renew(sim, v, rank, use.begin, min(use.end, low), begin, last)
            _renew(sim, v, rank, max(use.begin, high), use.end, begin, place)
            u = use.next
    block_table.drop(sim, v, place)
    offloaded.place = -1


@kernel
def _renew(sim, v, rank, begin, end, path_begin, before):
    """Give the held ones of blocks ``begin`` to ``end`` a rank, and put them behind slot ``before``, the last first."""
    for k in range(begin, end):
        slot = held(sim, v, sim.path[0, k - path_begin])
        if slot >= 0:
            sim.blocks[v, slot].count = rank
            block_table.take_out(sim, v, slot)
            block_table.insert(sim, v, slot, tl.RECENT, before)


@kernel
def _finish_arc(sim, v, r, trace_node):
    """Under arc, found blocks move to the end of T2, others of ``r`` to their list's: each behind its later ones."""
    begin = sim.runs[sim.offloaded[r].uses_head].begin
    block_table.fill_path(sim, trace_node, begin, sim.runs[sim.offloaded[r].uses_tail].end)
    u = _reverse_uses(sim, r)
    while u >= 0:
        use = sim.runs[u]
        if use.use_flags & (REUSED | INSERTED):
            for k in range(use.end - 1, use.begin - 1, -1):
                slot = held(sim, v, sim.path[0, k - begin])
                if slot >= 0:
                    to = tl.FREQUENT if use.use_flags & REUSED else sim.blocks[v, slot].list
                    block_table.take_out(sim, v, slot)
                    block_table.append(sim, v, slot, to)
        u = use.next


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
