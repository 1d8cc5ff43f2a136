"""Heaps of finish times of one worker, of next events of all workers of a pool, and of busy servers."""

from __future__ import annotations

from hisearch.base.jit import inlined_kernel, kernel
from hisearch.kernels.core.heap import indexed_heap
from hisearch.kernels.layout import sim as la


@inlined_kernel
def _finishes_before(requests, a, b):
    """Order of finishing: by clock, then by order of admission."""
    fa = requests[a].finish_clock
    fb = requests[b].finish_clock
    return fa < fb or (fa == fb and requests[a].order < requests[b].order)


@inlined_kernel
def _note_finish_slot(requests, r, slot):
    requests[r].heap_slot = slot


_, _finish_push, _finish_remove = indexed_heap(_finishes_before, _note_finish_slot)


@kernel
def finish_push(sim, w, r):
    """Add decoding request ``r`` to worker ``w``'s finish heap."""
    worker = sim.workers[w]
    worker.finish_heap_size = _finish_push(sim.requests, sim.finish_heap[w], worker.finish_heap_size, r)


@kernel
def finish_remove(sim, w, r):
    """Take request ``r`` out of worker ``w``'s finish heap."""
    worker = sim.workers[w]
    slot = sim.requests[r].heap_slot
    worker.finish_heap_size = _finish_remove(sim.requests, sim.finish_heap[w], worker.finish_heap_size, slot)


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


@inlined_kernel
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


@inlined_kernel
def _note_event_slot(workers, w, slot):
    workers[w].event_slot = slot


_event_sift, _event_push, _event_remove = indexed_heap(_event_before, _note_event_slot)


@kernel
def event_set(sim, w, time_s):
    """Set worker ``w``'s next event to ``time_s``."""
    worker = sim.workers[w]
    worker.event_s = time_s
    size = sim.counters[la.EVENT_HEAP]
    if worker.event_slot < 0:
        sim.counters[la.EVENT_HEAP] = _event_push(sim.workers, sim.event_heap, size, w)
    else:
        _event_sift(sim.workers, sim.event_heap, size, worker.event_slot)


@kernel
def form_at(sim, w, at_s):
    """Let worker ``w`` form a batch at ``at_s``."""
    sim.workers[w].phase = la.FORMING
    event_set(sim, w, at_s)


@kernel
def wake(sim, w, now):
    """Let worker ``w`` form a batch if it idles and requests wait, as after memory was freed."""
    if sim.workers[w].phase == la.IDLE and sim.workers[w].waiting > 0:
        form_at(sim, w, now)


@kernel
def event_clear(sim, w):
    """Clear worker ``w``'s next event."""
    slot = sim.workers[w].event_slot
    if slot >= 0:
        size = sim.counters[la.EVENT_HEAP]
        sim.counters[la.EVENT_HEAP] = _event_remove(sim.workers, sim.event_heap, size, slot)


@inlined_kernel
def _serves_before(servers, a, b):
    """Order of busy servers: by the end of the present part of their job, then by worker and kind."""
    end_a = servers[a].end_s
    end_b = servers[b].end_s
    return end_a < end_b or (end_a == end_b and a < b)


@inlined_kernel
def _note_server_slot(servers, k, slot):
    servers[k].slot = slot


_server_sift, _server_push, _server_remove = indexed_heap(_serves_before, _note_server_slot)


@kernel
def server_set(sim, k):
    """Insert server ``k``, the present part of whose job ends at its ``end_s``; or update it after a change of that."""
    size = sim.counters[la.SERVING]
    if sim.servers[k].slot < 0:
        sim.counters[la.SERVING] = _server_push(sim.servers, sim.server_heap, size, k)
    else:
        _server_sift(sim.servers, sim.server_heap, size, sim.servers[k].slot)


@kernel
def server_clear(sim, k):
    """Remove server ``k``, which is idle."""
    slot = sim.servers[k].slot
    if slot >= 0:
        sim.counters[la.SERVING] = _server_remove(sim.servers, sim.server_heap, sim.counters[la.SERVING], slot)
