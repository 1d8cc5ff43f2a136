"""Writes the report: one HTML file that opens offline and asks the network for nothing."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hisearch.report import figures, page
from hisearch.report.data import ReportInput
from hisearch.report.describe import STAGES
from hisearch.report.points import ParetoData, pareto_data
from hisearch.report.quantities import quantity
from hisearch.report.theme import template

if TYPE_CHECKING:
    import plotly.graph_objects as go


class Drawing(NamedTuple):
    """A figure on the page. alt: what it shows, for those who cannot see it. kind: its CSS class."""

    key: str
    heading: str
    caption: str
    alt: str
    kind: str


def write_report(data: ReportInput, path: Path) -> None:
    """Write ``report.html``: self-contained, in light and dark, for screen, phone and print.

    Everything that comes from the user is escaped, in the page and in the figures' data. A content security policy
    allows the page's own two scripts alone and no connection at all; ``unsafe-eval`` is for Plotly, whose parallel
    coordinates generate their drawing code.

    Args:
        data: the finished study.
        path: the file to write; its folder exists.
    """
    path.write_text(render(data), encoding="utf-8", newline="\n")


def render(data: ReportInput) -> str:
    """The report's HTML."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("hisearch.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    drawings, plots = _drawings(data)
    plotly_js, page_js = _plotly_js(), _asset("report.js")
    return environment.get_template("report.html.j2").render(
        data=data,
        verdict=page.verdict(data),
        caution=page.caution(data),
        counts=page.counts(data),
        slo=page.slo_rows(data.highlighted, data.max_rejected_fraction) if data.highlighted is not None else (),
        facts=page.key_facts(data.highlighted) if data.highlighted is not None else (),
        options=page.options(data),
        settings=page.chosen_settings(data),
        front=page.front_table(data),
        assumed=sum(price.evidence == "assumed" for price in data.provenance.prices),
        drawings=drawings,
        plots=plots,
        templates={scheme: template(scheme) for scheme in ("light", "dark")},
        css=_asset("report.css"),
        plotly_js=plotly_js,
        page_js=page_js,
        script_hashes=[_csp_hash(plotly_js), _csp_hash(page_js)],
    )


def _asset(name: str) -> str:
    return (files("hisearch.report") / "templates" / name).read_text(encoding="utf-8")


def _plotly_js() -> str:
    from plotly.offline import get_plotlyjs

    source: str = get_plotlyjs()
    return source


def _csp_hash(script: str) -> str:
    digest = hashlib.sha256(script.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"


def _drawings(data: ReportInput) -> tuple[list[Drawing], dict[str, Any]]:
    """The figures that this study has data for, and their Plotly data by key; the template is the page's to choose."""
    pareto = pareto_data(data)
    built: list[tuple[Drawing, go.Figure]] = []
    if pareto.points:
        if len(data.objectives) > 2:
            built.append((_space(data, pareto), figures.figure_pareto(data)))
        for x, y in itertools.combinations(data.objectives, 2):
            plane = figures.figure_projection(data, x, y)
            plane.update_layout(showlegend=len(data.objectives) == 2)
            built.append((_plane(data, pareto, x, y), plane))
        built.append((_parallel(pareto), figures.figure_parallel(data)))
    if data.capacity:
        built.append((_capacity(data), figures.figure_capacity(data)))
    if data.progress:
        built.append((_progress(data), figures.figure_progress(data)))
    texts: dict[str, int] = {}
    plots = {drawing.key: _plot(figure, texts) for drawing, figure in built}
    return [drawing for drawing, _ in built], {"figures": plots, "texts": list(texts)}


def _plot(figure: go.Figure, texts: dict[str, int]) -> dict[str, Any]:
    """A figure's data and layout. Hover texts, which the figures share, become indices into ``texts`` (extended)."""
    plot: dict[str, Any] = json.loads(figure.to_json())
    del plot["layout"]["template"]
    for trace in plot["data"]:
        if isinstance(trace.get("text"), list):
            trace["text"] = [texts.setdefault(text, len(texts)) for text in trace["text"]]
    return plot


def _space(data: ReportInput, pareto: ParetoData) -> Drawing:
    names = [axis.quantity for axis in pareto.axes[:3]]
    good = ", ".join(f"{name.label}: {name.good}" for name in names)
    bold = (
        "Bold marks are the front: none of the others beats them in every respect."
        if data.front
        else "None meets the SLO; the large mark comes closest."
    )
    return Drawing(
        "pareto",
        "All trials by " + ", ".join(name.label for name in names),
        f"Each mark is one simulated deployment. {bold} {good}. Drag to turn, hover or tap a mark for its "
        f"configuration.{_omitted(pareto)}",
        f"Three-dimensional scatter of {len(pareto.points)} trials; {_front_words(data)}. The front's table below has "
        "the same numbers.",
        "space",
    )


def _plane(data: ReportInput, pareto: ParetoData, x: str, y: str) -> Drawing:
    across, up = quantity(x), quantity(y)
    corner = f"{'right' if across.maximised else 'left'} and {'up' if up.maximised else 'down'}"
    bounded = [axis.quantity.label for axis in pareto.axes if axis.name in (x, y) and axis.bound is not None]
    region = (
        f" The shaded region is what the SLO allows for {' and '.join(bounded)}; "
        "a grey ring inside it misses another term."
        if bounded
        else " The SLO has no bound on either of the two."
    )
    return Drawing(
        f"plane-{x}-{y}",
        f"{up.label} against {across.label}",
        f"Good is {corner}.{region}",
        f"Scatter of {up.title} against {across.title} for {len(pareto.points)} trials; {_front_words(data)}.",
        "plane" if len(data.objectives) > 2 else "space",
    )


def _parallel(pareto: ParetoData) -> Drawing:
    chosen = pareto.highlight.lower()
    return Drawing(
        "parallel",
        "Settings and what they lead to",
        f"Each line is one trial: its settings on the left, its results on the right. Green lines are the front, the "
        f"pink one is the trial marked as {chosen}. Lines are spread a little around a setting, so that none hides "
        "another. Drag along an axis to keep only the lines that pass there; drag a "
        "title to reorder.",
        f"Parallel coordinates of {len(pareto.points)} trials over the settings that differ and the objectives.",
        "parallel",
    )


def _capacity(data: ReportInput) -> Drawing:
    who = "recommended deployment" if data.recommendation is not None else "nearest miss"
    good = [point.load for point in data.capacity if point.attainment >= 0.99]
    reach = f"At least 99 % of requests are good up to {max(good):g} times the load." if good else ""
    return Drawing(
        "capacity",
        f"The {who} at other loads",
        f"Load 1 (dotted) is the study's own arrival rate. Good is a flat line that falls late. {reach}".strip(),
        f"Share of good requests and goodput of the {who} at {len(data.capacity)} loads. {reach}".strip(),
        "half",
    )


def _progress(data: ReportInput) -> Drawing:
    return Drawing(
        "progress",
        "Progress of the search",
        "Hypervolume measures how much the front found so far covers. A line that has been flat for long means that "
        "more simulations are unlikely to change the answer; one that still climbs asks for a larger budget. Dotted "
        f"lines: the search turns to {', '.join(f'{name} (stage {stage})' for stage, name in STAGES.items())}.",
        f"Hypervolume of the front over {len(data.progress)} simulations, as a share of its final value.",
        "half",
    )


def _front_words(data: ReportInput) -> str:
    front = len(data.front)
    words = f"{front} on the front" if front else "none meets the SLO"
    if data.highlighted is None:
        return words
    kind = "recommended" if data.recommendation is not None else "nearest miss"
    values = ", ".join(
        f"{quantity(name).label} {quantity(name).show(data.highlighted.objective(name))}" for name in data.objectives
    )
    return f"{words}; {kind}: trial {data.highlighted.number} with {values}"


def _omitted(pareto: ParetoData) -> str:
    return f" {pareto.omitted:,} faint trials are left out of the figures." if pareto.omitted else ""
