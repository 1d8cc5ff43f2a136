"""A trace in order of time, as files of hisearch's own form are written."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np

from hisearch.base.dtypes import I4, I8
from hisearch.traces.adapters import chosen as chosen_named
from hisearch.traces.agents import reordered
from hisearch.traces.compiled import TraceArrays
from hisearch.traces.compiler import compile_trace
from hisearch.traces.models import chosen
from hisearch.traces.trace import Trace, moved


def in_arrival_order(trace: Trace) -> Trace:
    """The same trace with its requests in the order in which they can arrive, predecessors before their follow-ups.

    Shared content then refers to the first request of the new order that has it.

    Raises:
        ValueError: the times that the order needs were not recorded, see ``compile_trace``.
    """
    numbered = replace(trace, request_ids=[str(index) for index in range(len(trace))])
    # In a closed loop a follow-up is never put before its predecessor, whatever times were recorded.
    compiled = compile_trace(numbered, "ordering", "closed_loop" if (trace.previous >= 0).any() else "auto")
    order = np.array([int(index) for index in compiled.request_ids])
    if (order == np.arange(len(order))).all():
        return trace
    columns = {
        field.name: getattr(trace, field.name)[order]
        for field in fields(trace)
        if isinstance(getattr(trace, field.name), np.ndarray)
    }
    shares_with, shared_tokens = _shares(compiled.arrays)
    columns |= {
        "previous": moved(trace.previous, order).astype(np.int32),
        "shares_with": shares_with,
        "shared_tokens": shared_tokens,
    }
    ids = [trace.request_ids[index] for index in order.tolist()]
    agents = None if trace.agents is None else reordered(trace.agents, order)
    asked = {
        "models": chosen(trace.models, order),
        "adapters": chosen_named(trace.adapters, order),
        "grammars": chosen_named(trace.grammars, order),
    }
    return replace(trace, request_ids=ids, agents=agents, **asked, **columns)  # type: ignore[arg-type]


def _shares(arrays: TraceArrays) -> tuple[I4, I8]:
    """``shares_with`` and ``shared_tokens`` of every request: its deepest node that an earlier one has; shapes (N,)."""
    parent, end = arrays.parent.tolist(), arrays.end_tokens.tolist()
    owner = [-1] * len(parent)
    shares_with = np.full(len(arrays.output_node), -1, dtype=np.int32)
    shared_tokens = np.zeros(len(arrays.output_node), dtype=np.int64)
    for request, node in enumerate(arrays.output_node.tolist()):
        while node > 0 and owner[node] < 0:
            owner[node] = request
            node = parent[node]  # noqa: PLW2901 - walks up from the request's last node
        if node > 0:
            shares_with[request], shared_tokens[request] = owner[node], end[node]
    return shares_with, shared_tokens
