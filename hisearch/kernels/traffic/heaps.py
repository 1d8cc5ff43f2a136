"""Indexed binary heaps: finish times of one worker, next events of all workers of a pool.

Each heap is written out for its own key: a comparison passed as a function would cost a call per level.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.layout import sim as la


@kernel
def _finishes_before(requests, a, b):
    """Order of finishing: by clock, then by order of admission."""
    fa = requests[a].finish_clock
    fb = requests[b].finish_clock
    return fa < fb or (fa == fb and requests[a].order < requests[b].order)


@kernel
def _finish_sift(heap, size, slot, requests):
    r = heap[slot]
    while slot > 0:
        up = (slot - 1) >> 1
        if not _finishes_before(requests, r, heap[up]):
            break
        heap[slot] = heap[up]
        requests[heap[slot]].heap_slot = slot
        slot = up
    while True:
        down = 2 * slot + 1
        if down >= size:
            break
        if down + 1 < size and _finishes_before(requests, heap[down + 1], heap[down]):
            down += 1
        if not _finishes_before(requests, heap[down], r):
            break
        heap[slot] = heap[down]
        requests[heap[slot]].heap_slot = slot
        slot = down
    heap[slot] = r
    requests[r].heap_slot = slot


@kernel
def finish_push(sim, w, r):
    """Add decoding request ``r`` to worker ``w``'s finish heap."""
    worker = sim.workers[w]
    slot = worker.finish_heap_size
    sim.finish_heap[w, slot] = r
    worker.finish_heap_size = slot + 1
    _finish_sift(sim.finish_heap[w], slot + 1, slot, sim.requests)


@kernel
def finish_remove(sim, w, r):
    """Take request ``r`` out of worker ``w``'s finish heap."""
    worker = sim.workers[w]
    heap = sim.finish_heap[w]
    slot = sim.requests[r].heap_slot
    size = worker.finish_heap_size - 1
    worker.finish_heap_size = size
    sim.requests[r].heap_slot = -1
    if slot != size:
        heap[slot] = heap[size]
        _finish_sift(heap, size, slot, sim.requests)


@kernel
def finish_count(sim, w, clock):
    """Number of requests in worker ``w``'s finish heap that finish at ``clock`` or before; visits few others."""
    heap = sim.finish_heap[w]
    size = sim.workers[w].finish_heap_size
    count = 0
    k = 0
    while True:
        if k < size and sim.requests[heap[k]].finish_clock <= clock:
            count += 1
            k = 2 * k + 1
            continue
        while k > 0 and k & 1 == 0:
            k = (k - 1) >> 1
        if k == 0:
            return count
        k += 1


@kernel
def _event_before(workers, a, b):
    """Order of worker events: by time; at equal times ends of steps before starts; then by index."""
    time_a = workers[a].event_s
    time_b = workers[b].event_s
    if time_a != time_b:
        return time_a < time_b
    a_starts = workers[a].phase == la.FORMING
    b_starts = workers[b].phase == la.FORMING
    if a_starts != b_starts:
        return b_starts
    return a < b


@kernel
def _event_sift(heap, size, slot, workers):
    w = heap[slot]
    while slot > 0:
        up = (slot - 1) >> 1
        if not _event_before(workers, w, heap[up]):
            break
        heap[slot] = heap[up]
        workers[heap[slot]].event_slot = slot
        slot = up
    while True:
        down = 2 * slot + 1
        if down >= size:
            break
        if down + 1 < size and _event_before(workers, heap[down + 1], heap[down]):
            down += 1
        if not _event_before(workers, heap[down], w):
            break
        heap[slot] = heap[down]
        workers[heap[slot]].event_slot = slot
        slot = down
    heap[slot] = w
    workers[w].event_slot = slot


@kernel
def event_set(sim, w, time_s):
    """Set worker ``w``'s next event to ``time_s``."""
    worker = sim.workers[w]
    worker.event_s = time_s
    slot = worker.event_slot
    if slot < 0:
        slot = sim.counters[la.EVENT_HEAP]
        sim.counters[la.EVENT_HEAP] = slot + 1
        sim.event_heap[slot] = w
    _event_sift(sim.event_heap, sim.counters[la.EVENT_HEAP], slot, sim.workers)


@kernel
def event_clear(sim, w):
    """Clear worker ``w``'s next event."""
    worker = sim.workers[w]
    slot = worker.event_slot
    if slot < 0:
        return
    size = sim.counters[la.EVENT_HEAP] - 1
    sim.counters[la.EVENT_HEAP] = size
    worker.event_slot = -1
    if slot != size:
        sim.event_heap[slot] = sim.event_heap[size]
        _event_sift(sim.event_heap, size, slot, sim.workers)
