"""The tree of sglang-router's cache_aware: what prompts it has sent to which workers, and when it forgets them.

Its nodes are runs of a prompt's characters, split where prompts part. Each knows the workers that were sent a prompt
through it, and a name: the first of them. Here a node is a run of nodes of the trace's prefix tree, on one path; its
data is that of the last of them (``layout.fleet.TREE_NODE``). All trace nodes of a run have the same holders, so each
has their bits of ``Fleet.prefix_index``.

Rules: sglang-router 0.3.2, ``policies/tree.rs``: ``Tree.insert``, ``prefix_match_with_counts``,
``evict_tenant_by_size``, ``remove_tenant``.
"""

from __future__ import annotations

import heapq

import numpy as np

from hisearch.base.jit import kernel
from hisearch.kernels.layout import fleet as fl
from hisearch.kernels.routing import draws, prefix_index
from hisearch.kernels.traffic import flow

#: Matches at clocks divisible by this stamp the node where they ended.
STAMP_EVERY = 8
#: Name of a node whose first worker was trimmed there before a match: some holder's, drawn where it first matters.
DRAWN = -1


@kernel
def clear(fleet):
    """Forget everything."""
    for s in range(fleet.tree.shape[0]):
        for model in range(fleet.tree.shape[1]):
            fleet.tree[s, model].bottom = -1
    fleet.stamps[:] = 0


@kernel
def deepest_match(fleet, k, r):
    """The deepest trace node of ``r``'s prompt that is in the tree of route ``k``; 0: none."""
    model = k // fl.SIDES
    s = np.int64(fleet.trace.prompt_node[r])
    while s > 0 and fleet.tree[s, model].bottom < 0:
        s = np.int64(fleet.trace.parent[s])
    return s


@kernel
def _is_named(fleet, route, k, s):
    """Whether the node of trace node ``s`` has a name that still holds it."""
    name = np.int64(fleet.tree[fleet.tree[s, k // fl.SIDES].bottom, k // fl.SIDES].name)
    if name == DRAWN:
        return False
    word, bit = prefix_index.column(route, name)
    return fleet.prefix_index[s, word] & bit != 0


@kernel
def worker_named(fleet, route, k, s, drawn):
    """The place whose name the node of trace node ``s`` has; any other holder where that one was trimmed there.

    ``drawn``: see ``draws.one_of``.
    """
    node = fleet.tree[fleet.tree[s, k // fl.SIDES].bottom, k // fl.SIDES]
    if not _is_named(fleet, route, k, s):
        count = 0
        for place in range(route.members):
            word, bit = prefix_index.column(route, place)
            if fleet.prefix_index[s, word] & bit:
                fleet.candidates[route.first + count] = place
                count += 1
        node.name = draws.one_of(fleet, route, k, count, drawn)
    return np.int64(node.name)


@kernel
def note_match(fleet, route, k, s):
    """A match ended at trace node ``s`` (0: nothing matched): the clock goes on, and every eighth match stamps."""
    now = route.tree_clock
    route.tree_clock += 1
    if s == 0:
        return
    if fleet.stamps.shape[0] > 0 and now % STAMP_EVERY == 0:
        before = route.draws
        place = worker_named(fleet, route, k, s, route.drawn_next)
        # No choice was left to chance: the match was too short to make one.
        route.unseen += route.draws - before
        route.draws = before
        fleet.stamps[fleet.tree[s, k // fl.SIDES].bottom, route.first + place] = now
    elif not _is_named(fleet, route, k, s):
        fleet.tree[fleet.tree[s, k // fl.SIDES].bottom, k // fl.SIDES].name = DRAWN


@kernel
def _split_below(fleet, route, k, s):
    """Let a node of the tree end at trace node ``s``: the upper part gets the name, holders and stamps of the whole."""
    model = k // fl.SIDES
    bottom = fleet.tree[s, model].bottom
    if bottom == s:
        return
    fleet.tree[s, model].name = fleet.tree[bottom, model].name
    if fleet.stamps.shape[0] > 0:
        for column in range(route.first, route.first + route.members):
            fleet.stamps[s, column] = fleet.stamps[bottom, column]
    u = s
    while u > 0 and fleet.tree[u, model].bottom == bottom:
        fleet.tree[u, model].bottom = s
        u = np.int64(fleet.trace.parent[u])


@kernel
def insert(fleet, route, k, m, r):
    """Request ``r`` goes to member ``m``: its whole prompt is entered for it at once."""
    trace, model, member = fleet.trace, k // fl.SIDES, fleet.members[m]
    place = np.int64(member.place)
    word, bit = prefix_index.column(route, place)
    keeps_stamps = fleet.stamps.shape[0] > 0
    end = np.int64(trace.prompt_node[r])
    gained = 0
    s = end
    while s > 0 and fleet.tree[s, model].bottom < 0:
        fleet.tree[s, model].bottom = end
        fleet.prefix_index[s, word] |= bit
        gained += trace.end_tokens[s] - trace.start_tokens[s]
        s = np.int64(trace.parent[s])
    if s != end:
        fleet.tree[end, model].name = place
    if s > 0:
        _split_below(fleet, route, k, s)
    # Who holds a node holds all above it.
    while s > 0 and not fleet.prefix_index[s, word] & bit:
        fleet.prefix_index[s, word] |= bit
        gained += trace.end_tokens[s] - trace.start_tokens[s]
        if keeps_stamps:
            fleet.stamps[s, route.first + place] = 0
        s = np.int64(trace.parent[s])
    if keeps_stamps:
        fleet.stamps[end, route.first + place] = route.tree_clock
    route.tree_clock += 1
    if gained > 0:
        member.prefix_index_tokens += gained
        if not route.unmatched_to_fewest:
            flow.note_prefix(fleet, m)


@kernel
def _has_holder(fleet, route, s):
    holders = np.uint64(0)
    for word in range(route.word, route.word + route.words):
        holders |= fleet.prefix_index[s, word]
    return holders != 0


@kernel
def prune(fleet, k):
    """Drop the nodes that no member of route ``k`` holds any more."""
    route = fleet.routes[k]
    if route.words == 0 or k % fl.SIDES != fl.FRONT:
        return
    for s in range(1, fleet.tree.shape[0]):
        if fleet.tree[s, k // fl.SIDES].bottom >= 0 and not _has_holder(fleet, route, s):
            fleet.tree[s, k // fl.SIDES].bottom = -1


@kernel
def _leaves(fleet, route, k, m, below):
    """Ends of the paths of member ``m`` as (stamp, trace node), and in ``below`` (M,) its nodes below each node."""
    word, bit = prefix_index.column(route, fleet.members[m].place)
    column = route.first + fleet.members[m].place
    leaves = [(np.int64(0), np.int64(0)) for _ in range(0)]
    for s in range(fleet.tree.shape[0] - 1, 0, -1):
        if fleet.prefix_index[s, word] & bit:
            below[fleet.trace.parent[s]] += 1
            if below[s] == 0:
                leaves.append((np.int64(fleet.stamps[s, column]), np.int64(s)))
    return leaves


@kernel
def _trim(fleet, route, k, m, most_tokens):
    """Take whole nodes from the ends of the paths of ``m``, the lowest stamp first, until it holds few enough."""
    trace, model, member = fleet.trace, k // fl.SIDES, fleet.members[m]
    word, bit = prefix_index.column(route, member.place)
    column = route.first + member.place
    below = np.zeros(fleet.tree.shape[0], np.int32)
    leaves = _leaves(fleet, route, k, m, below)
    heapq.heapify(leaves)
    while member.prefix_index_tokens > most_tokens and len(leaves) > 0:
        _, bottom = heapq.heappop(leaves)
        s = bottom
        while s > 0 and fleet.tree[s, model].bottom == bottom:
            fleet.prefix_index[s, word] &= ~bit
            member.prefix_index_tokens -= trace.end_tokens[s] - trace.start_tokens[s]
            if not _has_holder(fleet, route, s):
                fleet.tree[s, model].bottom = -1
            s = np.int64(trace.parent[s])
            below[s] -= 1
        if s > 0 and below[s] == 0:
            heapq.heappush(leaves, (np.int64(fleet.stamps[s, column]), s))
    if not route.unmatched_to_fewest:
        flow.note_prefix(fleet, m)


@kernel
def trim(fleet, k):
    """Trim the tree of every member of route ``k`` that holds more than ``max_tree_characters``."""
    route = fleet.routes[k]
    most_tokens = np.int64(route.max_tree_characters / route.characters_per_token)
    for place in range(route.members):
        m = np.int64(fleet.at_place[route.first + place])
        if fleet.members[m].prefix_index_tokens > most_tokens:
            if fleet.stamps.shape[0] == 0:
                fleet.counters[fl.UNSTAMPED] = 1
                return
            _trim(fleet, route, k, m, most_tokens)


@kernel
def trim_where_due(fleet, route, k, now):
    """Trim every ``eviction_interval_s``. The tree has not changed since that time, as no request came."""
    if now < route.trim_s:
        return
    while route.trim_s <= now:
        route.trim_s += route.eviction_interval_s
    trim(fleet, k)
