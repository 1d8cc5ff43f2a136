"""Measured points as functions: linear between points, flat below the first, with the last slope beyond.

Linear interpolation is bounded by its neighbours and rises where they rise: nothing is fitted, nothing overshoots.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hisearch.base.dtypes import F8


@dataclass(frozen=True)
class Curve:
    """Points ``(x, y)``, x rising; flat below the first, with the last slope, if positive, beyond the last."""

    x: F8
    y: F8

    def __call__(self, at: npt.ArrayLike) -> F8:
        """Values at ``at``, same shape."""
        where = np.asarray(at, dtype=np.float64)
        inside = np.interp(where, self.x, self.y)
        if len(self.x) < 2:
            return np.asarray(inside)
        slope = max(self.y[-1] - self.y[-2], 0.0) / (self.x[-1] - self.x[-2])
        return np.asarray(inside + slope * np.maximum(where - self.x[-1], 0.0))


@dataclass(frozen=True)
class Grid:
    """Values over axes with rising knots; linear along each, beyond its knots like ``Curve``."""

    axes: tuple[F8, ...]
    values: F8

    def __call__(self, *at: npt.ArrayLike) -> F8:
        """Values at the broadcast coordinates, one per axis."""
        where = np.broadcast_arrays(*(np.asarray(x, dtype=np.float64) for x in at))
        cells = [_cells(axis, x) for axis, x in zip(self.axes, where, strict=True)]
        sides = [(cell, np.minimum(cell + 1, len(axis) - 1)) for (cell, _), axis in zip(cells, self.axes, strict=True)]
        corners = [self.values[corner] for corner in itertools.product(*sides)]
        # The last axis first: neighbours in the list differ in this axis only.
        for _, share in reversed(cells):
            pairs = zip(corners[::2], corners[1::2], strict=True)
            corners = [low + _beyond(high - low, share) for low, high in pairs]
        return np.asarray(corners[0])

    def on(self, axes: Sequence[F8]) -> F8:
        """Values at every combination of coordinates along the axes; ``values`` may have further leading axes."""
        values = self.values
        # The last axis first, as above: the order matters beyond the knots.
        for axis in range(-1, -len(self.axes) - 1, -1):
            knots = self.axes[axis]
            cell, share = _cells(knots, axes[axis])
            low, high = values.take(cell, axis), values.take(np.minimum(cell + 1, len(knots) - 1), axis)
            values = low + _beyond(high - low, share.reshape(-1, *(1,) * (-1 - axis)))
        return values


def _cells(knots: F8, at: F8) -> tuple[npt.NDArray[np.int64], F8]:
    """Cells of ``at`` and positions in them: 0 to 1 inside, more beyond the last knot."""
    if len(knots) < 2:
        return np.zeros(at.shape, dtype=np.int64), np.zeros(at.shape)
    cell = np.clip(np.searchsorted(knots, at, side="right") - 1, 0, len(knots) - 2)
    return cell, np.maximum((at - knots[cell]) / (knots[cell + 1] - knots[cell]), 0.0)


def _beyond(rise: F8, place: F8) -> F8:
    """``rise * place``, without falling beyond place 1."""
    return np.asarray(np.where(place > 1.0, rise + np.maximum(rise, 0.0) * (place - 1.0), rise * place))
