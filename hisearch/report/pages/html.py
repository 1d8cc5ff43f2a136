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
from hisearch.report.figures.drawing import Drawing, drawing
from hisearch.report.figures.points import parallel_data, pareto_data, progress_data
from hisearch.report.figures.theme import template
from hisearch.report.pages import page
from hisearch.report.words.settings import STAGES, UNUSED, format_setting, settings
from hisearch.report.words.templating import asset, render_page

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
        kind=page.kind(data),
        cautions=page.cautions(data),
        counts=page.counts(data),
        slo=page.slo_rows(data),
        facts=(*page.key_facts(data.highlighted, data.confidence), *page.growth(data)) if data.highlighted else (),
        named=page.named_trials(data),
        options=page.options(data),
        settings=page.chosen_settings(data),
        front=page.front_table(data),
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
            built.append((drawing("pareto", "space", pareto, data), figures.figure_pareto(data)))
        for x, y in itertools.combinations(names, 2):
            plane = figures.figure_projection(data, x, y)
            plane.update_layout(showlegend=len(names) == 2)
            size = "plane" if len(names) > 2 else "space"
            built.append((drawing(f"plane-{x}-{y}", size, pareto, data, x, y, macro="plane"), plane))
        omitted = parallel_data(data).omitted
        built.append((drawing("parallel", "parallel", pareto, omitted), figures.figure_parallel(data)))
    built += importance_drawing(data)
    if data.progress:
        stages = [f"stage {stage} ({STAGES[stage]})" for _, stage in progress_data(data).stages]
        built.append((drawing("progress", "half", data, stages), figures.figure_progress(data)))
    built += closeup_drawings(data)
    texts: dict[str, int] = {}
    plots = {shown.key: _plot(figure, texts) for shown, figure in built}
    numbers = [point.number for point in pareto.points]
    return [shown for shown, _ in built], {
        "figures": plots,
        "texts": list(texts),
        "trials": _trial_settings(data, numbers),
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
        texts = map(format_setting, chosen.values())
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
