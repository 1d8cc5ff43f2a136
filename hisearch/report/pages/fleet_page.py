"""The report of a study of several models: one page that links to each model's own report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from hisearch.report.figures.scatter import FRAME, Mark, Scatter
from hisearch.report.words.templating import render_page
from hisearch.report.words.terms import TermLine
from hisearch.score.quantities import quantity
from hisearch.specs.studies.study import PRICE

#: Rows of the front on the page; all are in front.csv.
FRONT_ROWS = 40


class ModelPart(NamedTuple):
    """The recommendation for one model.

    report: address of its own report. requests: their number. attainment: share of them that meet every term.
    terms: of its SLO, when all models are simulated together.
    """

    name: str
    deployment: str
    usd_per_hour: float
    requests: int
    attainment: float
    terms: tuple[TermLine, ...]
    report: str


class SearchPart(NamedTuple):
    """One model's search. failure: why no deployment is feasible, or ""; report: its address, or ""."""

    name: str
    simulations: int
    front: int
    stopped: str
    failure: str
    report: str


class Combined(NamedTuple):
    """A deployment of all models. figures: of the fleet, by axis. deployments: as text, in the models' order."""

    figures: Mapping[str, float]
    deployments: tuple[str, ...]
    chosen: bool


class FleetReport(NamedTuple):
    """Data of the page.

    axes: of the front. feasible: whether the recommendation meets every SLO when all models are simulated together.
    parts: empty without a recommendation. coupled: limits on the fleet, as SLO lines. front: of the fleet, cheapest
    first. refused: why nothing is recommended, or "". cautions: for the reader.
    """

    name: str
    description: str
    axes: tuple[str, ...]
    feasible: bool
    usd_per_hour: float
    parts: tuple[ModelPart, ...]
    coupled: tuple[TermLine, ...]
    searches: tuple[SearchPart, ...]
    front: tuple[Combined, ...]
    refused: str
    cautions: tuple[str, ...]


def render_fleet(data: FleetReport) -> str:
    """The page's HTML, which runs no script; user text is escaped."""
    axes = sorted(data.axes, key=lambda axis: axis != PRICE)  # what it costs comes first
    rows = [
        (
            combination.chosen,
            combination.deployments,
            [quantity(axis).number(combination.figures[axis]) for axis in axes],
        )
        for combination in data.front[:FRONT_ROWS]
    ]
    return render_page("fleet.html.j2", data=data, axes=axes, rows=rows, scatters=_scatters(data), frame=FRAME)


def _scatters(data: FleetReport) -> list[tuple[str, Scatter]]:
    """The front, price against each other axis, with a caption; empty with fewer than two points."""
    if len(data.front) < 2:
        return []
    price = quantity(PRICE)
    scatters = []
    for axis in data.axes:
        if axis != PRICE:
            name = quantity(axis)
            marks = [_mark(combination, axis) for combination in data.front]
            caption = f"{name.title}, {name.good}, against {price.title}, lower is better"
            scatters.append((caption, Scatter.of(marks, price, name)))
    return scatters


def _mark(combination: Combined, axis: str) -> Mark:
    price, value = combination.figures[PRICE], combination.figures[axis]
    shown = (quantity(PRICE).show(price), quantity(axis).show(value), "; ".join(combination.deployments))
    return Mark(price, value, ", ".join(shown), combination.chosen)
