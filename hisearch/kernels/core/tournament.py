"""A tournament tree: keeps track of the place with the least key.

The leaves are places 0 to L - 1, L a power of two; leaf k is node L + k, and the winner of nodes 2 n and 2 n + 1 is
that of node n. Of equal keys the lower place wins. An update takes log2 L matches.
"""

from __future__ import annotations

import numpy as np

from hisearch.base.jit import kernel


@kernel
def clear(keys, winners):
    """Make all places empty.

    Args:
        keys: float64 (>= L,).
        winners: int32 (2 L,).
    """
    leaves = winners.shape[0] // 2
    keys[:] = np.inf
    for k in range(leaves):
        winners[leaves + k] = k
    for n in range(leaves - 1, 0, -1):
        winners[n] = winners[2 * n]


@kernel
def put(keys, winners, k, key):
    """Set the key of place ``k``; infinity makes it empty."""
    keys[k] = key
    n = (winners.shape[0] // 2 + k) >> 1
    while n > 0:
        a = winners[2 * n]
        b = winners[2 * n + 1]
        winners[n] = b if keys[b] < keys[a] else a
        n >>= 1


@kernel
def best(winners):
    """The place with the least key; an arbitrary one if all are empty."""
    return np.int64(winners[1])
