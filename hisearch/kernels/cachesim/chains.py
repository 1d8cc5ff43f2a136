"""The pages of a trace's sequences, numbered, as chains.

Notation
    M   nodes of the prefix tree; P distinct pages
    chain   the pages of one sequence, first to last; page b stands behind page ``above[b]`` (-1: it is the first)
    item    as in ``stack``: node v's whole pages, or M + v, the partial last page of the sequences that end there
"""

from __future__ import annotations

import numpy as np

from hisearch.base.jit import kernel


@kernel
def page_chains(parent, start, end, stored, page_tokens, partial):
    """Numbers for all pages; a whole page belongs to the node of its last token.

    Args:
        parent: int32 (M,).
        start: int64 (M,), tokens.
        end: int64 (M,), tokens.
        stored: int32, nodes that the sequences end with.
        page_tokens: tokens per page.
        partial: sequences have a partial last page.

    Returns:
        above int32 (P,), item int32 (P,), last int32 (M,): the last page of what ends with each node, -1 for none, and
        tail int32 (M,): the partial page of the sequences that end with it, -1 where there is none.
    """
    nodes = len(parent)
    tail = np.full(nodes, -1, dtype=np.int32)
    for i in range(len(stored)):
        if partial and end[stored[i]] % page_tokens != 0:
            tail[stored[i]] = 0
    total = 0
    for v in range(nodes):
        total += end[v] // page_tokens - start[v] // page_tokens + (tail[v] == 0)
    above = np.empty(total, dtype=np.int32)
    item = np.empty(total, dtype=np.int32)
    last = np.full(nodes, -1, dtype=np.int32)
    b = 0
    for v in range(nodes):
        before = last[parent[v]] if v > 0 else -1
        for _ in range(end[v] // page_tokens - start[v] // page_tokens):
            above[b] = before
            item[b] = v
            before = b
            b += 1
        last[v] = before
        if tail[v] == 0:
            above[b] = before
            item[b] = nodes + v
            tail[v] = b
            b += 1
    return above, item, last, tail


@kernel
def fill_chain(room, above, last, tail, node):
    """The chain that ends with ``node``, as the leading part of ``room`` (modified in place)."""
    deepest = tail[node] if tail[node] >= 0 else last[node]
    length = 0
    b = deepest
    while b >= 0:
        length += 1
        b = above[b]
    b = deepest
    for k in range(length - 1, -1, -1):
        room[k] = b
        b = above[b]
    return room[:length]


@kernel
def longest_chain(end, stored, page_tokens):
    """Pages of the longest sequence that ends with one of the nodes ``stored``."""
    tokens = 0
    for i in range(len(stored)):
        tokens = max(tokens, end[stored[i]])
    return (tokens + page_tokens - 1) // page_tokens
