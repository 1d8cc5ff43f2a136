"""Tokens that a conversation's next prompt adds to its stored sequence."""

from __future__ import annotations

import numpy as np

from hisearch.base.jit import kernel


@kernel
def new_tokens(parent, end, prompt_node, stored_node, before):
    """Tokens of each prompt beyond the prefix that it shares with the sequence of the request before it.

    Args:
        parent: int32 (M,), parents in the prefix tree; parents have smaller numbers than their children.
        end: int64 (M,), tokens.
        prompt_node: int32 (N,).
        stored_node: int32 (N,), node at the end of the sequence that a request stores.
        before: int64 (N,), request that each request follows, -1 for none.

    Returns:
        int64 (N,); -1 for requests that follow none.
    """
    new = np.full(len(prompt_node), -1, dtype=np.int64)
    for i in range(len(prompt_node)):
        if before[i] < 0:
            continue
        u = prompt_node[i]
        v = stored_node[before[i]]
        while u != v:
            if u > v:
                u = parent[u]
            else:
                v = parent[v]
        new[i] = end[prompt_node[i]] - end[u]
    return new
