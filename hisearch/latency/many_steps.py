"""Many steps at once: ``step_cost.step_seconds`` over arrays, of decodes alone and of one prompt chunk beside them.

Notation
    K   steps
"""

from __future__ import annotations

import numpy as np

from hisearch.latency.costs import StepCosts, octaves, token_knots
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


def chunk_steps_seconds(costs: StepCosts, new: I8, cached: I8, sequences: I8, reads: I8) -> F8:
    """Seconds of each step, shape (K,): one chunk of a prompt, and decodes that all read as much.

    Args:
        costs: tables (see ``StepCosts``).
        new: tokens of the chunk, at least one, shape (K,).
        cached: tokens before it, shape (K,).
        sequences: that decode beside it, none too, shape (K,).
        reads: tokens that each of them reads, shape (K,).
    """
    total = costs.host_s + costs.host_per_sequence_s * (sequences + 1)
    total = total + _dense(costs.token_s, new + sequences) + _dense(costs.sequence_s, sequences + 1)
    if costs.prompt_s is not None:
        total += _dense(costs.prompt_s, new)
    total += new * (cached + (new + 1) / 2.0) * _bilinear(costs.chunk_rate, new, cached, most=1.0)
    if costs.beside_s is None:
        beside = _bilinear(costs.decode_s, sequences, sequences * reads)
    else:
        beside = _octaves(costs.beside_s, (new, cached, sequences, reads - 1))
    return np.asarray(total + np.where(sequences > 0, beside, 0.0))


def _dense(table: F8, at: I8) -> F8:
    """``table[at]``, continued beyond its end with the last slope."""
    last = len(table) - 1
    beyond = np.maximum(at - last, 0) * (table[last] - table[last - 1])
    return np.asarray(table[np.minimum(at, last)] + beyond)


def _bilinear(table: F8, x: I8, y: I8, most: float = np.inf) -> F8:
    """Interpolated on token knots, rows by ``x`` and columns by ``y``; beyond them to ``most`` shares of a cell."""
    (i, fx), (j, fy) = (_place(at, np.array(token_knots(count))) for at, count in zip((x, y), table.shape, strict=True))
    fx, fy = np.minimum(fx, most), np.minimum(fy, most)
    a = table[i, j] + (table[i, j + 1] - table[i, j]) * fy
    b = table[i + 1, j] + (table[i + 1, j + 1] - table[i + 1, j]) * fy
    return np.asarray(a + (b - a) * fx)


def _octaves(table: F8, at: tuple[I8, ...]) -> F8:
    """``beside_s`` between its octaves; the last slopes continue, and nothing does below the first knots."""
    places = [
        _place(x, np.array(octaves(axis, count))) for axis, (x, count) in enumerate(zip(at, table.shape, strict=True))
    ]
    total = np.zeros(len(at[0]))
    for corner in np.ndindex(*(min(count, 2) for count in table.shape)):
        weight = np.ones(len(at[0]))
        for above, (_, share) in zip(corner, places, strict=True):
            weight = weight * (share if above else 1.0 - share)
        total += weight * table[tuple(cell + above for above, (cell, _) in zip(corner, places, strict=True))]
    return total


def _place(at: I8, knots: I8) -> tuple[I8, F8]:
    """Cell of each value, and the share of it: above 1 beyond the last knot, 0 below the first or of one knot."""
    if len(knots) == 1:
        return np.zeros(len(at), np.int64), np.zeros(len(at))
    cell = np.clip(np.searchsorted(knots, at, side="right") - 1, 0, len(knots) - 2)
    return cell, np.maximum((at - knots[cell]) / (knots[cell + 1] - knots[cell]), 0.0)
