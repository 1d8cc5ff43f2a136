"""A heap of cache pages by value, least first, of equal values the least recently used: a total order.

``pages`` is a structured array with the fields ``value``, ``last_use`` and ``slot`` (place in the heap), see
``leaf_heap``. No two pages in the heap have both in common.
"""

from __future__ import annotations

from hisearch.base.jit import kernel


@kernel
def _before(pages, a, b):
    if pages[a]["value"] != pages[b]["value"]:
        return pages[a]["value"] < pages[b]["value"]
    return pages[a]["last_use"] < pages[b]["last_use"]


@kernel
def _sift(heap, size, pages, at):
    """Move the page at place ``at`` of the heap's first ``size`` to where it belongs."""
    b = heap[at]
    while at > 0:
        up = (at - 1) >> 1
        if _before(pages, heap[up], b):
            break
        heap[at] = heap[up]
        pages[heap[at]]["slot"] = at
        at = up
    while True:
        down = 2 * at + 1
        if down >= size:
            break
        if down + 1 < size and _before(pages, heap[down + 1], heap[down]):
            down += 1
        if _before(pages, b, heap[down]):
            break
        heap[at] = heap[down]
        pages[heap[at]]["slot"] = at
        at = down
    heap[at] = b
    pages[b]["slot"] = at


@kernel
def value_push(heap, size, pages, b):
    """Add page ``b``.

    Args:
        heap: int32 (N,), modified in place.
        size: pages in it before.
        pages: structured (P,), modified in place.
        b: which page.
    """
    heap[size] = b
    _sift(heap, size + 1, pages, size)


@kernel
def value_remove(heap, size, pages, b):
    """Take page ``b`` out of a heap that holds ``size`` pages before; see ``value_push``."""
    at = pages[b]["slot"]
    if at < size - 1:
        heap[at] = heap[size - 1]
        _sift(heap, size - 1, pages, at)


@kernel
def value_replace(heap, size, pages, b, other):
    """Take page ``b`` out of a heap of ``size`` pages and add page ``other``, which often belongs to the same place."""
    at = pages[b]["slot"]
    heap[at] = other
    _sift(heap, size, pages, at)
