"""The section of docs/accuracy-details.md on MLPerf Inference, from the output of ``validate mlperf --json``."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import median
from typing import Any

from silicon_figures import COLOURS
from silicon_tables import table

SCENARIOS = ("Offline", "Server", "Interactive")

#: Submissions of a cell from which on its best is taken to be near what the machine can do.
MANY = 6

#: Profiles with laws of an accelerator of its own.
PROFILES = Path(__file__).resolve().parents[1] / "profiles" / "latency"


def _has_tables(cell: dict[str, Any]) -> bool:
    return (PROFILES / f"{cell['engine']}-{cell['accelerator']}.yaml").exists()


def _summary(cells: list[dict[str, Any]]) -> list[list[str]]:
    """A row for each scenario and kind of cell."""
    rows = []
    for scenario in SCENARIOS:
        of = [cell for cell in cells if cell["scenario"] == scenario]
        kinds = {
            "all": of,
            "GPUs with tables of their own": [cell for cell in of if _has_tables(cell)],
            "GPUs without": [cell for cell in of if not _has_tables(cell)],
            f"{MANY} submissions or more": [cell for cell in of if cell["submissions"] >= MANY],
            "fewer": [cell for cell in of if cell["submissions"] < MANY],
        }
        for whose, some in kinds.items():
            if ratios := [cell["ratio"] for cell in some]:
                error = median(abs(ratio - 1) for ratio in ratios)
                spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
                rows.append([scenario, whose, str(len(ratios)), f"{error * 100:.0f} %", spread])
    return rows


#: The picture: its file, size of a panel, margins, and the ratios that its axis shows.
FIGURE = "mlperf.svg"
WIDTH, HEIGHT, LEFT, TOP, BOTTOM, GAP = 260, 220, 44, 34, 30, 16
RATIOS = (0.8, 1.0, 1.25, 1.5, 2.0, 2.5)


def figure(cells: list[dict[str, Any]]) -> str:
    """Simulated over best submission as SVG: a panel for each scenario, a point for each cell in rising order."""
    # As the table has them.
    searched = [cell | {"ratio": round(cell["ratio"], 2)} for cell in cells if not cell["skipped"]]
    panels = []
    for index, scenario in enumerate(SCENARIOS):
        of = sorted((cell for cell in searched if cell["scenario"] == scenario), key=_place)
        panels.append(_panel(scenario, of, LEFT + index * (WIDTH + GAP), axis=index == 0))
    width, height = LEFT + len(SCENARIOS) * (WIDTH + GAP), TOP + HEIGHT + BOTTOM
    entries = [f'<tspan fill="{COLOURS[name]}">● {name}</tspan>' for name in ("trtllm", "vllm")]
    entries.append(f"<tspan>filled: {MANY} submissions or more; line: median</tspan>")
    legend = f'<text x="{LEFT}" y="{height - 8}">{" &#160; ".join(entries)}</text>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="Arial" font-size="12">'
        f'<rect width="100%" height="100%" fill="white"/>{"".join(panels)}{legend}</svg>\n'
    )


def _place(cell: dict[str, Any]) -> tuple[float, int, str]:
    """By the ratio; equal ones by what their points look like."""
    return cell["ratio"], cell["submissions"], cell["engine"]


def _y(ratio: float) -> float:
    low, high = math.log(RATIOS[0]), math.log(RATIOS[-1])
    return TOP + HEIGHT * (1.0 - (min(max(math.log(ratio), low), high) - low) / (high - low))


def _panel(scenario: str, cells: list[dict[str, Any]], left: float, *, axis: bool) -> str:
    parts = [f'<text x="{left}" y="{TOP - 12}" font-size="14">{scenario}: simulated over best</text>']
    for ratio in RATIOS:
        dash = "" if ratio == 1.0 else ' stroke-dasharray="2 3"'
        parts.append(f'<path d="M{left} {_y(ratio):.0f}h{WIDTH}" stroke="#999"{dash}/>')
        if axis:
            parts.append(f'<text x="{left - 6}" y="{_y(ratio) + 4:.0f}" text-anchor="end">{ratio:g}</text>')
    for place, cell in enumerate(cells, 1):
        x, colour = left + WIDTH * place / (len(cells) + 1), COLOURS[cell["engine"]]
        fill = colour if cell["submissions"] >= MANY else "white"
        parts.append(
            f'<circle cx="{x:.0f}" cy="{_y(cell["ratio"]):.0f}" r="4.5" fill="{fill}" stroke="{colour}" '
            'stroke-width="1.5"/>'
        )
    if cells:
        middle = _y(median(cell["ratio"] for cell in cells))
        parts.append(f'<path d="M{left} {middle:.0f}h{WIDTH}" stroke="#333" stroke-width="1.5"/>')
    return "".join(parts)


def mlperf(cells: list[dict[str, Any]]) -> str:
    """Each scenario in a line and as a picture; then all cells, the largest misses first, and what was skipped."""
    searched = [cell for cell in cells if not cell["skipped"]]
    searched.sort(key=lambda cell: -abs(math.log(cell["ratio"])))
    rows = [
        [
            cell["model"], f"{cell['accelerators']} × {cell['accelerator']}", cell["scenario"], cell["engine"],
            str(cell["submissions"]), f"{cell['best_tokens_per_s']:,.0f}", f"{cell['median_tokens_per_s']:,.0f}",
            f"{cell['simulated_tokens_per_s']:,.0f}", f"{cell['ratio']:.2f}",
        ]
        for cell in searched
    ]  # fmt: skip
    columns = (
        "model",
        "machine",
        "scenario",
        "engine",
        "submissions",
        "best",
        "median",
        "simulated",
        "simulated / best",
    )
    summary = table(("scenario", "cells", "count", "median error", "simulated / best"), _summary(searched))
    reasons = sorted({cell["skipped"] for cell in cells if cell["skipped"]})
    skipped = len(cells) - len(searched)
    ending = f"\n\nSkipped, {skipped} cells: {'; '.join(reasons)}." if skipped else ""
    picture = f"![Simulated over best submission, by scenario](images/{FIGURE})"
    return "\n\n".join([summary, picture, table(columns, rows)]) + ending
