"""The report of a study of several models: one page that links to each model's own report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hisearch.report.figures.scatter import FRAME, Mark, Scatter
from hisearch.report.words.templating import render_page
from hisearch.report.words.terms import TermLine
from hisearch.score.quantities import HOURS_PER_MONTH, percent, quantity, usd
from hisearch.specs.studies.fleet_study import PRICE
from hisearch.specs.wording import counted, listed

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
    names = [quantity(axis) for axis in axes]
    rows = [
        (
            combination.chosen,
            combination.deployments,
            [name.number(combination.figures[axis]) for name, axis in zip(names, axes, strict=True)],
        )
        for combination in data.front[:FRONT_ROWS]
    ]
    return render_page(
        "fleet.html.j2",
        data=data,
        verdict=_verdict(data),
        parts=[(part, usd(part.usd_per_hour), f"{part.requests:,}", percent(part.attainment)) for part in data.parts],
        axes=[name.title for name in names],
        rows=rows,
        left=len(data.front) - len(rows),
        scatters=_scatters(data),
        frame=FRAME,
        front_heading=counted(len(data.front), "deployment"),
        models=listed([search.name for search in data.searches]),
    )


def _verdict(data: FleetReport) -> str:
    """The answer in a sentence."""
    if data.refused:
        return data.refused
    price = f"{usd(data.usd_per_hour)} per hour, {usd(data.usd_per_hour * HOURS_PER_MONTH)} per month"
    outcome = "every model meets its SLO" if data.feasible else "not every model meets its SLO"
    return (
        f"{price} ({HOURS_PER_MONTH:g} hours) for {counted(len(data.parts), 'model')}. Simulated together, {outcome}."
    )


def _scatters(data: FleetReport) -> list[tuple[str, Scatter]]:
    """The front, price against each other axis, with a caption; empty with fewer than two points."""
    if len(data.front) < 2:
        return []
    price = quantity(PRICE)
    scatters = []
    for axis in data.axes:
        if axis == PRICE:
            continue
        name = quantity(axis)
        marks = [_mark(combination, axis) for combination in data.front]
        caption = f"{name.title}, {name.good}, against {price.title}, lower is better"
        scatters.append((caption, Scatter.of(marks, price, name)))
    return scatters


def _mark(combination: Combined, axis: str) -> Mark:
    words = "; ".join(combination.deployments)
    shown: Sequence[str] = (
        quantity(PRICE).show(combination.figures[PRICE]), quantity(axis).show(combination.figures[axis]), words
    )  # fmt: skip
    return Mark(combination.figures[PRICE], combination.figures[axis], ", ".join(shown), combination.chosen)
