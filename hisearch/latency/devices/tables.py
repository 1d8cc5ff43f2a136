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
from hisearch.latency.knots import knots_up_to, octaves_up_to, whole_octaves
from hisearch.latency.measured.curves import Grid
from hisearch.latency.operators import attention_pairs

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
    tokens = np.arange(1.0, max_tokens + 1.0)
    new = knots_up_to(max_tokens).astype(np.float64)
    cached = knots_up_to(min(max_context, longest)).astype(np.float64)
    batch = knots_up_to(max(max_sequences, 2)).astype(np.float64)
    context = knots_up_to(max_context).astype(np.float64)
    rows, columns = np.broadcast_arrays(np.maximum(new, 1.0)[:, None], cached[None, :])
    chunk = _chunk(step, rows, columns)
    n, c = np.broadcast_arrays(np.maximum(batch, 1.0)[:, None], context[None, :])
    decode = step(_load(np.zeros_like(n), np.zeros_like(n), n, c)) - _base(step, n)
    decode[..., 0, :] = 0.0
    return StepCosts(
        host_s=0.0,
        host_per_sequence_s=0.0,
        token_s=_from_zero(_base(step, tokens)),
        sequence_s=_from_zero(sequence(np.arange(1.0, max_sequences + 1.0))),
        chunk_rate=np.ascontiguousarray(chunk / attention_pairs(rows, columns)),
        decode_s=np.ascontiguousarray(decode),
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


def _from_zero(table: F8) -> F8:
    """With an entry of 0 before the others."""
    return np.concatenate((np.zeros((*table.shape[:-1], 1)), table), axis=-1)


def _chunk(step: Step, new: F8, cached: F8) -> F8:
    zero = np.zeros_like(new)
    return np.asarray(step(_load(new, cached, zero, zero)) - _base(step, new))


def _base(step: Step, tokens: F8) -> F8:
    zero = np.zeros_like(tokens)
    return step(Load(tokens, zero, zero, zero, zero))


def _load(prompt: F8, before: F8, sequences: F8, context: F8) -> Load:
    return Load(prompt + sequences, prompt, before, sequences, context)
