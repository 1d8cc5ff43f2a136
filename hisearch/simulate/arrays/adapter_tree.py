"""The prefix tree of a trace with adapters: no adapter can reuse another adapter's KV.

A tree node on the paths of several adapters is copied for each; all others stay as they are.
Rule: SGLang keys its radix tree by adapter (sgl-project/sglang#7216, #10317), vLLM hashes the adapter into every block
(vllm-project/vllm#3263).

Notation
    N requests, M nodes, K adapters (including none), C copies: pairs (node of several adapters, adapter)
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from hisearch.base.dtypes import I4, I8
from hisearch.kernels.agents import prepare
from hisearch.traces.compiled import TraceArrays

_Array = TypeVar("_Array", I4, I8)


def separate_adapters(trace: TraceArrays, adapter: I4) -> TraceArrays:
    """The same requests over a tree in which no two adapters share a node but the root.

    adapter (N,): of each request, -1: none.
    """
    adapter = (adapter + 1).astype(np.int32)
    owner = np.empty(len(trace.parent), np.int32)
    prepare.owners(adapter, trace.output_node, trace.parent, owner)
    owner[0] = 0
    if not (owner == prepare.SEVERAL).any():
        return trace
    kinds = int(adapter.max()) + 1
    copies = _copies(trace, adapter, owner, kinds)
    count = np.maximum(np.bincount(copies // kinds, minlength=len(owner)), 1)
    begin = np.cumsum(count) - count
    first = np.searchsorted(copies, np.arange(len(owner)) * kinds)

    def place(node: I8, of: I8) -> I4:
        """New index of ``node`` for adapter ``of``."""
        rank = np.searchsorted(copies, node * kinds + of) - first[node]
        return _fixed((begin[node] + np.where(owner[node] == prepare.SEVERAL, rank, 0)).astype(np.int32))

    node = np.repeat(np.arange(len(owner)), count)
    # Nodes on no request's path become children of the first copy.
    of = np.repeat(np.maximum(owner, 0).astype(np.int64), count)
    of[owner[node] == prepare.SEVERAL] = copies % kinds
    above = np.maximum(trace.parent[node], 0).astype(np.int64)
    parent = np.where(owner[node] == prepare.UNUSED, begin[above], place(above, of)).astype(np.int32)
    parent[0] = -1
    return trace._replace(
        prompt_node=place(trace.prompt_node.astype(np.int64), adapter.astype(np.int64)),
        output_node=place(trace.output_node.astype(np.int64), adapter.astype(np.int64)),
        parent=_fixed(parent),
        start_tokens=_fixed(trace.start_tokens[node]),
        end_tokens=_fixed(trace.end_tokens[node]),
    )


def _copies(trace: TraceArrays, adapter: I4, owner: I4, kinds: int) -> I8:
    """``node * kinds + adapter`` of all copies, in rising order; shape (C,)."""
    path_node = np.empty(len(adapter), np.int32)
    prepare.shared_paths(trace.parent, owner, trace.output_node, path_node)
    pairs = np.unique(path_node[path_node > 0].astype(np.int64) * kinds + adapter[path_node > 0])
    levels = []
    while len(pairs):
        levels.append(pairs)
        above = np.unique(trace.parent[pairs // kinds].astype(np.int64) * kinds + pairs % kinds)
        pairs = above[above >= kinds]
    return np.unique(np.concatenate(levels))


def _fixed(array: _Array) -> _Array:
    array.setflags(write=False)
    return array
