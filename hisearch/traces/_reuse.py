"""LRU stack distances of a trace's prefix tree: one pass, every capacity (Mattson et al. 1970).

Notation
    N   requests; M nodes of the prefix tree, node 0 is the root
    item    pages always used together: item v < M is the whole pages that end in node v's run, item M + v the
            partial last page of the sequences that end with node v
    distance    pages used since an item's last use, itself not included

All whole pages of a node have the same users, so that the stack moves by items, not by pages. A request uses its pages
from last to first: page j of an item that lies at distance d is therefore hit by caches of at least d + j + 1 pages.
The sum over the items above one in the stack is a prefix sum over times of use, kept in a Fenwick tree.
"""

from __future__ import annotations

import numpy as np

from hisearch.base.jit import kernel


@kernel
def sequence_items(items, parent, start, end, node, page_tokens, partial):
    """Fill ``items`` (modified in place) for the sequence that ends with ``node``, last first; returns their number."""
    length = 0
    if partial and end[node] % page_tokens != 0:
        items[0] = len(parent) + node
        length = 1
    v = node
    while v > 0:
        if end[v] // page_tokens > start[v] // page_tokens:
            items[length] = v
            length += 1
        v = parent[v]
    return length


@kernel
def _add(tree, position, value):
    """Add ``value`` at ``position`` >= 1 of a Fenwick tree (modified in place)."""
    while position < len(tree):
        tree[position] += value
        position += position & -position


@kernel
def _up_to(tree, position):
    """Sum of a Fenwick tree's values at positions 1 … ``position``."""
    total = 0
    while position > 0:
        total += tree[position]
        position -= position & -position
    return total


@kernel
def reuse_distances(parent, start, end, prompt_node, output_node, page_tokens, include_outputs):
    """Every reuse of an item by a prompt, and the item's depth in the LRU stack.

    Each request looks up its prompt, then uses what it stores: its prompt with a partial last page, or, where
    ``include_outputs``, the whole pages of prompt and output.

    Args:
        parent: int32 (M,).
        start: int64 (M,), tokens.
        end: int64 (M,), tokens.
        prompt_node: int32 (N,).
        output_node: int32 (N,).
        page_tokens: tokens per page.
        include_outputs: outputs are stored too, and partial pages are not.

    Returns:
        Of each reuse, int64 (R,): its distance, the item's pages, and the tokens of each of them.
    """
    nodes = len(parent)
    partial = not include_outputs
    items = np.empty(nodes + 1, dtype=np.int64)
    lookups = 0
    uses = 0
    for i in range(len(prompt_node)):
        lookups += sequence_items(items, parent, start, end, prompt_node[i], page_tokens, partial)
        stored = output_node[i] if include_outputs else prompt_node[i]
        uses += sequence_items(items, parent, start, end, stored, page_tokens, partial)
    distance = np.empty(lookups, dtype=np.int64)
    pages = np.empty(lookups, dtype=np.int64)
    tokens = np.empty(lookups, dtype=np.int64)
    last_use = np.zeros(2 * nodes, dtype=np.int64)
    tree = np.zeros(uses + 1, dtype=np.int64)
    held = 0
    clock = 0
    reuses = 0
    for i in range(len(prompt_node)):
        length = sequence_items(items, parent, start, end, prompt_node[i], page_tokens, partial)
        for k in range(length):
            item = items[k]
            if last_use[item] > 0:
                v = item % nodes
                distance[reuses] = held - _up_to(tree, last_use[item])
                pages[reuses] = 1 if item >= nodes else end[v] // page_tokens - start[v] // page_tokens
                tokens[reuses] = end[v] % page_tokens if item >= nodes else page_tokens
                reuses += 1
        if include_outputs:
            length = sequence_items(items, parent, start, end, output_node[i], page_tokens, partial)
        for k in range(length):
            item = items[k]
            v = item % nodes
            size = 1 if item >= nodes else end[v] // page_tokens - start[v] // page_tokens
            if last_use[item] > 0:
                _add(tree, last_use[item], -size)
            else:
                held += size
            clock += 1
            last_use[item] = clock
            _add(tree, clock, size)
    return distance[:reuses].copy(), pages[:reuses].copy(), tokens[:reuses].copy()
