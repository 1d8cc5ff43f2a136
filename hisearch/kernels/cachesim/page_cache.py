"""A prefix cache of pages alone, without a scheduler, under policies that are no stack; for LRU see ``stack``.

Notation
    N   requests; M nodes of the prefix tree; P distinct pages; chains and items as in ``chains``
    leaf    a resident page that no resident page stands behind

A page is resident only with all pages before it, so only leaves are evicted. The pages of the request at hand are
locked, as a running request's are: others' go first, and of a sequence longer than the cache the first pages are
stored. Every chain has one leaf at most, hence there are no more than N.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hisearch.base.jit import kernel
from hisearch.kernels.cachesim.chains import fill_chain, longest_chain, page_chains
from hisearch.kernels.cachesim.leaf_heap import heap_push, heap_remove, heap_replace, heap_sift
from hisearch.traces._reuse import sequence_items

LFU, FIFO, MRU, FILO, SLRU, CLOCK, BELADY = range(7)
#: Uses, the one that stored it included, from which SLRU protects a page.
PROTECTED_USES = 2
#: Indices of ``PageCache.count``: pages held, and the next page's order of storing.
HELD, STAMP = range(2)

#: A page. spared: used since CLOCK last passed; last_use: request; stamp: order of storing; key, slot: of the heap.
PAGE = np.dtype(
    [("key", "i8"), ("stamp", "i8")]
    + [(name, "i4") for name in ("above", "item", "children", "uses", "last_use", "slot")]
    + [("resident", "?"), ("spared", "?")],
    align=True,
)


class PageCache(NamedTuple):
    """State; all arrays are modified in place.

    pages: ``PAGE`` (P,). leaves: int32 (1, N + 1), a heap of those that may be evicted, first to go first; leaf_count:
    int64 (1,). next_lookup: int64 (2 M,), of each item, N where there is none. count: int64 (2,), see ``HELD``.
    """

    pages: np.ndarray
    leaves: np.ndarray
    leaf_count: np.ndarray
    next_lookup: np.ndarray
    count: np.ndarray


@kernel
def leading(cache, chain):
    """Number of a chain's pages that are resident: none behind the first that is not."""
    k = 0
    while k < len(chain) and cache.pages[chain[k]]["resident"]:
        k += 1
    return k


@kernel
def _set_key(cache, policy, b):
    """Page ``b`` becomes a leaf. Least key first; no two leaves have the same last use, so few have the same key."""
    page = cache.pages[b]
    requests = np.int64(cache.leaves.shape[1])
    if policy == LFU:
        page["key"] = page["uses"] * requests + page["last_use"]
    elif policy == MRU:
        page["key"] = -page["last_use"]
    elif policy == FILO:
        page["key"] = -page["stamp"]
    elif policy == SLRU:
        page["key"] = page["last_use"] + (requests if page["uses"] >= PROTECTED_USES else 0)
    elif policy == BELADY:
        page["key"] = -cache.next_lookup[page["item"]]
    else:
        page["key"] = page["stamp"]


@kernel
def _evict(cache, policy, capacity):
    """Evict leaves until no more than ``capacity`` pages are held."""
    while cache.count[HELD] > capacity:
        b = cache.leaves[0, 0]
        page = cache.pages[b]
        if policy == CLOCK and page["spared"]:
            page["spared"] = False
            page["key"] = cache.count[STAMP]
            cache.count[STAMP] += 1
            page["stamp"] = page["key"]
            heap_sift(cache.leaves, cache.leaf_count, cache.pages, 0, 0)
            continue
        page["resident"] = False
        cache.count[HELD] -= 1
        above = page["above"]
        if above >= 0:
            cache.pages[above]["children"] -= 1
        if above >= 0 and cache.pages[above]["children"] == 0:
            _set_key(cache, policy, above)
            heap_replace(cache.leaves, cache.leaf_count, cache.pages, 0, b, above)
        else:
            heap_remove(cache.leaves, cache.leaf_count, cache.pages, 0, b)


@kernel
def _store(cache, policy, capacity, chain, i):
    """Use the resident pages of request ``i``'s chain, then store the others.

    While that lasts every page of the chain has one child too many, or the next page as child: none is a leaf.
    """
    have = leading(cache, chain)
    keep = len(chain) if policy == BELADY else min(len(chain), capacity)
    if have > 0:
        if cache.pages[chain[have - 1]]["children"] == 0:
            heap_remove(cache.leaves, cache.leaf_count, cache.pages, 0, chain[have - 1])
        cache.pages[chain[have - 1]]["children"] += 1
    for k in range(have):
        page = cache.pages[chain[k]]
        page["uses"] += 1
        page["last_use"] = i
        page["spared"] = True
    if policy != BELADY:
        _evict(cache, policy, capacity - (keep - have))
    for k in range(keep - 1, have - 1, -1):
        page = cache.pages[chain[k]]
        page["resident"] = True
        page["spared"] = False
        page["children"] = 1
        page["uses"] = 1
        page["last_use"] = i
        page["stamp"] = cache.count[STAMP]
        cache.count[STAMP] += 1
    cache.count[HELD] += keep - have
    cache.pages[chain[keep - 1]]["children"] -= 1
    if cache.pages[chain[keep - 1]]["children"] == 0:
        _set_key(cache, policy, chain[keep - 1])
        heap_push(cache.leaves, cache.leaf_count, cache.pages, 0, chain[keep - 1])
    if policy == BELADY:
        _evict(cache, policy, capacity)


@kernel
def _lookups(parent, start, end, prompt_node, page_tokens, partial, items):
    """Every item's first lookup, int64 (2 M,), and for every lookup in order the item's next one; N for none."""
    count = len(prompt_node)
    first = np.full(2 * len(parent), count, dtype=np.int64)
    total = 0
    for i in range(count):
        total += sequence_items(items, parent, start, end, prompt_node[i], page_tokens, partial)
    following = np.empty(total, dtype=np.int64)
    for i in range(count - 1, -1, -1):
        length = sequence_items(items, parent, start, end, prompt_node[i], page_tokens, partial)
        for k in range(length - 1, -1, -1):
            total -= 1
            following[total] = first[items[k]]
            first[items[k]] = i
    return first, following


@kernel
def _empty_cache(above, item, next_lookup, requests):
    pages = np.zeros(len(above), dtype=PAGE)
    for b in range(len(above)):
        pages[b]["above"] = above[b]
        pages[b]["item"] = item[b]
    leaves = np.empty((1, requests + 1), dtype=np.int32)
    return PageCache(pages, leaves, np.zeros(1, dtype=np.int64), next_lookup, np.zeros(2, dtype=np.int64))


@kernel
def policy_hits(policy, capacity, parent, start, end, prompt_node, output_node, page_tokens, include_outputs):
    """Prompt tokens hit in a cache of ``capacity`` pages under any policy of this file, one request after another.

    Each looks up its prompt's leading pages, then stores its prompt with a partial last page, or, where
    ``include_outputs``, the whole pages of prompt and output.

    Args:
        policy: LFU, FIFO, MRU, FILO, SLRU, CLOCK, or BELADY, which knows the next lookup of every page and may at once
            drop what it has just stored.
        capacity: pages, at least 1.
        parent: int32 (M,).
        start: int64 (M,), tokens.
        end: int64 (M,), tokens.
        prompt_node: int32 (N,).
        output_node: int32 (N,).
        page_tokens: tokens per page.
        include_outputs: outputs are stored too, and partial pages are not.

    Returns:
        hits int64 (N,), tokens; the largest number of pages held between two requests.
    """
    partial = not include_outputs
    stored = output_node if include_outputs else prompt_node
    above, item, last, tail = page_chains(parent, start, end, stored, page_tokens, partial)
    items = np.empty(len(parent) + 1, dtype=np.int64)
    first, following = _lookups(parent, start, end, prompt_node, page_tokens, partial, items)
    cache = _empty_cache(above, item, first, len(prompt_node))
    room = np.empty(longest_chain(end, stored, page_tokens), dtype=np.int32)
    hits = np.zeros(len(prompt_node), dtype=np.int64)
    peak = 0
    looked_up = 0
    for i in range(len(prompt_node)):
        chain = fill_chain(room, above, last, tail, prompt_node[i])
        hits[i] = min(leading(cache, chain) * page_tokens, end[prompt_node[i]])
        if policy == BELADY:
            for k in range(sequence_items(items, parent, start, end, prompt_node[i], page_tokens, partial)):
                cache.next_lookup[items[k]] = following[looked_up]
                looked_up += 1
        if include_outputs:
            chain = fill_chain(room, above, last, tail, output_node[i])
        if len(chain) > 0:
            _store(cache, policy, capacity, chain, i)
        peak = max(peak, cache.count[HELD])
    return hits, peak
