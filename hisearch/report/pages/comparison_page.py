"""A comparison as one small HTML file that opens offline and runs no script."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from hisearch.report.data.comparison import Comparison, Figure
from hisearch.report.words import comparison_words as words
from hisearch.report.words.templating import render_page, text
from hisearch.report.words.terms import term_lines


class Bar(NamedTuple):
    """A part of the difference as a bar around a middle line. left, width: in per cent of the bar's cell."""

    name: str
    value: str
    meaning: str
    left: float
    width: float
    slower: bool


def write_comparison(comparison: Comparison, path: Path) -> None:
    """Write the page; its folder exists."""
    path.write_text(render_comparison(comparison), encoding="utf-8", newline="\n")


def render_comparison(comparison: Comparison, *, home: str = "") -> str:
    """The page's HTML; user text is escaped. ``home``: address of the page to link back to."""
    # One seed has no intervals: a column of dashes would push "better" off a phone's screen.
    no_intervals = all(figure.low is None for figure in comparison.figures)
    columns = [at for at, title in enumerate(words.FIGURE_COLUMNS) if not (no_intervals and title == words.INTERVAL)]

    def table(figures: Sequence[Figure]) -> list[tuple[str, ...]]:
        return [tuple(row[at] for at in columns) for row in words.figure_rows(figures)]

    return render_page(
        "comparison.html.j2",
        data=comparison,
        home=home,
        summary=words.summary(comparison),
        seeds=text("comparison", "seeds", comparison),
        fronts=text("comparison", "fronts", comparison.fronts),
        question_rows=[(change.key, change.a, change.b) for change in comparison.question],
        change_rows=[(change.key, change.a, change.b) for change in comparison.changes],
        figure_columns=[words.FIGURE_COLUMNS[at] for at in columns],
        figures=table(comparison.figures),
        models=[(model.model, table(model.figures)) for model in comparison.models],
        times=words.time_rows(comparison),
        bars=bars(comparison),
        total=words.part_rows(comparison)[-1:],
        drivers=words.driver_rows(comparison),
        terms=[(term_lines(side.slo), words.verdict(side)) for side in (comparison.a, comparison.b)],
    )


def bars(comparison: Comparison) -> list[Bar]:
    """The parts; the longest takes half of its cell, to the right where B is slower for it."""
    longest = max((abs(part.difference_s) for part in comparison.parts), default=0.0) or 1.0
    rows = []
    for part, (name, value, meaning) in zip(comparison.parts, words.part_rows(comparison), strict=False):
        width = round(50 * abs(part.difference_s) / longest, 2)
        slower = part.difference_s > 0
        rows.append(Bar(name, value, meaning, 50.0 if slower else round(50 - width, 2), width, slower))
    return rows
