"""Fits find the coefficients that made the measurements, and show an error on shapes that they did not see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from hisearch.calibrate.fitting import Bounds, Problem, fit


def problem(noise: float = 0.0, points: int = 400, **more: Any) -> Problem:
    """``seconds = a + b * x`` of 20 shapes."""
    random = np.random.default_rng(1)
    x = random.uniform(1.0, 100.0, points)
    measured = (2.0 + 0.5 * x) * np.exp(noise * random.standard_normal(points))

    def predict(coefficients: Mapping[str, Any], at: Any) -> Any:
        seconds = coefficients["a"] + coefficients["b"] * x[at]
        return seconds * np.interp(x[at], coefficients.get("tokens", [1]), coefficients.get("correction", [1.0]))

    bounds = {"a": Bounds(0.1, 1.0, 10.0), "b": Bounds(0.01, 0.1, 10.0)}
    return Problem(bounds, predict, measured, np.arange(points) % 20, x, **more)


def test_exact_measurements_give_the_coefficients_back() -> None:
    fitted = fit(problem())
    assert fitted.coefficients["a"] == pytest.approx(2.0, rel=1e-3)
    assert fitted.coefficients["b"] == pytest.approx(0.5, rel=1e-3)
    assert fitted.error.median < 1e-3
    assert fitted.error.points == 400


def test_errors_of_noisy_measurements_are_the_noise() -> None:
    """The median of |N(0, 10 %)| is 6.7 %."""
    fitted = fit(problem(noise=0.1))
    assert fitted.error.median == pytest.approx(0.067, rel=0.15)
    assert fitted.error.p90 == pytest.approx(0.164, rel=0.2)


def test_a_broken_tenth_does_not_bend_the_fit() -> None:
    clean = problem()
    broken = clean.measured.copy()
    broken[::10] *= 5.0
    fitted = fit(clean._replace(measured=broken))
    assert fitted.coefficients["b"] == pytest.approx(0.5, rel=0.03)
    assert fitted.error.median < 0.03


def test_a_shape_that_differs_shows_in_the_error_left_out() -> None:
    """Half of the shapes take twice as long: no law of x alone can tell them."""
    clean = problem()
    fitted = fit(clean._replace(measured=clean.measured * np.where(clean.groups % 2, 2.0, 1.0)))
    assert fitted.error.median > 0.2


def test_errors_are_stated_by_regime_where_steps_of_all_kinds_are_measured() -> None:
    plain = problem()
    assert fit(plain).error.decode_median is None
    steps = plain._replace(units=plain.units * 10.0, knots=(10, 1000))
    noisy = steps._replace(measured=steps.measured * np.where(steps.units > 256, np.tile([0.8, 1.25], 200), 1.0))
    error = fit(noisy).error
    assert error.decode_median is not None
    assert error.prefill_median is not None
    assert error.decode_median < 0.1 < error.prefill_median


def test_corrections_take_up_what_the_law_leaves() -> None:
    bent = problem(knots=(10, 50, 90))
    bent = bent._replace(measured=bent.measured * np.where(bent.units > 70.0, 1.3, 1.0))
    fitted = fit(bent)
    assert fitted.coefficients["tokens"] == [10, 50, 90]
    assert fitted.coefficients["correction"][2] > fitted.coefficients["correction"][1]


def test_too_few_points_are_refused() -> None:
    with pytest.raises(ValueError, match="10 points are too few to fit 2 coefficients"):
        fit(problem(points=10))
    with pytest.raises(ValueError, match="400 points of one shape"):
        fit(problem()._replace(groups=np.zeros(400, dtype=np.int64)))
