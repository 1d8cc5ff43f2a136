"""The oracle of belady: the next request, in the trace's order, whose prompt contains a page.

A request that has arrived is past. With several workers, or follow-ups that wait for outputs, requests may arrive in
another order, or at a worker with another store; the oracle keeps the trace's order. Without a scheduler (see
``validate cache``) this is Belady's rule. With one it is a bound from knowing the trace, which no policy reaches.
"""

from __future__ import annotations

import numpy as np

from hisearch.base.jit import kernel
from hisearch.kernels.layout import sim as la


@kernel
def count_users(prompt_node, parent, counts):
    """Add to ``counts`` (M,) the number of requests whose prompt leads through each trace node except the root."""
    for r in range(prompt_node.shape[0]):
        s = prompt_node[r]
        while s > 0:
            counts[s] += 1
            s = parent[s]


@kernel
def list_users(prompt_node, parent, users, at):
    """Write these requests into ``users``: those of node s in order, from ``at[s]`` (M,) on."""
    at = at.copy()
    for r in range(prompt_node.shape[0]):
        s = prompt_node[r]
        while s > 0:
            users[at[s]] = r
            at[s] += 1
            s = parent[s]


@kernel
def next_use(sim, s):
    """The next request whose prompt leads through trace node ``s``, or ``NEVER``."""
    k = sim.users_next[s]
    return np.int64(sim.users[k]) if k < sim.users_end[s] else la.NEVER


@kernel
def later(sim, s, begin, other, other_begin):
    """Whether pages behind ``begin`` in node ``s`` are used later than those behind ``other_begin`` in ``other``."""
    use_first = next_use(sim, s)
    use_other = next_use(sim, other)
    return use_first > use_other or (use_first == use_other and use_first < la.NEVER and begin > other_begin)


@kernel
def pass_by(sim, s):
    """Skip requests through ``s`` that have arrived; returns whether the next use of ``s`` has changed."""
    k = sim.users_next[s]
    while k < sim.users_end[s] and sim.requests[sim.users[k]].outcome != la.UNREACHED:
        k += 1
    moved = k != sim.users_next[s]
    sim.users_next[s] = k
    return moved
