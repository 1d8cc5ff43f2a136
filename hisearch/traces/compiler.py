"""From a ``Trace`` to a ``CompiledTrace``: order, tree, digest; and scaling of compiled traces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.specs.workloads.workload import FollowUps
from hisearch.traces.adapters import RequestAdapters, RequestGrammars
from hisearch.traces.adapters import chosen as chosen_named
from hisearch.traces.adapters import frozen as frozen_named
from hisearch.traces.agents import AgentArrays, frozen, reordered
from hisearch.traces.compiled import CompiledTrace, TraceArrays
from hisearch.traces.distance_units import distance_caveat
from hisearch.traces.history import proposal
from hisearch.traces.models import RequestModels, chosen
from hisearch.traces.models import frozen as frozen_models
from hisearch.traces.trace import Trace, roots_of

#: Types of the compiled arrays, as ``TraceArrays`` documents them.
DTYPES: dict[str, type] = dict.fromkeys(TraceArrays._fields, np.int32) | {
    "arrival_s": np.float64, "think_s": np.float64, "input_tokens": np.int64, "output_tokens": np.int64,
    "max_output_tokens": np.int64, "thinking_tokens": np.int64, "start_tokens": np.int64, "end_tokens": np.int64,
}  # fmt: skip

#: Of a trace with conversations whose prompts share nothing.
_NOTHING_SHARED = (
    "conversations are named, but no prompt says what it shares with earlier ones: each is computed whole. Block "
    "hashes or texts would tell (docs/traces.md)"
)


def compile_trace(trace: Trace, name: str, follow_ups: FollowUps = "auto") -> CompiledTrace:
    """Order the requests, build the prefix tree, freeze the arrays.

    Requests are ordered by the earliest time they can arrive (recorded; for follow-ups of unknown time the
    predecessor's plus ``think_s``), equal times in the trace's order, so that a predecessor has the smaller index.

    Args:
        trace: the requests.
        name: what reports call it.
        follow_ups: ``closed_loop``: follow-ups wait for their predecessor, then ``think_s`` (the recorded time between
            the two arrivals where it is unknown); ``open_loop``: they arrive at their recorded times; ``auto``: what
            ``trace.open_loop`` says.

    Raises:
        ValueError: the times that the chosen replay needs were not recorded.
    """
    from hisearch.traces import _tree

    if trace.agents is not None and follow_ups == "open_loop":
        raise ValueError("follow_ups: open_loop: agents call in a closed loop")
    open_loop = trace.open_loop if follow_ups == "auto" else follow_ups == "open_loop"
    if open_loop:
        if np.isnan(trace.arrival_s).any():
            raise ValueError("follow_ups: open_loop needs the arrival time of every request; some are not recorded")
        order = np.argsort(trace.arrival_s, kind="stable")
        previous, think, warnings = np.full(len(order), -1), np.zeros(len(order)), trace.warnings
    else:
        unordered, warnings = _think_times(trace)
        order = np.argsort(_tree.arrival_keys(trace.arrival_s, trace.previous, unordered), kind="stable")
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(len(order))
        before = trace.previous[order]
        previous, think = np.where(before >= 0, rank[np.maximum(before, 0)], -1), unordered[order]
    if not trace.shared_tokens.any() and len(np.unique(trace.session)) < len(order):
        warnings = (_NOTHING_SHARED + proposal(trace), *warnings)
    parent, start, end, prompt_node, output_node = _tree.build_tree(
        trace.input_tokens, trace.output_tokens, trace.shares_with, trace.shared_tokens
    )
    tree = _tree.finish_tree(parent, start, end, prompt_node[order], output_node[order])
    arrays = TraceArrays(
        arrival_s=trace.arrival_s[order],
        input_tokens=trace.input_tokens[order],
        output_tokens=trace.output_tokens[order],
        max_output_tokens=trace.max_output_tokens[order],
        previous=previous,
        think_s=think,
        session=trace.session[order],
        tenant=trace.tenant[order],
        priority=trace.priority[order],
        thinking_tokens=trace.thinking_tokens[order],
        prompt_node=tree[3],
        output_node=tree[4],
        parent=tree[0],
        start_tokens=tree[1],
        end_tokens=tree[2],
    )
    ids = [trace.request_ids[i] for i in order.tolist()]
    agents = None if trace.agents is None else reordered(trace.agents, order)
    if agents is not None and (caveat := distance_caveat(agents, arrays.arrival_s, arrays.previous, arrays.think_s)):
        warnings = (*warnings, caveat)
    models = chosen(trace.models, order)
    return freeze(
        name, arrays, ids, trace.skipped_rows, warnings, trace.block_tokens, agents, models, trace.notes,
        adapters=chosen_named(trace.adapters, order), grammars=chosen_named(trace.grammars, order),
    )  # fmt: skip


def _think_times(trace: Trace) -> tuple[F8, tuple[str, ...]]:
    """Think times with unknown ones taken from the recorded arrivals, and the trace's warnings with a note on that."""
    unknown = np.isnan(trace.think_s)
    if not unknown.any():
        return trace.think_s, trace.warnings
    gap = trace.arrival_s - trace.arrival_s[np.maximum(trace.previous, 0)]
    if np.isnan(gap[unknown]).any():
        raise ValueError("follow_ups: closed_loop needs think times, or the arrival times that they lie between")
    note = (
        f"{int(unknown.sum())} think times are not recorded: the whole time between the two arrivals was taken, "
        "which includes the answer's own"
    )
    return np.where(unknown, np.maximum(gap, 0.0), trace.think_s), (*trace.warnings, note)


def freeze(
    name: str,
    arrays: TraceArrays,
    request_ids: Sequence[str],
    skipped_rows: int = 0,
    cautions: tuple[str, ...] = (),
    block_tokens: int = 1,
    agents: AgentArrays | None = None,
    models: RequestModels | None = None,
    notes: tuple[str, ...] = (),
    ignore_eos: bool | None = None,
    adapters: RequestAdapters | None = None,
    grammars: RequestGrammars | None = None,
) -> CompiledTrace:
    """A compiled trace of contiguous, read-only arrays of the contract's types."""
    columns: dict[str, Any] = {}
    for column, values in arrays._asdict().items():
        columns[column] = np.array(values, dtype=DTYPES[column])
        columns[column].flags.writeable = False
    result = TraceArrays(**columns)
    frozen_agents = None if agents is None else frozen(agents)
    requested = None if models is None else frozen_models(models)
    return CompiledTrace(
        name, result, request_ids, None, skipped_rows, cautions, block_tokens, frozen_agents, requested, notes,
        ignore_eos, None if adapters is None else frozen_named(adapters),
        None if grammars is None else frozen_named(grammars),
    )  # fmt: skip


def scale_load(trace: CompiledTrace, factor: float) -> CompiledTrace:
    """The trace at ``factor`` times its arrival rate: open-loop arrivals divided by it, think times as they were.

    A follow-up's recorded arrival moves with the first request of its chain.

    Raises:
        ValueError: ``factor`` is not a positive number.
    """
    if not (np.isfinite(factor) and factor > 0):
        raise ValueError(f"load must be a positive number, not {factor}")
    if factor == 1.0:
        return trace
    arrival = trace.arrays.arrival_s
    first = arrival[roots_of(trace.arrays.previous)]
    scaled = np.where(trace.arrays.previous < 0, arrival / factor, arrival + (first / factor - first))
    arrays = trace.arrays._replace(arrival_s=scaled)
    return freeze(
        trace.name,
        arrays,
        trace.request_ids,
        trace.skipped_rows,
        trace.cautions,
        trace.block_tokens,
        trace.agents,
        trace.models,
        trace.notes,
        trace.ignore_eos,
        trace.adapters,
        trace.grammars,
    )
