"""Resident pages of a cache, and the heaps of its leaves in the order of its policy.

A page is resident only with all pages before it, so only *leaves* are evicted: resident pages that no resident page
stands behind. Every chain has one leaf at most, hence there are no more of them than requests, and no two of them were
last used by the same request. The policies are those of ``cache.evictions`` that say what they do with ``pages``.
"""

from __future__ import annotations

import numpy as np

from hisearch.base.jit import inlined_kernel, kernel
from hisearch.base.policies import EVICTIONS
from hisearch.kernels.cache import (
    evictions,  # noqa: F401  (kernels are compiled from all of them)
    recency,
)
from hisearch.kernels.core.dispatch import dispatcher, functions
from hisearch.kernels.core.heap import indexed_heap
from hisearch.kernels.core.linked_list import linked_list
from hisearch.kernels.layout import hicache as hl

#: Policies of a cache of pages, with codes of their own.
POLICIES = EVICTIONS.subset(lambda policy: bool(policy.pages))
QUEUES = POLICIES.mask(lambda policy: policy.queues)
_PRIORITIES = POLICIES.mask(lambda policy: policy.priorities)
_BY_RECENCY = POLICIES.mask(lambda policy: policy.recency)
_REACH = POLICIES.mask(lambda policy: policy.reach)
#: Bits of those that value pages, and of those whose hits begin anew when a page is given another chance.
_VALUES = sum(1 << POLICIES.code(name) for name in functions(POLICIES, "going"))
_CHANCES = sum(1 << POLICIES.code(name) for name in functions(POLICIES, "second_chance"))

_before = dispatcher(POLICIES, "before", "sim, a, b")
_second_chance = dispatcher(POLICIES, "second_chance", "sim, v, d", otherwise="0")
_going = dispatcher(POLICIES, "going", "sim, v, d", otherwise="None")
_moves_on = dispatcher(POLICIES, "moves_on", "sim, d", otherwise="False")

_link, _unlink = linked_list()


@inlined_kernel
def _goes_before(sim, a, b):
    policy = sim.trees[0].eviction
    return recency.older(sim, a, b) if _BY_RECENCY >> policy & 1 else _before(policy, sim, a, b)


@kernel
def _note_slot(sim, b, slot):
    sim.nodes[b].heap_slot = slot


_sift, _push, _remove = indexed_heap(_goes_before, _note_slot)


@inlined_kernel
def has(policies, sim):
    """Whether the cache's policy is one of ``policies``, a mask."""
    return policies >> sim.trees[0].eviction & 1


@kernel
def expires(sim):
    """Whether pages expire."""
    return sim.config.ttl_s < np.inf


@kernel
def expired(sim, b):
    """Whether page ``b`` has expired by now."""
    return sim.time_s[sim.nodes[b].tick] + sim.config.ttl_s <= sim.trees[0].now_s


@inlined_kernel
def leading(sim, chain):
    """Number of a chain's pages that are resident: none behind the first that is not."""
    k = 0
    while k < len(chain) and sim.nodes[chain[k]].resident:
        k += 1
    return k


@kernel
def _row(sim, b):
    """Heap of page ``b`` as a leaf."""
    return np.int64(sim.hosted[b].queue) if has(QUEUES, sim) else 0


@kernel
def add_leaf(sim, b):
    """Page ``b`` may be evicted from now on."""
    row = _row(sim, b)
    sim.leaf_count[row] = _push(sim, sim.leaves[row], sim.leaf_count[row], b)


@kernel
def remove_leaf(sim, b):
    """Leaf ``b`` may not be evicted any more."""
    row = _row(sim, b)
    sim.leaf_count[row] = _remove(sim, sim.leaves[row], sim.leaf_count[row], sim.nodes[b].heap_slot)


@inlined_kernel
def use(sim, policy, b, k, i, length):
    """Request ``i`` uses page ``b``, page ``k`` of its sequence of ``length`` tokens; ``b`` is no leaf meanwhile."""
    page = sim.nodes[b]
    page.hits += 1
    page.tick = i
    if _PRIORITIES >> policy & 1:
        sim.node_ranks[b].priority = max(sim.node_ranks[b].priority, sim.priority[i])
    elif _REACH >> policy & 1:
        sim.hosted[b].dispensable_from = max(sim.hosted[b].dispensable_from, length - sim.config.slack_tokens)
    elif _VALUES >> policy & 1:
        first = k * sim.config.page_tokens
        tokens = min(length - first, sim.config.page_tokens)
        cost = tokens * (1.0 + (2 * first + tokens - 1) / (2.0 * sim.config.attention_tokens))
        sim.hosted[b].value = sim.trees[0].worth + page.hits * cost


@kernel
def move_on(sim, b):
    """Page ``b``, which is used and is no leaf, moves into the second queue where its policy says so."""
    if sim.hosted[b].queue == 0 and _moves_on(sim.trees[0].eviction, sim, b):
        sim.hosted[b].queue = 1
        sim.trees[0].once_pages -= 1


@inlined_kernel
def hold(sim, policy, b, k, i, length, queue):
    """Page ``b`` becomes resident, with a child too many; see ``use``. ``queue``: 1, if the second one has it."""
    cache = sim.trees[0]
    page = sim.nodes[b]
    page.resident = True
    page.children = 1
    page.serial = cache.serial
    cache.serial += 1
    cache.free_pages -= 1
    page.hits = 0
    if QUEUES >> policy & 1:
        sim.hosted[b].queue = queue
        cache.once_pages += 1 - queue
    elif _PRIORITIES >> policy & 1:
        sim.node_ranks[b].priority = 0
    elif _REACH >> policy & 1:
        page.end = (k + 1) * sim.config.page_tokens
        sim.hosted[b].dispensable_from = -(2**62)
    use(sim, policy, b, k, i, length)
    if _CHANCES >> policy & 1:
        page.hits = 0
    if expires(sim):
        sim.links[b].tokens = min(length - k * sim.config.page_tokens, sim.config.page_tokens)
        if page.above >= 0:
            above = sim.links[page.above]
            above.behind, _ = _link(sim.links, above.behind, -1, -1, b)


@kernel
def drop(sim, b):
    """Leaf ``b`` goes; the page above it may become a leaf."""
    cache = sim.trees[0]
    page = sim.nodes[b]
    row = _row(sim, b)
    page.resident = False
    cache.free_pages += 1
    if has(QUEUES, sim):
        cache.once_pages -= 1 - sim.hosted[b].queue
    if expires(sim):
        if expired(sim, b):
            cache.expired_tokens += sim.links[b].tokens
        if page.above >= 0:
            above = sim.links[page.above]
            above.behind, _ = _unlink(sim.links, above.behind, -1, b)
    above = page.above
    if above >= 0:
        sim.nodes[above].children -= 1
        if sim.nodes[above].children == 0:
            if _row(sim, above) == row:
                # It often belongs to the same place.
                sim.leaves[row, page.heap_slot] = above
                _sift(sim, sim.leaves[row], sim.leaf_count[row], page.heap_slot)
                return
            add_leaf(sim, above)
    remove_leaf(sim, b)


@kernel
def evict(sim, wanted):
    """Evict leaves, first to go first, until ``wanted`` pages are free."""
    cache = sim.trees[0]
    while cache.free_pages < wanted:
        b = np.int64(sim.leaves[0, 0])
        if has(_CHANCES, sim) and _second_chance(cache.eviction, sim, 0, b) != hl.GOES:
            sim.nodes[b].serial = cache.serial
            cache.serial += 1
            _sift(sim, sim.leaves[0], sim.leaf_count[0], 0)
            continue
        if has(_VALUES, sim):
            _going(cache.eviction, sim, 0, b)
        drop(sim, b)
