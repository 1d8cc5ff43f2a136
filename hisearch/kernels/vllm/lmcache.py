"""LMCache's tiers: chunks in host memory, and in stores behind it, each of one worker or shared.

The rules and their sources: ``validate.restatement.lmcache_store``. Every store has a ledger (``Sim.worker_stores``);
those of the first tier, host memory, come first. Host memory that writes are made from without its being in the cache,
which has the content already, has a slot without a key. A chunk behind host memory that is being written for the first
time is in no list yet.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import block_table, chunk_order
from hisearch.kernels.layout import hicache as hl
from hisearch.kernels.layout import tiers as tl
from hisearch.kernels.traffic import links, lists


@kernel
def travel(sim, w, v, back, now, tokens):
    """Send ``tokens`` between worker ``w``'s node and store ``v``: over its own link, and the node's network."""
    book = sim.block_tables[v]
    end = now
    if book.link >= 0:
        end = links.send(sim, book.link + back, now, tokens)
    if book.networked:
        end = max(end, links.send(sim, sim.connectors[w].network + back, now, tokens))
    return end


# ---- writes to the stores behind host memory -------------------------------------------------------------------------


@kernel
def _let_go(sim, v, slot):
    """One user less of host memory; without any it is free."""
    block = sim.blocks[v, slot]
    block.users -= 1
    if block.users == 0:
        sim.block_tables[v].used -= 1
        block_table.forget(sim, v, slot)


@kernel
def _end_writes(sim, v, now):
    """Note the writes to store ``v`` that have ended by ``now``."""
    book = sim.block_tables[v]
    ring = sim.writes[v - sim.offloading.stores]
    while book.writes > 0:
        write = ring[book.writes_head]
        if write.end_s > now:
            return
        book.writes_head = (book.writes_head + 1) % len(ring)
        book.writes -= 1
        _let_go(sim, write.host, write.host_slot)
        chunk = sim.blocks[v, write.slot]
        chunk.users = 0
        book.stored += 1
        if chunk.list >= 0:
            chunk_order.use(sim, v, write.slot)
            book.used -= 1
        else:
            chunk.ready_s = write.end_s
            chunk_order.put(sim, v, write.slot)
            book.peak = max(book.peak, block_table.size(sim, v, tl.RECENT))


@kernel
def advance(sim, w, now):
    """Note the writes to worker ``w``'s stores that have ended by ``now``."""
    for tier in range(1, sim.worker_stores.shape[1]):
        _end_writes(sim, sim.worker_stores[w, tier], now)


@kernel
def _room_behind(sim, v):
    """Take room for one chunk in a store behind host memory, evicting if need be. Returns whether there is some."""
    book = sim.block_tables[v]
    if book.used == book.capacity:
        slot = chunk_order.victim(sim, v)
        if slot < 0:
            return False
        chunk_order.take_out(sim, v, slot)
        if sim.blocks[v, slot].users == 0:
            block_table.forget(sim, v, slot)
        book.evicted += 1
        book.used -= 1
    book.used += 1
    return True


@kernel
def _queue_write(sim, w, v, end_s, slot, host, host_slot):
    """Put a write by worker ``w`` into the ring, by the time of its end."""
    book = sim.block_tables[v]
    ring = sim.writes[v - sim.offloading.stores]
    size = len(ring)
    at = book.writes_head + book.writes
    # A transfer over another node's network may end before one that was sent earlier.
    while at > book.writes_head and ring[(at - 1) % size].end_s > end_s:
        ring[at % size] = ring[(at - 1) % size]
        at -= 1
    write = ring[at % size]
    write.end_s = end_s
    write.slot = slot
    write.host = host
    write.host_slot = host_slot
    write.worker = w
    book.writes += 1


@kernel
def _begin_write(sim, w, v, key, host_slot, now):
    """Write a chunk from host memory to store ``v`` behind it, unless that is being done or there is no room."""
    slot = block_table.find(sim, v, key)
    if slot >= 0 and sim.blocks[v, slot].users > 0:
        return
    if not _room_behind(sim, v):
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
def _leading(sim, v, begin, end, now):
    """How many of the path's first keys from ``begin`` on, before ``end``, store ``v`` has by ``now``."""
    k = begin
    while k < end:
        slot = block_table.find(sim, v, sim.path[0, k])
        if slot < 0 or sim.blocks[v, slot].list < 0 or sim.blocks[v, slot].ready_s > now:
            break
        k += 1
    return k - begin


@kernel
def lookup(sim, w, r, trace_node, count, now):
    """Pin and use the leading ones of the path's first ``count`` chunks; returns how many there are in all tiers."""
    advance(sim, w, now)
    block_table.fill_path(sim, trace_node, 0, count)
    begin = 0
    for tier in range(sim.worker_stores.shape[1]):
        v = sim.worker_stores[w, tier]
        end = begin + _leading(sim, v, begin, count, now)
        for k in range(end - 1, begin - 1, -1):
            slot = block_table.find(sim, v, sim.path[0, k])
            sim.blocks[v, slot].pins += 1
            chunk_order.use(sim, v, slot)
        sim.found_in[r, tier] = end - begin
        begin = end
    return begin


@kernel
def unpin(sim, w, r, trace_node):
    """The look-up of ``r`` has been served."""
    block_table.fill_path(sim, trace_node, 0, sim.offloaded[r].found)
    k = 0
    for tier in range(sim.worker_stores.shape[1]):
        v = sim.worker_stores[w, tier]
        for _ in range(sim.found_in[r, tier]):
            sim.blocks[v, block_table.find(sim, v, sim.path[0, k])].pins -= 1
            k += 1


# ---- host memory -----------------------------------------------------------------------------------------------------


@kernel
def _allocate(sim, v):
    """Take host memory of one chunk, evicting if need be. Returns whether there is some."""
    book = sim.block_tables[v]
    if book.used == book.capacity:
        slot = chunk_order.victim(sim, v)
        if slot < 0:
            return False
        chunk_order.take_out(sim, v, slot)
        block_table.forget(sim, v, slot)
        book.evicted += 1
        book.used -= 1
    book.used += 1
    book.peak = max(book.peak, book.used)
    return True


@kernel
def _offer(sim, w, key, ready_s):
    """Cache what worker ``w`` puts into memory just taken, unless it is cached already. Returns its slot, or -1."""
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
    """Bring found chunks into host memory; returns when all are there."""
    advance(sim, w, now)
    block_table.fill_path(sim, trace_node, begin, end)
    keys = sim.path[0]
    kept = sim.path[1]
    count = end - begin
    host = sim.worker_stores[w, 0]
    sim.block_tables[host].read += count
    at_s = now
    fresh = 0
    k = _leading(sim, host, 0, count, now)
    for tier in range(1, sim.worker_stores.shape[1]):
        v = sim.worker_stores[w, tier]
        until = k + _leading(sim, v, k, count, now)
        while k < until:
            chunk_order.use(sim, v, block_table.find(sim, v, keys[k]))
            into_host = travel(sim, w, host, 0, at_s, sim.offloading.block_tokens)
            at_s = max(travel(sim, w, v, 1, at_s, sim.offloading.block_tokens), into_host)
            sim.block_tables[v].read += 1
            sim.block_tables[host].fetched += 1
            if _allocate(sim, host):
                kept[fresh] = keys[k]
                fresh += 1
            k += 1
    for k in range(fresh):
        if _offer(sim, w, kept[k], at_s) < 0:
            sim.block_tables[host].used -= 1
    return at_s


@kernel
def reserve(sim, w, count, now):
    """Take host memory for as many of ``count`` chunks as there is room for; returns how many."""
    advance(sim, w, now)
    taken = 0
    while taken < count and _allocate(sim, sim.worker_stores[w, 0]):
        taken += 1
    return taken


@kernel
def save(sim, w, trace_node, begin, end, now):
    """Reserved memory holds the chunks at ``now``: they can be found from then on, and are written behind it."""
    host = sim.worker_stores[w, 0]
    block_table.fill_path(sim, trace_node, begin, end)
    keys = sim.path[0]
    slots = sim.path[1]
    for k in range(end - begin):
        slots[k] = _offer(sim, w, keys[k], now)
    for k in range(end - begin):
        slot = slots[k]
        if slot < 0:
            slot = block_table.nameless(sim, host)
        sim.blocks[host, slot].users += 1
        for tier in range(1, sim.worker_stores.shape[1]):
            _begin_write(sim, w, sim.worker_stores[w, tier], keys[k], slot, now)
        _let_go(sim, host, slot)


# ---- losses ----------------------------------------------------------------------------------------------------------


@kernel
def _cancel_writes(sim, w, v):
    """What worker ``w`` is writing to store ``v`` never comes there."""
    book = sim.block_tables[v]
    ring = sim.writes[v - sim.offloading.stores]
    count = book.writes
    book.writes = 0
    for k in range(count):
        write = ring[(book.writes_head + k) % len(ring)]
        if write.worker != w:
            kept = ring[(book.writes_head + book.writes) % len(ring)]
            kept.end_s = write.end_s
            kept.slot = write.slot
            kept.host = write.host
            kept.host_slot = write.host_slot
            kept.worker = write.worker
            book.writes += 1
            continue
        _let_go(sim, write.host, write.host_slot)
        sim.blocks[v, write.slot].users = 0
        book.used -= 1
        if sim.blocks[v, write.slot].list < 0:
            block_table.forget(sim, v, write.slot)


@kernel
def _forget(sim, v, slot):
    """The chunk, which nobody uses, is gone."""
    chunk_order.take_out(sim, v, slot)
    block_table.forget(sim, v, slot)
    sim.block_tables[v].used -= 1


@kernel
def halt(sim, w, now):
    """Worker ``w`` has died: what it was looking up, saving, fetching and writing comes nowhere.

    Its requests still say what they have looked up.
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
    """The host of worker ``w``, all of whose workers have died, loses what they shared; it counts as evicted."""
    for tier in range(sim.worker_stores.shape[1]):
        v = sim.worker_stores[w, tier]
        if sim.block_tables[v].scope != hl.OF_NODE:
            continue
        while block_table.first(sim, v, tl.RECENT) >= 0:
            _forget(sim, v, block_table.first(sim, v, tl.RECENT))
            sim.block_tables[v].evicted += 1
