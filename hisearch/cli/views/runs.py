"""Output of ``hisearch validate runs``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hisearch.cli import output
from hisearch.specs.wording import format_percent

if TYPE_CHECKING:
    from hisearch.api.measured.score import RunFigure, RunScore


def show(scores: Sequence[RunScore]) -> None:
    """Assumptions first, then a row for each figure; those that set a constant are marked."""
    for score in scores:
        for assumption in score.assumptions:
            output.say(f"{score.id}: assumed: {assumption}")
    rows = [
        (score.id, name, figure.unit, f"{figure.measured:,.5g}", f"{figure.simulated:,.5g}", *errors_of(figure))
        for score in scores
        for name, figure in score.figures.items()
    ]
    columns = ("run", "figure", "unit", "measured", "simulated", "error", "by second, median", "remark")
    output.table(columns, rows, numbers=range(3, 7))
    failed = [(score.id, score.reason) for score in scores if score.reason]
    if failed:
        output.heading("Not simulated")
        output.table(("run", "reason"), failed)


def errors_of(figure: RunFigure) -> tuple[str, str, str]:
    """Of the whole run, by second (median, of hit rates the largest too), and what the figure set."""
    points = figure.unit.startswith("%")
    error = f"{figure.error:+.1f} points" if points else format_percent(figure.error, 1, signed=True)
    median, largest = figure.median_error, figure.largest_error
    by_second = "" if median is None else f"{median:.1f} points" if points else format_percent(median, 1)
    if points and largest is not None:
        by_second += f", at most {largest:.1f}"
    return error, by_second, f"set here: {figure.set_here}" if figure.set_here else ""
