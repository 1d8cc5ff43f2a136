"""Confidence intervals of a difference between two deployments: over seeds, or over draws of one recording."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

#: Probability with which an interval holds the difference.
CONFIDENCE = 0.95


def paired_interval(a: Sequence[float], b: Sequence[float]) -> tuple[float | None, float | None]:
    """Student's interval of the mean of b - a at ``CONFIDENCE``, pair by pair.

    Pairs share their random numbers, so common noise cancels.

    Returns:
        (None, None) where fewer than two pairs, equal differences or a value that is not finite leave no interval.
    """
    differences = _differences(a, b)
    if differences is None:
        return None, None
    error = float(differences.std(ddof=1) / math.sqrt(len(differences)))
    return _around(float(differences.mean()), error, len(differences) - 1)


def bootstrap_interval(a: Sequence[float], b: Sequence[float]) -> tuple[float | None, float | None]:
    """Interval of b - a of a recording at ``CONFIDENCE``, from draws of the same recording.

    Args:
        a: of the recording, then of each draw.
        b: likewise.

    The standard error is the draws' root mean square deviation from the recording (Efron and Tibshirani, An
    Introduction to the Bootstrap, 1993, chapter 6), with as many degrees of freedom as draws. It does not shrink with
    their number, as that of a mean does: more draws tell no more about other days than the recording does.

    Returns:
        As of ``paired_interval``.
    """
    differences = _differences(a, b)
    if differences is None:
        return None, None
    deviations = differences[1:] - differences[0]
    return _around(float(differences[0]), math.sqrt(float(np.mean(deviations**2))), len(deviations))


def _differences(a: Sequence[float], b: Sequence[float]) -> np.ndarray | None:
    """Differences b - a, pair by pair; None where they have no interval."""
    if len(a) < 2 or not all(math.isfinite(value) for value in (*a, *b)):
        return None
    differences = np.asarray(b, float) - np.asarray(a, float)
    return None if (differences == differences[0]).all() else differences


def _around(value: float, error: float, freedom: int) -> tuple[float, float]:
    """Student's interval at ``CONFIDENCE``. error: the standard error; freedom: its degrees of freedom."""
    from scipy.stats import t

    half = float(t.ppf(0.5 + CONFIDENCE / 2, freedom)) * error
    return value - half, value + half
