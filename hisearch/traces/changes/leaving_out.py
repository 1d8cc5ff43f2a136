"""A trace without requests that are too long for a model's window."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np

from hisearch.base.dtypes import I4, I8
from hisearch.specs.wording import counted
from hisearch.traces.adapters import chosen as chosen_named
from hisearch.traces.models import chosen
from hisearch.traces.trace import Trace, moved


def without_long(trace: Trace, max_tokens: int) -> Trace:
    """The trace without requests whose prompt and declared output exceed ``max_tokens``, and without the turns after.

    The others share what they shared: with each other, where they shared it with one that is left out.

    Raises:
        ValueError: none is left, or requests are calls of agents, which wait for each other.
    """
    long = trace.input_tokens + trace.max_output_tokens > max_tokens
    if not long.any():
        return trace
    if trace.agents is not None:
        raise ValueError("calls of agents wait for each other: none can be left out")
    out = long.copy()
    for request, previous in enumerate(trace.previous.tolist()):
        out[request] |= previous >= 0 and out[previous]
    if out.all():
        raise ValueError(f"every request has more than {max_tokens:,} tokens, or follows one that has")
    kept = np.flatnonzero(~out)
    shares_with, shared_tokens = _sharing(trace, out)
    note = f"left out {counted(int(long.sum()), 'request')} of more than {max_tokens:,} tokens"
    if after := int(out.sum() - long.sum()):
        note += f", and {counted(after, 'turn')} after them"
    columns: dict[str, Any] = {field.name: getattr(trace, field.name) for field in fields(trace)}
    cut: dict[str, Any] = {name: values[kept] for name, values in columns.items() if isinstance(values, np.ndarray)}
    cut["request_ids"] = [trace.request_ids[request] for request in kept.tolist()]
    cut["previous"] = moved(trace.previous, kept).astype(np.int32)
    cut["shares_with"] = moved(shares_with, kept).astype(np.int32)
    cut["shared_tokens"] = shared_tokens[kept]
    cut["models"] = chosen(trace.models, kept)
    cut["adapters"], cut["grammars"] = (chosen_named(trace.adapters, kept), chosen_named(trace.grammars, kept))
    return replace(trace, **cut, warnings=(*trace.warnings, note))


def _sharing(trace: Trace, out: np.ndarray) -> tuple[I4, I8]:
    """``shares_with`` and ``shared_tokens`` where no request shares with one of the mask ``out``; shapes (N,)."""
    sources, commons = trace.shares_with.tolist(), trace.shared_tokens.tolist()
    shares_with, shared_tokens = trace.shares_with.copy(), trace.shared_tokens.copy()
    #: Of a request left out: for how many tokens a kept one begins like it, at most so far, and which one.
    nearest: dict[int, tuple[int, int]] = {}
    for request in np.flatnonzero(~out).tolist():
        at, common = sources[request], commons[request]
        if at < 0 or not out[at]:
            continue
        best = (0, -1)
        while at >= 0 and out[at]:
            known, like = nearest.get(at, (0, -1))
            best = max(best, (min(common, known), like))
            nearest[at] = max((known, like), (common, request))
            common, at = min(common, commons[at]), sources[at]
        shared_tokens[request], shares_with[request] = max(best, (common, at)) if at >= 0 else best
    return np.where(shared_tokens > 0, shares_with, -1).astype(np.int32), shared_tokens
