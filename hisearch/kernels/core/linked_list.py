"""Linked lists of all kernels: items of a structured array, linked by its fields.

A ``linked_list`` is linked both ways, a ``fifo`` (a queue) and a ``free_list`` of unused items one way. An
item's link is the number of a neighbour, -1 for none. The caller keeps the list's ends, -1 of an empty one, and stores
what the kernels return. Lists without a tail hand in -1 for it.
"""

from __future__ import annotations

from typing import Any

from hisearch.base.jit import inlined_kernel


def linked_list(previous: str = "prev", following: str = "next") -> tuple[Any, Any]:
    """Kernels of lists that are linked by the fields ``previous`` and ``following``: ``insert``, ``remove``.

    Returns:
        ``insert(items, head, tail, before, item)`` puts an item behind ``before``; -1: at the head.
        ``remove(items, head, tail, item)`` takes one out, and leaves its own links as they are. Both return the new
        (head, tail).
    """

    @inlined_kernel
    def insert(items, head, tail, before, item):
        after = items[before][following] if before >= 0 else head
        items[item][previous] = before
        items[item][following] = after
        if before >= 0:
            items[before][following] = item
        else:
            head = item
        if after >= 0:
            items[after][previous] = item
        else:
            tail = item
        return head, tail

    @inlined_kernel
    def remove(items, head, tail, item):
        before = items[item][previous]
        after = items[item][following]
        if before >= 0:
            items[before][following] = after
        else:
            head = after
        if after >= 0:
            items[after][previous] = before
        else:
            tail = before
        return head, tail

    return insert, remove


def mover_to_end(previous: str = "prev", following: str = "next") -> Any:
    """Kernel of such a list: ``move(items, head, tail, first, last)`` puts the items from first to last at its end.

    Returns the new (head, tail).
    """

    @inlined_kernel
    def move(items, head, tail, first, last):
        before = items[first][previous]
        after = items[last][following]
        if after >= 0:
            items[after][previous] = before
            if before >= 0:
                items[before][following] = after
            else:
                head = after
            items[tail][following] = first
            items[first][previous] = tail
            items[last][following] = -1
            tail = last
        return head, tail

    return move


def fifo(following: str = "next") -> Any:
    """Kernel of queues that are linked by the field ``following``.

    Returns:
        ``enqueue(items, head, tail, item)`` puts an item at the end, and returns the new (head, tail). The tail of an
        empty queue, whose head is -1, counts for nothing. The caller takes items out at the head.
    """

    @inlined_kernel
    def enqueue(items, head, tail, item):
        items[item][following] = -1
        if head >= 0:
            items[tail][following] = item
        else:
            head = item
        return head, item

    return enqueue


def free_list(free: int, used: int, following: str = "next") -> tuple[Any, Any]:
    """Kernels of a list of items that were given back, linked by the field ``following``.

    free, used: indices of the counters that hold its head (-1: it is empty) and how many items were ever taken.

    Returns:
        ``acquire(items, counters)`` takes an item of the list, else the next that was never taken; -1 if all are.
        ``release(items, counters, item)`` gives one back.
    """

    @inlined_kernel
    def acquire(items, counters):
        item = counters[free]
        if item >= 0:
            counters[free] = items[item][following]
        elif counters[used] < items.shape[0]:
            item = counters[used]
            counters[used] = item + 1
        return item

    @inlined_kernel
    def release(items, counters, item):
        items[item][following] = counters[free]
        counters[free] = item

    return acquire, release
