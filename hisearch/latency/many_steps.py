"""Many steps at once: ``step_cost.step_seconds`` over arrays, for decode steps and for mixed steps with one chunk.

Notation
    K   steps
    C   costs with tables of equal shape, so that a step has the same cell in all
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from hisearch.base.dtypes import F8, I8
from hisearch.latency.costs import HostFloor, StepCosts
from hisearch.latency.knots import octaves, token_knots
from hisearch.latency.step_cost import shared_tokens


class Stacked:
    """Seconds of steps by several costs at once."""

    def __init__(self, costs: Sequence[StepCosts]) -> None:
        """Stack at least one cost.

        Raises:
            ValueError: their tables differ in shape, or their ranks share prompts differently.
        """
        shared = [step_costs.shared for step_costs in costs]
        if len({None if s is None else (s.ranks, s.layout) for s in shared}) > 1:
            raise ValueError("costs whose ranks share prompts differently are not stacked")
        self._shared = [s for s in shared if s is not None] or None
        # Every field gets a last axis of length C. ``late`` applies to unequal decodes in mixed steps only.
        alike = (step_costs._replace(late=None, floor=None, shared=None) for step_costs in costs)
        self._floors = [step_costs.floor or HostFloor() for step_costs in costs]
        self._costs = StepCosts(*(_stacked(field) for field in zip(*alike, strict=True)))

    def decode_steps(self, sequences: I8, context: I8, longest: I8) -> F8:
        """Seconds of each step, shape (K, C); 0 where nothing decodes.

        Args:
            sequences: decodes, shape (K,).
            context: tokens that they read in all, shape (K,).
            longest: most tokens that a decode reads, shape (K,).
        """
        costs = self._costs
        total = costs.host_s + costs.host_per_sequence_s * sequences[:, None]
        total = total + dense(costs.token_s, sequences) + dense(costs.sequence_s, sequences)
        if costs.skew_s is not None:
            skew = costs.skew_s[np.minimum(sequences, len(costs.skew_s) - 1)]
            total += skew * (longest * sequences - context)[:, None] / np.maximum(sequences, 1)[:, None]
        total += _bilinear(costs.decode_s, sequences, context)
        total = np.maximum(total, self._floor_s(sequences, sequences, prompts=False))
        return np.where(sequences[:, None] > 0, total, 0.0)

    def chunk_steps(self, new: I8, cached: I8, sequences: I8, reads: I8) -> F8:
        """Seconds of each step, shape (K, C): one prompt chunk, and decodes of equal context.

        Args:
            new: tokens of the chunk, at least one, shape (K,).
            cached: tokens before it, shape (K,).
            sequences: decodes in the same step, may be 0, shape (K,).
            reads: tokens that each decode reads, shape (K,).
        """
        costs = self._costs
        total = costs.host_s + costs.host_per_sequence_s * (sequences + 1)[:, None]
        launched, work = new + sequences, new * (cached + (new + 1) / 2.0)
        token_s, attention_s = dense(costs.token_s, launched), _bilinear(costs.chunk_rate, new, cached, most=1.0)
        if (shared := self._shared) is not None:
            steps = zip(new.tolist(), sequences.tolist(), strict=True)
            most = np.array([shared_tokens(shared[0], [chunk], decodes) for chunk, decodes in steps])
            split = most[:, None] > 0
            token_s = np.where(split, dense(np.stack([s.token_s for s in shared], axis=-1), most), token_s)
            if shared[0].whole_rate is not None:
                whole = np.stack([s.whole_rate for s in shared if s.whole_rate is not None], axis=-1)
                attention_s = np.where(split, attention_s, _bilinear(whole, new, cached, most=1.0))
            launched = np.where(most > 0, most * shared[0].ranks, launched)
        total = total + token_s + dense(costs.sequence_s, sequences + 1)
        if costs.prompt_s is not None:
            total += dense(costs.prompt_s, new)
        total += work[:, None] * attention_s
        if costs.mixed_decode_s is None:
            mixed = _bilinear(costs.decode_s, sequences, sequences * reads)
        else:
            mixed = _octaves(costs.mixed_decode_s, (new, cached, sequences, reads - 1))
        total = total + np.where(sequences[:, None] > 0, mixed, 0.0)
        return np.maximum(total, self._floor_s(sequences + 1, launched, prompts=True))

    def _floor_s(self, sequences: I8, tokens: I8, *, prompts: bool) -> F8:
        """``HostFloor.seconds`` of each step and cost, shape (K, C)."""
        columns = []
        for floor in self._floors:
            graph_s = floor.pieces_s if prompts else 0.0
            launches = np.where(tokens > floor.graph_tokens, floor.eager_s, graph_s)
            columns.append(floor.step_s + floor.per_sequence_s * sequences + launches)
        return np.stack(columns, axis=-1)


def _stacked(values: tuple[Any, ...]) -> Any:
    """Fields of equal shape stacked along a new last axis; None where absent."""
    return None if values[0] is None else np.stack(values, axis=-1)


def dense(table: F8, at: I8) -> F8:
    """``table`` at whole numbers, continued beyond its end with the last slope; it may have further axes."""
    last = len(table) - 1
    beyond = np.multiply.outer(np.maximum(at - last, 0), table[last] - table[last - 1])
    return np.asarray(table[np.minimum(at, last)] + beyond)


def _bilinear(table: F8, x: I8, y: I8, most: float = np.inf) -> F8:
    """Interpolate on token knots, rows by ``x`` and columns by ``y``; extrapolate up to ``most`` cells."""
    rows, columns = table.shape[:2]
    (i, fx), (j, fy) = _place(x, _knots(rows)), _place(y, _knots(columns))
    fx, fy = np.minimum(fx, most)[:, None], np.minimum(fy, most)[:, None]
    a = table[i, j] + (table[i, j + 1] - table[i, j]) * fy
    b = table[i + 1, j] + (table[i + 1, j + 1] - table[i + 1, j]) * fy
    return np.asarray(a + (b - a) * fx)


@cache
def _knots(count: int) -> npt.NDArray[np.int64]:
    knots = np.array(token_knots(count), dtype=np.int64)
    knots.flags.writeable = False
    return knots


def _octaves(table: F8, at: tuple[I8, ...]) -> F8:
    """Interpolate ``mixed_decode_s``; the last slopes continue, and values are flat below the first knots."""
    shape = table.shape[: len(at)]
    places = [_place(x, np.array(octaves(axis, count))) for axis, (x, count) in enumerate(zip(at, shape, strict=True))]
    total = np.zeros((len(at[0]), table.shape[-1]))
    for corner in np.ndindex(*(min(count, 2) for count in shape)):
        weight = np.ones(len(at[0]))
        for above, (_, share) in zip(corner, places, strict=True):
            weight = weight * (share if above else 1.0 - share)
        total += weight[:, None] * table[tuple(cell + above for above, (cell, _) in zip(corner, places, strict=True))]
    return total


def _place(at: I8, knots: I8) -> tuple[I8, F8]:
    """Cell of each value, and the position in it: above 1 beyond the last knot; 0 below the first or with one knot."""
    if len(knots) == 1:
        return np.zeros(len(at), np.int64), np.zeros(len(at))
    cell = np.minimum(np.maximum(np.searchsorted(knots, at, side="right") - 1, 0), len(knots) - 2)
    return cell, np.maximum((at - knots[cell]) / (knots[cell + 1] - knots[cell]), 0.0)
