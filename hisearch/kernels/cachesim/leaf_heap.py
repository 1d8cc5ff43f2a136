"""Heaps of cache pages by key, least first, from which any page can be taken out.

Several heaps of different pages lie in the rows of one array. ``pages`` is a structured array with the fields ``key``
and ``slot`` (place in the heap). One array instead of a named tuple of many: a function that is called for every page
must not count references to a dozen arrays.
"""

from __future__ import annotations

from hisearch.base.jit import kernel


@kernel
def heap_sift(heaps, sizes, pages, row, at):
    """Move the page at place ``at`` of a heap to where its key belongs.

    Args:
        heaps: int32 (heaps, N), modified in place.
        sizes: int64 (heaps,).
        pages: structured (P,), modified in place.
        row: which heap.
        at: place in it.
    """
    heap = heaps[row]
    size = sizes[row]
    b = heap[at]
    key = pages[b]["key"]
    while at > 0:
        up = (at - 1) >> 1
        if pages[heap[up]]["key"] <= key:
            break
        heap[at] = heap[up]
        pages[heap[at]]["slot"] = at
        at = up
    while True:
        down = 2 * at + 1
        if down >= size:
            break
        if down + 1 < size and pages[heap[down + 1]]["key"] < pages[heap[down]]["key"]:
            down += 1
        if pages[heap[down]]["key"] >= key:
            break
        heap[at] = heap[down]
        pages[heap[at]]["slot"] = at
        at = down
    heap[at] = b
    pages[b]["slot"] = at


@kernel
def heap_push(heaps, sizes, pages, row, b):
    """Add page ``b``."""
    heaps[row, sizes[row]] = b
    sizes[row] += 1
    heap_sift(heaps, sizes, pages, row, sizes[row] - 1)


@kernel
def heap_remove(heaps, sizes, pages, row, b):
    """Take page ``b`` out."""
    at = pages[b]["slot"]
    sizes[row] -= 1
    if at < sizes[row]:
        heaps[row, at] = heaps[row, sizes[row]]
        heap_sift(heaps, sizes, pages, row, at)


@kernel
def heap_replace(heaps, sizes, pages, row, b, other):
    """Take page ``b`` out and add page ``other``: quick where that belongs to about the same place."""
    at = pages[b]["slot"]
    heaps[row, at] = other
    heap_sift(heaps, sizes, pages, row, at)
