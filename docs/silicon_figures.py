"""Residuals of measured serving runs as SVG: a point for each row, predicted over measured, by a property of the row.

Written by ``generate_accuracy.py``. A figure has a panel for TTFT and one for TPOT; engines are colours, lines their
medians at values with enough rows. Points beyond the axes lie on their edge.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from html import escape
from statistics import median

Row = dict[str, str]

COLOURS = {"sglang": "#1f77b4", "trtllm": "#2ca02c", "vllm": "#d62728"}
#: Size of a panel, its margins, and what it shows: a third to three times the measured.
WIDTH, HEIGHT, LEFT, TOP, BOTTOM, GAP = 400, 260, 56, 34, 46, 40
MOST = 3.0
RATIOS = (1 / 3, 0.5, 0.8, 1.0, 1.25, 2.0, 3.0)
#: Points of a value are spread so far, in pixels, engine by engine.
SPREAD = 4
#: Rows of a value that its median needs.
LEAST_ROWS = 6


def residual_figure(rows: Sequence[Row], title: str, of_row: Callable[[Row], float]) -> str:
    """The figure by ``of_row``, a positive number; ``title`` names it."""
    values = sorted({of_row(row) for row in rows})
    panels = [
        _panel(rows, name, title, of_row, values, LEFT + index * (WIDTH + GAP + LEFT))
        for index, name in enumerate(("ttft", "tpot"))
    ]
    width, height = 2 * (LEFT + WIDTH) + GAP + 20, TOP + HEIGHT + BOTTOM
    legend = "".join(
        f'<text x="{LEFT + 170 * index}" y="{height - 4}" fill="{colour}">● {engine}, line: median</text>'
        for index, (engine, colour) in enumerate(COLOURS.items())
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="Arial" font-size="12">'
        f'<rect width="100%" height="100%" fill="white"/>{"".join(panels)}{legend}</svg>\n'
    )


def _panel(
    rows: Sequence[Row], name: str, title: str, of_row: Callable[[Row], float], values: Sequence[float], left: int
) -> str:
    low, high = math.log(values[0]), math.log(values[-1]) if len(values) > 1 else math.log(values[0]) + 1.0

    def x(value: float) -> float:
        return left + 16 + (WIDTH - 32) * (math.log(value) - low) / (high - low)

    def y(ratio: float) -> float:
        share = math.log(min(max(ratio, 1 / MOST), MOST)) / math.log(MOST)
        return TOP + HEIGHT * (1.0 - share) / 2.0

    heading = f"{name.upper()}: predicted over measured, by {escape(title)}"
    parts = [f'<text x="{left}" y="{TOP - 12}" font-size="14">{heading}</text>']
    for ratio in RATIOS:
        dash = "" if ratio == 1.0 else ' stroke-dasharray="2 3"'
        parts.append(f'<path d="M{left} {y(ratio):.0f}h{WIDTH}" stroke="#999"{dash}/>')
        parts.append(f'<text x="{left - 6}" y="{y(ratio) + 4:.0f}" text-anchor="end">{ratio:.3g}</text>')
    shown = -math.inf
    for value in values:
        if x(value) - shown >= 26:
            shown = x(value)
            parts.append(f'<text x="{shown:.0f}" y="{TOP + HEIGHT + 16}" text-anchor="middle">{value:g}</text>')
    for index, (engine, colour) in enumerate(COLOURS.items()):
        ratios = defaultdict(list)
        for row in rows:
            if row["backend"] == engine:
                ratios[of_row(row)].append(float(row[f"predicted_{name}_ms"]) / float(row[f"measured_{name}_ms"]))
        shift = SPREAD * (index - 1)
        dots = "".join(
            f"M{x(value) + shift:.0f} {y(ratio):.0f}h0"
            for value, of_value in sorted(ratios.items())
            for ratio in of_value
        )
        line = "L".join(
            f"{x(value) + shift:.0f} {y(median(of_value)):.0f}"
            for value, of_value in sorted(ratios.items())
            if len(of_value) >= LEAST_ROWS
        )
        parts.append(
            f'<path d="{dots}" stroke="{colour}" stroke-width="4" stroke-linecap="round" stroke-opacity="0.35"/>'
        )
        parts.append(f'<path d="M{line}" fill="none" stroke="{colour}" stroke-width="2"/>' if line else "")
    return "".join(parts)
