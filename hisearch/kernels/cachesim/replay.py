"""A prefix cache of pages alone, without a scheduler, request by request; for the sum of hits under LRU see ``stack``.

Notation
    N   requests; M nodes of the prefix tree; P distinct pages; chains and items as in ``chains``

The pages of the request at hand are locked, as a running request's are: others' go first, and of a sequence longer
than the cache the first pages are stored. What a request has stored already is used before anything is evicted for the
rest, the rest after it; its tail is stored before its head.
"""

from __future__ import annotations

import numpy as np

from hisearch.base.jit import kernel
from hisearch.kernels.cachesim import expiry, ghosts, pages
from hisearch.kernels.cachesim.chains import fill_chain
from hisearch.traces._reuse import sequence_items

#: Bits of the policies that know the next lookup of every page, and may at once drop what they have just stored.
_NEXT_USE = pages.POLICIES.mask(lambda policy: policy.next_use)


@kernel
def _store(sim, chain, i, length):
    """Use the resident pages of request ``i``'s chain, then store the others; ``length``: tokens of its sequence.

    While that lasts every page of the chain has one child too many, or the next page as child: none is a leaf.
    """
    cache = sim.trees[0]
    policy = cache.eviction
    oracle = pages.has(_NEXT_USE, sim)
    queues = pages.has(pages.QUEUES, sim)
    if pages.expires(sim):
        expiry.renew(sim, chain)
    have = pages.leading(sim, chain)
    keep = len(chain) if oracle else min(len(chain), cache.capacity_pages)
    if have > 0:
        deepest = sim.nodes[chain[have - 1]]
        if deepest.children == 0:
            pages.remove_leaf(sim, chain[have - 1])
        deepest.children += 1
    for k in range(have):
        pages.use(sim, policy, chain[k], k, i, length)
        if queues:
            pages.move_on(sim, chain[k])
    if not oracle and not queues:
        pages.evict(sim, keep - have)
    for k in range(keep - 1, have - 1, -1):
        recalled = 0
        if queues:
            # Its own pages above are not stored yet and those below have a child, so that none of them is a leaf.
            recalled = ghosts.recall(sim, chain[k])
            ghosts.make_room(sim, recalled)
        pages.hold(sim, policy, chain[k], k, i, length, 1 if recalled > 0 else 0)
        if queues:
            ghosts.forget(sim)
    last = sim.nodes[chain[keep - 1]]
    last.children -= 1
    if last.children == 0:
        pages.add_leaf(sim, chain[keep - 1])
    if oracle:
        pages.evict(sim, 0)


@kernel
def count_lookups(parent, start, end, prompt_node, page_tokens, partial, counts):
    """Add to ``counts``, int64 (2 M,), the number of prompts that look up each item."""
    items = np.empty(len(parent) + 1, dtype=np.int64)
    for i in range(len(prompt_node)):
        for k in range(sequence_items(items, parent, start, end, prompt_node[i], page_tokens, partial)):
            counts[items[k]] += 1


@kernel
def list_lookups(parent, start, end, prompt_node, page_tokens, partial, users, at):
    """Write these requests into ``users``, in order, those of an item to where ``at`` (2 M,) says; modifies both."""
    items = np.empty(len(parent) + 1, dtype=np.int64)
    for i in range(len(prompt_node)):
        for k in range(sequence_items(items, parent, start, end, prompt_node[i], page_tokens, partial)):
            users[at[items[k]]] = i
            at[items[k]] += 1


@kernel
def replay(sim, parent, start, end, prompt_node, stored, partial, chains, room, hits):
    """Serve all requests: each looks up its prompt's leading pages, then stores its sequence.

    Args:
        sim: ``PageSim``, as ``simulate`` makes it.
        parent: int32 (M,).
        start: int64 (M,), tokens.
        end: int64 (M,), tokens.
        prompt_node: int32 (N,).
        stored: int32 (N,), the nodes that stored sequences end with.
        partial: these are the prompts, with partial last pages.
        chains: (above, last, tail) of ``page_chains``.
        room: int32, for the longest chain.
        hits: int64 (N,), tokens that each prompt hits; modified in place.

    Returns:
        The largest number of pages held between two requests.
    """
    cache = sim.trees[0]
    above, last, tail = chains
    items = np.empty(len(parent) + 1, dtype=np.int64)
    peak = 0
    for i in range(len(prompt_node)):
        if pages.expires(sim):
            expiry.advance(sim, sim.time_s[i])
        chain = fill_chain(room, above, last, tail, prompt_node[i])
        hits[i] = min(expiry.living(sim, chain) * sim.config.page_tokens, end[prompt_node[i]])
        if pages.has(_NEXT_USE, sim):
            count = sequence_items(items, parent, start, end, prompt_node[i], sim.config.page_tokens, partial)
            for k in range(count):
                sim.users_next[items[k]] += 1
        if not partial:
            chain = fill_chain(room, above, last, tail, stored[i])
        if len(chain) > 0:
            _store(sim, chain, i, end[stored[i]])
        peak = max(peak, cache.capacity_pages - cache.free_pages)
    return peak
