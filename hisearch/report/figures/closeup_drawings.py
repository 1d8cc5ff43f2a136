"""Number tables of the figures of ``closeup``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hisearch.report.data.closeup import SHARES, IdealCache, LatencyCurve, WorkerTimeline
from hisearch.report.data.inputs import CostRow, ReportInput
from hisearch.report.figures import closeup as draw
from hisearch.report.figures.classes import classes_drawing
from hisearch.report.figures.drawing import Drawing, NumberTable, drawing
from hisearch.report.figures.importance import Importance, importance
from hisearch.report.figures.theme import GIB
from hisearch.report.figures.tier_drawings import tier_drawings
from hisearch.report.words.templating import text
from hisearch.report.words.terms import term_lines
from hisearch.score.quantities import HOURS_PER_MONTH, UNDEFINED, percent, quantity, significant, usd
from hisearch.search.model.deployments import hardware

if TYPE_CHECKING:
    import plotly.graph_objects as go

#: Percentiles in the table of latencies.
_TABLED = (0.5, 0.9, 0.95, 0.99, 0.999)


def closeup_drawings(data: ReportInput) -> list[tuple[Drawing, go.Figure]]:
    """The figures that have data, in the page's order."""
    built = []
    closeup = data.closeup
    label = data.format_chosen
    if data.loads:
        built.append((_loads(data, label), draw.figure_loads(data.loads)))
    if closeup is not None and closeup.latencies:
        built.append((_latencies(closeup.latencies, label), draw.figure_latencies(closeup.latencies, data.slo)))
    if closeup is not None and closeup.classes:
        built.append(classes_drawing(closeup.classes, closeup.service_difference, label))
    if closeup is not None and closeup.ideal is not None:
        built.append((_ideal(closeup.ideal, label), draw.figure_ideal(closeup.ideal)))
    if closeup is not None:
        built += tier_drawings(closeup, label)
    if data.costs:
        names = _cost_names(data)
        built.append((_costs(data.costs, names), draw.figure_costs(data.costs, names)))
    if closeup is not None and closeup.timeline is not None:
        built.append((_workers(closeup.timeline, label), draw.figure_workers(closeup.timeline)))
    return built


def importance_drawing(data: ReportInput) -> list[tuple[Drawing, go.Figure]]:
    """The figure of settings' importance; empty with too few trials."""
    shares = importance(data)
    return [(_importance(shares), draw.figure_importance(shares))] if shares is not None else []


def first_break(data: ReportInput) -> str:
    """A sentence on the load up to which all terms hold and the first to fail; "" where no load was tried."""
    known = data.headroom
    if known is None:
        return ""
    tested = [point for point in data.loads if point.terms]
    exceptions = [point.load for point in tested if point.holds == (point.load > known.load)]
    missed = [f"{line.term} ({line.value} of at most {line.bound})" for line in term_lines(data.breaks)]
    first = known.infeasible_load if math.isfinite(known.infeasible_load) else None
    return text("figures", "first_break", known.load, first, missed, sorted(exceptions))


def _loads(data: ReportInput, label: str) -> Drawing:
    points = sorted(data.loads, key=lambda point: point.load)
    values = [
        {line.term: f"{line.value}{'' if line.met else ' (missed)'}" for line in term_lines(point.terms)}
        for point in points
    ]
    terms = list(dict.fromkeys(term for of_point in values for term in of_point))
    rows = [
        (
            f"{point.load:.3g}",
            percent(point.attainment),
            significant(point.goodput_rps),
            *(of_point.get(term, "none") for term in terms),  # a queue that does not grow has no line
        )
        for point, of_point in zip(points, values, strict=True)
    ]
    columns = ("Load", "Good requests", "Goodput (requests/s)", *terms)
    table = NumberTable(f"The {label} by load", columns, tuple(rows))
    return drawing("capacity", "tall half", label, points, first_break(data), table=table)


def _latencies(curves: Sequence[LatencyCurve], label: str) -> Drawing:
    at = [SHARES.index(share) for share in _TABLED]
    rows = [
        (curve.metric.upper(), *(f"{significant(curve.values_s[i])} s" for i in at), f"{curve.count:,}")
        for curve in curves
    ]
    columns = ("Latency", *(f"p{100 * share:g}" for share in _TABLED), "Measured")
    table = NumberTable("Latencies at the study's load", columns, tuple(rows))
    return drawing("latencies", "tall half", label, curves, table=table)


def _ideal(ideal: IdealCache, label: str) -> Drawing:
    per_gib = ideal.bytes_per_token / GIB
    rates = dict(zip(ideal.capacity_tokens, ideal.hit_rate, strict=True))
    rows = [(mark.name, f"{mark.tokens * per_gib:,.0f}", percent(rates[mark.tokens])) for mark in ideal.marks]
    rows.append(("no limit", UNDEFINED, percent(ideal.hit_rate[-1])))
    columns = ("Memory", "GiB for KV", "Ideal hit rate")
    table = NumberTable("Memory and what an ideal cache of that size hits", columns, tuple(rows))
    hit_rates = ideal.simulated_hit_rate, rates[ideal.marks[-1].tokens], ideal.hit_rate[-1]
    return drawing("ideal", "half", label, *hit_rates, table=table)


def _cost_names(data: ReportInput) -> list[str]:
    by_number = {trial.number: trial for trial in data.trials}
    first = data.title_of_chosen
    return [
        f"{first if i == 0 else f'Trial {row.trial}'}: {hardware(by_number[row.trial].deployment)}"
        for i, row in enumerate(data.costs)
    ]


def _costs(rows: Sequence[CostRow], names: Sequence[str]) -> Drawing:
    parts = list(dict.fromkeys(name for row in rows for name, usd_per_hour in row.parts if usd_per_hour > 0))
    lines = []
    for row, name in zip(rows, names, strict=True):
        costs = dict(row.parts)
        total = sum(costs.values())
        mwh = None if row.mean_w is None else row.mean_w * HOURS_PER_MONTH / 1e6
        power = ("-", "-") if row.mean_w is None else (f"{row.mean_w / 1e3:,.1f}", f"{mwh:,.1f}")
        lines.append(
            (name, *(usd(costs.get(item, 0.0)) for item in parts), usd(total), usd(total * HOURS_PER_MONTH), *power)
        )
    first = dict(rows[0].parts)
    total_usd = sum(first.values())
    shares = [f"{percent(first[item] / total_usd)} {item.lower()}" for item in parts if first.get(item, 0.0) > 0]
    columns = ("Deployment", *parts, "In all", f"A month ({HOURS_PER_MONTH:g} h)", "Power (kW)", "MWh a month")
    table = NumberTable("Dollars per hour", columns, tuple(lines))
    return drawing("costs", "half", total_usd, shares, names, table=table)


def _workers(timeline: WorkerTimeline, label: str) -> Drawing:
    rows = []
    for index, worker in enumerate(timeline.workers):
        count = max(len(worker.busy), 1)
        rows.append(
            (
                f"worker {index}",
                percent(sum(worker.busy) / count),
                percent(sum(worker.kv_held) / count),
                percent(max(worker.kv_held, default=0.0)),
                f"{max(worker.waiting, default=0):,}",
            )
        )
    columns = ("Worker", "Busy, mean", "KV held, mean", "KV held, peak", "Waiting, peak")
    table = NumberTable(f"Workers, over intervals of {timeline.interval_s:g} s", columns, tuple(rows))
    return drawing("workers", "tall wide", label, timeline, table=table)


def _importance(shares: Importance) -> Drawing:
    names = [quantity(name).label for name in shares.objectives]
    rows = [(name, *(percent(share) for share in row)) for name, row in zip(shares.settings, shares.share, strict=True)]
    most = [
        f"{label} goes most with {shares.settings[max(range(len(shares.settings)), key=lambda i: shares.share[i][j])]}"
        for j, label in enumerate(names)
        if not math.isclose(max(row[j] for row in shares.share), 0.0)
    ]
    table = NumberTable("Share of variation", ("Setting", *names), tuple(rows))
    return drawing("importance", "half", shares, names, most, table=table)
