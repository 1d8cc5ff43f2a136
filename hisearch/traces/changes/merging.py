"""Several traces as one: the traffic of separate services, sent to one deployment."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hisearch.traces.adapters import Named, chosen
from hisearch.traces.compiled import REQUEST_COLUMNS, CompiledTrace, TraceArrays
from hisearch.traces.compiler import freeze
from hisearch.traces.models import RequestModels, models_of
from hisearch.traces.trace import Trace, make_trace, moved

#: Columns that mean the same in any trace.
_COLUMNS = (
    "arrival_s", "input_tokens", "output_tokens", "max_output_tokens", "think_s", "priority", "thinking_tokens",
    "shared_tokens",
)  # fmt: skip


def asking_for(trace: Trace, model: str) -> Trace:
    """The trace with every request asking for ``model``.

    Raises:
        ValueError: its requests name models of their own.
    """
    if trace.models is not None:
        raise ValueError(f"the trace names models itself: {', '.join(trace.models.names)}")
    return replace(trace, models=RequestModels((model,), np.zeros(len(trace), np.int32)))


def merged(traces: Sequence[Trace]) -> Trace:
    """All requests of all traces, each trace's from its own start on; they have no content in common.

    Ids begin with the trace's place, from 1 on. Sessions and tenants of one trace are none of another's.

    Raises:
        ValueError: no traces; some name models and others do not; some are replayed at recorded times and others wait
            for their predecessors; one is of agents.
    """
    if not traces:
        raise ValueError("nothing to merge")
    if any(trace.agents is not None for trace in traces):
        raise ValueError("traces of agents cannot be merged")
    if len({trace.models is None for trace in traces}) > 1:
        raise ValueError("some of the traces name models and others do not; give the others one (--model)")
    loops = {trace.open_loop for trace in traces if (trace.previous >= 0).any()}
    if len(loops) > 1:
        raise ValueError("follow-ups come at recorded times in some of the traces, and after an answer in others")
    before = np.cumsum([0, *(len(trace) for trace in traces)])
    columns: dict[str, np.ndarray] = {
        name: np.concatenate([getattr(trace, name) for trace in traces]) for name in _COLUMNS
    }
    for name in ("previous", "shares_with"):
        columns[name] = _shifted([getattr(trace, name) for trace in traces], before)
    for name in ("session", "tenant"):
        columns[name] = np.concatenate(_disjoint([getattr(trace, name) for trace in traces]))
    named = [trace.models.names[k] for trace in traces if trace.models is not None for k in trace.models.model.tolist()]
    together = make_trace(
        **columns,  # type: ignore[arg-type]  # by name
        request_ids=[f"{k}/{name}" for k, trace in enumerate(traces, 1) for name in trace.request_ids],
        open_loop=loops.pop() if loops else True,
        skipped_rows=sum(trace.skipped_rows for trace in traces),
        warnings=tuple(dict.fromkeys(warning for trace in traces for warning in trace.warnings)),
        block_tokens=math.gcd(*(trace.block_tokens for trace in traces)),
        models=models_of(named) if named else None,
        adapters=_merged(traces, [trace.adapters for trace in traces]),
        grammars=_merged(traces, [trace.grammars for trace in traces]),
    )
    return replace(together, import_notes=tuple(dict.fromkeys(n for trace in traces for n in trace.import_notes)))


def _merged(traces: Sequence[Trace | CompiledTrace], each: Sequence[Named | None]) -> Named | None:
    """``each`` trace's adapters or grammars, one trace after another; those of one trace are none of another's."""
    known = [named for named in each if named is not None]
    if not known:
        return None
    of_request, names, before = [], [], 0
    for k, (trace, named) in enumerate(zip(traces, each, strict=True), 1):
        if named is None:
            of_request.append(np.full(len(trace), -1, np.int32))
            continue
        of_request.append(np.where(named[2] < 0, -1, named[2] + before))
        names += [f"{k}/{name}" for name in named.names]
        before += len(named.names)
    of_name = np.concatenate([named[1] for named in known])
    return type(known[0])(tuple(names), of_name, np.concatenate(of_request))


def side_by_side(traces: Sequence[CompiledTrace], names: Sequence[str]) -> CompiledTrace:
    """Compiled traces as one, each one's requests asking for the model of its name, at the times at which they come.

    Requests of one trace keep their order. All requests are ordered by the earliest time at which they can arrive, as
    in ``compiler.compile_trace``.

    Raises:
        ValueError: one is of agents.
    """
    from hisearch.traces import _tree

    if any(trace.agents is not None for trace in traces):
        raise ValueError("traces of agents cannot be put side by side")
    parts = [trace.arrays for trace in traces]
    counts = [len(trace) for trace in traces]
    before = np.cumsum([0, *counts])
    keys = [
        np.maximum.accumulate(_tree.arrival_keys(a.arrival_s, a.previous.astype(np.int64), a.think_s)) for a in parts
    ]
    order = np.argsort(np.concatenate(keys), kind="stable")
    columns = {name: np.concatenate([getattr(a, name) for a in parts])[order] for name in REQUEST_COLUMNS}
    columns["previous"] = moved(_shifted([a.previous for a in parts], before), order)
    for name in ("session", "tenant"):
        columns[name] = np.concatenate(_disjoint([getattr(a, name) for a in parts]))[order]
    ids = [f"{k}/{name}" for k, trace in enumerate(traces, 1) for name in trace.request_ids]
    return freeze(
        " and ".join(dict.fromkeys(trace.name for trace in traces)),
        TraceArrays(**columns, **_forest(parts, order)),
        [ids[r] for r in order.tolist()],
        sum(trace.skipped_rows for trace in traces),
        tuple(dict.fromkeys(caution for trace in traces for caution in trace.cautions)),
        math.gcd(*(trace.block_tokens for trace in traces)),
        notes=tuple(dict.fromkeys(note for trace in traces for note in trace.notes)),
        # Of parts that say different things of ends of outputs: that outputs end by themselves.
        ignore_eos=traces[0].ignore_eos if len({trace.ignore_eos for trace in traces}) == 1 else False,
        adapters=chosen(_merged(traces, [trace.adapters for trace in traces]), order),
        grammars=chosen(_merged(traces, [trace.grammars for trace in traces]), order),
        models=models_of([names[k] for k in np.repeat(np.arange(len(traces)), counts)[order].tolist()]),
    )


def _forest(parts: Sequence[TraceArrays], order: np.ndarray) -> dict[str, np.ndarray]:
    """The trees of all parts under one root, and where prompts and outputs end in it, requests in ``order``."""
    nodes_before = np.cumsum([0, *(len(a.parent) - 1 for a in parts)])

    def of_forest(nodes: Sequence[np.ndarray]) -> np.ndarray:
        """Nodes of each part's tree in the forest; the root is that of all."""
        return np.concatenate([np.where(v > 0, v + at, 0) for v, at in zip(nodes, nodes_before, strict=False)])

    columns = {name: of_forest([getattr(a, name) for a in parts])[order] for name in ("prompt_node", "output_node")}
    columns["parent"] = np.concatenate([parts[0].parent[:1], of_forest([a.parent[1:] for a in parts])])
    for name in ("start_tokens", "end_tokens"):
        columns[name] = np.concatenate([getattr(parts[0], name)[:1], *(getattr(a, name)[1:] for a in parts)])
    return columns


def _shifted(references: Sequence[np.ndarray], before: np.ndarray) -> np.ndarray:
    """References to requests of one trace each, behind the ``before`` requests of the traces ahead of it."""
    return np.concatenate(
        [np.where(column >= 0, column + at, -1) for column, at in zip(references, before, strict=False)]
    )


def _disjoint(numbers: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The same columns, each shifted above the numbers of those before it."""
    shifted: list[np.ndarray] = []
    used = 0
    for column in numbers:
        shifted.append(column + used)
        used += int(column.max(initial=-1)) + 1
    return shifted
