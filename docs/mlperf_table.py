"""The section of docs/accuracy-details.md on MLPerf Inference, from the output of ``validate mlperf --json``."""

from __future__ import annotations

import math
from statistics import median
from typing import Any

from silicon_tables import table


def mlperf(cells: list[dict[str, Any]]) -> str:
    """The largest misses first; then each scenario in a line, and what was skipped."""
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
    lines = []
    for scenario in ("Offline", "Server", "Interactive"):
        ratios = [cell["ratio"] for cell in searched if cell["scenario"] == scenario]
        if ratios:
            error = median(abs(ratio - 1) for ratio in ratios)
            lines.append(
                f"- {scenario}: {len(ratios)} cells, median |error| {error * 100:.0f} %, {min(ratios):.2f} to "
                f"{max(ratios):.2f} of the best."
            )
    reasons = sorted({cell["skipped"] for cell in cells if cell["skipped"]})
    skipped = len(cells) - len(searched)
    ending = f"\n\nSkipped, {skipped} cells: {'; '.join(reasons)}." if skipped else ""
    return "\n".join([*lines, "", table(columns, rows)]) + ending
