"""The waiting list in another order: as an array, sorted, and linked anew."""

from __future__ import annotations

from typing import Any

from hisearch.base.jit import kernel


@kernel
def collect(sim, w):
    """Fill ``queue_order[0]`` with the waiting list."""
    count = 0
    r = sim.workers[w].waiting_head
    while r >= 0:
        sim.queue_order[0, count] = r
        count += 1
        r = sim.requests[r].next


@kernel
def relink(sim, w):
    """The waiting list in the order of ``queue_order[0]``."""
    worker = sim.workers[w]
    count = worker.waiting
    before = -1
    for k in range(count):
        request = sim.requests[sim.queue_order[0, k]]
        request.prev = before
        before = sim.queue_order[0, k]
        request.next = sim.queue_order[0, k + 1] if k + 1 < count else -1
    worker.waiting_head = sim.queue_order[0, 0]
    worker.waiting_tail = before


def sorted_by(precedes: Any) -> Any:
    """Kernel ``(sim, count)``: stable merge sort of ``queue_order[0]``, bottom up.

    precedes: kernel ``(sim, a, b)``, true where request ``a`` goes before ``b`` even if it stands behind it.
    """

    @kernel
    def sort(sim, count):
        width = 1
        row = 0
        while width < count:
            source = sim.queue_order[row]
            target = sim.queue_order[1 - row]
            for low in range(0, count, 2 * width):
                middle = min(low + width, count)
                high = min(low + 2 * width, count)
                i = low
                j = middle
                for k in range(low, high):
                    if i < middle and (j >= high or not precedes(sim, source[j], source[i])):
                        target[k] = source[i]
                        i += 1
                    else:
                        target[k] = source[j]
                        j += 1
            row = 1 - row
            width *= 2
        if row == 1:
            for k in range(count):
                sim.queue_order[0, k] = sim.queue_order[1, k]

    return sort


@kernel
def _has_lower_key(sim, a, b):
    return sim.queued[a].key < sim.queued[b].key


#: By key, the lowest first.
sort_by_key = sorted_by(_has_lower_key)
