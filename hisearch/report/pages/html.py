"""Writes the report: one HTML file that opens offline and makes no network requests."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hisearch.report.data.inputs import ReportInput
from hisearch.report.figures import study as figures
from hisearch.report.figures.closeup_drawings import closeup_drawings, importance_drawing
from hisearch.report.figures.drawing import Drawing
from hisearch.report.figures.points import ParallelData, ParetoData, parallel_data, pareto_data, progress_data
from hisearch.report.figures.theme import template
from hisearch.report.pages import page
from hisearch.report.pages.templating import asset, render_page
from hisearch.report.words.conclusions import conclusions, few_draws
from hisearch.report.words.describe import STAGES, UNUSED, settings
from hisearch.score.quantities import quantity
from hisearch.specs.wording import counted, listed

if TYPE_CHECKING:
    import plotly.graph_objects as go


def write_report(data: ReportInput, path: Path) -> None:
    """Write ``report.html``: self-contained, in light and dark, for screen, phone and print.

    User text is escaped, in the page and in the figures' data. A content security policy
    allows the page's own two scripts alone and no connection at all; ``unsafe-eval`` is for Plotly, whose parallel
    coordinates generate their drawing code.

    Args:
        data: the finished study.
        path: the file to write; its folder exists.
    """
    path.write_text(render(data), encoding="utf-8", newline="\n")


def render(data: ReportInput) -> str:
    """The report's HTML."""
    drawings, plots = _drawings(data)
    plotly_js, page_js = _plotly_js(), asset("report.js")
    return render_page(
        "report.html.j2",
        data=data,
        verdict=page.verdict(data),
        kind=page.kind(data),
        cautions=page.cautions(data),
        counts=page.counts(data),
        counted=counted,
        slo=page.slo_lines(data),
        sure=data.confidence is not None and bool(data.confidence.terms),
        facts=(*page.key_facts(data.highlighted, data.confidence), *page.growth(data)) if data.highlighted else (),
        conclusions=conclusions(data),
        few_draws=few_draws,
        options=page.options(data),
        settings=page.chosen_settings(data),
        front=page.front_table(data),
        front_heading=page.front_heading(data),
        headings=page.headings(data),
        progress_so_far=page.progress_so_far(data),
        front_caption=page.front_caption(data),
        assumed=data.provenance.assumed_prices,
        drawings=drawings,
        plots=plots,
        templates={scheme: template(scheme) for scheme in ("light", "dark")},
        plotly_js=plotly_js,
        page_js=page_js,
        script_hashes=[_csp_hash(plotly_js), _csp_hash(page_js)],
    )


def _plotly_js() -> str:
    from plotly.offline import get_plotlyjs

    source: str = get_plotlyjs()
    return source


def _csp_hash(script: str) -> str:
    digest = hashlib.sha256(script.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"


def _drawings(data: ReportInput) -> tuple[list[Drawing], dict[str, Any]]:
    """The figures that have data, and their Plotly data by key; the page chooses the template."""
    pareto = pareto_data(data)
    built: list[tuple[Drawing, go.Figure]] = []
    names = [axis.name for axis in pareto.axes]
    if pareto.points and len(names) > 1:
        if len(names) > 2:
            built.append((_space(data, pareto), figures.figure_pareto(data)))
        for x, y in itertools.combinations(names, 2):
            plane = figures.figure_projection(data, x, y)
            plane.update_layout(showlegend=len(names) == 2)
            built.append((_plane(data, pareto, x, y), plane))
        built.append((_parallel(pareto, parallel_data(data)), figures.figure_parallel(data)))
    built += importance_drawing(data)
    if data.progress:
        built.append((_progress(data), figures.figure_progress(data)))
    built += closeup_drawings(data)
    texts: dict[str, int] = {}
    plots = {drawing.key: _plot(figure, texts) for drawing, figure in built}
    shown = [point.number for point in pareto.points]
    return [drawing for drawing, _ in built], {
        "figures": plots,
        "texts": list(texts),
        "trials": _trial_settings(data, shown),
    }


def _trial_settings(data: ReportInput, shown: Sequence[int]) -> dict[str, Any]:
    """Every setting of the drawn trials, each distinct value once.

    Returns:
        names: of the settings. values: per setting its distinct values as text. rows: by trial number, an index into
        ``values`` for each setting. feasible: numbers of trials that meet the SLO. unused: values without effect.
    """
    by_number = {trial.number: trial for trial in data.trials}
    names: list[str] = []
    values: list[dict[str, int]] = []
    rows: dict[int, list[int]] = {}
    for number in shown:
        chosen = settings(by_number[number].deployment)
        if not names:
            names, values = list(chosen), [{} for _ in chosen]
        texts = [value if isinstance(value, str) else f"{value:,.6g}" for value in chosen.values()]
        rows[number] = [codes.setdefault(text, len(codes)) for codes, text in zip(values, texts, strict=True)]
    return {
        "names": names,
        "values": [list(codes) for codes in values],
        "rows": rows,
        "feasible": [number for number in shown if by_number[number].feasible],
        "unused": sorted(str(value) for value in UNUSED),
    }


def _plot(figure: go.Figure, texts: dict[str, int]) -> dict[str, Any]:
    """A figure's data and layout. Hover texts of trials become indices into ``texts`` (extended)."""
    plot: dict[str, Any] = json.loads(figure.to_json())
    del plot["layout"]["template"]
    for trace in plot["data"]:
        if isinstance(trace.get("text"), list) and "customdata" in trace:
            trace["text"] = [texts.setdefault(text, len(texts)) for text in trace["text"]]
    return plot


def _space(data: ReportInput, pareto: ParetoData) -> Drawing:
    names = [axis.quantity for axis in pareto.axes[:3]]
    good = ", ".join(f"{name.label}: {name.good}" for name in names)
    bold = (
        "Bold marks are the front: none of the others beats them in every respect."
        if pareto.feasible
        else "None meets the SLO: bold rings are those that none of the others beats in every respect, the large mark "
        "is the one that comes closest."
    )
    return Drawing(
        "pareto",
        "All trials by " + ", ".join(name.label for name in names),
        f"Each mark is one simulated deployment. {bold} {good}. Drag to turn, hover or tap a mark for its "
        f"configuration.{_omitted(pareto)}{_beyond(pareto, *(axis.name for axis in pareto.axes[:3]))}",
        f"Three-dimensional scatter of {counted(len(pareto.points), 'trial')}; {_front_words(data)}. The front's table "
        "below has the same numbers.",
        "space",
    )


def _plane(data: ReportInput, pareto: ParetoData, x: str, y: str) -> Drawing:
    across, up = quantity(x), quantity(y)
    corner = f"{'right' if across.maximised else 'left'} and {'up' if up.maximised else 'down'}"
    bounded = [axis.quantity.label for axis in pareto.axes if axis.name in (x, y) and axis.bound is not None]
    region = (
        f" The shaded region is what the SLO allows for {' and '.join(bounded)}; a ring inside it misses another term."
        if bounded
        else " The SLO has no bound on either of the two."
    )
    return Drawing(
        f"plane-{x}-{y}",
        f"{up.label} against {across.label}",
        f"Good is {corner}.{region}{_beyond(pareto, x, y)}"
        f"{' A double click shows all.' if pareto.beyond(x, y) else ''}",
        f"Scatter of {up.title} against {across.title} for {counted(len(pareto.points), 'trial')}; "
        f"{_front_words(data)}.",
        "plane" if len(pareto.axes) > 2 else "space",
    )


def _parallel(pareto: ParetoData, parallel: ParallelData) -> Drawing:
    chosen = pareto.highlight.lower()
    green = "the front" if pareto.feasible else "those that none of the others beats (none meets the SLO)"
    beyond = " Results beyond an axis are drawn at its end." if pareto.beyond(*(a.name for a in pareto.axes)) else ""
    omitted = f" Without an axis, as they vary least: {', '.join(parallel.omitted)}." if parallel.omitted else ""
    return Drawing(
        "parallel",
        "Settings and what they lead to",
        f"Each line is one trial: its settings on the left, its results on the right. Green lines are {green}, the "
        f"pink one is the trial marked as {chosen}. Lines are spread a little around a setting, so that none hides "
        f"another.{beyond}{omitted} Drag along an axis to keep only the lines that pass there; drag a title to "
        "reorder.",
        f"Parallel coordinates of {counted(len(pareto.points), 'trial')} over the settings that differ and the "
        "objectives.",
        "parallel",
    )


def _progress(data: ReportInput) -> Drawing:
    begun = [f"stage {stage} ({STAGES[stage]})" for _, stage in progress_data(data).stages]
    return Drawing(
        "progress",
        "Progress of the search",
        f"Hypervolume measures how much the front found so far covers. {_of_the_line(data)} Dotted lines: the first "
        f"simulation of {listed(begun)}; later rounds return to earlier stages.",
        f"Hypervolume of the front after {counted(len(data.progress), 'simulation')} that enlarged it, as a share of "
        "its latest value.",
        "half",
    )


def _of_the_line(data: ReportInput) -> str:
    """The meaning of a climbing line, and of a flat one."""
    if data.so_far is not None:
        return "100 % is the front as it is now; a line that climbs says that the search still finds better ones."
    return (
        "A line that still climbs asks for a larger budget; a flat one says that the latest simulations found nothing "
        "better, not that there is nothing: what was not tried is named above and under Provenance."
    )


def _front_words(data: ReportInput) -> str:
    front = len(data.front)
    words = f"{front} on the front" if data.recommendation is not None else "none meets the SLO"
    if data.highlighted is None:
        return words
    kind = data.title_of_chosen.lower()
    values = ", ".join(
        f"{quantity(name).label} {quantity(name).show(data.highlighted.objective(name))}" for name in data.objectives
    )
    return f"{words}; {kind}: trial {data.highlighted.number} with {values}"


def _omitted(pareto: ParetoData) -> str:
    return f" Left out of the figures: {counted(pareto.omitted, 'faint trial')}." if pareto.omitted else ""


def _beyond(pareto: ParetoData, *names: str) -> str:
    """A note on outliers beyond the named axes."""
    count = pareto.beyond(*names)
    if not count:
        return ""
    return f" {count:,} outlier{'s' if count > 1 else ''} lie{'' if count > 1 else 's'} beyond the axes."
