"""Some requests of a compiled trace: the first ones, or those that ask for one of several models."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from hisearch.base.dtypes import I8
from hisearch.traces.agents import reordered
from hisearch.traces.compiled import CompiledTrace, TraceArrays
from hisearch.traces.compiler import freeze
from hisearch.traces.models import chosen


def head(trace: CompiledTrace, count: int) -> CompiledTrace:
    """The first ``count`` requests, with the tree that they need; the trace itself where it has no more.

    Raises:
        ValueError: ``count`` is less than 1.
    """
    if count < 1:
        raise ValueError(f"a trace needs at least 1 request, not {count}")
    return trace if count >= len(trace) else _chosen(trace, np.arange(count))


def requests_for(trace: CompiledTrace, names: Collection[str]) -> CompiledTrace:
    """The requests that ask for a model of one of ``names``, at the times at which they come; the trace names none.

    Raises:
        ValueError: no request does, or one of them waits for a request for another model, or the other way round; or
            requests are calls of agents, which wait for each other.
    """
    models = trace.models
    if models is None or not any(name in names for name in models.names):
        requested = "no model" if models is None else ", ".join(models.names)
        raise ValueError(f"trace {trace.name} asks for {requested}, not for {' or '.join(names)}")
    if trace.agents is not None:
        raise ValueError(f"trace {trace.name}: calls of agents wait for each other; they cannot be told apart by model")
    mine = np.isin(models.model, [k for k, name in enumerate(models.names) if name in names])
    previous = trace.arrays.previous
    across = (previous >= 0) & (mine[np.maximum(previous, 0)] != mine)
    if across.any():
        r = int(np.argmax(across))
        raise ValueError(
            f"trace {trace.name}: request {trace.request_ids[r]} waits for {trace.request_ids[previous[r]]}, which "
            "asks for another model: neither model's requests can be replayed alone"
        )
    kept = _chosen(trace, np.flatnonzero(mine))
    return freeze(
        kept.name,
        kept.arrays,
        kept.request_ids,
        kept.skipped_rows,
        kept.warnings,
        kept.block_tokens,
        None,
        None,
    )


def _chosen(trace: CompiledTrace, kept: I8) -> CompiledTrace:
    """The requests with the indices ``kept``, ascending; they include every predecessor."""
    from hisearch.traces import _tree

    arrays = trace.arrays
    columns = {column: getattr(arrays, column)[kept] for column in TraceArrays._fields[:9]}
    number = np.full(len(trace), -1, np.int64)
    number[kept] = np.arange(len(kept))
    before = columns["previous"]
    columns["previous"] = np.where(before >= 0, number[np.maximum(before, 0)], -1)
    tree = _tree.finish_tree(
        arrays.parent, arrays.start_tokens, arrays.end_tokens, arrays.prompt_node[kept], arrays.output_node[kept]
    )
    selected = TraceArrays(
        **columns, prompt_node=tree[3], output_node=tree[4], parent=tree[0], start_tokens=tree[1], end_tokens=tree[2]
    )
    return freeze(
        trace.name,
        selected,
        [trace.request_ids[r] for r in kept.tolist()],
        trace.skipped_rows,
        trace.warnings,
        trace.block_tokens,
        None if trace.agents is None else reordered(trace.agents, kept),
        chosen(trace.models, kept),
    )
