"""Output of ``hisearch validate mlperf``."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hisearch.api.mlperf import Cell
from hisearch.cli import output
from hisearch.score.quantities import significant
from hisearch.specs.wording import counted


def show(cells: Sequence[Cell]) -> None:
    """The largest misses first, then the median by scenario, then what was skipped and why."""
    searched = sorted(
        (cell for cell in cells if not cell.skipped), key=lambda cell: -abs(math.log(max(cell.ratio, 1e-9)))
    )
    if searched:
        output.say(f"{counted(len(searched), 'cell')}: generated tokens per second and accelerator", bold=True)
        rows = [
            {
                "model": cell.model,
                "accelerator": f"{cell.accelerators} × {cell.accelerator}",
                "scenario": cell.scenario,
                "submissions": cell.submissions,
                "best": significant(cell.best_tokens_per_s),
                "median": significant(cell.median_tokens_per_s),
                "simulated": significant(cell.simulated_tokens_per_s or 0.0),
                "sim/best": f"{cell.ratio:.2f}",
                "settings": cell.settings,
            }
            for cell in searched
        ]
        output.records(rows, text=("model", "accelerator", "scenario", "settings"))
        output.heading("Simulated over best")
        for scenario in dict.fromkeys(cell.scenario for cell in searched):
            ratios = np.array([cell.ratio for cell in searched if cell.scenario == scenario])
            output.say(
                f"{scenario}: median {np.median(ratios):.2f}, {ratios.min():.2f} to {ratios.max():.2f}; median error "
                f"{np.median(np.abs(ratios - 1)) * 100:.0f} %"
            )
    skipped = [cell for cell in cells if cell.skipped]
    if skipped:
        output.heading("Skipped")
        reasons = [
            (cell.model, cell.accelerator, cell.scenario, str(cell.submissions), cell.skipped) for cell in skipped
        ]
        output.table(("model", "accelerator", "scenario", "submissions", "reason"), reasons, numbers=(3,))
