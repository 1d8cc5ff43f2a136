"""A heap of the busy servers (other than schedulers), by the end of the present part of their job."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.layout import sim as la


@kernel
def _ends_before(sim, a, b):
    """Order of ends: by time, then by worker and kind."""
    ta = sim.servers[a].end_s
    tb = sim.servers[b].end_s
    return ta < tb or (ta == tb and a < b)


@kernel
def _sift(sim, slot):
    heap = sim.server_heap
    size = sim.counters[la.SERVING]
    k = heap[slot]
    while slot > 0:
        up = (slot - 1) >> 1
        if not _ends_before(sim, k, heap[up]):
            break
        heap[slot] = heap[up]
        sim.servers[heap[slot]].slot = slot
        slot = up
    while True:
        down = 2 * slot + 1
        if down >= size:
            break
        if down + 1 < size and _ends_before(sim, heap[down + 1], heap[down]):
            down += 1
        if not _ends_before(sim, heap[down], k):
            break
        heap[slot] = heap[down]
        sim.servers[heap[slot]].slot = slot
        slot = down
    heap[slot] = k
    sim.servers[k].slot = slot


@kernel
def enter(sim, k):
    """Insert server ``k``, the present part of whose job ends at its ``end_s``; or update it after a change of that."""
    server = sim.servers[k]
    if server.slot < 0:
        server.slot = sim.counters[la.SERVING]
        sim.server_heap[server.slot] = k
        sim.counters[la.SERVING] += 1
    _sift(sim, server.slot)


@kernel
def leave(sim, k):
    """Remove server ``k``, which is idle."""
    server = sim.servers[k]
    slot = server.slot
    if slot < 0:
        return
    server.slot = -1
    size = sim.counters[la.SERVING] - 1
    sim.counters[la.SERVING] = size
    if slot != size:
        sim.server_heap[slot] = sim.server_heap[size]
        sim.servers[sim.server_heap[slot]].slot = slot
        _sift(sim, slot)
