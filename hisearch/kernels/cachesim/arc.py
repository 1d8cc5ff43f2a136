"""The adaptive replacement cache (Megiddo and Modha 2003) for a prefix cache of pages; see ``page_cache``.

Notation
    T1, T2  resident pages used once, and more than once
    B1, B2  pages lately evicted from them, in order of eviction
    C       capacity in pages; p the target size of T1, 0 … C

A request's resident pages are used, then its missing pages stored last to first; its first page counts as the most
recently used. As in ``page_cache`` only leaves that the request at hand does not use are evicted: of the list that the
policy chooses the least recently used leaf, of the other list where that has none.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hisearch.base.jit import kernel
from hisearch.kernels.cachesim.chains import fill_chain, longest_chain, page_chains
from hisearch.kernels.cachesim.leaf_heap import heap_push, heap_remove

NOWHERE, T1, T2, B1, B2 = range(5)

#: A page. where: its list; newer, older: neighbours in a ghost list; key: order of use; slot: see ``leaf_heap``.
ARC_PAGE = np.dtype(
    [("key", "i8")] + [(name, "i4") for name in ("above", "children", "where", "slot", "newer", "older")], align=True
)


class ArcCache(NamedTuple):
    """State; all arrays are modified in place.

    pages: ``ARC_PAGE`` (P + 5,); entry P + x closes the ring of ghost list x, between its newest page and its oldest.
    leaves: int32 (3, N + 1), heaps of the leaves of T1 and of T2 in rows T1 and T2, least recently used first;
    leaf_count: int64 (3,). size: int64 (5,), of each list. target: float64 (1,), p.
    """

    pages: np.ndarray
    leaves: np.ndarray
    leaf_count: np.ndarray
    size: np.ndarray
    target: np.ndarray


@kernel
def _put(pages, size, b, x):
    """Count page ``b`` to list ``x``, of which it becomes the newest where that is a ghost list."""
    page = pages[b]
    if page["where"] >= B1:
        pages[page["older"]]["newer"] = page["newer"]
        pages[page["newer"]]["older"] = page["older"]
    if x >= B1:
        ring = len(pages) - 5 + x
        page["older"] = pages[ring]["older"]
        pages[page["older"]]["newer"] = b
        page["newer"] = ring
        pages[ring]["older"] = b
    size[page["where"]] -= 1
    size[x] += 1
    page["where"] = x


@kernel
def _one_child_less(cache, b):
    page = cache.pages[b]
    page["children"] -= 1
    if page["children"] == 0:
        heap_push(cache.leaves, cache.leaf_count, cache.pages, page["where"], b)


@kernel
def _evict(cache, x, remember):
    """Evict from list ``x``, or from the other one where that has no leaf."""
    row = x if cache.leaf_count[x] > 0 else T1 + T2 - x
    b = cache.leaves[row, 0]
    heap_remove(cache.leaves, cache.leaf_count, cache.pages, row, b)
    ghost = B1 if row == T1 else B2
    _put(cache.pages, cache.size, b, ghost if remember else NOWHERE)
    if cache.pages[b]["above"] >= 0:
        _one_child_less(cache, cache.pages[b]["above"])


@kernel
def _replace(cache, from_b2):
    """REPLACE of the paper."""
    once = cache.size[T1]
    target = cache.target[0]
    _evict(cache, T1 if once >= 1 and (once > target or (from_b2 and once == target)) else T2, True)


@kernel
def _forget(cache, x):
    """Forget the oldest page of ghost list ``x``."""
    _put(cache.pages, cache.size, cache.pages[len(cache.pages) - 5 + x]["newer"], NOWHERE)


@kernel
def _admit(cache, b, capacity):
    """Store page ``b``, which is not resident: cases II to IV of the paper."""
    size = cache.size
    where = cache.pages[b]["where"]
    if where == B1:
        cache.target[0] = min(float(capacity), cache.target[0] + max(1.0, size[B2] / size[B1]))
        _replace(cache, False)
    elif where == B2:
        cache.target[0] = max(0.0, cache.target[0] - max(1.0, size[B1] / size[B2]))
        _replace(cache, True)
    else:
        known = size[T1] + size[T2] + size[B1] + size[B2]
        if size[T1] + size[B1] == capacity:
            if size[T1] < capacity:
                _forget(cache, B1)
                _replace(cache, False)
            else:
                _evict(cache, T1, False)
        elif known >= capacity:
            if known == 2 * capacity:
                _forget(cache, B2)
            _replace(cache, False)
    _put(cache.pages, size, b, T1 if where == NOWHERE else T2)


@kernel
def _resident(cache, chain):
    """Number of a chain's pages that are resident."""
    k = 0
    while k < len(chain) and (cache.pages[chain[k]]["where"] == T1 or cache.pages[chain[k]]["where"] == T2):
        k += 1
    return k


@kernel
def _store(cache, capacity, chain, clock):
    """Use the resident pages of a chain, then store the others as far as the cache is large enough; the clock after.

    While that lasts every page of the chain has one child too many, or the next page as child: none is a leaf.
    """
    pages = cache.pages
    have = _resident(cache, chain)
    keep = min(len(chain), capacity)
    if have > 0:
        deepest = chain[have - 1]
        if pages[deepest]["children"] == 0:
            heap_remove(cache.leaves, cache.leaf_count, pages, pages[deepest]["where"], deepest)
        pages[deepest]["children"] += 1
    for k in range(have):
        _put(pages, cache.size, chain[k], T2)
    for k in range(keep - 1, have - 1, -1):
        pages[chain[k]]["children"] = 1
        _admit(cache, chain[k], capacity)
    for k in range(keep - 1, -1, -1):
        pages[chain[k]]["key"] = clock
        clock += 1
    if keep > 0:
        _one_child_less(cache, chain[keep - 1])
    return clock


@kernel
def _empty_cache(above, requests):
    pages = np.zeros(len(above) + 5, dtype=ARC_PAGE)
    for b in range(len(above)):
        pages[b]["above"] = above[b]
    for ring in range(len(above), len(pages)):
        pages[ring]["newer"] = ring
        pages[ring]["older"] = ring
    leaves = np.empty((3, requests + 1), dtype=np.int32)
    return ArcCache(pages, leaves, np.zeros(3, dtype=np.int64), np.zeros(5, dtype=np.int64), np.zeros(1))


@kernel
def arc_hits(capacity, parent, start, end, prompt_node, output_node, page_tokens, include_outputs):
    """Prompt tokens hit in an adaptive replacement cache; arguments and results as of ``page_cache.policy_hits``."""
    stored = output_node if include_outputs else prompt_node
    above, _, last, tail = page_chains(parent, start, end, stored, page_tokens, not include_outputs)
    cache = _empty_cache(above, len(prompt_node))
    room = np.empty(longest_chain(end, stored, page_tokens), dtype=np.int32)
    hits = np.zeros(len(prompt_node), dtype=np.int64)
    peak = 0
    clock = 0
    for i in range(len(prompt_node)):
        chain = fill_chain(room, above, last, tail, prompt_node[i])
        hits[i] = min(_resident(cache, chain) * page_tokens, end[prompt_node[i]])
        if include_outputs:
            chain = fill_chain(room, above, last, tail, output_node[i])
        clock = _store(cache, capacity, chain, clock)
        peak = max(peak, cache.size[T1] + cache.size[T2])
    return hits, peak
