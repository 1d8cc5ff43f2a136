"""Blocks of prompts in flight on each member, those that several requests share counted once.

A block is whole and belongs to the trace node of its last token. A prompt's node is active on a member while a request
in flight there has it; so what is active is closed towards the root.

Rules: Dynamo 1.1, ``lib/kv-router/src/sequences/single.rs: ActiveSequences``.
"""

from __future__ import annotations

import numpy as np

from hisearch.base.jit import kernel


@kernel
def blocks_of(trace, s, block_tokens):
    """Whole blocks of ``block_tokens`` tokens whose last token is in trace node ``s``."""
    return trace.end_tokens[s] // block_tokens - trace.start_tokens[s] // block_tokens


@kernel
def active_prefix(fleet, m, r, block_tokens):
    """Leading blocks of ``r``'s prompt that requests in flight on member ``m`` have."""
    column = fleet.routes[fleet.members[m].route].first + fleet.members[m].place
    s = np.int64(fleet.trace.prompt_node[r])
    while s > 0 and fleet.active[s, column] == 0:
        s = np.int64(fleet.trace.parent[s])
    return fleet.trace.end_tokens[s] // block_tokens


@kernel
def enter(fleet, m, r):
    """Request ``r`` is in flight on member ``m``, with ``uncached[r]`` to compute."""
    member = fleet.members[m]
    route = fleet.routes[member.route]
    member.uncached_tokens += fleet.uncached[r].tokens
    fleet.uncached[r].at_s = np.inf
    s = np.int64(fleet.trace.prompt_node[r])
    while s > 0:
        if fleet.active[s, route.first + member.place] == 0:
            member.active_blocks += blocks_of(fleet.trace, s, route.block_tokens)
        fleet.active[s, route.first + member.place] += 1
        s = np.int64(fleet.trace.parent[s])


@kernel
def note_first_token(fleet, m, r, at_s):
    """The first token of ``r`` on member ``m`` will be there at ``at_s``; engines say so when they launch the step."""
    fleet.uncached[r].at_s = at_s
    fleet.uncached[r].next = fleet.members[m].prefills_ending
    fleet.members[m].prefills_ending = r + 1


@kernel
def delay_first_token(fleet, r, until_s):
    """The first token of ``r`` will be there at ``until_s`` only."""
    fleet.uncached[r].at_s = until_s


@kernel
def end_prefill(fleet, m, r):
    """Member ``m`` has computed the prompt of ``r``."""
    fleet.members[m].uncached_tokens -= fleet.uncached[r].tokens
    fleet.uncached[r].tokens = 0


@kernel
def unlink(fleet, m, r):
    """Take ``r`` off the list of requests of member ``m`` with a known first token."""
    member = fleet.members[m]
    if member.prefills_ending == r + 1:
        member.prefills_ending = fleet.uncached[r].next
        return
    q = np.int64(member.prefills_ending) - 1
    while fleet.uncached[q].next != r + 1:
        q = np.int64(fleet.uncached[q].next) - 1
    fleet.uncached[q].next = fleet.uncached[r].next


@kernel
def leave(fleet, m, r):
    """Request ``r`` is in flight on member ``m`` no more."""
    if fleet.uncached[r].at_s < np.inf:
        unlink(fleet, m, r)
        fleet.uncached[r].at_s = np.inf
    end_prefill(fleet, m, r)
    member = fleet.members[m]
    route = fleet.routes[member.route]
    s = np.int64(fleet.trace.prompt_node[r])
    while s > 0:
        fleet.active[s, route.first + member.place] -= 1
        if fleet.active[s, route.first + member.place] == 0:
            member.active_blocks -= blocks_of(fleet.trace, s, route.block_tokens)
        s = np.int64(fleet.trace.parent[s])
