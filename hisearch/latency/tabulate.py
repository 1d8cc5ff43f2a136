"""Tabulates laws of tokens, sequences and contexts as ``StepCosts``, on the knots that kernels read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.latency.costs import StepCosts
from hisearch.latency.knots import knots_up_to
from hisearch.latency.operators import attention_pairs


class Axes(NamedTuple):
    """Knots of a worker's tables, to be broadcast.

    new, cached: of ``chunk_rate``. sequences, context: of ``decode_s``. ``new`` and ``sequences`` begin with 1 in place
    of 0, so that rates are finite everywhere.
    """

    new: F8
    cached: F8
    sequences: F8
    context: F8


def table_axes(max_tokens: int, max_sequences: int, max_context: int, longest: int) -> Axes:
    """Axes up to the limits of a step; ``longest``: sequence of the model."""
    new, cached, sequences, context = (
        knots_up_to(limit).astype(np.float64)
        for limit in (max_tokens, min(max_context, longest), max(max_sequences, 2), max_context)
    )
    return Axes(np.maximum(new, 1.0)[:, None], cached[None, :], np.maximum(sequences, 1.0)[:, None], context[None, :])


def counted(law: Callable[[F8], F8], limit: int) -> F8:
    """A law of units at 0 (free), 1, … ``limit`` of them."""
    return from_zero(law(np.arange(1.0, limit + 1.0)))


def from_zero(table: F8) -> F8:
    """With an entry of 0 before the others."""
    return np.concatenate((np.zeros((*table.shape[:-1], 1)), table), axis=-1)


def device_costs(axes: Axes, *, token_s: F8, sequence_s: F8, chunk_s: F8, decode_s: F8, **tables: Any) -> StepCosts:
    """Costs without host work.

    Args:
        axes: of the chunks and decodes.
        token_s: see ``StepCosts``.
        sequence_s: see ``StepCosts``.
        chunk_s: seconds of a chunk on the axes.
        decode_s: seconds of decodes on the axes; those of none are 0.
        tables: others of ``StepCosts``.
    """
    decode_s = np.ascontiguousarray(decode_s)
    decode_s[..., 0, :] = 0.0
    chunk_rate = np.ascontiguousarray(chunk_s / attention_pairs(axes.new, axes.cached))
    return StepCosts(0.0, 0.0, token_s, sequence_s, chunk_rate, decode_s, **tables)
