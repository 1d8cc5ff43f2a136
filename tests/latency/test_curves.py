"""Interpolation of measured points."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisearch.latency.measured.curves import Curve, Grid

RISING = st.lists(st.floats(0.1, 10.0), min_size=2, max_size=6).map(np.cumsum)


def test_a_curve_holds_below_and_goes_on_above() -> None:
    curve = Curve(np.array([1.0, 2.0, 4.0]), np.array([5.0, 6.0, 10.0]))
    assert curve([0.0, 1.0, 1.5, 3.0, 4.0, 6.0]).tolist() == [5.0, 5.0, 5.5, 8.0, 10.0, 14.0]


def test_a_falling_end_does_not_fall_on() -> None:
    assert Curve(np.array([1.0, 2.0]), np.array([5.0, 4.0]))(9.0) == 4.0
    assert Grid((np.array([1.0]), np.array([1.0, 2.0])), np.array([[5.0, 4.0]]))(1.0, 9.0) == 4.0


@given(x=RISING, y=RISING, at=st.floats(0.0, 1.0))
def test_between_two_points_a_curve_stays_between_them(x: np.ndarray, y: np.ndarray, at: float) -> None:
    y = np.resize(y, len(x))
    where = x[0] + at * (x[1] - x[0])
    assert min(y[0], y[1]) - 1e-9 <= Curve(x, y)(where) <= max(y[0], y[1]) + 1e-9


@given(x=RISING, y=RISING, seed=st.integers(0, 99))
def test_a_grid_passes_through_its_points_and_is_linear_between_them(x: np.ndarray, y: np.ndarray, seed: int) -> None:
    random = np.random.default_rng(seed)
    z = random.random((len(x), len(y)))
    grid = Grid((x, y), z)
    np.testing.assert_allclose(grid(x[:, None], y[None, :]), z)
    np.testing.assert_allclose(grid((x[0] + x[1]) / 2, y), (z[0] + z[1]) / 2)
    np.testing.assert_allclose(grid(x, (y[0] + y[1]) / 2), (z[:, 0] + z[:, 1]) / 2)


def test_a_law_linear_along_each_of_four_axes_is_met_everywhere() -> None:
    axes = tuple(np.array([1.0, 2.0, 5.0]) + k for k in range(4))
    a, b, c, d = np.meshgrid(*axes, indexing="ij")
    grid = Grid(axes, a * b + 2.0 * c * d + a * d)
    # Inside, and beyond the last knots.
    for at in ((1.5, 2.5, 3.5, 4.5), (9.0, 3.0, 20.0, 4.0)):
        assert grid(*at) == pytest.approx(at[0] * at[1] + 2.0 * at[2] * at[3] + at[0] * at[3])


def test_a_grid_on_axes_is_the_grid_at_every_combination() -> None:
    axes = (np.array([1.0, 2.0, 5.0]), np.array([3.0]), np.array([0.0, 4.0]))
    layers = np.random.default_rng(0).random((2, 3, 1, 2))
    at = (np.array([0.5, 2.0, 3.0, 9.0]), np.array([1.0, 8.0]), np.array([1.0, 4.0, 6.0]))
    regridded = Grid(axes, layers).on(at)
    for layer, values in zip(layers, regridded, strict=True):
        np.testing.assert_allclose(values, Grid(axes, layer)(*np.ix_(*at)))


def test_a_single_knot_is_a_constant() -> None:
    assert Curve(np.array([3.0]), np.array([7.0]))([0.0, 3.0, 99.0]).tolist() == [7.0, 7.0, 7.0]
    assert Grid((np.array([3.0]), np.array([1.0])), np.array([[7.0]]))(50.0, 0.0) == 7.0
