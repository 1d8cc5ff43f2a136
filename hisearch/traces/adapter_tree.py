"""The prefix tree of a trace with adapters: no adapter can reuse another adapter's KV.

A tree node on the paths of several adapters is copied for each; all others stay as they are.
Rule: SGLang keys its radix tree by adapter (sgl-project/sglang#7216, #10317), vLLM hashes the adapter into every block
(vllm-project/vllm#3263).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hisearch.base.dtypes import I4
from hisearch.traces.adapters import RequestAdapters
from hisearch.traces.agents import label
from hisearch.traces.compiled import CompiledTrace, TraceArrays


def requested_adapters(trace: CompiledTrace) -> RequestAdapters | None:
    """The adapter of each request: as the trace names them, or its agents' own; None where it has none."""
    agents = trace.agents
    if agents is None or not (agents.adapter >= 0).any():
        return trace.adapters
    count = int(agents.adapter.max()) + 1
    rank = np.zeros(count, np.int32)
    rank[: len(agents.adapter_rank)] = agents.adapter_rank[:count]
    names = tuple(label(agents.adapter_names, number) for number in range(count))
    return RequestAdapters(names, rank, agents.adapter[agents.agent])


def adapter_count(trace: CompiledTrace) -> int:
    """Adapters that requests ask for."""
    adapters = requested_adapters(trace)
    return 0 if adapters is None else len(np.unique(adapters.adapter[adapters.adapter >= 0]))


def by_adapter(trace: CompiledTrace) -> CompiledTrace:
    """The same requests, of which no two share KV under different adapters; its digest is another one."""
    adapters = requested_adapters(trace)
    return trace if adapters is None else replace(trace, arrays=separate_adapters(trace.arrays, adapters.adapter))


def separate_adapters(trace: TraceArrays, adapter: I4) -> TraceArrays:
    """The same requests over a tree in which no two adapters share a node but the root.

    adapter (N,): of each request, -1: none.
    """
    from hisearch.traces import _tree

    order = np.argsort(adapter, kind="stable")
    node, parent, prompt_node, output_node = _tree.separate(
        trace.parent, trace.prompt_node, trace.output_node, adapter, order
    )
    if len(node) == len(trace.parent):
        return trace
    changed = {
        "parent": parent, "start_tokens": trace.start_tokens[node], "end_tokens": trace.end_tokens[node],
        "prompt_node": prompt_node, "output_node": output_node,
    }  # fmt: skip
    for array in changed.values():
        array.setflags(write=False)
    return trace._replace(**changed)
