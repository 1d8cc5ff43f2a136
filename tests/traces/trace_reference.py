"""Slow, obvious counterparts of hisearch.traces, token by token."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np


def sequences_of(trace) -> list[list[tuple[int, int]]]:
    """Every sequence (prompt + output) of a Trace as a list of tokens; a private token is (request, position)."""
    sequences: list[list[tuple[int, int]]] = []
    for i in range(len(trace)):
        shared = int(trace.shared_tokens[i])
        length = int(trace.input_tokens[i] + trace.output_tokens[i])
        head = sequences[trace.shares_with[i]][:shared] if shared else []
        sequences.append(head + [(i, position) for position in range(shared, length)])
    return sequences


def block_sequences(lists, block_tokens, known, lengths):
    """Tokens of sequences given by block ids: equal leading ids mean equal tokens; the rest is private."""
    sequences = []
    for i, (ids, covered, length) in enumerate(zip(lists, known, lengths, strict=True)):
        tokens = [("block", tuple(ids[: p // block_tokens + 1]), p) for p in range(covered)]
        sequences.append(tokens + [("own", i, p) for p in range(covered, length)])
    return sequences


def common_prefix(a, b) -> int:
    for position, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return position
    return min(len(a), len(b))


def check_tree(arrays, sequences):
    """Every property that TraceArrays documents, against the sequences in the arrays' order."""
    parent, start, end = arrays.parent, arrays.start_tokens, arrays.end_tokens
    assert parent[0] == -1
    assert start[0] == end[0] == 0
    assert (parent[1:] >= 0).all()
    assert (parent[1:] < np.arange(1, len(parent))).all()
    np.testing.assert_array_equal(start[1:], end[parent[1:]])
    assert (end[1:] > start[1:]).all()

    content: dict[int, tuple] = {}
    users: dict[int, set[int]] = {}
    needed = {0}
    for i, sequence in enumerate(sequences):
        prompt = int(arrays.input_tokens[i])
        assert end[arrays.prompt_node[i]] == prompt
        assert end[arrays.output_node[i]] == len(sequence) == prompt + arrays.output_tokens[i]
        needed |= {int(arrays.prompt_node[i]), int(arrays.output_node[i])}
        path, node = [], int(arrays.output_node[i])
        while node:
            path.append(node)
            node = int(parent[node])
        assert int(arrays.prompt_node[i]) in path
        for node in path:
            run = tuple(sequence[: end[node]])
            assert content.setdefault(node, run) == run, "two sequences on one path have different tokens"
            users.setdefault(node, set()).add(i)
    assert len(set(content.values())) == len(content), "equal prefixes have two nodes"
    assert set(content) == set(range(1, len(parent))), "a node that no sequence uses"
    # Path-compressed: a node with one child at whose end nothing ends would have been merged with it.
    children = np.bincount(parent[1:], minlength=len(parent))
    for node in range(1, len(parent)):
        assert children[node] != 1 or node in needed
    # No two children of a node begin with the same token.
    heads = {(int(parent[node]), run[start[node]]) for node, run in content.items()}
    assert len(heads) == len(content)


def ideal_hits(prompts, outputs=None) -> list[int]:
    """Tokens of each prompt found in an unlimited cache of all earlier prompts (and whole sequences)."""
    cached: set[tuple] = {()}
    hits = []
    for i, prompt in enumerate(prompts):
        longest = 0
        while longest < len(prompt) and tuple(prompt[: longest + 1]) in cached:
            longest += 1
        hits.append(longest)
        kept = outputs[i] if outputs is not None else prompt
        cached |= {tuple(kept[:length]) for length in range(1, len(kept) + 1)}
    return hits


def lru_hits(prompts, block_tokens, capacity_blocks) -> int:
    """Prompt tokens hit in an LRU of blocks, a block being all tokens up to its end; used from last to first."""
    cache: OrderedDict[tuple, None] = OrderedDict()
    total = 0
    for prompt in prompts:
        ends = [*range(block_tokens, len(prompt) + 1, block_tokens)]
        if len(prompt) % block_tokens:
            ends.append(len(prompt))
        blocks = [(end, end % block_tokens != 0, tuple(prompt[:end])) for end in ends]
        for end, _, _ in (block for block in _leading(blocks, cache)):
            total += end - (end - 1) // block_tokens * block_tokens
        for block in reversed(blocks):
            cache.pop(block, None)
            cache[block] = None
            while len(cache) > capacity_blocks:
                cache.popitem(last=False)
    return total


def _leading(blocks, cache):
    for block in blocks:
        if block not in cache:
            return
        yield block
