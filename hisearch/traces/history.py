"""Conversations of which a log counts the tokens alone: each prompt taken to begin with the turn before it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from hisearch.base.dtypes import I8
from hisearch.specs.wording import counted, format_percent
from hisearch.traces.trace import Trace

#: Share of the follow-ups that are long enough, below which it is said that they are few. Chosen: half.
FEW_BELOW = 0.5


def continuing(trace: Trace) -> tuple[npt.NDArray[np.bool_], I8]:
    """Which requests are long enough to contain the turn that they follow, and what they share of it; shapes (N,).

    A turn is a prompt with its answer, of the same model. Thinking is taken to be dropped, as chat templates do: then a
    request shares the turn's prompt alone, as the answer's KV was computed after the thinking.
    """
    before = np.maximum(trace.previous, 0)
    turn = (trace.input_tokens + trace.output_tokens - trace.thinking_tokens)[before]
    follows = (trace.previous >= 0) & (trace.input_tokens >= turn)
    turn = np.where(trace.thinking_tokens[before] > 0, trace.input_tokens[before], turn)
    if trace.models is not None:
        follows &= trace.models.model == trace.models.model[before]
    return follows, turn


def with_history(trace: Trace) -> Trace:
    """The trace with each follow-up sharing the whole turn before it, prompt and answer, where it is long enough.

    Raises:
        ValueError: the trace says itself what prompts share, or names no conversations.
    """
    if trace.shared_tokens.any():
        raise ValueError("the trace says itself what its prompts share; leave history out")
    followers = int((trace.previous >= 0).sum())
    if not followers:
        raise ValueError("no request follows another: name the conversations (session)")
    follows, turn = continuing(trace)
    note = (
        f"history: prompts are taken to begin with the turn before them, its answer included: "
        f"{int(follows.sum()):,} of {counted(followers, 'follow-up')}; the others are shorter and share nothing"
    )
    if trace.thinking_tokens.any():
        note += "; thinking is taken to be dropped, so that answers behind it are computed anew"
    return replace(
        trace,
        shares_with=np.where(follows, trace.previous, -1).astype(np.int32),
        shared_tokens=np.where(follows, turn, 0),
        warnings=(*trace.warnings, note),
    )


def proposal(trace: Trace) -> str:
    """That the prompts may hold their history, for a trace that does not say; "" where none is long enough."""
    followers = int((trace.previous >= 0).sum())
    share = continuing(trace)[0].sum() / followers if followers else 0.0
    if not share:
        return ""
    only = "only " if share < FEW_BELOW else ""
    return (
        f"; {only}{format_percent(share)} of the {followers:,} follow-ups are long enough to hold the turn before "
        "them: --history of `hisearch trace import` takes them to"
    )
