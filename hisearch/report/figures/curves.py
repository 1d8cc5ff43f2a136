"""Small curves of steps as plain SVG, for pages that run no script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

#: Size of the drawing, and the edges of its plot area; drawing units.
WIDTH, HEIGHT = 320.0, 104.0
LEFT, RIGHT, TOP, BOTTOM = 4.0, 316.0, 22.0, 86.0


class Curve(NamedTuple):
    """Data of the template. path: SVG, steps up to ``end``; last: the latest value, as text.

    low, high: of the values, as text; last_at: the latest simulation.
    """

    title: str
    path: str
    last: str
    low: str
    high: str
    last_at: str
    summary: str


def curve(title: str, points: Sequence[tuple[int, float]], until: int, show: Callable[[float], str]) -> Curve | None:
    """Steps through ``points``, (simulation, value) in order, held until simulation ``until``; None without points."""
    if not points:
        return None
    values = [value for _, value in points]
    low, high = min(values), max(values)
    end = max(until, points[-1][0], 1)

    def x(at: int) -> float:
        return round(LEFT + (RIGHT - LEFT) * at / end, 1)

    def y(value: float) -> float:
        return round(BOTTOM - (BOTTOM - TOP) * ((value - low) / (high - low) if high > low else 0.5), 1)

    path = f"M{x(points[0][0]):g} {y(points[0][1]):g}"
    path += "".join(f"H{x(at):g}V{y(value):g}" for at, value in points[1:]) + f"H{x(end):g}"
    summary = f"{title}: {show(values[0])} after simulation {points[0][0]:,}, {show(values[-1])} after {end:,}"
    return Curve(title, path, show(values[-1]), show(low), show(high), f"{end:,}", summary)
