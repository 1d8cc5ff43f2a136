"""Some requests of a compiled trace: the first ones, or those that ask for one of several models."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from hisearch.base.dtypes import I8
from hisearch.traces.adapters import chosen as chosen_named
from hisearch.traces.agents import reordered
from hisearch.traces.compiled import REQUEST_COLUMNS, ChosenIds, CompiledTrace, with_tree
from hisearch.traces.compiler import freeze
from hisearch.traces.models import chosen
from hisearch.traces.trace import moved


def head(trace: CompiledTrace, count: int) -> CompiledTrace:
    """The first ``count`` requests, with the tree that they need; the trace itself where it has no more.

    Raises:
        ValueError: ``count`` is less than 1.
    """
    if count < 1:
        raise ValueError(f"a trace needs at least 1 request, not {count}")
    return trace if count >= len(trace) else requests_at(trace, np.arange(count))


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
    return requests_at(replace(trace, models=None), np.flatnonzero(mine))


def requests_at(trace: CompiledTrace, kept: I8) -> CompiledTrace:
    """The requests with the indices ``kept``, ascending; they include every predecessor. All of them: ``trace``."""
    from hisearch.traces import _tree

    if len(kept) == len(trace):
        return trace
    arrays = trace.arrays
    columns = {column: getattr(arrays, column)[kept] for column in REQUEST_COLUMNS}
    columns["previous"] = moved(arrays.previous, kept)
    tree = _tree.finish_tree(
        arrays.parent, arrays.start_tokens, arrays.end_tokens, arrays.prompt_node[kept], arrays.output_node[kept]
    )
    return freeze(
        trace.name,
        with_tree(columns, tree),
        ChosenIds(trace.request_ids, kept),
        trace.skipped_rows,
        trace.cautions,
        trace.block_tokens,
        None if trace.agents is None else reordered(trace.agents, kept),
        chosen(trace.models, kept),
        trace.notes,
        trace.ignore_eos,
        chosen_named(trace.adapters, kept),
        chosen_named(trace.grammars, kept),
    )
