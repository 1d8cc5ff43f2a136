"""The hypervolume that candidates are expected to add to a front, and the batch that adds most together.

Notation
    k, m, s, q   objectives (all minimised), candidates, draws from a surrogate's posterior, points of a box
    box          from a little below the best values to beyond the worst, filled evenly by q points
    hit          a candidate hits a point in a draw if it is feasible and at most the point in every objective

    The points that a candidate hits and the front does not dominate, averaged over the draws, give the hypervolume that
    it is expected to add, as a share of the box. Draws are joint: correlated candidates succeed or fail together in
    each draw. A batch therefore does not bet on the same outcome eight times.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hisearch.base.dtypes import F8


@dataclass(frozen=True)
class Box:
    """The points to be won: shape (q, k), those that the front does not dominate.

    won: points that the front dominates per point to be won.
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


#: Points tried for each point requested: the front already dominates most of the box.
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

    draws: shape (m, s, k). feasible: shape (m, s). box: the points to be won.
    """
    m, s, k = draws.shape
    hit_points = np.empty((m, s, len(box.points)), dtype=np.float32)
    for draw in range(s):
        hit = np.repeat(feasible[:, draw, None], len(box.points), axis=1)
        for objective in range(k):
            hit &= draws[:, draw, objective, None] <= box.points[:, objective]
        hit_points[:, draw] = hit
    return hit_points.reshape(m, s * len(box.points))


def choose(hit: np.ndarray, count: int) -> list[tuple[int, float]]:
    """Up to ``count`` candidates, each the one that adds most to those before it, while any is expected to add.

    hit: as ``hits`` returns it.

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
