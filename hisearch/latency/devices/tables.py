"""Tabulates any law of a step as ``StepCosts``, even where its parts depend on one another.

A step with overlapped phases is not a sum of parts by tokens, prompt chunks and decodes. With B(T) the step of T tokens
without attention, and step(...) the full law:

    token_s[T]         = B(T)
    chunk_rate[P, K]   = (step of one chunk - B(P)) / (query, key) pairs          exact for steps of one chunk
    decode_s[n, c]     = step of n decodes that read c tokens - B(n)              exact for steps of decodes
    mixed_decode_s[P, K, n, m] = step of both - B(P + n) - (step of one chunk - B(P))
                                                                                  exact for one chunk and its decodes

on the knots (``mixed_decode_s``: at octaves), and linear between them, as the kernels interpolate. ``mixed_decode_s``
is omitted where the law is a sum.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.latency.costs import StepCosts
from hisearch.latency.devices.work import Load
from hisearch.latency.knots import octaves_up_to, whole_octaves
from hisearch.latency.measured.curves import Grid
from hisearch.latency.tabulate import counted, device_costs, table_axes

Step = Callable[[Load], F8]


def tabulate(
    step: Step,
    sequence: Callable[[F8], F8],
    *,
    joint: bool,
    max_tokens: int,
    max_sequences: int,
    max_context: int,
    longest: int,
) -> StepCosts:
    """Tables of a law, without host times; of several laws at once where ``step`` and ``sequence`` add a leading axis.

    Args:
        step: seconds (or joules) of all layers for a load.
        sequence: of LM head and sampling, by sequences that sample.
        joint: whether prompts and decodes of one step depend on each other.
        max_tokens: most tokens of a step.
        max_sequences: most sequences of a step.
        max_context: most tokens that decodes of a step read together.
        longest: longest sequence of the model.
    """
    axes = table_axes(max_tokens, max_sequences, max_context, longest)
    n, c = np.broadcast_arrays(axes.sequences, axes.context)
    return device_costs(
        axes,
        token_s=counted(lambda tokens: _base(step, tokens), max_tokens),
        sequence_s=counted(sequence, max_sequences),
        chunk_s=_chunk(step, *np.broadcast_arrays(axes.new, axes.cached)),
        decode_s=step(_load(np.zeros_like(n), np.zeros_like(n), n, c)) - _base(step, n),
        mixed_decode_s=_mixed_decode_s(step, max_tokens, max_sequences, min(max_context, longest)) if joint else None,
    )


def _mixed_decode_s(step: Step, max_tokens: int, max_sequences: int, longest: int) -> F8:
    reach = (max_tokens, longest, max(max_sequences, 2), longest)
    knots = [octaves_up_to(axis, limit) for axis, limit in enumerate(reach)]
    # Linear within octaves, at an eighth of the knots: these laws have no waves.
    axes = tuple(whole_octaves(axis) for axis in knots)
    p, k, n, m = np.ix_(*axes)
    both = step(_load(*np.broadcast_arrays(p, k, n, n * (m + 1.0))))
    added = both - _base(step, p + n) - _chunk(step, *np.broadcast_arrays(p, k))
    return np.ascontiguousarray(Grid(axes, added).on(knots))


def _chunk(step: Step, new: F8, cached: F8) -> F8:
    zero = np.zeros_like(new)
    return np.asarray(step(_load(new, cached, zero, zero)) - _base(step, new))


def _base(step: Step, tokens: F8) -> F8:
    zero = np.zeros_like(tokens)
    return step(Load(tokens, zero, zero, zero, zero))


def _load(prompt: F8, before: F8, sequences: F8, context: F8) -> Load:
    return Load(prompt + sequences, prompt, before, sequences, context)
