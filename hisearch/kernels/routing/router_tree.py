"""The tree of sglang-router's cache_aware: what prompts it has sent to which workers, and when it forgets them.

Its nodes are runs of a prompt's characters, split where prompts part. Each knows the workers that were sent a prompt
through it, and a name: the first of them. Here a node is a run of nodes of the trace's prefix tree, on one path; its
data is that of the last of them (``layout.fleet.TREE_NODE``). All trace nodes of a run have the same holders, so each
has their bits of ``Fleet.prefix_index``.

Rules: sglang-router 0.3.2, ``policies/tree.rs``: ``Tree.insert``, ``prefix_match_with_counts``,
``evict_tenant_by_size``, ``remove_tenant``.
"""

from __future__ import annotations

import numpy as np

from hisearch.base.jit import kernel
from hisearch.kernels.core.bits import bit_length
from hisearch.kernels.core.heap import indexed_heap
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
    for k in range(fleet.routes.shape[0]):
        fleet.routes[k].tree_size = 0
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
        if keeps_stamps:
            fleet.tree_nodes[model, route.tree_size] = s
            route.tree_size += 1
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
    _forget_pruned(fleet, route, k // fl.SIDES)


@kernel
def _forget_pruned(fleet, route, model):
    """Keep the nodes in the list of the tree's nodes that still are in it."""
    kept = 0
    for n in range(route.tree_size):
        s = fleet.tree_nodes[model, n]
        if fleet.tree[s, model].bottom >= 0:
            fleet.tree_nodes[model, kept] = s
            kept += 1
    route.tree_size = kept


@kernel
def _goes_first(_state, a, b):
    return a < b


@kernel
def _keep_no_slot(_state, _leaf, _slot):
    pass


_, _push, _remove = indexed_heap(_goes_first, _keep_no_slot)


@kernel
def _leaf(fleet, s, column):
    """Trace node ``s`` behind its stamp, by which leaves are ordered."""
    return np.int64(fleet.stamps[s, column]) << 32 | np.int64(s)


@kernel
def _children(fleet, nodes):
    """First child and next sibling of each of the tree's ``nodes``, shape (M,) both, by trace node; 0: none."""
    first_child = np.empty(fleet.tree.shape[0], np.int32)
    next_sibling = np.empty(fleet.tree.shape[0], np.int32)
    for s in nodes:
        first_child[s] = 0
        first_child[fleet.trace.parent[s]] = 0
    for s in nodes:
        parent = fleet.trace.parent[s]
        next_sibling[s] = first_child[parent]
        first_child[parent] = s
    return first_child, next_sibling


@kernel
def _holds_below(fleet, first_child, next_sibling, s, word, bit):
    """Whether the member with that bit holds a child of trace node ``s``."""
    child = first_child[s]
    while child > 0:
        if fleet.prefix_index[child, word] & bit:
            return True
        child = next_sibling[child]
    return False


@kernel
def _lowest(bits):
    """Place of the lowest of ``bits``."""
    return bit_length(np.int64(bits & (~bits + np.uint64(1)))) - 1


@kernel
def _leaves(fleet, route, nodes, large):
    """Ends of the paths of the members whose bits are in ``large`` (words,), among the tree's ``nodes``.

    Returns (leaves, those of one member after another; (members + 1,) where each member's begin).
    """
    below = np.empty((fleet.tree.shape[0], route.words), np.uint64)
    for s in nodes:
        below[s] = 0
        below[fleet.trace.parent[s]] = 0
    for s in nodes:
        for word in range(route.words):
            below[fleet.trace.parent[s], word] |= fleet.prefix_index[s, route.word + word]
    begins = np.zeros(route.members + 1, np.int64)
    for s in nodes:
        for word in range(route.words):
            bits = fleet.prefix_index[s, route.word + word] & ~below[s, word] & large[word]
            below[s, word] = bits
            while bits:
                begins[64 * word + _lowest(bits) + 1] += 1
                bits &= bits - np.uint64(1)
    for place in range(route.members):
        begins[place + 1] += begins[place]
    leaves = np.empty(begins[route.members], np.int64)
    filled = begins.copy()
    for s in nodes:
        for word in range(route.words):
            bits = below[s, word]
            while bits:
                place = 64 * word + _lowest(bits)
                leaves[filled[place]] = _leaf(fleet, s, route.first + place)
                filled[place] += 1
                bits &= bits - np.uint64(1)
    return leaves, begins


@kernel
def _trim(fleet, route, k, m, most_tokens, leaves, first_child, next_sibling):
    """Take whole nodes from the ends of the paths of ``m``, the lowest stamp first, until it holds few enough."""
    trace, model, member = fleet.trace, k // fl.SIDES, fleet.members[m]
    word, bit = prefix_index.column(route, member.place)
    size = 0
    for n in range(leaves.shape[0]):
        size = _push(0, leaves, size, leaves[n])
    while member.prefix_index_tokens > most_tokens and size > 0:
        bottom = leaves[0] & (2**32 - 1)
        size = _remove(0, leaves, size, 0)
        s = bottom
        while s > 0 and fleet.tree[s, model].bottom == bottom:
            fleet.prefix_index[s, word] &= ~bit
            member.prefix_index_tokens -= trace.end_tokens[s] - trace.start_tokens[s]
            if not _has_holder(fleet, route, s):
                fleet.tree[s, model].bottom = -1
            s = np.int64(trace.parent[s])
        if s > 0 and not _holds_below(fleet, first_child, next_sibling, s, word, bit):
            size = _push(0, leaves, size, _leaf(fleet, s, route.first + member.place))
    if not route.unmatched_to_fewest:
        flow.note_prefix(fleet, m)


@kernel
def trim(fleet, k):
    """Trim the tree of every member of route ``k`` that holds more than ``max_tree_characters``."""
    route = fleet.routes[k]
    most_tokens = np.int64(route.max_tree_characters / route.characters_per_token)
    large = np.zeros(route.words, np.uint64)
    some = False
    for place in range(route.members):
        if fleet.members[fleet.at_place[route.first + place]].prefix_index_tokens > most_tokens:
            word, bit = prefix_index.column(route, place)
            large[word - route.word] |= bit
            some = True
    if not some:
        return
    if fleet.stamps.shape[0] == 0:
        fleet.counters[fl.UNSTAMPED] = 1
        return
    model = k // fl.SIDES
    nodes = fleet.tree_nodes[model, : route.tree_size]
    first_child, next_sibling = _children(fleet, nodes)
    leaves, begins = _leaves(fleet, route, nodes, large)
    for place in range(route.members):
        m = np.int64(fleet.at_place[route.first + place])
        if fleet.members[m].prefix_index_tokens > most_tokens:
            own = leaves[begins[place] : begins[place + 1]]
            _trim(fleet, route, k, m, most_tokens, own, first_child, next_sibling)
    _forget_pruned(fleet, route, model)


@kernel
def trim_where_due(fleet, route, k, now):
    """Trim every ``eviction_interval_s``. The tree has not changed since that time, as no request came."""
    if now < route.trim_s:
        return
    while route.trim_s <= now:
        route.trim_s += route.eviction_interval_s
    trim(fleet, k)
