"""The section of docs/accuracy-details.md on MLPerf Inference, from the output of ``validate mlperf --json``."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import median
from typing import Any

from silicon_tables import table

#: Submissions of a cell from which on its best is taken to be near what the machine can do.
MANY = 6

#: Profiles with laws of an accelerator of its own.
PROFILES = Path(__file__).resolve().parents[1] / "profiles" / "latency"


def _has_tables(cell: dict[str, Any]) -> bool:
    return (PROFILES / f"{cell['engine']}-{cell['accelerator']}.yaml").exists()


def _summary(cells: list[dict[str, Any]]) -> list[list[str]]:
    """A row for each scenario and kind of cell."""
    rows = []
    for scenario in ("Offline", "Server", "Interactive"):
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


def mlperf(cells: list[dict[str, Any]]) -> str:
    """Each scenario in a line; then all cells, the largest misses first, and what was skipped."""
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
    return "\n\n".join([summary, table(columns, rows)]) + ending
