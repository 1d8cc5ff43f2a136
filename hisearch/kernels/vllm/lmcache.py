"""LMCache's tiers: chunks in host memory and in stores behind it, each private to a worker or shared.

Rules and sources: ``tests.reference.lmcache_store``. Every store has a block table (``Sim.worker_stores``); those
of the first tier, host memory, come first. A write of content that the cache already has uses host memory outside the
cache: a slot without a key. A chunk that a store behind host memory is receiving for the first time is in no list yet.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import block_table, chunk_order
from hisearch.kernels.layout import hicache as hl
from hisearch.kernels.layout import tiers as tl
from hisearch.kernels.traffic import links, lists


@kernel
def travel(sim, w, v, back, now, tokens):
    """Send ``tokens`` between worker ``w``'s node and store ``v``, over the store's link and the node's network."""
    table = sim.block_tables[v]
    end = now
    if table.link >= 0:
        end = links.send(sim, table.link + back, now, tokens)
    if table.networked:
        end = max(end, links.send(sim, sim.connectors[w].network + back, now, tokens))
    return end


# ---- writes to the stores behind host memory -------------------------------------------------------------------------


@kernel
def _let_go(sim, v, slot):
    """Remove one user of a host memory slot; free it after the last."""
    block = sim.blocks[v, slot]
    block.users -= 1
    if block.users == 0:
        sim.block_tables[v].used -= 1
        block_table.forget(sim, v, slot)


@kernel
def _end_writes(sim, v, now):
    """Complete the writes to store ``v`` that have ended by ``now``."""
    table = sim.block_tables[v]
    ring = sim.writes[v - sim.offloading.stores]
    while table.writes > 0:
        write = ring[table.writes_head]
        if write.end_s > now:
            return
        table.writes_head = (table.writes_head + 1) % len(ring)
        table.writes -= 1
        _let_go(sim, write.host, write.host_slot)
        chunk = sim.blocks[v, write.slot]
        chunk.users = 0
        table.stored += 1
        if chunk.list >= 0:
            chunk_order.use(sim, v, write.slot)
            table.used -= 1
        else:
            chunk.ready_s = write.end_s
            chunk_order.put(sim, v, write.slot)
            table.peak = max(table.peak, block_table.size(sim, v, tl.RECENT))


@kernel
def advance(sim, w, now):
    """Complete the writes to worker ``w``'s stores that have ended by ``now``."""
    for tier in range(1, sim.worker_stores.shape[1]):
        _end_writes(sim, sim.worker_stores[w, tier], now)


@kernel
def _take_capacity(sim, v):
    """Reserve one chunk in a store behind host memory, evicting if necessary. Returns whether it succeeded."""
    table = sim.block_tables[v]
    if table.used == table.capacity:
        slot = chunk_order.victim(sim, v)
        if slot < 0:
            return False
        chunk_order.take_out(sim, v, slot)
        if sim.blocks[v, slot].users == 0:
            block_table.forget(sim, v, slot)
        table.evicted += 1
        table.used -= 1
    table.used += 1
    return True


@kernel
def _queue_write(sim, w, v, end_s, slot, host, host_slot):
    """Insert a write by worker ``w`` into the ring, ordered by end time."""
    table = sim.block_tables[v]
    ring = sim.writes[v - sim.offloading.stores]
    size = len(ring)
    at = table.writes_head + table.writes
    # A transfer over another node's network may end before one that was sent earlier.
    while at > table.writes_head and ring[(at - 1) % size].end_s > end_s:
        ring[at % size] = ring[(at - 1) % size]
        at -= 1
    write = ring[at % size]
    write.end_s = end_s
    write.slot = slot
    write.host = host
    write.host_slot = host_slot
    write.worker = w
    table.writes += 1


@kernel
def _begin_write(sim, w, v, key, host_slot, now):
    """Write a chunk from host memory to store ``v`` behind it, unless a write is under way or the store is full."""
    slot = block_table.find(sim, v, key)
    if slot >= 0 and sim.blocks[v, slot].users > 0:
        return
    if not _take_capacity(sim, v):
        return
    slot = block_table.find(sim, v, key)
    if slot < 0:
        slot = block_table.new(sim, v, key)
    sim.blocks[v, slot].users = 1
    host = sim.worker_stores[w, 0]
    sim.blocks[host, host_slot].users += 1
    end_s = travel(sim, w, v, 0, now, sim.offloading.block_tokens)
    _queue_write(sim, w, v, end_s, slot, host, host_slot)


# ---- look-ups --------------------------------------------------------------------------------------------------------


@kernel
def _leading_chunks(sim, v, begin, end, now):
    """Number of the path's keys from ``begin`` on, up to ``end``, that store ``v`` has by ``now`` without a gap."""
    k = begin
    while k < end:
        slot = block_table.find(sim, v, sim.path[0, k])
        if slot < 0 or sim.blocks[v, slot].list < 0 or sim.blocks[v, slot].ready_s > now:
            break
        k += 1
    return k - begin


@kernel
def lookup(sim, w, r, trace_node, count, now):
    """Pin and touch the leading cached chunks among the path's first ``count``; returns their number over all tiers."""
    advance(sim, w, now)
    block_table.fill_path(sim, trace_node, 0, count)
    begin = 0
    for tier in range(sim.worker_stores.shape[1]):
        v = sim.worker_stores[w, tier]
        end = begin + _leading_chunks(sim, v, begin, count, now)
        for k in range(end - 1, begin - 1, -1):
            slot = block_table.find(sim, v, sim.path[0, k])
            sim.blocks[v, slot].pins += 1
            chunk_order.use(sim, v, slot)
        sim.matched_chunks_in[r, tier] = end - begin
        begin = end
    return begin


@kernel
def unpin(sim, w, r, trace_node):
    """Unpin the chunks that the look-up of ``r`` pinned."""
    block_table.fill_path(sim, trace_node, 0, sim.offloaded[r].hit_chunks)
    k = 0
    for tier in range(sim.worker_stores.shape[1]):
        v = sim.worker_stores[w, tier]
        for _ in range(sim.matched_chunks_in[r, tier]):
            sim.blocks[v, block_table.find(sim, v, sim.path[0, k])].pins -= 1
            k += 1


# ---- host memory -----------------------------------------------------------------------------------------------------


@kernel
def _allocate(sim, v):
    """Allocate host memory for one chunk, evicting if necessary. Returns whether it succeeded."""
    table = sim.block_tables[v]
    if table.used == table.capacity:
        slot = chunk_order.victim(sim, v)
        if slot < 0:
            return False
        chunk_order.take_out(sim, v, slot)
        block_table.forget(sim, v, slot)
        table.evicted += 1
        table.used -= 1
    table.used += 1
    table.peak = max(table.peak, table.used)
    return True


@kernel
def _offer(sim, w, key, ready_s):
    """Cache the chunk that worker ``w`` puts into allocated host memory. Returns its slot, -1 if already cached."""
    v = sim.worker_stores[w, 0]
    if block_table.find(sim, v, key) >= 0:
        return -1
    slot = block_table.new(sim, v, key)
    sim.blocks[v, slot].users = 1
    sim.blocks[v, slot].ready_s = ready_s
    sim.blocks[v, slot].writer = w
    chunk_order.put(sim, v, slot)
    sim.block_tables[v].stored += 1
    return slot


@kernel
def read(sim, w, trace_node, begin, end, now):
    """Load cached chunks into host memory; returns when all have arrived."""
    advance(sim, w, now)
    block_table.fill_path(sim, trace_node, begin, end)
    keys = sim.path[0]
    cached_keys = sim.path[1]
    count = end - begin
    host = sim.worker_stores[w, 0]
    sim.block_tables[host].read += count
    at_s = now
    fresh = 0
    k = _leading_chunks(sim, host, 0, count, now)
    for tier in range(1, sim.worker_stores.shape[1]):
        v = sim.worker_stores[w, tier]
        end_k = k + _leading_chunks(sim, v, k, count, now)
        while k < end_k:
            chunk_order.use(sim, v, block_table.find(sim, v, keys[k]))
            into_host = travel(sim, w, host, 0, at_s, sim.offloading.block_tokens)
            at_s = max(travel(sim, w, v, 1, at_s, sim.offloading.block_tokens), into_host)
            sim.block_tables[v].read += 1
            sim.block_tables[host].fetched += 1
            if _allocate(sim, host):
                cached_keys[fresh] = keys[k]
                fresh += 1
            k += 1
    for k in range(fresh):
        if _offer(sim, w, cached_keys[k], at_s) < 0:
            sim.block_tables[host].used -= 1
    return at_s


@kernel
def reserve(sim, w, count, now):
    """Allocate host memory for as many of ``count`` chunks as fit; returns how many."""
    advance(sim, w, now)
    taken = 0
    while taken < count and _allocate(sim, sim.worker_stores[w, 0]):
        taken += 1
    return taken


@kernel
def save(sim, w, trace_node, begin, end, now):
    """Publish the chunks that reserved host memory holds at ``now``, and write them to the stores behind it."""
    host = sim.worker_stores[w, 0]
    block_table.fill_path(sim, trace_node, begin, end)
    keys = sim.path[0]
    slots = sim.path[1]
    for k in range(end - begin):
        slots[k] = _offer(sim, w, keys[k], now)
    for k in range(end - begin):
        slot = slots[k]
        if slot < 0:
            slot = block_table.new_without_key(sim, host)
        sim.blocks[host, slot].users += 1
        for tier in range(1, sim.worker_stores.shape[1]):
            _begin_write(sim, w, sim.worker_stores[w, tier], keys[k], slot, now)
        _let_go(sim, host, slot)


# ---- losses ----------------------------------------------------------------------------------------------------------


@kernel
def _cancel_writes(sim, w, v):
    """Cancel worker ``w``'s writes to store ``v``."""
    table = sim.block_tables[v]
    ring = sim.writes[v - sim.offloading.stores]
    count = table.writes
    table.writes = 0
    for k in range(count):
        write = ring[(table.writes_head + k) % len(ring)]
        if write.worker != w:
            moved = ring[(table.writes_head + table.writes) % len(ring)]
            moved.end_s = write.end_s
            moved.slot = write.slot
            moved.host = write.host
            moved.host_slot = write.host_slot
            moved.worker = write.worker
            table.writes += 1
            continue
        _let_go(sim, write.host, write.host_slot)
        sim.blocks[v, write.slot].users = 0
        table.used -= 1
        if sim.blocks[v, write.slot].list < 0:
            block_table.forget(sim, v, write.slot)


@kernel
def _forget(sim, v, slot):
    """Remove an unused chunk."""
    chunk_order.take_out(sim, v, slot)
    block_table.forget(sim, v, slot)
    sim.block_tables[v].used -= 1


@kernel
def halt(sim, w, now):
    """Cancel the look-ups, saves, fetches and writes of worker ``w``, which has died.

    Its requests still record what they have looked up.
    """
    advance(sim, w, now)
    for r in range(sim.requests.shape[0]):
        if sim.offloaded[r].asked and sim.requests[r].worker == w:
            unpin(sim, w, r, lists.path_end(sim, r))
            sim.offloaded[r].asked = 0
    for tier in range(1, sim.worker_stores.shape[1]):
        _cancel_writes(sim, w, sim.worker_stores[w, tier])
    host = sim.worker_stores[w, 0]
    slot = block_table.first(sim, host, tl.RECENT)
    while slot >= 0:
        after = sim.blocks[host, slot].next
        if sim.blocks[host, slot].writer == w and sim.blocks[host, slot].ready_s > now:
            _forget(sim, host, slot)
            sim.block_tables[host].stored -= 1
        slot = after


@kernel
def lose_host(sim, w):
    """Drop what the workers of worker ``w``'s failed host shared; it counts as evicted."""
    for tier in range(sim.worker_stores.shape[1]):
        v = sim.worker_stores[w, tier]
        if sim.block_tables[v].scope != hl.OF_NODE:
            continue
        while block_table.first(sim, v, tl.RECENT) >= 0:
            _forget(sim, v, block_table.first(sim, v, tl.RECENT))
            sim.block_tables[v].evicted += 1
