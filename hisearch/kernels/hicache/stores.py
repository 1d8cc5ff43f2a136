"""The stores behind a worker's host memory: one, or a nearer and a farther one, which are asked and filled together.

A page comes from the nearest store that has it, over that store's link; what both have is a use of the nearer alone.
*Inclusive*: what is written goes to both, and what comes from the farther one is copied to the nearer. *Exclusive*:
what is written goes to the nearer, what that evicts moves to the farther one, and what comes from the farther one moves
back; so no page is in both, but where several nearer stores share a farther one a page may be in more than one of
them. What expires moves nowhere. Moves between stores have a server of their own, see ``hicache.servers``.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import store
from hisearch.kernels.layout import hicache as hl
from hisearch.kernels.traffic import links, moves

NEAR, FAR = 0, 1


@kernel
def number_of(sim, w, t):
    """Number of worker ``w``'s store among those of tier ``t``."""
    tier = sim.store_tiers[t]
    return (w if tier.scope == hl.OF_WORKER else sim.hosts[w].place) // tier.workers_per_store


@kernel
def store_of(sim, w, t):
    """Index of worker ``w``'s store of tier ``t`` among the trees."""
    return sim.store_tiers[t].first + number_of(sim, w, t)


@kernel
def _travel(sim, w, t, now, tokens, back):
    """Bytes between worker ``w``'s node and its store of tier ``t``: over the store's own link, and the network."""
    if tokens == 0:
        return now
    tier = sim.store_tiers[t]
    end = links.send(sim, tier.first_link + 2 * number_of(sim, w, t) + back, now, tokens)
    if tier.first_network >= 0:
        node = sim.hosts[w].place // sim.tiers.workers_per_node
        end = max(end, links.send(sim, tier.first_network + 2 * node + back, now, tokens))
    return end


@kernel
def next_stretch(sim, w, trace_node, begin, end, now):
    """The tier that has the next pages behind ``begin`` on the path to ``trace_node``, and their tokens, or 0."""
    near = store_of(sim, w, NEAR)
    found = store.leading(sim, near, trace_node, begin, end, now)
    if found > 0 or sim.tiers.storage == 1:
        return NEAR, found
    end = begin + store.gap(sim, near, trace_node, begin, end, now)
    return FAR, store.leading(sim, store_of(sim, w, FAR), trace_node, begin, end, now)


@kernel
def look(sim, w, trace_node, begin, end, now):
    """Tokens from ``begin`` to ``end`` on the path to ``trace_node`` that the stores together have without a gap."""
    at = begin
    while at < end:
        _, found = next_stretch(sim, w, trace_node, at, end, now)
        if found == 0:
            break
        at += found
    return at - begin


@kernel
def use(sim, w, r, trace_node, begin, end, longest, now):
    """Request ``r`` uses what the stores have in (begin, end]; its sequence has ``longest`` tokens."""
    at = begin
    while at < end:
        t, found = next_stretch(sim, w, trace_node, at, end, now)
        v = store_of(sim, w, t)
        store.touch(sim, v, trace_node, at, at + found, now, sim.trace.priority[r])
        at += found
    for t in range(sim.tiers.storage):
        v = store_of(sim, w, t)
        if store.REACH >> sim.trees[v].eviction & 1:
            store.reach(sim, v, trace_node, longest)


@kernel
def _in_far(sim, w, trace_node, begin, end, now):
    """Tokens in (begin, end] that the nearer store does not have, or not any more."""
    if sim.tiers.storage == 1:
        return 0
    near = store_of(sim, w, NEAR)
    far = 0
    at = begin
    while at < end:
        gap = store.gap(sim, near, trace_node, at, end, now)
        far += gap
        at += gap
        at += store.leading(sim, near, trace_node, at, end, now)
    return far


@kernel
def begin_reading(sim, w, f, tokens, now):
    """The next ``tokens`` tokens of fetch ``f`` are read; returns when the last of them has come."""
    fetch = sim.fetches[f]
    begin = fetch.begin + fetch.read
    fetch.far = _in_far(sim, w, fetch.trace_node, begin, begin + tokens, now)
    end = _travel(sim, w, NEAR, now, tokens - fetch.far, 1)
    return max(end, _travel(sim, w, FAR, now, fetch.far, 1))


@kernel
def end_reading(sim, w, f, tokens, now):
    """They have come. What the farther store has alone moves to the nearer, or is copied there."""
    fetch = sim.fetches[f]
    sim.hosts[w].fetched_tokens += tokens
    sim.trees[store_of(sim, w, NEAR)].read_tokens += tokens - fetch.far
    if sim.tiers.storage == 1:
        return
    sim.trees[store_of(sim, w, FAR)].read_tokens += fetch.far
    at = fetch.begin + fetch.read
    end = at + tokens
    while at < end and not fetch.stopped:
        t, found = next_stretch(sim, w, fetch.trace_node, at, end, now)
        if found == 0:
            break
        if t == FAR:
            moves.add(sim, w, fetch.trace_node, at, at + found, NEAR, sim.trace.priority[fetch.request])
        at += found


@kernel
def begin_writing(sim, w, tokens, now):
    """So many tokens are written; returns when the last of them is there."""
    end = _travel(sim, w, NEAR, now, tokens, 0)
    if sim.tiers.storage == 1 or sim.tiers.exclusive:
        return end
    return max(end, _travel(sim, w, FAR, now, tokens, 0))


@kernel
def end_writing(sim, w, trace_node, begin, end, now, priority):
    """They are there, and can be found."""
    _put_near(sim, w, trace_node, begin, end, now, priority)
    if sim.tiers.storage > 1 and not sim.tiers.exclusive:
        store.put(sim, store_of(sim, w, FAR), trace_node, begin, end, now, priority)


@kernel
def _put_near(sim, w, trace_node, begin, end, now, priority):
    """Put pages into the nearer store. Exclusive: the farther one loses them, and gets what goes for them."""
    near = store_of(sim, w, NEAR)
    store.put(sim, near, trace_node, begin, end, now, priority)
    if not sim.tiers.exclusive:
        return
    held = store.leading(sim, near, trace_node, begin, end, now)
    if held > 0:
        store.take_out(sim, store_of(sim, w, FAR), trace_node, begin, begin + held)
    moves.adopt(sim, w, near)


@kernel
def begin_moving(sim, w, m, tokens, now):
    """The first ``tokens`` tokens of move ``m`` set out; returns when the last of them is there.

    What moves to the nearer store has just been read, and is in host memory; what moves away from it is read first.
    """
    if sim.moves[m].to == NEAR:
        return _travel(sim, w, NEAR, now, tokens, 0)
    end = _travel(sim, w, NEAR, now, tokens, 1)
    return max(end, _travel(sim, w, FAR, now, tokens, 0))


@kernel
def end_moving(sim, w, m, tokens, now):
    """They are there. What the nearer store has been given meanwhile the farther one does not keep."""
    move = sim.moves[m]
    end = move.begin + tokens
    if move.to == NEAR:
        _put_near(sim, w, move.trace_node, move.begin, end, now, move.priority)
        return
    near = store_of(sim, w, NEAR)
    sim.trees[near].demoted_tokens += tokens
    at = move.begin
    while at < end:
        gap = store.gap(sim, near, move.trace_node, at, end, now)
        if gap > 0:
            store.put(sim, store_of(sim, w, FAR), move.trace_node, at, at + gap, now, move.priority)
        at += gap
        at += store.leading(sim, near, move.trace_node, at, end, now)


@kernel
def lose_host(sim, w):
    """Worker ``w``'s host is gone, and with it what its node's stores hold."""
    for t in range(sim.tiers.storage):
        if sim.store_tiers[t].scope == hl.OF_NODE:
            store.clear(sim, store_of(sim, w, t))


@kernel
def reset(sim, w):
    """Empty stores, of those that worker ``w`` is the first of."""
    for t in range(sim.tiers.storage):
        if w % sim.store_tiers[t].workers_per_store == 0:
            store.reset(sim, store_of(sim, w, t), t)
