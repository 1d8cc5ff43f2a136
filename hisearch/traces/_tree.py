# mypy: ignore-errors
"""Jitted loops over a trace's prefix tree. Self-contained: no function here calls one of another file.

Notation
    N   requests; M nodes, node 0 is the root; v, u nodes; d a depth in tokens
"""

from __future__ import annotations

import numpy as np

from hisearch.base.jit import kernel

#: 31 bits, so that a product of two such numbers stays within int64.
_MASK = (1 << 31) - 1


@kernel
def _hash(block, above):
    """A well mixed non-negative number for a block id below entry ``above`` (-1 at the head)."""
    mixed = ((block ^ (block >> 31)) & _MASK) * 0x45D9F3B1 ^ (np.int64(above + 1) & _MASK) * 0x27D4EB2D
    return mixed ^ (mixed >> 29) ^ (mixed >> 15)


@kernel
def resolve_blocks(ptr, ids, block_tokens, known_tokens):
    """Which earlier sequence each sequence begins with, and for how many tokens, from lists of block ids.

    Block k of a sequence covers its tokens from k * block_tokens, up to the next block or to ``known_tokens``. Two
    sequences share the tokens of their leading blocks with equal ids; of the last equal one, as many as both cover.

    Args:
        ptr: int64 (N + 1,), request i's ids are ``ids[ptr[i]:ptr[i + 1]]``.
        ids: int64, non-negative or not. They need not be chained.
        block_tokens: tokens per block.
        known_tokens: int64 (N,), tokens that the ids of a request cover.

    Returns:
        shares_with int32 (N,), shared_tokens int64 (N,).
    """
    count = len(ptr) - 1
    size = 16
    while size < 2 * (len(ids) + 1):
        size *= 2
    table = np.full(size, -1, dtype=np.int32)
    parent = np.empty(len(ids), dtype=np.int32)
    key = np.empty(len(ids), dtype=np.int64)
    owner = np.empty(len(ids), dtype=np.int32)
    covered_tokens = np.empty(len(ids), dtype=np.int64)
    used = 0
    shares_with = np.full(count, -1, dtype=np.int32)
    shared_tokens = np.zeros(count, dtype=np.int64)
    for i in range(count):
        above = -1
        known = True
        for k in range(ptr[i + 1] - ptr[i]):
            block = ids[ptr[i] + k]
            tokens = min(block_tokens, known_tokens[i] - k * block_tokens)
            slot = _hash(block, above) & (size - 1)
            entry = table[slot]
            while entry >= 0 and not (parent[entry] == above and key[entry] == block):
                slot = (slot + 1) & (size - 1)
                entry = table[slot]
            if entry < 0:
                entry = used
                used += 1
                table[slot] = entry
                parent[entry] = above
                key[entry] = block
                owner[entry] = i
                covered_tokens[entry] = tokens
                known = False
            else:
                if known:
                    shares_with[i] = owner[entry]
                    shared_tokens[i] = k * block_tokens + min(tokens, covered_tokens[entry])
                if tokens > covered_tokens[entry]:
                    owner[entry] = i
                    covered_tokens[entry] = tokens
            above = entry
    return shares_with, shared_tokens


@kernel
def arrival_keys(arrival_s, previous, think_s):
    """Earliest time at which each request can arrive: its recorded time, not before its predecessor's; shape (N,)."""
    key = np.empty(len(arrival_s), dtype=np.float64)
    for i in range(len(arrival_s)):
        if previous[i] < 0:
            key[i] = arrival_s[i]
        elif np.isnan(arrival_s[i]):
            key[i] = key[previous[i]] + think_s[i]
        else:
            key[i] = max(arrival_s[i], key[previous[i]])
    return key


@kernel
def _node_ending_at(parent, start, end, counters, v, d):
    """The node of the path to v's end that ends at depth d (0 < d <= end[v]), split off where there is none."""
    while start[v] >= d:
        v = parent[v]
    if end[v] == d:
        return v
    u = counters[0]
    counters[0] += 1
    parent[u] = parent[v]
    start[u] = start[v]
    end[u] = d
    parent[v] = u
    start[v] = d
    return u


@kernel
def _append(parent, start, end, counters, above, depth, stop):
    """A new node from ``depth`` to ``stop`` below ``above``; ``above`` itself where that is empty."""
    if stop == depth:
        return above
    u = counters[0]
    counters[0] += 1
    parent[u] = above
    start[u] = depth
    end[u] = stop
    return u


@kernel
def build_tree(input_tokens, output_tokens, shares_with, shared_tokens):
    """The path-compressed tree of all sequences, nodes in no particular order.

    Splitting keeps the lower part under the old number, so that a request's end nodes stay valid.

    Returns:
        parent int32 (M,), start int64 (M,), end int64 (M,), prompt_node int32 (N,), output_node int32 (N,).
    """
    count = len(input_tokens)
    parent = np.full(1 + 4 * count, -1, dtype=np.int32)
    start = np.zeros(1 + 4 * count, dtype=np.int64)
    end = np.zeros(1 + 4 * count, dtype=np.int64)
    prompt_node = np.zeros(count, dtype=np.int32)
    output_node = np.zeros(count, dtype=np.int32)
    counters = np.ones(1, dtype=np.int64)
    for i in range(count):
        prompt = input_tokens[i]
        total = prompt + output_tokens[i]
        depth = shared_tokens[i]
        v = 0
        if depth > 0:
            source = shares_with[i]
            v = prompt_node[source] if depth <= input_tokens[source] else output_node[source]
            v = _node_ending_at(parent, start, end, counters, v, depth)
        if depth > prompt:
            prompt_node[i] = _node_ending_at(parent, start, end, counters, v, prompt)
        else:
            v = _append(parent, start, end, counters, v, depth, prompt)
            prompt_node[i] = v
            depth = prompt
        output_node[i] = _append(parent, start, end, counters, v, depth, total)
    used = counters[0]
    return parent[:used].copy(), start[:used].copy(), end[:used].copy(), prompt_node, output_node


@kernel
def finish_tree(parent, start, end, prompt_node, output_node):
    """The same tree without nodes that no request needs, numbered by first use: parents before children.

    Nodes on the paths of requests 0 … i come before those that request i + 1 is the first to use. A node with one child
    at whose end no sequence and no prompt ends is merged with its child.

    Returns:
        parent int32 (M,), start int64 (M,), end int64 (M,), prompt_node int32 (N,), output_node int32 (N,).
    """
    total = len(parent)
    children = np.zeros(total, dtype=np.int32)
    seen = np.zeros(total, dtype=np.bool_)
    ends = np.zeros(total, dtype=np.bool_)
    seen[0] = True
    ends[0] = True
    for i in range(len(output_node)):
        ends[prompt_node[i]] = True
        ends[output_node[i]] = True
        v = output_node[i]
        while not seen[v]:
            seen[v] = True
            v = parent[v]
            children[v] += 1
    number = np.full(total, -1, dtype=np.int32)
    number[0] = 0
    new_parent = np.full(total, -1, dtype=np.int32)
    new_end = np.zeros(total, dtype=np.int64)
    path = np.empty(total, dtype=np.int32)
    used = 1
    for i in range(len(output_node)):
        length = 0
        v = output_node[i]
        while number[v] < 0:
            if ends[v] or children[v] > 1:
                path[length] = v
                length += 1
            v = parent[v]
        above = number[v]
        for k in range(length - 1, -1, -1):
            number[path[k]] = used
            new_parent[used] = above
            new_end[used] = end[path[k]]
            above = used
            used += 1
    new_start = np.zeros(used, dtype=np.int64)
    for v in range(1, used):
        new_start[v] = new_end[new_parent[v]]
    return new_parent[:used].copy(), new_start, new_end[:used].copy(), number[prompt_node], number[output_node]


@kernel
def ideal_hits(parent, end, prompt_node, output_node, include_outputs):
    """Tokens of each prompt that an unlimited cache holds when requests come in index order; int64 (N,).

    The cache holds every earlier prompt, and every earlier output where ``include_outputs``.
    """
    hits = np.zeros(len(prompt_node), dtype=np.int64)
    seen = np.zeros(len(parent), dtype=np.bool_)
    seen[0] = True
    for i in range(len(prompt_node)):
        v = prompt_node[i]
        while not seen[v]:
            v = parent[v]
        hits[i] = end[v]
        v = output_node[i] if include_outputs else prompt_node[i]
        while not seen[v]:
            seen[v] = True
            v = parent[v]
    return hits


@kernel
def separate(parent, prompt_node, output_node, kind, order):
    """A tree in which requests of two kinds share no node but the root: a node that several kinds use is copied.

    Args:
        parent: int32 (M,).
        prompt_node: int32 (N,).
        output_node: int32 (N,).
        kind: int32 (N,), of each request, at least -1.
        order: int64 (N,), the requests by rising kind.

    Returns:
        Of the new nodes, by old node and kind: the old node, the parent (int32); of the requests: prompt_node and
        output_node (int32). A node that no request uses stays below the first copy of its parent.
    """
    nodes = len(parent)
    kinds = np.zeros(nodes, dtype=np.int32)
    last = np.full(nodes, -2, dtype=np.int32)
    for r in order:
        v = output_node[r]
        while v > 0 and last[v] != kind[r]:
            last[v] = kind[r]
            kinds[v] += 1
            v = parent[v]
    following = np.empty(nodes, dtype=np.int32)
    size = 0
    for v in range(nodes):
        following[v] = size
        size += max(kinds[v], 1)
    source = np.empty(size, dtype=np.int32)
    above = np.empty(size, dtype=np.int32)
    for v in range(nodes):
        for copy in range(following[v], following[v] + max(kinds[v], 1)):
            source[copy] = v
            above[copy] = following[parent[v]] if v > 0 else -1
    current = np.zeros(nodes, dtype=np.int32)
    prompt = np.empty(len(prompt_node), dtype=np.int32)
    output = np.empty(len(prompt_node), dtype=np.int32)
    last[:] = -2
    for r in order:
        v = output_node[r]
        while v > 0 and last[v] != kind[r]:
            last[v] = kind[r]
            current[v] = following[v]
            following[v] += 1
            v = parent[v]
        known = v
        v = output_node[r]
        while v != known:
            above[current[v]] = current[parent[v]]
            v = parent[v]
        prompt[r] = current[prompt_node[r]]
        output[r] = current[output_node[r]]
    return source, above, prompt, output
