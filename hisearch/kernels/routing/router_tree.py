"""The tree of sglang-router's cache_aware: what prompts it has sent to which workers, and when it forgets them.

Its nodes are runs of a prompt's characters, split where prompts part. Each knows the workers that were sent a prompt
through it, and a name: the first of them. Here a node is a run of nodes of the trace's prefix tree, on one path; its
data is that of the last of them (``layout.fleet.TREE_NODE``, ``TREE_END``). All trace nodes of a run have the same
holders, so each has their bits of ``Fleet.prefix_index``.

A worker's stamps stand in line in their order (``layout.fleet.TREE_STAMP``), which trimming follows from the front. A
stamp counts while the node it was given to still has it.

Rules: sglang-router 0.3.2, ``policies/tree.rs``: ``Tree.insert``, ``prefix_match_with_counts``,
``evict_tenant_by_size``, ``remove_tenant``.
"""

from __future__ import annotations

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
    for s in range(fleet.tree_ends.shape[0]):
        for model in range(fleet.tree_ends.shape[1]):
            fleet.tree_ends[s, model].row = 0
    for m in range(fleet.members.shape[0]):
        fleet.members[m].first_stamp = 0
        fleet.members[m].last_stamp = 0
        fleet.members[m].trimmed_until = -1
    fleet.counters[fl.TREE_STAMPS] = 0
    fleet.counters[fl.SHARED_ENDS] = 0
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
def _first_holder(fleet, route, s):
    """The lowest place whose member holds trace node ``s``."""
    place = 0
    word, bit = prefix_index.column(route, place)
    while not fleet.prefix_index[s, word] & bit:
        place += 1
        word, bit = prefix_index.column(route, place)
    return place


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
def _keeps_stamps(fleet):
    """Whether a tree may come to be trimmed."""
    return fleet.tree_ends.shape[0] > 0


@kernel
def _end(fleet, route, k, s, place):
    """What the member at ``place``, which holds the node that ends at trace node ``s``, has of it."""
    own = fleet.tree_ends[s, k // fl.SIDES]
    if own.row > 0:
        return fleet.shared_ends[own.row, route.first + place]
    return own


@kernel
def _stamp(fleet, route, k, s, place, now):
    """Stamp the node that ends at trace node ``s``, which the member at ``place`` holds."""
    _end(fleet, route, k, s, place).stamp = now
    n = fleet.counters[fl.TREE_STAMPS] + 1
    fleet.counters[fl.TREE_STAMPS] = n
    record = fleet.tree_stamps[n]
    record.at = now
    record.node = s
    record.next = 0
    member = fleet.members[fleet.at_place[route.first + place]]
    if member.first_stamp > 0:
        fleet.tree_stamps[member.last_stamp].next = n
    else:
        member.first_stamp = n
    member.last_stamp = n


@kernel
def _get_row(fleet, k, s):
    """Row of ``Fleet.shared_ends`` of trace node ``s``, which it keeps."""
    own = fleet.tree_ends[s, k // fl.SIDES]
    if own.row == 0:
        fleet.counters[fl.SHARED_ENDS] += 1
        own.row = fleet.counters[fl.SHARED_ENDS]
    return np.int64(own.row)


@kernel
def _join(fleet, route, k, s, place, children):
    """The member at ``place`` comes to hold the node that ends at trace node ``s``, which others hold."""
    own = fleet.tree_ends[s, k // fl.SIDES]
    if own.row == 0:
        holder = _first_holder(fleet, route, s)
        only = fleet.shared_ends[_get_row(fleet, k, s), route.first + holder]
        only.stamp = own.stamp
        only.children = own.children
    end = fleet.shared_ends[own.row, route.first + place]
    end.stamp = 0
    end.children = children


@kernel
def _end_above(fleet, route, k, s, bottom):
    """A node is cut at trace node ``s``: its holders have its stamps of the upper part, and below that the lower."""
    whole = fleet.tree_ends[bottom, k // fl.SIDES]
    upper = fleet.tree_ends[s, k // fl.SIDES]
    if whole.row == 0 and upper.row == 0:
        upper.stamp = whole.stamp
        upper.children = 1
        return
    row = _get_row(fleet, k, s)
    for column in range(route.first, route.first + route.members):
        end = fleet.shared_ends[row, column]
        end.stamp = fleet.shared_ends[whole.row, column].stamp if whole.row > 0 else whole.stamp
        end.children = 1


@kernel
def note_match(fleet, route, k, s):
    """A match ended at trace node ``s`` (0: nothing matched): the clock goes on, and every eighth match stamps."""
    now = route.tree_clock
    route.tree_clock += 1
    if s == 0:
        return
    if _keeps_stamps(fleet) and now % STAMP_EVERY == 0:
        before = route.draws
        place = worker_named(fleet, route, k, s, route.drawn_next)
        # No choice was left to chance: the match was too short to make one.
        route.unseen += route.draws - before
        route.draws = before
        _stamp(fleet, route, k, np.int64(fleet.tree[s, k // fl.SIDES].bottom), place, now)
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
    if _keeps_stamps(fleet):
        _end_above(fleet, route, k, s, bottom)
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
    keeps_stamps = _keeps_stamps(fleet)
    end = np.int64(trace.prompt_node[r])
    gained = 0
    s = end
    while s > 0 and fleet.tree[s, model].bottom < 0:
        fleet.tree[s, model].bottom = end
        fleet.prefix_index[s, word] |= bit
        gained += trace.end_tokens[s] - trace.start_tokens[s]
        s = np.int64(trace.parent[s])
    below = 0
    if s != end:
        below = 1
        fleet.tree[end, model].name = place
        if keeps_stamps:
            _end(fleet, route, k, end, place).children = 0
    if s > 0:
        _split_below(fleet, route, k, s)
    # Who holds a node holds all above it.
    while s > 0 and not fleet.prefix_index[s, word] & bit:
        if keeps_stamps and fleet.tree[s, model].bottom == s:
            _join(fleet, route, k, s, place, below)
            below = 1
        fleet.prefix_index[s, word] |= bit
        gained += trace.end_tokens[s] - trace.start_tokens[s]
        s = np.int64(trace.parent[s])
    if keeps_stamps:
        if s > 0:
            _end(fleet, route, k, s, place).children += below
        if end > 0:
            _stamp(fleet, route, k, end, place, route.tree_clock)
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
def _drop(fleet, route, k, m, bottom):
    """Take the node that ends at trace node ``bottom`` from member ``m``; returns where the node above it ends."""
    trace, model, member = fleet.trace, k // fl.SIDES, fleet.members[m]
    word, bit = prefix_index.column(route, member.place)
    s = bottom
    while s > 0 and fleet.tree[s, model].bottom == bottom:
        fleet.prefix_index[s, word] &= ~bit
        member.prefix_index_tokens -= trace.end_tokens[s] - trace.start_tokens[s]
        if not _has_holder(fleet, route, s):
            fleet.tree[s, model].bottom = -1
        s = np.int64(trace.parent[s])
    return s


@kernel
def _drop_path(fleet, route, k, m, s, most_tokens):
    """Take nodes from ``m``, from the one that ends at ``s`` upwards, until it holds few enough or the next one stays.

    A node stays with another one below it, and with a stamp that is still in line. Returns the node that goes next; 0:
    none.
    """
    member = fleet.members[m]
    while True:
        s = _drop(fleet, route, k, m, s)
        if s == 0:
            return 0
        end = _end(fleet, route, k, s, member.place)
        end.children -= 1
        if end.children > 0 or end.stamp > member.trimmed_until:
            return 0
        if member.prefix_index_tokens <= most_tokens:
            return s


@kernel
def _trim(fleet, route, k, m, most_tokens):
    """Take whole nodes from the ends of the paths of ``m``, the lowest stamp first, until it holds few enough.

    A node that is no end of a path when the turn of its stamp comes becomes one when all below it is gone. It then goes
    before all that are still in line.
    """
    model, member = k // fl.SIDES, fleet.members[m]
    word, bit = prefix_index.column(route, member.place)
    while member.prefix_index_tokens > most_tokens and member.first_stamp > 0:
        n = np.int64(member.first_stamp)
        record = fleet.tree_stamps[n]
        member.first_stamp = record.next
        member.trimmed_until = max(member.trimmed_until, record.at)
        s = np.int64(record.node)
        if fleet.tree[s, model].bottom != s or fleet.prefix_index[s, word] & bit == 0:
            continue
        end = _end(fleet, route, k, s, member.place)
        if end.children > 0 or end.stamp != record.at:
            continue
        s = _drop_path(fleet, route, k, m, s, most_tokens)
        if s > 0:
            record.node = s
            record.at = _end(fleet, route, k, s, member.place).stamp
            member.first_stamp = n
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
            _trim(fleet, route, k, m, most_tokens)


@kernel
def trim_where_due(fleet, route, k, now):
    """Trim every ``eviction_interval_s``. The tree has not changed since that time, as no request came."""
    if now < route.trim_s:
        return
    while route.trim_s <= now:
        route.trim_s += route.eviction_interval_s
    trim(fleet, k)
