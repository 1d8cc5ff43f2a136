"""Knots of step-cost tables: a kernel computes the cell of a value without a search. Codes that both know.

Token and sequence knots are linear up to ``2**KNOT_BITS``, then ``2**KNOT_BITS`` per octave.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from hisearch.base.dtypes import F8

KNOT_BITS = 3

_OCTAVE = 1 << KNOT_BITS


def tokens_knot(index: int) -> int:
    """The ``index``-th knot: 0, 1, …, 8, 9, …, 15, 16, 18, 20, …, 30, 32, 36, … (for KNOT_BITS = 3)."""
    if index < 2 * _OCTAVE:
        return index
    octave, step = divmod(index, _OCTAVE)
    return (_OCTAVE + step) << (octave - 1)


@cache
def token_knots(count: int) -> tuple[int, ...]:
    """The first ``count`` knots, of the rows or columns of a table."""
    return tuple(tokens_knot(index) for index in range(count))


def knots_up_to(limit: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """All knots from 0 to the first one that is >= ``limit`` (at least two)."""
    knots = [0, 1]
    while knots[-1] < limit:
        knots.append(tokens_knot(len(knots)))
    return np.array(knots, dtype=np.int64)


#: How ranks share prompts: vLLM's chunks, of which a rank has the k-th and the k-th from the end, and decodes dealt in
#: turns; SGLang's, where each request needs a token for each chunk; SGLang's tokens dealt in turns.
LAYOUTS = ("swap", "zigzag", "interleave")
SWAP, ZIGZAG, INTERLEAVE = range(3)

#: First knots above 0 of ``mixed_decode_s``, by axis; K also has a knot at 0.
MIXED_FIRST = (16, 16, 1, 16)
#: Knots of each octave, by axis, as bits: 4, 1, 1 and 2.
MIXED_BITS = (2, 0, 0, 1)
#: Units of the share of long contexts on the axis of ``late``.
LONG_PARTS = 128
#: First knots of ``late``, by axis, and knots of each octave, as bits: 1, 2 and 2.
LATE_FIRST = (1, 2, 256)
LATE_BITS = (0, 1, 1)


def octaves(axis: int, count: int) -> list[int]:
    """The ``count`` knots of an axis of ``mixed_decode_s``.

    16, 20, 24, 28, 32, 40, … (P); 0, 16, 32, 64, … (K); 1, 2, 4, … (n); 16, 24, 32, 48, … (mean).
    """
    knots = _octave_knots(MIXED_FIRST[axis], MIXED_BITS[axis], count)
    return [0, *knots[:-1]] if axis == 1 else knots


def octaves_up_to(axis: int, limit: int) -> F8:
    """Knots of an axis of ``mixed_decode_s`` up to the first octave that is >= ``limit`` (at least two)."""
    steps = 1 << MIXED_BITS[axis]
    count = steps + 1
    while octaves(axis, count)[-1] < limit:
        count += steps
    return np.array(octaves(axis, count), dtype=np.float64)


def late_octaves(axis: int, count: int) -> list[int]:
    """The ``count`` knots of an axis of ``late``.

    1, 2, 4, … (n); 2, 3, 4, 6, … (f, in ``LONG_PARTS``); 256, 384, 512, 768, … (c).
    """
    return _octave_knots(LATE_FIRST[axis], LATE_BITS[axis], count)


def _octave_knots(first: int, bits: int, count: int) -> list[int]:
    steps = 1 << bits
    return [(first * (steps + k % steps) << (k // steps)) // steps for k in range(count)]


def whole_octaves(knots: F8) -> F8:
    """Knots of an axis at which an octave begins, and 0."""
    begins: F8 = knots[np.log2(np.maximum(knots, 1.0)) % 1.0 == 0.0]
    return begins
