"""A prefix cache of pages alone whose pages expire, a while after their last use; see ``page_cache``, ``page_value``.

Notation
    N, M, P, leaf   as in ``page_cache``
    now     time of the request at hand

A page expires ``ttl_s`` after its last use, at that moment and not after it, and is never hit from then on. Whoever
uses a page uses all pages before it, so that all pages behind an expired one are expired too, and the living pages are
the most recently used ones: to evict the least recently used leaf is to evict expired pages first. What expires stays
until it is reclaimed:

    lazy        where a request comes upon an expired page, that page goes, with all pages behind it
    periodic    at every multiple of a period all expired pages go
    pressure    only as room is needed

An expired page that the request at hand needs is stored anew, where it still stands in its place.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hisearch.base.jit import kernel
from hisearch.kernels.cachesim.chains import fill_chain, longest_chain, page_chains
from hisearch.kernels.cachesim.leaf_heap import heap_push, heap_remove, heap_replace
from hisearch.kernels.cachesim.page_cache import leading

LAZY, PERIODIC, PRESSURE = range(3)
#: Indices of ``TtlCache.count``: pages held, tokens of pages that had expired when they went or were stored anew.
HELD, EXPIRED = range(2)

#: A page. key: request that last used it; behind: a resident page behind it, -1 for none; newer, older: others behind
#: the same page; slot: see ``leaf_heap``.
TTL_PAGE = np.dtype(
    [("key", "i8")]
    + [(name, "i4") for name in ("above", "tokens", "children", "behind", "newer", "older", "slot")]
    + [("resident", "?")],
    align=True,
)


class Expiry(NamedTuple):
    """What expires when. time_s: float64 (N,), of the requests, never falling; ttl_s; reclaim: LAZY …; period_s."""

    time_s: np.ndarray
    ttl_s: float
    reclaim: int
    period_s: float


class TtlCache(NamedTuple):
    """State; all arrays are modified in place.

    pages: ``TTL_PAGE`` (P,). leaves: int32 (1, N + 1), a heap of leaves, least recently used first; leaf_count: int64
    (1,). count: int64 (2,), see ``HELD``.
    """

    pages: np.ndarray
    leaves: np.ndarray
    leaf_count: np.ndarray
    count: np.ndarray


@kernel
def _expired(cache, expiry, b, now_s):
    return expiry.time_s[cache.pages[b]["key"]] + expiry.ttl_s <= now_s


@kernel
def _add_leaf(cache, b):
    heap_push(cache.leaves, cache.leaf_count, cache.pages, 0, b)


@kernel
def _unlink(pages, page):
    """``page`` does not stand behind the one above it any more."""
    before = pages[page["above"]]
    if page["newer"] >= 0:
        pages[page["newer"]]["older"] = page["older"]
    else:
        before["behind"] = page["older"]
    if page["older"] >= 0:
        pages[page["older"]]["newer"] = page["newer"]
    before["children"] -= 1


@kernel
def _drop(cache, expiry, b, now_s):
    """Leaf ``b`` goes."""
    pages = cache.pages
    page = pages[b]
    if _expired(cache, expiry, b, now_s):
        cache.count[EXPIRED] += page["tokens"]
    page["resident"] = False
    cache.count[HELD] -= 1
    above = page["above"]
    if above >= 0:
        _unlink(pages, page)
        if pages[above]["children"] == 0:
            heap_replace(cache.leaves, cache.leaf_count, pages, 0, b, above)
            return
    heap_remove(cache.leaves, cache.leaf_count, pages, 0, b)


@kernel
def _drop_with_all_behind(cache, expiry, b, now_s):
    """Page ``b`` goes, and before it, leaf by leaf, all that stands behind it."""
    deepest = b
    while True:
        while cache.pages[deepest]["behind"] >= 0:
            deepest = cache.pages[deepest]["behind"]
        before = cache.pages[deepest]["above"]
        _drop(cache, expiry, deepest, now_s)
        if deepest == b:
            return
        deepest = before


@kernel
def _sweep(cache, expiry, at_s):
    """All pages go that have expired at a time."""
    while cache.leaf_count[0] > 0 and _expired(cache, expiry, cache.leaves[0, 0], at_s):
        _drop(cache, expiry, cache.leaves[0, 0], at_s)


@kernel
def _living(cache, expiry, chain, now_s):
    """Numbers of a chain's leading pages that are resident and have not expired, and of those that are resident."""
    have = leading(cache, chain)
    living = have
    # All pages before a living one live.
    while living > 0 and _expired(cache, expiry, chain[living - 1], now_s):
        living -= 1
    return living, have


@kernel
def _put(pages, b):
    """Page ``b`` becomes resident, behind the one above it, whose count of ``children`` is the caller's affair."""
    page = pages[b]
    page["resident"] = True
    page["behind"] = -1
    page["newer"] = -1
    page["older"] = -1
    page["children"] = 1
    if page["above"] >= 0:
        before = pages[page["above"]]
        page["older"] = before["behind"]
        if page["older"] >= 0:
            pages[page["older"]]["newer"] = b
        before["behind"] = b


@kernel
def _store(cache, expiry, capacity, chain, i, length, page_tokens):
    """Use the living pages of request ``i``'s chain and store the others; ``length``: tokens of its sequence.

    While that lasts every page of the chain has one child too many, or the next page as child: none is a leaf.
    """
    pages = cache.pages
    now_s = expiry.time_s[i]
    living, have = _living(cache, expiry, chain, now_s)
    if expiry.reclaim == LAZY and have > living:
        _drop_with_all_behind(cache, expiry, chain[living], now_s)
        have = living
    keep = min(len(chain), capacity)
    if have > 0:
        if pages[chain[have - 1]]["children"] == 0:
            heap_remove(cache.leaves, cache.leaf_count, pages, 0, chain[have - 1])
        pages[chain[have - 1]]["children"] += 1
    for k in range(living, have):
        cache.count[EXPIRED] += pages[chain[k]]["tokens"]
    for k in range(have):
        pages[chain[k]]["key"] = i
    while cache.count[HELD] > capacity - (keep - have):
        _drop(cache, expiry, cache.leaves[0, 0], now_s)
    for k in range(have, keep):
        _put(pages, chain[k])
        pages[chain[k]]["key"] = i
        pages[chain[k]]["tokens"] = min(length - k * page_tokens, page_tokens)
    cache.count[HELD] += keep - have
    pages[chain[keep - 1]]["children"] -= 1
    if pages[chain[keep - 1]]["children"] == 0:
        _add_leaf(cache, chain[keep - 1])


@kernel
def _empty_cache(above, requests):
    pages = np.zeros(len(above), dtype=TTL_PAGE)
    for b in range(len(above)):
        pages[b]["above"] = above[b]
    leaves = np.empty((1, requests + 1), dtype=np.int32)
    return TtlCache(pages, leaves, np.zeros(1, dtype=np.int64), np.zeros(2, dtype=np.int64))


@kernel
def ttl_hits(expiry, capacity, parent, start, end, prompt_node, output_node, page_tokens, include_outputs):
    """Prompt tokens hit in a cache whose pages expire; arguments as of ``page_cache.policy_hits``, and the expiry.

    Returns:
        hits int64 (N,), tokens; the largest number of pages held between two requests; tokens of pages that had expired
        when they went or were stored anew.
    """
    stored = output_node if include_outputs else prompt_node
    above, _, last, tail = page_chains(parent, start, end, stored, page_tokens, not include_outputs)
    cache = _empty_cache(above, len(prompt_node))
    room = np.empty(longest_chain(end, stored, page_tokens), dtype=np.int32)
    hits = np.zeros(len(prompt_node), dtype=np.int64)
    peak = 0
    swept_s = 0.0
    for i in range(len(prompt_node)):
        now_s = expiry.time_s[i]
        if expiry.reclaim == PERIODIC:
            # Nothing is used between two requests: of the sweeps since the last one, the latest does all they did.
            action_s = min(now_s, np.floor(now_s / expiry.period_s) * expiry.period_s)
            if action_s > swept_s:
                _sweep(cache, expiry, action_s)
                swept_s = action_s
        chain = fill_chain(room, above, last, tail, prompt_node[i])
        living, _ = _living(cache, expiry, chain, now_s)
        hits[i] = min(living * page_tokens, end[prompt_node[i]])
        if include_outputs:
            chain = fill_chain(room, above, last, tail, output_node[i])
        if len(chain) > 0:
            _store(cache, expiry, capacity, chain, i, end[stored[i]], page_tokens)
        peak = max(peak, cache.count[HELD])
    return hits, peak, cache.count[EXPIRED]
