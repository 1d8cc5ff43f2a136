"""Captions and number tables of the figures of ``closeup``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hisearch.report.data.closeup import SHARES, IdealCache, LatencyCurve, WorkerTimeline
from hisearch.report.data.inputs import CostRow, LoadPoint, ReportInput
from hisearch.report.figures import closeup as draw
from hisearch.report.figures.drawing import Drawing, NumberTable
from hisearch.report.figures.importance import Importance, importance
from hisearch.report.figures.tier_drawings import tier_drawings
from hisearch.report.words.terms import term_lines
from hisearch.score.quantities import HOURS_PER_MONTH, UNDEFINED, percent, quantity, significant, usd
from hisearch.search.model.deployments import hardware
from hisearch.specs.wording import counted, listed

if TYPE_CHECKING:
    import plotly.graph_objects as go

_GIB = float(2**30)

#: Percentiles in the table of latencies.
_TABLED = (0.5, 0.9, 0.95, 0.99, 0.999)


def closeup_drawings(data: ReportInput) -> list[tuple[Drawing, go.Figure]]:
    """The figures that have data, in the page's order."""
    built = []
    closeup = data.closeup
    label = data.format_chosen
    if data.capacity:
        built.append((_loads(data.capacity, label), draw.figure_loads(data.capacity)))
    if closeup is not None and closeup.latencies:
        built.append((_latencies(closeup.latencies, label), draw.figure_latencies(closeup.latencies, data.slo)))
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


def first_break(points: Sequence[LoadPoint]) -> str:
    """A sentence on the load up to which all terms hold and the first to fail; "" without known terms."""
    tested = sorted((point for point in points if point.terms), key=lambda point: point.load)
    if not tested:
        return ""
    held_loads = [point.load for point in tested if all(term.holds for term in point.terms)]
    broken = [point for point in tested if not all(term.holds for term in point.terms)]
    if not broken:
        return f"Every term holds at every load that was simulated, up to {tested[-1].load:.3g} times the study's."
    first = broken[0]
    missed = [f"{line.term} ({line.value} of at most {line.bound})" for line in term_lines(first.terms) if not line.met]
    below = [load for load in held_loads if load < first.load]
    until = f"Every term holds up to {max(below):.3g} times the study's load; at" if below else "Already at"
    held_again = listed([f"{load:.3g}" for load in held_loads if load > first.load])
    return (
        f"{until} {first.load:.3g} times, {'the first to break is' if below else 'what is missed is'} {listed(missed)}."
        f"{f' All hold again at {held_again}.' if held_again else ''}"
    )


def _loads(points: Sequence[LoadPoint], label: str) -> Drawing:
    broken = first_break(points)
    term_names = [line.term for line in term_lines(points[0].terms)]
    rows = [
        (
            f"{point.load:.3g}",
            percent(point.attainment),
            significant(point.goodput_rps),
            *(f"{line.value}{'' if line.met else ' (missed)'}" for line in term_lines(point.terms)),
        )
        for point in sorted(points, key=lambda point: point.load)
    ]
    uses = " Below: how much of its bound each term uses; above the dashed line it is missed." if term_names else ""
    return Drawing(
        "capacity",
        f"The {label} at other loads: where it breaks",
        f"{broken} Load 1 (dotted) is the study's own arrival rate.{uses}".strip(),
        f"Share of good requests, goodput and use of each bound of the {label} at {len(points)} loads. "
        f"{broken}".strip(),
        "tall half",
        NumberTable(
            f"The {label} by load", ("Load", "Good requests", "Goodput (requests/s)", *term_names), tuple(rows)
        ),
    )


def _latencies(curves: Sequence[LatencyCurve], label: str) -> Drawing:
    at = [SHARES.index(share) for share in _TABLED]
    names = listed([curve.metric.upper() for curve in curves])
    rows = [
        (curve.metric.upper(), *(f"{significant(curve.values_s[i])} s" for i in at), f"{curve.count:,}")
        for curve in curves
    ]
    return Drawing(
        "latencies",
        f"How long requests take: the {label}",
        "A point says which share of requests (of gaps between tokens, for ITL) was served within so many seconds. "
        "Each step upwards leaves a tenth of what was left: the slowest requests are not hidden. A cross is a bound of "
        "the SLO; it is met where the curve passes above and to the left of its cross.",
        f"Distributions of {names} of the {label}; percentiles are in the table.",
        "tall half",
        NumberTable(
            "Latencies at the study's load",
            ("Latency", *(f"p{100 * share:g}" for share in _TABLED), "Measured"),
            tuple(rows),
        ),
    )


def _ideal(ideal: IdealCache, label: str) -> Drawing:
    per_gib = ideal.bytes_per_token / _GIB
    rates = dict(zip(ideal.capacity_tokens, ideal.hit_rate, strict=True))
    top, ideal_rate = ideal.hit_rate[-1], rates[ideal.marks[-1].tokens]
    most = f"No memory, however large, hits more than {percent(top)} on this workload."
    rows = [(mark.name, f"{mark.tokens * per_gib:,.0f}", percent(rates[mark.tokens])) for mark in ideal.marks]
    rows.append(("no limit", UNDEFINED, percent(top)))
    return Drawing(
        "ideal",
        "Would more cache help?",
        f"The line is what one cache for all requests could hit, by its size; the {label} hits "
        f"{percent(ideal.simulated_hit_rate)} (diamond), an ideal one of as much memory {percent(ideal_rate)}. {most} "
        "Replicas keep copies of their own and running requests need memory, so that real deployments stay below the "
        "line; a diamond far below it asks for another router or shared tiers rather than for memory.",
        f"Hit rate of an ideal LRU cache by size. The {label} hits {percent(ideal.simulated_hit_rate)}. {most}",
        "half",
        NumberTable(
            "Memory and what an ideal cache of that size hits",
            ("Memory", "GiB for KV", "Ideal hit rate"),
            tuple(rows),
        ),
    )


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
        power = ("-", "-") if row.mean_w is None else (f"{row.mean_w / 1e3:,.1f}", f"{_mwh(row.mean_w):,.1f}")
        lines.append(
            (name, *(usd(costs.get(item, 0.0)) for item in parts), usd(total), usd(total * HOURS_PER_MONTH), *power)
        )
    first = dict(rows[0].parts)
    total_usd = sum(first.values())
    shares = listed([f"{percent(first[item] / total_usd)} {item}" for item in parts if first.get(item, 0.0) > 0])
    return Drawing(
        "costs",
        "What the money buys",
        f"Of {usd(total_usd)} an hour: {shares}. Hosts are in the accelerators' prices where they have none of their "
        "own. Power is what the simulated work draws on average; a rented price contains it, for machines of your own "
        "add it.",
        f"Dollars per hour by what they buy, for {counted(len(rows), 'deployment')}. {names[0]}: {shares}.",
        "half",
        NumberTable(
            "Dollars per hour",
            ("Deployment", *parts, "In all", f"A month ({HOURS_PER_MONTH:g} h)", "Power (kW)", "MWh a month"),
            tuple(lines),
        ),
    )


def _mwh(mean_w: float) -> float:
    """Energy of a month, MWh."""
    return mean_w * HOURS_PER_MONTH / 1e6


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
    omitted = f" {counted(timeline.omitted, 'further worker')} not drawn." if timeline.omitted else ""
    return Drawing(
        "workers",
        f"What each worker does over time: the {label}",
        "Colour says how much. Workers of unlike colours share the load badly; waiting requests while a worker is not "
        f"busy ask for another router, while KV memory is full for more of it.{omitted}",
        f"Busy time, KV memory and waiting requests of {counted(len(timeline.workers), 'worker')} by intervals of "
        f"{timeline.interval_s:g} s; means and peaks are in the table.",
        "tall wide",
        NumberTable(
            f"Workers, over intervals of {timeline.interval_s:g} s",
            ("Worker", "Busy, mean", "KV held, mean", "KV held, peak", "Waiting, peak"),
            tuple(rows),
        ),
    )


def _importance(shares: Importance) -> Drawing:
    names = [quantity(name).label for name in shares.objectives]
    rows = [(name, *(percent(share) for share in row)) for name, row in zip(shares.settings, shares.share, strict=True)]
    most = [
        f"{label} goes most with {shares.settings[max(range(len(shares.settings)), key=lambda i: shares.share[i][j])]}"
        for j, label in enumerate(names)
        if not math.isclose(max(row[j] for row in shares.share), 0.0)
    ]
    return Drawing(
        "importance",
        "Which settings matter",
        f"The share of each result's variation, over {shares.trials:,} trials, that goes with one setting alone: "
        f"{listed(most)}. Settings that the search changed together share their effect, so that rows need not add up "
        "to 100 %; it tells of what was tried, not of what was not.",
        f"Share of the variation of {listed(names)} by setting; the table has the same numbers.",
        "half",
        NumberTable("Share of variation", ("Setting", *names), tuple(rows)),
    )
