"""LMCache's local tiers: chunks in host memory, and on disk behind it.

The rules and their sources: ``validate.restatement.lmcache_store``. Ledger v is a store's host memory, ledger
``stores`` + v its disk; a chunk on disk that is being written for the first time is in no list yet. Chunks of host
memory that are in no list, because the cache has their content already, are only counted (``used``).
"""

from __future__ import annotations

from hisearch.kernels import ledger, links
from hisearch.kernels import tier_layout as tl
from hisearch.kernels.jit import kernel


@kernel
def _disk_of(sim, v):
    return v + sim.offloading.stores


@kernel
def _disk_link(sim, v):
    """The link for writing to the disk of store ``v``; the next one is for reading."""
    return 2 * sim.config.workers + 2 * v


@kernel
def advance(sim, v, now):
    """Note the writes that have ended by ``now``."""
    book = sim.ledgers[v]
    disk = _disk_of(sim, v)
    while book.writes > 0:
        write = sim.writes[v, book.writes_head]
        if write.end_s > now:
            return
        book.writes_head = (book.writes_head + 1) % sim.writes.shape[1]
        book.writes -= 1
        if write.host >= 0:
            sim.blocks[v, write.host].users -= 1
        else:
            book.used -= 1
        chunk = sim.blocks[disk, write.disk]
        chunk.users = 0
        sim.ledgers[disk].stored += 1
        if chunk.list >= 0:
            ledger.move(sim, disk, write.disk, tl.RECENT)
            sim.ledgers[disk].used -= 1
        else:
            ledger.append(sim, disk, write.disk, tl.RECENT)
            chunk.ready_s = write.end_s


@kernel
def _leading(sim, v, begin, end, now):
    """How many of the first keys from ``begin`` on, before ``end``, ledger ``v`` has by ``now``."""
    k = begin
    while k < end:
        slot = ledger.find(sim, v, sim.path[0, k])
        if slot < 0 or sim.blocks[v, slot].list < 0 or sim.blocks[v, slot].ready_s > now:
            break
        k += 1
    return k - begin


@kernel
def _pin(sim, v, begin, end, pins):
    """Add to the pins of the keys; what is pinned goes to the end of its list, last key first."""
    for k in range(end - 1, begin - 1, -1):
        slot = ledger.find(sim, v, sim.path[0, k])
        sim.blocks[v, slot].pins += pins
        if pins > 0:
            ledger.move(sim, v, slot, tl.RECENT)


@kernel
def lookup(sim, v, static, count, now):
    """Pin and touch the leading ones of the path's first ``count`` chunks: (in host memory, behind them on disk)."""
    advance(sim, v, now)
    ledger.fill_path(sim, static, 0, count)
    host = _leading(sim, v, 0, count, now)
    disk = 0
    if sim.offloading.disk:
        disk = _leading(sim, _disk_of(sim, v), host, count, now)
    _pin(sim, v, 0, host, 1)
    _pin(sim, _disk_of(sim, v), host, host + disk, 1)
    return host, disk


@kernel
def unpin(sim, v, static, host, disk):
    """A look-up has been served."""
    ledger.fill_path(sim, static, 0, host + disk)
    _pin(sim, v, 0, host, -1)
    _pin(sim, _disk_of(sim, v), host, host + disk, -1)


@kernel
def _allocate(sim, v):
    """Take host memory of one chunk, evicting if need be. Returns whether there is some."""
    book = sim.ledgers[v]
    if book.used == book.capacity:
        slot = ledger.first(sim, v, tl.RECENT)
        while slot >= 0 and (sim.blocks[v, slot].users > 1 or sim.blocks[v, slot].pins > 0):
            slot = sim.blocks[v, slot].next
        if slot < 0:
            return False
        ledger.drop(sim, v, slot)
        book.evicted += 1
        book.used -= 1
    book.used += 1
    book.peak = max(book.peak, book.used)
    return True


@kernel
def _offer(sim, v, key, ready_s):
    """Cache the content of host memory just taken, unless it is cached already. Returns its slot, or -1."""
    if ledger.find(sim, v, key) >= 0:
        return -1
    slot = ledger.new(sim, v, key)
    sim.blocks[v, slot].users = 1
    sim.blocks[v, slot].ready_s = ready_s
    ledger.append(sim, v, slot, tl.RECENT)
    sim.ledgers[v].stored += 1
    return slot


@kernel
def read(sim, v, static, begin, end, now):
    """Bring found chunks into host memory; returns when all are there."""
    advance(sim, v, now)
    ledger.fill_path(sim, static, begin, end)
    keys = sim.path[0]
    count = end - begin
    disk = _disk_of(sim, v)
    kept = sim.path[1]
    fresh = 0
    at_s = now
    for k in range(_leading(sim, v, 0, count, now), count):
        ledger.move(sim, disk, ledger.find(sim, disk, keys[k]), tl.RECENT)
        at_s = links.send(sim, _disk_link(sim, v) + 1, at_s, sim.offloading.block_tokens)
        sim.ledgers[disk].read += 1
        if _allocate(sim, v):
            kept[fresh] = keys[k]
            fresh += 1
    for k in range(fresh):
        if _offer(sim, v, kept[k], at_s) < 0:
            sim.ledgers[v].used -= 1
    sim.ledgers[v].read += count
    return at_s


@kernel
def reserve(sim, v, count, now):
    """Take host memory for as many of ``count`` chunks as there is room for; returns how many."""
    advance(sim, v, now)
    taken = 0
    while taken < count and _allocate(sim, v):
        taken += 1
    return taken


@kernel
def _room_on_disk(sim, disk):
    """Take room for one chunk on disk, evicting if need be. Returns whether there is some."""
    book = sim.ledgers[disk]
    if book.used == book.capacity:
        slot = ledger.first(sim, disk, tl.RECENT)
        while slot >= 0 and sim.blocks[disk, slot].pins > 0:
            slot = sim.blocks[disk, slot].next
        if slot < 0:
            return False
        ledger.take_out(sim, disk, slot)
        if sim.blocks[disk, slot].users == 0:
            ledger.forget(sim, disk, slot)
        book.evicted += 1
        book.used -= 1
    book.used += 1
    book.peak = max(book.peak, book.used)
    return True


@kernel
def _begin_write(sim, v, key, slot, now):
    """Write a chunk to disk, from slot ``slot`` or memory in no list (-1). Returns whether it is done."""
    disk = _disk_of(sim, v)
    on_disk = ledger.find(sim, disk, key)
    if on_disk >= 0 and sim.blocks[disk, on_disk].users > 0:
        return False
    if not _room_on_disk(sim, disk):
        return False
    on_disk = ledger.find(sim, disk, key)
    if on_disk < 0:
        on_disk = ledger.new(sim, disk, key)
    sim.blocks[disk, on_disk].users = 1
    book = sim.ledgers[v]
    write = sim.writes[v, (book.writes_head + book.writes) % sim.writes.shape[1]]
    write.end_s = links.send(sim, _disk_link(sim, v), now, sim.offloading.block_tokens)
    write.disk = on_disk
    write.host = slot
    book.writes += 1
    return True


@kernel
def save(sim, v, static, begin, end, now):
    """Reserved memory holds the chunks at ``now``: they can be found from then on, and are written to disk."""
    ledger.fill_path(sim, static, begin, end)
    keys = sim.path[0]
    slots = sim.path[1]
    for k in range(end - begin):
        slots[k] = _offer(sim, v, keys[k], now)
    for k in range(end - begin):
        written = sim.offloading.disk != 0 and _begin_write(sim, v, keys[k], slots[k], now)
        if slots[k] < 0 and not written:
            sim.ledgers[v].used -= 1
        elif slots[k] >= 0 and written:
            sim.blocks[v, slots[k]].users += 1
