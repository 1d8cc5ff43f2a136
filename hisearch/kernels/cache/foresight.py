"""What an oracle knows (belady): the next request whose prompt has a page, in the trace's order.

A request that has come up is past. With several workers, or where answers take their time, requests may come up in
another order, or at a worker that uses another store: then it is the next one all the same. Without a scheduler (see
``validate cache``) that is Belady's rule; with one it is what knowing the trace gives, a bound that no policy has.
"""

from __future__ import annotations

import numpy as np

from hisearch.base.jit import kernel
from hisearch.kernels.layout import sim as la


@kernel
def count_users(prompt_node, parent, counts):
    """Add to ``counts`` (M,) how many requests' prompts lead through each trace-tree node but the root."""
    for r in range(prompt_node.shape[0]):
        s = prompt_node[r]
        while s > 0:
            counts[s] += 1
            s = parent[s]


@kernel
def list_users(prompt_node, parent, users, at):
    """Write these requests into ``users``, those of node s in order from ``at[s]`` (M,) on."""
    at = at.copy()
    for r in range(prompt_node.shape[0]):
        s = prompt_node[r]
        while s > 0:
            users[at[s]] = r
            at[s] += 1
            s = parent[s]


@kernel
def next_use(sim, s):
    """The next request whose prompt leads through trace-tree node ``s``; ``NEVER`` where there is none."""
    k = sim.users_next[s]
    return np.int64(sim.users[k]) if k < sim.users_end[s] else la.NEVER


@kernel
def later(sim, s, begin, other, other_begin):
    """Whether pages behind ``begin`` in node ``s`` are used later than those behind ``other_begin`` in ``other``."""
    mine = next_use(sim, s)
    theirs = next_use(sim, other)
    return mine > theirs or (mine == theirs and mine < la.NEVER and begin > other_begin)


@kernel
def pass_by(sim, s):
    """Requests through ``s`` that have come up are past; returns whether its next use is another one now."""
    k = sim.users_next[s]
    while k < sim.users_end[s] and sim.requests[sim.users[k]].outcome != la.UNREACHED:
        k += 1
    moved = k != sim.users_next[s]
    sim.users_next[s] = k
    return moved
