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
from hisearch.report.figures.decision import NARROW, WIDE, Named, decision
from hisearch.report.figures.drawing import Drawing, drawing
from hisearch.report.figures.points import parallel_data, pareto_data, progress_data
from hisearch.report.figures.theme import template
from hisearch.report.figures.tornado import tornado
from hisearch.report.pages import answer, page, reasons
from hisearch.report.pages.tabs import tab_of, tabs
from hisearch.report.pages.trades import Trade, trades
from hisearch.report.words.chances import ENOUGH_DRAWS
from hisearch.report.words.settings import STAGES, UNUSED, format_setting, settings
from hisearch.report.words.templating import asset, render_page, text
from hisearch.score.quantities import usd
from hisearch.specs.wording import capitalised, format_percent

if TYPE_CHECKING:
    import plotly.graph_objects as go


def write_report(data: ReportInput, path: Path) -> None:
    """Write ``report.html``: self-contained, in light and dark, for screen, phone and print.

    User text is escaped, in the page and in the figures' data. A content security policy
    allows the page's own three scripts alone and no connection at all; ``unsafe-eval`` is for Plotly, whose parallel
    coordinates generate their drawing code.

    Args:
        data: the finished study.
        path: the file to write; its folder exists.
    """
    path.write_text(render(data), encoding="utf-8", newline="\n")


def render(data: ReportInput) -> str:
    """The report's HTML."""
    drawings, plots = _drawings(data)
    parts = _parts(data)
    cautions, known = page.cautions(data), data.confidence
    own = {
        "answer": True,
        "why": bool(parts["ladder"].rungs or parts["settings"]),
        "trades": parts["alternatives"] is not None,
        "sensitivity": parts["tornado"] is not None or (known is not None and bool(known.summary or known.sentences)),
        "trials": bool(parts["front"].rows),
        "provenance": True,
    }
    shown = tabs(data, drawings, cautions, [key for key, filled in own.items() if filled])
    plotly_js, scripts = _plotly_js(), {name: asset(f"{name}.js") for name in ("tabs", "report")}
    return render_page(
        "report.html.j2",
        data=data,
        kind=page.kind(data),
        answer_heading=page.answer_heading(data),
        tabs=shown,
        cautions=[(caution, tab_of(caution, list(shown))) for caution in cautions],
        **parts,
        plots=plots,
        templates={scheme: template(scheme) for scheme in ("light", "dark")},
        plotly_js=plotly_js,
        tabs_css=asset("tabs.css"),
        tabs_js=scripts["tabs"],
        page_js=scripts["report"],
        script_hashes=[_csp_hash(script) for script in (scripts["tabs"], plotly_js, scripts["report"])],
    )


def _parts(data: ReportInput) -> dict[str, Any]:
    """What the tabs show besides figures."""
    chosen, three = data.highlighted, trades(data)
    named = _named(data, three)
    pictures = [picture for size in (WIDE, NARROW) if (picture := decision(data, named, size)) is not None]
    gauges = answer.gauges(data)
    known = data.confidence
    return {
        "facts": answer.big_facts(data),
        "gauges": gauges,
        "has_intervals": any(gauge.interval for gauge in gauges),
        "has_chances": any(gauge.chance for gauge in gauges),
        "interval_name": answer.interval_name(data),
        "pictures": pictures,
        "decision_summary": text("report", "decision_summary", data, three),
        "trades": three,
        "ladder": reasons.ladder(data),
        "alternatives": reasons.alternatives(data),
        "other_hardware": reasons.hardware_rows(data),
        "few_draws": known is not None and any(0 < row.draws < ENOUGH_DRAWS for row in known.candidates),
        "tornado": tornado(data),
        "settings": page.chosen_settings(data),
        "key_facts": (*page.key_facts(chosen, known), *page.load_fact(data)) if chosen is not None else (),
        "front": page.front_table(data),
        "counts": page.counts(data),
        "funnel": page.funnel(data),
    }


def _named(data: ReportInput, three: Sequence[Trade]) -> list[Named]:
    """The trials that the deciding picture labels."""
    if data.highlighted is None:
        return []
    chance = data.confidence.chance if data.confidence is not None and data.recommendation is not None else None
    price = usd(data.highlighted.metrics.get("usd_per_hour", 0.0))
    likely = f", {format_percent(chance)} likely" if chance is not None else ""
    named = [Named("chosen", data.highlighted, (data.title_of_chosen, f"{price} an hour{likely}"))]
    trades_named = [
        Named(trade.role, trade.trial, (capitalised(trade.role), trade.price))
        for trade in three
        if trade.trial is not None
    ]
    return named + trades_named


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
