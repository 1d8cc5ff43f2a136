"""How much of the space beyond a front candidates are expected to win, and which of them win most together.

Notation
    k, m, s, q   objectives (all minimised), candidates, draws of what a surrogate expects, points of a box
    box          from a little below the best values to beyond the worst, filled evenly by q points
    hit          a candidate hits a point in a draw where it is feasible and at most the point in every objective

The points that a candidate hits and the front does not dominate, averaged over the draws, are the hypervolume that it is
expected to add, as a share of the box. Draws are joint: candidates that stand or fall together do so in each of them, so
that a batch does not hold the same hope eight times.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hisearch.traces.compiled import F8


@dataclass(frozen=True)
class Box:
    """The points that are to be won: shape (q, k), those that the front does not dominate. share: of all points."""

    points: F8
    share: float

    @classmethod
    def beyond(cls, front: F8, low: F8, high: F8, count: int, seed: int) -> Box:
        """``count`` points between ``low`` and ``high``, shape (k,), without those that ``front``, (n, k), dominates.

        ``count`` is a power of two, of which the sequence is even.
        """
        from scipy.stats import qmc

        sobol = qmc.Sobol(len(low), rng=np.random.default_rng(seed))
        points = low + (high - low) * sobol.random(count)
        covered = np.zeros(count, dtype=bool)
        for row in front:
            covered |= (row <= points).all(axis=1)
        return cls(points[~covered], float(1.0 - covered.mean()))


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
