"""A prefix cache of pages alone under policies that value pages: of the leaves the one of least value goes first.

Notation
    N, M, P, leaf   as in ``page_cache``
    L       tokens of a sequence, s the first of a page's tokens, both counted from 0

A request sets the value of every page that it uses, and storing is a use. Of leaves of equal value the least recently
used goes first.

    lru         0: for hits request by request; ``stack`` is quicker where their sum is enough
    priority    the greatest priority value of the requests that used the page since it was stored
    tlru        1 where a sequence that used the page since it was stored has L - s > slack, else 0 (Zhang et al. 2025,
                arXiv:2510.15152): without the page, the next prompt of that sequence would leave too much to compute
    gdsf        clock + uses * cost, the clock being the greatest value evicted so far (Cherkasova 1998; sizes are left
                out, as all pages take the same room); cost: of computing the page's tokens again

What a request has stored already is used before anything is evicted for the rest, the rest after it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hisearch.base.jit import kernel
from hisearch.kernels.cachesim.chains import fill_chain, longest_chain, page_chains
from hisearch.kernels.cachesim.page_cache import leading
from hisearch.kernels.cachesim.value_heap import value_push, value_remove, value_replace

LRU, PRIORITY, TLRU, GDSF = range(4)
#: Indices of ``ValueCache.count``: pages held, leaves.
HELD, LEAVES = range(2)

#: A page. last_use: request; slot: of the heap.
VALUED_PAGE = np.dtype(
    [("value", "f8")]
    + [(name, "i4") for name in ("above", "children", "uses", "last_use", "slot")]
    + [("resident", "?")],
    align=True,
)


class Rule(NamedTuple):
    """What values depend on, beside the request: numbers alone, for a page's value must be quick to compute.

    policy: LRU …. capacity: pages. page_tokens: tokens per page. slack_tokens: TLRU, what may be
    uncached of a next prompt less its new tokens. attention_tokens: GDSF, float64, depth at which attention costs a
    token as much as all else.
    """

    policy: int
    capacity: int
    page_tokens: int
    slack_tokens: int
    attention_tokens: float


class ValueCache(NamedTuple):
    """State; all arrays are modified in place.

    pages: ``VALUED_PAGE`` (P,). leaves: int32 (N + 1,), see ``value_heap``. count: int64 (2,), see ``HELD``.
    clock: float64 (1,), of GDSF.
    """

    pages: np.ndarray
    leaves: np.ndarray
    count: np.ndarray
    clock: np.ndarray


@kernel
def _value(rule, page, k, length, priority, clock):
    """Value of ``page``, its use counted; it is page ``k`` of a sequence of ``length`` tokens."""
    first = k * rule.page_tokens
    if rule.policy == LRU:
        return 0.0
    if rule.policy == PRIORITY:
        return max(page["value"], float(priority))
    if rule.policy == TLRU:
        return max(page["value"], 1.0 if length - first > rule.slack_tokens else 0.0)
    tokens = min(length - first, rule.page_tokens)
    cost = tokens * (1.0 + (2 * first + tokens - 1) / (2.0 * rule.attention_tokens))
    return clock + page["uses"] * cost


@kernel
def _add_leaf(cache, b):
    value_push(cache.leaves, cache.count[LEAVES], cache.pages, b)
    cache.count[LEAVES] += 1


@kernel
def _remove_leaf(cache, b):
    value_remove(cache.leaves, cache.count[LEAVES], cache.pages, b)
    cache.count[LEAVES] -= 1


@kernel
def _evict(cache, capacity):
    """Evict leaves until no more than ``capacity`` pages are held."""
    while cache.count[HELD] > capacity:
        b = cache.leaves[0]
        page = cache.pages[b]
        page["resident"] = False
        cache.count[HELD] -= 1
        # A page that became a leaf late may have less value than what went before it.
        cache.clock[0] = max(cache.clock[0], page["value"])
        above = page["above"]
        if above >= 0:
            cache.pages[above]["children"] -= 1
        if above >= 0 and cache.pages[above]["children"] == 0:
            value_replace(cache.leaves, cache.count[LEAVES], cache.pages, b, above)
        else:
            _remove_leaf(cache, b)


@kernel
def _store(cache, rule, chain, i, length, priority):
    """Use the resident pages of request ``i``'s chain, then store the others; ``length``: tokens of its sequence.

    While that lasts every page of the chain has one child too many, or the next page as child: none is a leaf.
    """
    pages = cache.pages
    have = leading(cache, chain)
    keep = min(len(chain), rule.capacity)
    if have > 0:
        if pages[chain[have - 1]]["children"] == 0:
            _remove_leaf(cache, chain[have - 1])
        pages[chain[have - 1]]["children"] += 1
    clock = cache.clock[0]
    for k in range(have):
        page = pages[chain[k]]
        page["uses"] += 1
        page["last_use"] = i
        page["value"] = _value(rule, page, k, length, priority, clock)
    _evict(cache, rule.capacity - (keep - have))
    clock = cache.clock[0]
    for k in range(have, keep):
        page = pages[chain[k]]
        page["resident"] = True
        page["children"] = 1
        page["uses"] = 1
        page["last_use"] = i
        page["value"] = 0.0
        page["value"] = _value(rule, page, k, length, priority, clock)
    cache.count[HELD] += keep - have
    pages[chain[keep - 1]]["children"] -= 1
    if pages[chain[keep - 1]]["children"] == 0:
        _add_leaf(cache, chain[keep - 1])


@kernel
def _empty_cache(above, requests):
    pages = np.zeros(len(above), dtype=VALUED_PAGE)
    for b in range(len(above)):
        pages[b]["above"] = above[b]
    leaves = np.empty(requests + 1, dtype=np.int32)
    return ValueCache(pages, leaves, np.zeros(2, dtype=np.int64), np.zeros(1))


@kernel
def value_hits(rule, priority, parent, start, end, prompt_node, output_node, include_outputs):
    """Prompt tokens hit in a cache under a policy of this file.

    Args as of ``page_cache.policy_hits``, but for rule: ``Rule``, and priority: int32 (N,).

    Returns:
        hits int64 (N,), tokens; the largest number of pages held between two requests.
    """
    stored = output_node if include_outputs else prompt_node
    above, _, last, tail = page_chains(parent, start, end, stored, rule.page_tokens, not include_outputs)
    cache = _empty_cache(above, len(prompt_node))
    room = np.empty(longest_chain(end, stored, rule.page_tokens), dtype=np.int32)
    hits = np.zeros(len(prompt_node), dtype=np.int64)
    peak = 0
    for i in range(len(prompt_node)):
        chain = fill_chain(room, above, last, tail, prompt_node[i])
        hits[i] = min(leading(cache, chain) * rule.page_tokens, end[prompt_node[i]])
        if include_outputs:
            chain = fill_chain(room, above, last, tail, output_node[i])
        if len(chain) > 0:
            _store(cache, rule, chain, i, end[stored[i]], priority[i])
        peak = max(peak, cache.count[HELD])
    return hits, peak
