"""The indexed binary heap of all kernels: least item first, and any item can be taken out.

Heaps differ in their order and in where an item's slot is kept. ``indexed_heap`` makes the kernels of one heap from
both, which numba compiles into one another: no comparison is called by address. A heap is an integer array with its
items in front; its caller keeps their number.

Kept apart: ``tournament``, whose few places never come or go, and which costs less per change of a key.
"""

from __future__ import annotations

from typing import Any

from hisearch.base.jit import inlined_kernel, kernel


def indexed_heap(before: Any, note_slot: Any) -> tuple[Any, Any, Any]:
    """Kernels of a heap: ``sift``, ``push``, ``remove``.

    Args:
        before: kernel ``(state, a, b)``: whether item a goes before item b; ``state`` is whatever callers hand in.
        note_slot: kernel ``(state, item, slot)``: keeps the item's slot; -1: outside the heap.

    Returns:
        ``sift(state, heap, size, slot)`` moves the item at ``slot`` to where it belongs. ``push(state, heap, size,
        item)`` and ``remove(state, heap, size, slot)`` return the heap's new size.
    """

    @kernel
    def sift(state, heap, size, slot):
        item = heap[slot]
        while slot > 0:
            up = (slot - 1) >> 1
            if not before(state, item, heap[up]):
                break
            heap[slot] = heap[up]
            note_slot(state, heap[slot], slot)
            slot = up
        while True:
            down = 2 * slot + 1
            if down >= size:
                break
            if down + 1 < size and before(state, heap[down + 1], heap[down]):
                down += 1
            if not before(state, heap[down], item):
                break
            heap[slot] = heap[down]
            note_slot(state, heap[slot], slot)
            slot = down
        heap[slot] = item
        note_slot(state, item, slot)

    @inlined_kernel
    def push(state, heap, size, item):
        heap[size] = item
        sift(state, heap, size + 1, size)
        return size + 1

    @inlined_kernel
    def remove(state, heap, size, slot):
        note_slot(state, heap[slot], -1)
        size -= 1
        if slot != size:
            heap[slot] = heap[size]
            sift(state, heap, size, slot)
        return size

    return sift, push, remove
