"""What a router believes that workers have cached, by what it sent there: blocks of prompts, the latest sent ones.

A block is whole and belongs to the trace node of its last token. Each prompt enters its blocks anew, so the last send
through a node (``Fleet.stamps``) is no earlier than those of the nodes below it. Of a member's blocks, those of its
earliest sends go first: of one send from the root on, by an LRU of blocks, or all at once when they expire.
"""

from __future__ import annotations

import numpy as np

from hisearch.base.jit import kernel
from hisearch.kernels.layout import fleet as fl


@kernel
def blocks_of(route, trace, s):
    """Blocks of trace node ``s`` among the first ``max_prefix_blocks`` of a prompt."""
    end = min(trace.end_tokens[s] // route.block_tokens, route.max_prefix_blocks)
    return end - min(trace.start_tokens[s] // route.block_tokens, route.max_prefix_blocks)


@kernel
def _held(route, trace, member, s):
    """Blocks of trace node ``s`` that are in the index of a member which has the node."""
    return blocks_of(route, trace, s) - (member.cut_blocks if s == member.cut_node else 0)


@kernel
def begin_send(fleet, m, r, now):
    """Number of the send of request ``r``, which is the latest in the index of member ``m``."""
    member = fleet.members[m]
    send = fleet.counters[fl.SENDS] + 1
    fleet.counters[fl.SENDS] = send
    fleet.sends[send].at_s = now
    fleet.sends[send].request = r
    if member.first_send == 0:
        member.first_send = send
    else:
        fleet.sends[member.last_send].next = send
    member.last_send = send
    return send


@kernel
def touch_node(fleet, route, m, s, send):
    """Enter the blocks of trace node ``s`` for a send. Returns whether all of them were there before."""
    member = fleet.members[m]
    before = fleet.stamps[s, route.first + member.place]
    fleet.stamps[s, route.first + member.place] = send
    if before == 0:
        member.index_blocks += blocks_of(route, fleet.trace, s)
        return False
    if s == member.cut_node:
        member.index_blocks += member.cut_blocks
        member.cut_node = 0
        return False
    return True


@kernel
def touch(fleet, route, m, r, now):
    """Request ``r`` is sent to member ``m``: the blocks of its prompt are entered as the latest."""
    send = begin_send(fleet, m, r, now)
    s = np.int64(fleet.trace.prompt_node[r])
    while s > 0:
        touch_node(fleet, route, m, s, send)
        s = np.int64(fleet.trace.parent[s])


@kernel
def _drop(fleet, route, m, s):
    """Take trace node ``s`` out of the index of member ``m``."""
    member = fleet.members[m]
    member.index_blocks -= _held(route, fleet.trace, member, s)
    if s == member.cut_node:
        member.cut_node = 0
    fleet.stamps[s, route.first + member.place] = 0


@kernel
def trim(fleet, route, m, most_blocks):
    """Take the least recently sent blocks of member ``m`` out until it has ``most_blocks``."""
    member = fleet.members[m]
    column = route.first + member.place
    while member.index_blocks > most_blocks:
        s = np.int64(fleet.trace.prompt_node[fleet.sends[member.first_send].request])
        if fleet.stamps[s, column] != member.first_send:
            member.first_send = fleet.sends[member.first_send].next
            continue
        up = np.int64(fleet.trace.parent[s])
        while up > 0 and fleet.stamps[up, column] == member.first_send:
            s = up
            up = np.int64(fleet.trace.parent[s])
        excess = member.index_blocks - most_blocks
        if _held(route, fleet.trace, member, s) <= excess:
            _drop(fleet, route, m, s)
            continue
        if s != member.cut_node:
            member.cut_node = s
            member.cut_blocks = 0
        member.cut_blocks += excess
        member.index_blocks = most_blocks


@kernel
def expire(fleet, route, m, now, age_s):
    """Take the blocks of member ``m`` out that were last sent ``age_s`` ago or earlier."""
    member = fleet.members[m]
    while member.first_send > 0 and fleet.sends[member.first_send].at_s + age_s <= now:
        s = np.int64(fleet.trace.prompt_node[fleet.sends[member.first_send].request])
        while s > 0 and fleet.stamps[s, route.first + member.place] == member.first_send:
            _drop(fleet, route, m, s)
            s = np.int64(fleet.trace.parent[s])
        member.first_send = fleet.sends[member.first_send].next


@kernel
def prefix_blocks(fleet, route, m, r):
    """Leading blocks of ``r``'s prompt in the index of member ``m``, of which none are cut."""
    s = np.int64(fleet.trace.prompt_node[r])
    while s > 0 and fleet.stamps[s, route.first + fleet.members[m].place] == 0:
        s = np.int64(fleet.trace.parent[s])
    return fleet.trace.end_tokens[s] // route.block_tokens


@kernel
def _has_gap(fleet, route, s):
    """Whether some block of trace node ``s`` is in no member's index; then its first one is."""
    if blocks_of(route, fleet.trace, s) == 0:
        return False
    for place in range(route.ups):
        member = fleet.members[fleet.up[route.first + place]]
        if fleet.stamps[s, route.first + member.place] > 0 and s != member.cut_node:
            return False
    return True


@kernel
def count_matches(fleet, route, r):
    """Set ``matched_blocks`` of the members that are up; returns the most of any.

    Counted are a member's blocks up to the first one that no member has, even behind one that it lacks itself.
    """
    trace = fleet.trace
    s = end = np.int64(trace.prompt_node[r])
    while s > 0:
        if _has_gap(fleet, route, s):
            end = np.int64(trace.parent[s])
        s = np.int64(trace.parent[s])
    most = 0
    for place in range(route.ups):
        member = fleet.members[fleet.up[route.first + place]]
        member.matched_blocks = 0
        s = end
        while s > 0:
            if fleet.stamps[s, route.first + member.place] > 0:
                member.matched_blocks += _held(route, trace, member, s)
            s = np.int64(trace.parent[s])
        most = max(most, member.matched_blocks)
    return most
