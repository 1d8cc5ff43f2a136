"""The stores behind a worker's host memory: one, or a near and a far one, which are queried and filled together.

A page comes from the nearest store that has it, over that store's link. A page in both counts as a use of the near one
alone. *Inclusive*: writes go to both stores, and pages read from the far store are copied to the near one. *Exclusive*:
writes go to the near store, its evictions move to the far one, and pages read from the far store move back. No page is
then in both, but if several near stores share a far one, more than one of them may have a page. Expired pages move
nowhere. A separate server moves pages between stores, see ``hicache.servers``.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import store
from hisearch.kernels.layout import hicache as hl
from hisearch.kernels.traffic import links, moves

NEAR, FAR = 0, 1


@kernel
def number_of(sim, w, t):
    """Number of worker ``w``'s store within tier ``t``."""
    tier = sim.store_tiers[t]
    return (w if tier.scope == hl.OF_WORKER else sim.hosts[w].place) // tier.workers_per_store


@kernel
def store_of(sim, w, t):
    """Index of worker ``w``'s store of tier ``t`` among the trees."""
    return sim.store_tiers[t].first + number_of(sim, w, t)


@kernel
def _travel(sim, w, t, now, tokens, back):
    """Send between worker ``w``'s node and its store of tier ``t``, over the store's link and the network."""
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
    """(tier with the next pages after ``begin`` on the path to ``trace_node``, their tokens or 0)."""
    near = store_of(sim, w, NEAR)
    stored_tokens = store.leading(sim, near, trace_node, begin, end, now)
    if stored_tokens > 0 or sim.tiers.storage == 1:
        return NEAR, stored_tokens
    end = begin + store.gap(sim, near, trace_node, begin, end, now)
    return FAR, store.leading(sim, store_of(sim, w, FAR), trace_node, begin, end, now)


@kernel
def look(sim, w, trace_node, begin, end, now):
    """Tokens after ``begin``, up to ``end``, that the stores together have without a gap."""
    at = begin
    while at < end:
        _, stored_tokens = next_stretch(sim, w, trace_node, at, end, now)
        if stored_tokens == 0:
            break
        at += stored_tokens
    return at - begin


@kernel
def use(sim, w, r, trace_node, begin, end, longest, now):
    """Touch the pages behind ``begin``, up to ``end`` or a gap, for ``r``, whose sequence has ``longest`` tokens."""
    at = begin
    while at < end:
        t, stored_tokens = next_stretch(sim, w, trace_node, at, end, now)
        if stored_tokens == 0:
            break
        v = store_of(sim, w, t)
        store.touch(sim, v, trace_node, at, at + stored_tokens, now, sim.trace.priority[r])
        at += stored_tokens
    for t in range(sim.tiers.storage):
        v = store_of(sim, w, t)
        if store.REACH >> sim.trees[v].eviction & 1:
            store.reach(sim, v, trace_node, longest)


@kernel
def _in_far(sim, w, trace_node, begin, end, now):
    """Tokens in (begin, end] that the near store does not have, or no longer has."""
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
    """Begin to read the next ``tokens`` tokens of fetch ``f``; returns when the last has arrived."""
    fetch = sim.fetches[f]
    begin = fetch.begin + fetch.read
    fetch.far = _in_far(sim, w, fetch.trace_node, begin, begin + tokens, now)
    end = _travel(sim, w, NEAR, now, tokens - fetch.far, 1)
    return max(end, _travel(sim, w, FAR, now, fetch.far, 1))


@kernel
def end_reading(sim, w, f, tokens, now):
    """End a read. Pages that only the far store has move, or are copied, to the near one."""
    fetch = sim.fetches[f]
    sim.hosts[w].fetched_tokens += tokens
    sim.trees[store_of(sim, w, NEAR)].read_tokens += tokens - fetch.far
    if sim.tiers.storage == 1:
        return
    sim.trees[store_of(sim, w, FAR)].read_tokens += fetch.far
    at = fetch.begin + fetch.read
    end = at + tokens
    while at < end and not fetch.stopped:
        t, stored_tokens = next_stretch(sim, w, fetch.trace_node, at, end, now)
        if stored_tokens == 0:
            break
        if t == FAR:
            moves.add(sim, w, fetch.trace_node, at, at + stored_tokens, NEAR, sim.trace.priority[fetch.request])
        at += stored_tokens


@kernel
def begin_writing(sim, w, tokens, now):
    """Begin to write ``tokens`` tokens; returns when the last has arrived."""
    end = _travel(sim, w, NEAR, now, tokens, 0)
    if sim.tiers.storage == 1 or sim.tiers.exclusive:
        return end
    return max(end, _travel(sim, w, FAR, now, tokens, 0))


@kernel
def end_writing(sim, w, trace_node, begin, end, now, priority):
    """End a write; its pages become findable."""
    _put_near(sim, w, trace_node, begin, end, now, priority)
    if sim.tiers.storage > 1 and not sim.tiers.exclusive:
        store.put(sim, store_of(sim, w, FAR), trace_node, begin, end, now, priority)


@kernel
def _put_near(sim, w, trace_node, begin, end, now, priority):
    """Put pages into the near store. Exclusive: the far store drops them and gets the near store's evictions."""
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
    """Begin to move the first ``tokens`` tokens of move ``m``; returns when the last has arrived.

    Pages that move to the near store have just been read into host memory; pages that leave it are read first.
    """
    if sim.moves[m].to == NEAR:
        return _travel(sim, w, NEAR, now, tokens, 0)
    end = _travel(sim, w, NEAR, now, tokens, 1)
    return max(end, _travel(sim, w, FAR, now, tokens, 0))


@kernel
def end_moving(sim, w, m, tokens, now):
    """End a move. The far store does not keep pages that the near one got meanwhile."""
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
    """Clear the node-scope stores of worker ``w``'s failed host."""
    for t in range(sim.tiers.storage):
        if sim.store_tiers[t].scope == hl.OF_NODE:
            store.clear(sim, store_of(sim, w, t))


@kernel
def reset(sim, w):
    """Empty the stores whose first worker is ``w``."""
    for t in range(sim.tiers.storage):
        if w % sim.store_tiers[t].workers_per_store == 0:
            store.reset(sim, store_of(sim, w, t), t)
