"""A small scatter plot as plain SVG, for pages that run no script."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hisearch.score.quantities import Quantity


class Frame(NamedTuple):
    """Size of the drawing and edges of its plot area, in the drawing's units."""

    width: float = 640.0
    height: float = 300.0
    left: float = 64.0
    right: float = 624.0
    top: float = 12.0
    bottom: float = 256.0


FRAME = Frame()

#: Labels on an axis, about.
_TICKS = 5


class Mark(NamedTuple):
    """A point: stored values, its description, and whether it is highlighted."""

    x: float
    y: float
    text: str
    chosen: bool


class Tick(NamedTuple):
    """A label on an axis, and its place."""

    at: float
    text: str


class Scatter(NamedTuple):
    """Data of a template.

    spots: the marks, their values in the drawing's units. beyond: number of marks left out because a value is not
    finite.
    """

    spots: tuple[Mark, ...]
    across: tuple[Tick, ...]
    up: tuple[Tick, ...]
    x_title: str
    y_title: str
    beyond: int

    @classmethod
    def of(cls, marks: Sequence[Mark], x: Quantity, y: Quantity) -> Scatter:
        """Place the marks; x, y: quantities of the axes."""
        drawn = [mark for mark in marks if math.isfinite(mark.x) and math.isfinite(mark.y)]
        xs, ys = _Axis.over([mark.x * x.scale for mark in drawn]), _Axis.over([mark.y * y.scale for mark in drawn])
        wide, high = FRAME.right - FRAME.left, FRAME.bottom - FRAME.top
        spots = [
            Mark(
                round(FRAME.left + wide * xs.share(mark.x * x.scale), 1),
                round(FRAME.top + high * (1 - ys.share(mark.y * y.scale)), 1),
                mark.text,
                mark.chosen,
            )
            for mark in sorted(drawn, key=lambda mark: mark.chosen)  # highlighted marks are drawn last
        ]
        across = [Tick(round(FRAME.left + wide * xs.share(value), 1), _label(value)) for value in xs.ticks]
        up = [Tick(round(FRAME.top + high * (1 - ys.share(value)), 1), _label(value)) for value in ys.ticks]
        return cls(tuple(spots), tuple(across), tuple(up), x.title, y.title, len(marks) - len(drawn))


class _Axis(NamedTuple):
    low: float
    high: float
    ticks: tuple[float, ...]

    @classmethod
    def over(cls, values: Sequence[float]) -> _Axis:
        """Round steps that enclose the values; with at most one value the axis is padded."""
        low, high = (min(values), max(values)) if values else (0.0, 1.0)
        span = high - low or abs(high) or 1.0
        step = _round_step(span / _TICKS)
        first, last = math.floor(low / step), math.ceil(high / step)
        if first == last:
            first, last = first - 1, last + 1
        ticks = tuple(float(value) for value in np.arange(first, last + 1) * step)
        return cls(ticks[0], ticks[-1], ticks)

    def share(self, value: float) -> float:
        """Place of a value, 0 at the low end and 1 at the high one."""
        return (value - self.low) / (self.high - self.low)


def _round_step(least: float) -> float:
    """The smallest 1, 2 or 5 times a power of ten that is at least ``least``."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least * (1 - 1e-9))


def _label(value: float) -> str:
    return f"{value:,.10g}".replace("-", "−")
