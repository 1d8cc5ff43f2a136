"""Which agents use which nodes of a trace's prefix tree: see ``predicted_calls``."""

from __future__ import annotations

import numpy as np

from hisearch.base.jit import kernel

#: A node on no request's path; a node on the paths of several agents.
UNUSED, SEVERAL = -2, -1


@kernel
def owners(agent, output_node, parent, owner):
    """Fill ``owner`` (M,): the only agent whose requests' paths lead through each node, ``SEVERAL`` or ``UNUSED``."""
    owner[:] = UNUSED
    for r in range(agent.shape[0]):
        s = output_node[r]
        owner[s] = agent[r] if owner[s] == UNUSED or owner[s] == agent[r] else SEVERAL
    for s in range(parent.shape[0] - 1, 0, -1):
        p = parent[s]
        if owner[p] == UNUSED:
            owner[p] = owner[s]
        elif owner[p] != owner[s] and owner[s] != UNUSED:
            owner[p] = SEVERAL


@kernel
def places(parent, first, after):
    """Fill ``first``, ``after`` (M,): each node's place in depth-first order, and that after its last descendant."""
    count = parent.shape[0]
    after[:] = 1
    for s in range(count - 1, 0, -1):
        after[parent[s]] += after[s]
    # ``after`` holds subtree sizes for now; ``next_place`` is the place of a node's next child.
    next_place = np.empty(count, np.int32)
    first[0] = 0
    next_place[0] = 1
    for s in range(1, count):
        p = parent[s]
        first[s] = next_place[p]
        next_place[p] += after[s]
        next_place[s] = first[s] + 1
    for s in range(count):
        after[s] += first[s]


@kernel
def shared_paths(parent, owner, output_node, shared):
    """Fill ``shared`` (N,): the deepest node on each request's path that several agents use, or -1."""
    deepest = np.empty(parent.shape[0], np.int32)
    for s in range(parent.shape[0]):
        deepest[s] = s if owner[s] == SEVERAL else (deepest[parent[s]] if s > 0 else -1)
    for r in range(output_node.shape[0]):
        shared[r] = deepest[output_node[r]]
