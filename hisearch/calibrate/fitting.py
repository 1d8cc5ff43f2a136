"""Robust fits of a law's coefficients, with the error on held-out shapes.

Notation
    theta   coefficients, in logarithms, inside stated bounds
    r       log(predicted / measured) of each point

The fit minimises the soft L1 loss of r, linear beyond 10 %: a few badly chosen kernels do not bend the law. Folds hold
out whole shapes (all sizes of a matrix, all batches of a set of heads), never single points: neighbouring sizes of one
shape are nearly the same measurement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hisearch.base.dtypes import F8
from hisearch.base.one_thread import on_one_thread
from hisearch.specs.machines.laws import FitError

#: Deviation beyond which the loss is linear; folds; most points and evaluations of one fit.
KNEE = 0.1
FOLDS = 3
MOST_POINTS = 1500
MOST_EVALUATIONS = 40

#: Most tokens of a step that counts as decode, where a family's error is stated by regime.
DECODE_TOKENS = 256

#: Fewest points of a fit.
LEAST_POINTS = 30


class Bounds(NamedTuple):
    """Lowest, first and highest value of a coefficient; all positive."""

    low: float
    start: float
    high: float


class Problem(NamedTuple):
    """One law on one table.

    bounds: of each coefficient.
    predict: seconds of the points with the given indices; the coefficients by name, knots of the correction included.
    measured: seconds, shape (points,).
    groups: shape of each point, as an integer.
    units: tokens of each point, for the correction.
    knots: of the correction; empty for none.
    """

    bounds: Mapping[str, Bounds]
    predict: Callable[[Mapping[str, Any], npt.NDArray[np.int64]], F8]
    measured: F8
    groups: npt.NDArray[np.int64]
    units: F8
    knots: Sequence[int] = ()


class Fit(NamedTuple):
    """Coefficients by name, and their error."""

    coefficients: dict[str, Any]
    error: FitError


@on_one_thread
def fit(problem: Problem, seed: int = 0) -> Fit:
    """Fit the law on all points, and state the error on held-out shapes.

    Raises:
        ValueError: there are fewer points than ``LEAST_POINTS``, or all are of one shape.
    """
    count = len(problem.measured)
    if count < LEAST_POINTS:
        raise ValueError(f"{count} points are too few to fit {len(problem.bounds)} coefficients")
    if len(np.unique(problem.groups)) < 2:
        raise ValueError(f"{count} points of one shape: none can be left out of the fit")
    everything = np.arange(count)
    start = np.log([bound.start for bound in problem.bounds.values()])
    theta, coefficients = _solve(problem, everything, start, seed)
    fitted = _errors(problem, coefficients, everything)
    fold = np.random.default_rng(seed).permutation(int(problem.groups.max()) + 1)[problem.groups] % FOLDS
    errors = np.full(count, np.nan)
    for index in range(FOLDS):
        inside, outside = everything[fold != index], everything[fold == index]
        if len(inside) and len(outside):
            errors[outside] = _errors(problem, _solve(problem, inside, theta, seed)[1], outside)
    is_decode = problem.units <= DECODE_TOKENS
    error = FitError(
        points=count,
        median=_rounded(np.nanmedian(errors)),
        p90=_rounded(np.nanquantile(errors, 0.9)),
        fitted_median=_rounded(np.median(fitted)),
        decode_median=_rounded(np.nanmedian(errors[is_decode])) if problem.knots and is_decode.any() else None,
        prefill_median=_rounded(np.nanmedian(errors[~is_decode])) if problem.knots and not is_decode.all() else None,
    )
    return Fit(coefficients, error)


def _solve(problem: Problem, points: npt.NDArray[np.int64], start: F8, seed: int) -> tuple[F8, dict[str, Any]]:
    from scipy.optimize import least_squares

    chosen = points
    if len(points) > MOST_POINTS:
        chosen = np.random.default_rng(seed).choice(points, MOST_POINTS, replace=False)
    low, high = (np.log([getattr(b, side) for b in problem.bounds.values()]) for side in ("low", "high"))
    names, logs = list(problem.bounds), np.log(problem.measured[chosen])

    def residuals(theta: F8) -> F8:
        return np.log(problem.predict(_named(names, theta), chosen)) - logs

    inside = np.clip(start, low + 1e-6, high - 1e-6)
    solution = least_squares(
        residuals, inside, bounds=(low, high), loss="soft_l1", f_scale=KNEE, max_nfev=MOST_EVALUATIONS
    )
    coefficients = _named(names, solution.x)
    if problem.knots:
        coefficients |= _correction(problem, coefficients, points)
    return solution.x, coefficients


def _correction(problem: Problem, coefficients: dict[str, Any], points: npt.NDArray[np.int64]) -> dict[str, Any]:
    """Median of measured over predicted at the points nearest to each knot; 1 at knots without points."""
    ratio = problem.measured[points] / problem.predict(coefficients, points)
    knots = np.log(np.asarray(problem.knots, dtype=np.float64))
    nearest = np.abs(np.log(problem.units[points])[:, None] - knots[None, :]).argmin(axis=1)
    factors = [float(np.median(ratio[nearest == i])) if np.any(nearest == i) else 1.0 for i in range(len(knots))]
    return {"tokens": list(problem.knots), "correction": [round(factor, 3) for factor in factors]}


def _named(names: Sequence[str], theta: F8) -> dict[str, Any]:
    """Coefficients by name; ``name.0``, ``name.1`` … become a tuple."""
    values: dict[str, Any] = {}
    for name, value in zip(names, np.exp(theta), strict=True):
        base, _, index = name.partition(".")
        values[base] = (*values.get(base, ()), float(value)) if index else float(value)
    return values


def _errors(problem: Problem, coefficients: dict[str, Any], points: npt.NDArray[np.int64]) -> F8:
    return np.asarray(np.abs(problem.predict(coefficients, points) / problem.measured[points] - 1.0))


def _rounded(value: float) -> float:
    return round(float(value), 4)
