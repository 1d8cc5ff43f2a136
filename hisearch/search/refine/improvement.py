"""How much of the space beyond a front candidates are expected to win, and which of them win most together.

Notation
    k, m, s, q   objectives (all minimised), candidates, draws of what a surrogate expects, points of a box
    box          from a little below the best values to beyond the worst, filled evenly by q points
    hit          a candidate hits a point in a draw where it is feasible and at most the point in every objective

The points that a candidate hits and the front does not dominate, averaged over the draws, are the hypervolume that it
is expected to add, as a share of the box. Draws are joint: candidates that stand or fall together do so in each of
them, so that a batch does not hold the same hope eight times.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hisearch.base.dtypes import F8


@dataclass(frozen=True)
class Box:
    """The points that are to be won: shape (q, k), of those that the front does not dominate.

    won: points that the front dominates for each of these.
    """

    points: F8
    won: float

    @classmethod
    def beyond(cls, front: F8, low: F8, high: F8, most: int) -> Box:
        """At most ``most`` points between ``low`` and ``high``, (k,), that ``front``, (n, k), does not dominate."""
        points = low + (high - low) * _even(_TRIED * most, len(low))
        covered = np.zeros(len(points), dtype=bool)
        for row in front:
            covered |= (row <= points).all(axis=1)
        free = points[~covered]
        return cls(free[:most], float(covered.sum()) / max(len(free), 1))


#: Points that are tried for each that is wanted: most of the box is the front's already.
_TRIED = 4


def _even(count: int, k: int) -> F8:
    """Points that fill the unit cube evenly, shape (count, k): multiples of powers of the generalised golden ratio.

    The ratio is the root of ``x**(k + 1) = x + 1`` (Roberts, "The Unreasonable Effectiveness of Quasirandom Sequences",
    2018).
    """
    ratio = 2.0
    for _ in range(32):
        ratio = (1.0 + ratio) ** (1.0 / (k + 1))
    steps = ratio ** -np.arange(1.0, k + 1.0)
    return np.asarray((0.5 + np.outer(np.arange(1, count + 1), steps)) % 1.0)


def hits(draws: F8, feasible: np.ndarray, box: Box) -> np.ndarray:
    """Which points candidates hit, shape (m, s * q), 1 or 0 in single precision.

    Args:
        draws: shape (m, s, k).
        feasible: shape (m, s).
        box: what is to be won.
    """
    m, s, k = draws.shape
    found = np.empty((m, s, len(box.points)), dtype=np.float32)
    for draw in range(s):
        hit = np.repeat(feasible[:, draw, None], len(box.points), axis=1)
        for objective in range(k):
            hit &= draws[:, draw, objective, None] <= box.points[:, objective]
        found[:, draw] = hit
    return found.reshape(m, s * len(box.points))


def choose(hit: np.ndarray, count: int) -> list[tuple[int, float]]:
    """Up to ``count`` candidates, each the one that adds most to those before it, while any is expected to add.

    Args:
        hit: as ``hits`` returns it.
        count: candidates wanted.

    Returns:
        (candidate, draws times points that it adds).
    """
    left = np.ones(hit.shape[1], dtype=np.float32)
    chosen: list[tuple[int, float]] = []
    while len(chosen) < min(count, len(hit)):
        gains = hit @ left
        best = int(gains.argmax())
        if gains[best] <= 0.0:
            break
        chosen.append((best, float(gains[best])))
        left *= 1.0 - hit[best]
    return chosen
