"""The section of docs/accuracy-details.md on MLPerf Inference, from the output of ``validate mlperf --json``."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import median
from typing import Any

from silicon_tables import table

#: Profiles with laws of an accelerator of its own.
PROFILES = Path(__file__).resolve().parents[1] / "profiles" / "latency"


def _summary(cells: list[dict[str, Any]]) -> list[list[str]]:
    """A row for each scenario and kind of GPU."""
    rows = []
    for scenario in ("Offline", "Server", "Interactive"):
        of = [cell for cell in cells if cell["scenario"] == scenario]
        own = [cell for cell in of if (PROFILES / f"{cell['engine']}-{cell['accelerator']}.yaml").exists()]
        others = [cell for cell in of if cell not in own]
        for whose, some in (("all", of), ("with tables of their own", own), ("without", others)):
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
    summary = table(("scenario", "GPUs", "cells", "median error", "simulated / best"), _summary(searched))
    reasons = sorted({cell["skipped"] for cell in cells if cell["skipped"]})
    skipped = len(cells) - len(searched)
    ending = f"\n\nSkipped, {skipped} cells: {'; '.join(reasons)}." if skipped else ""
    return "\n\n".join([summary, table(columns, rows)]) + ending
