"""The tabs of the report, and which figures and cautions belong to each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hisearch.report.data.inputs import ReportInput
from hisearch.report.figures.drawing import Drawing
from hisearch.report.pages.page import Caution

#: Key of a tab -> its title, in order.
TITLES = {
    "answer": "Answer",
    "why": "Why",
    "trades": "Trades",
    "sensitivity": "Sensitivity",
    "load": "Load",
    "cache": "Cache",
    "time": "Time course",
    "trials": "All trials",
    "provenance": "Provenance",
}

#: Key of a drawing -> its tab; all others are of the trials.
_OF_DRAWING = {
    "costs": "why",
    "importance": "sensitivity",
    "capacity": "load",
    "latencies": "load",
    "classes": "load",
    "ideal": "cache",
    "tier-use": "cache",
    "tiers": "cache",
    "workers": "time",
    "tier-room": "time",
    "progress": "provenance",
}


class Tab(NamedTuple):
    """A tab. cautions: in full, those that it explains."""

    key: str
    title: str
    drawings: tuple[Drawing, ...]
    cautions: tuple[Caution, ...]


def tabs(
    data: ReportInput, drawings: Sequence[Drawing], cautions: Sequence[Caution], filled: Sequence[str]
) -> dict[str, Tab]:
    """The tabs that have something to show, by key.

    Args:
        data: the report's.
        drawings: all figures, in order.
        cautions: all of them; one whose tab is left out is explained under Provenance.
        filled: tabs that have tables or texts of their own.
    """
    by_tab: dict[str, list[Drawing]] = {key: [] for key in TITLES}
    for drawing in drawings:
        by_tab[_OF_DRAWING.get(drawing.key, "trials")].append(drawing)
    shown = [key for key in TITLES if by_tab[key] or key in filled]
    explained = {key: tuple(c for c in cautions if tab_of(c, shown) == key) for key in shown}
    titles = TITLES | ({} if data.recommendation is not None else {"why": "Why not"})
    return {key: Tab(key, titles[key], tuple(by_tab[key]), explained[key]) for key in shown}


def tab_of(caution: Caution, shown: Sequence[str]) -> str:
    """The tab that explains a caution."""
    return caution.tab if caution.tab in shown else "provenance"
