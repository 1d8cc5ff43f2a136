"""Many pure decode steps at once: ``step_cost.step_seconds`` without prompt chunks, over arrays.

Notation
    K   steps
"""

from __future__ import annotations

import numpy as np

from hisearch.latency.costs import StepCosts, tokens_knot
from hisearch.traces.compiled import F8, I8


def decode_steps_seconds(costs: StepCosts, sequences: I8, context: I8, longest: I8) -> F8:
    """Seconds of each step, shape (K,); 0 where nothing decodes.

    Args:
        costs: tables (see ``StepCosts``).
        sequences: that decode, shape (K,).
        context: tokens that they read in all, shape (K,).
        longest: most that one of them reads, shape (K,).
    """
    total = costs.host_s + costs.host_per_sequence_s * sequences
    total = total + _dense(costs.token_s, sequences) + _dense(costs.sequence_s, sequences)
    if costs.skew_s is not None:
        skew = costs.skew_s[np.minimum(sequences, len(costs.skew_s) - 1)]
        total += skew * (longest * sequences - context) / np.maximum(sequences, 1)
    total += _bilinear(costs.decode_s, sequences, context)
    return np.where(sequences > 0, total, 0.0)


def _dense(table: F8, at: I8) -> F8:
    """``table[at]``, continued beyond its end with the last slope."""
    last = len(table) - 1
    beyond = np.maximum(at - last, 0) * (table[last] - table[last - 1])
    return np.asarray(table[np.minimum(at, last)] + beyond)


def _bilinear(table: F8, x: I8, y: I8) -> F8:
    """Interpolated on token knots, rows by ``x`` and columns by ``y``; the last slopes continue."""
    (i, fx), (j, fy) = (_place(at, count) for at, count in zip((x, y), table.shape, strict=True))
    a = table[i, j] + (table[i, j + 1] - table[i, j]) * fy
    b = table[i + 1, j] + (table[i + 1, j + 1] - table[i + 1, j]) * fy
    return np.asarray(a + (b - a) * fx)


def _place(at: I8, count: int) -> tuple[I8, F8]:
    """Cell of each value among ``count`` knots, and the share of it."""
    knots = np.array([tokens_knot(index) for index in range(count)])
    cell = np.clip(np.searchsorted(knots, at, side="right") - 1, 0, count - 2)
    return cell, (at - knots[cell]) / (knots[cell + 1] - knots[cell])
