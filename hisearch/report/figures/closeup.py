"""Draws the closeup of the recommended deployment: loads, latencies, caches, costs, workers, settings' importance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hisearch.report.data.closeup import SHARES, IdealCache, LatencyCurve, WorkerTimeline
from hisearch.report.data.inputs import CostRow, LoadPoint
from hisearch.report.figures import theme
from hisearch.report.figures.importance import Importance
from hisearch.report.figures.theme import COLOURS, GIB, LEGEND, LOG_AXIS, plain, short
from hisearch.score.quantities import quantity
from hisearch.score.terms import TermCheck
from hisearch.specs.studies.slo import SloTerm

if TYPE_CHECKING:
    import plotly.graph_objects as go

#: Ticks of the percentile axis of latencies; equal steps are equal factors of the share that remains above.
_TICKS = (0.0, 0.5, 0.9, 0.95, 0.99, 0.999)


def figure_loads(points: Sequence[LoadPoint]) -> go.Figure:
    """Good requests, goodput and each latency term's use of its bound over the load; the load 1 is dotted."""
    from plotly.subplots import make_subplots

    ordered = sorted(points, key=lambda point: point.load)
    uses = term_uses(ordered)
    titles = ["Good requests (%)", "Goodput (requests/s)", *(["Use of each bound (%)"] if uses else [])]
    figure = make_subplots(rows=len(titles), cols=1, shared_xaxes=True, vertical_spacing=0.09, subplot_titles=titles)
    series: list[tuple[int, str, list[float | None], int]] = [
        (1, titles[0], [100 * point.attainment for point in ordered], 2),
        (2, titles[1], [point.goodput_rps for point in ordered], 0),
    ]
    series += [(3, quantity(label).label, use, i) for i, (label, use) in enumerate(uses.items())]
    for row, title, values, colour in series:
        figure.add_scatter(
            x=[point.load for point in ordered], y=[short(value) for value in values], name=title,
            mode="lines+markers", showlegend=row == 3, row=row, col=1,
            line=theme.line(colour, **({} if row == 3 else {"dash": "solid"})),
            hovertemplate=f"load %{{x}}: %{{y}}<extra>{title}</extra>",
        )  # fmt: skip
    for row in range(1, len(titles) + 1):
        figure.add_vline(x=1.0, line=theme.dotted(), row=row, col=1)
    figure.update_yaxes(rangemode="tozero")
    if uses:
        figure.add_hline(y=100, line=theme.bound_line(), row=3, col=1)
        figure.update_yaxes(type="log", tickformat=",.3~r", dtick=_log_step(uses), row=3, col=1)
    figure.update_xaxes(title={"text": "Load (factor on the study's arrival rate)"}, row=len(titles), col=1)
    return theme.finish(figure, legend=LEGEND | {"y": -0.16, "yanchor": "top"})


def _log_step(uses: dict[str, list[float | None]]) -> int | str:
    """Plotly's step of ticks: 1, 2 and 5 times powers of ten, only powers of ten where that is many."""
    values = [value for column in uses.values() for value in column if value] or [100.0]
    return "D2" if max(values) / min(values) <= 50 else 1


def term_uses(points: Sequence[LoadPoint]) -> dict[str, list[float | None]]:
    """Each latency term's value as a percentage of its bound, by load; None where it is undefined or infinite."""
    uses: dict[str, list[float | None]] = {}
    for index, point in enumerate(points):
        for check in point.terms:
            if isinstance(check, TermCheck):
                column = uses.setdefault(check.label, [None] * len(points))
                if check.value_s is not None and math.isfinite(check.value_s):
                    column[index] = 100 * check.value_s / check.bound_s
    return uses


def figure_latencies(curves: Sequence[LatencyCurve], slo: Sequence[SloTerm]) -> go.Figure:
    """Percentiles over seconds; a cross is a bound of the SLO, to the right of its curve where it is met."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for index, curve in enumerate(curves):
        # The slowest request of all lies at infinity of this axis.
        figure.add_scatter(
            x=curve.values_s[:-1], y=[_tail(share) for share in SHARES[:-1]], name=curve.metric.upper(), mode="lines",
            line=theme.line(index),
            text=[f"{100 * share:g} %" for share in SHARES[:-1]],
            hovertemplate=f"%{{text}} within %{{x:.4~g}} s<extra>{curve.metric.upper()}</extra>",
        )  # fmt: skip
    order = [curve.metric for curve in curves]
    for term in slo:
        metric = term.metric.removesuffix("_s")
        if metric not in order or term.of_class:
            continue
        figure.add_scatter(
            x=[term.at_most_s], y=[_tail(min(term.percentile / 100, SHARES[-2]))], mode="markers", showlegend=False,
            marker={"symbol": "x", "size": 12, "color": COLOURS[order.index(metric)]},
            hovertemplate=f"SLO: {quantity(term.label).label} at most {term.at_most_s:g} s<extra></extra>",
        )  # fmt: skip
    ticks = {"tickvals": [_tail(share) for share in _TICKS], "ticktext": [f"{100 * share:g} %" for share in _TICKS]}
    return theme.finish(
        figure,
        xaxis={"title": {"text": "Within (s)"}, **LOG_AXIS},
        yaxis={"title": {"text": "Share of requests"}, "range": [-0.15, 3.05], **ticks},
        legend=LEGEND,
    )


def _tail(share: float) -> float:
    """Place of a share below 1 on an axis whose every step leaves a tenth of the remainder."""
    return round(-math.log10(1.0 - share), 4)


def figure_ideal(ideal: IdealCache) -> go.Figure:
    """Hit rate of an ideal cache over its size, with the deployment's memory and its simulated hit rate."""
    import plotly.graph_objects as go

    per_gib = ideal.bytes_per_token / GIB
    figure = go.Figure(
        go.Scatter(
            x=[short(tokens * per_gib) for tokens in ideal.capacity_tokens],
            y=[100 * rate for rate in ideal.hit_rate],
            mode="lines", line=theme.line(0), name="One LRU cache for all",
            hovertemplate="%{x:,} GiB: %{y:.1f} %<extra></extra>",
        )
    )  # fmt: skip
    rates = dict(zip(ideal.capacity_tokens, ideal.hit_rate, strict=True))
    for index, mark in enumerate(ideal.marks):
        x = short(mark.tokens * per_gib)
        figure.add_vline(x=x, line=theme.line(1 + index, width=1.5))
        figure.add_scatter(
            x=[x], y=[100 * rates[mark.tokens]], mode="markers", name=plain(mark.name),
            marker={"size": 10, "color": COLOURS[1 + index]},
            hovertemplate=f"{plain(mark.name)}: %{{x:,}} GiB, an ideal cache hits %{{y:.1f}} %<extra></extra>",
        )  # fmt: skip
    figure.add_scatter(
        x=[short(ideal.marks[-1].tokens * per_gib)], y=[100 * ideal.simulated_hit_rate], mode="markers",
        marker={"symbol": "diamond", "size": 13, "color": theme.HIGHLIGHT}, name="Simulated",
        hovertemplate="simulated: %{y:.1f} %<extra></extra>",
    )  # fmt: skip
    return theme.finish(
        figure,
        xaxis={"title": {"text": "KV memory of all workers (GiB)"}, **LOG_AXIS},
        yaxis={"title": {"text": "Hit rate (% of prompt tokens)"}, "rangemode": "tozero"},
        legend=LEGEND,
    )


def figure_costs(rows: Sequence[CostRow], names: Sequence[str]) -> go.Figure:
    """Stacked bars of dollars per hour; ``names``: of the deployments, in the rows' order."""
    import plotly.graph_objects as go

    figure = go.Figure()
    parts = list(dict.fromkeys(name for row in rows for name, usd in row.parts if usd > 0))
    labels = ["<br>".join(map(plain, name.split(": ", 1))) for name in names]
    for index, item in enumerate(parts):
        figure.add_bar(
            x=[short(dict(row.parts).get(item, 0.0)) for row in rows], y=labels,
            orientation="h", name=plain(item), marker={"color": COLOURS[index % 6]},
            hovertemplate=f"{plain(item)}: $%{{x:,.2f}} per hour<extra></extra>",
        )  # fmt: skip
    return theme.finish(
        figure,
        barmode="stack",
        showlegend=True,
        xaxis={"title": {"text": "USD/hour"}, "tickprefix": "$"},
        yaxis={"autorange": "reversed"},
        legend=LEGEND,
    )


def figure_workers(timeline: WorkerTimeline) -> go.Figure:
    """Busy share, KV memory held and waiting requests of every worker over time, darker is more."""
    from plotly.subplots import make_subplots

    held = [[round(100 * v, 1) for v in worker.kv_held] for worker in timeline.workers]
    rows: tuple[tuple[str, str, Sequence[Sequence[object]], list[list[float]]], ...] = (
        ("Busy (%)", "%", _CALM, [[round(100 * v, 1) for v in worker.busy] for worker in timeline.workers]),
        ("KV memory held (%)", "%", _HEAT, held),
        ("Requests waiting", "", _HEAT, [[float(v) for v in worker.waiting] for worker in timeline.workers]),
    )
    figure = make_subplots(
        rows=3, cols=1, shared_xaxes=True, vertical_spacing=0.11, subplot_titles=[title for title, *_ in rows]
    )
    length = len(timeline.workers[0].busy)
    at_s = [short((i + 0.5) * timeline.interval_s) for i in range(length)]
    names = [f"worker {i}" for i in range(len(timeline.workers))]
    for row, (_, unit, colours, values) in enumerate(rows, start=1):
        top = 100.0 if unit else max(1.0, *(max(line, default=0.0) for line in values))
        figure.add_heatmap(
            x=at_s, y=names, z=values, zmin=0, zmax=top, colorscale=colours, row=row, col=1,
            colorbar={"len": 0.27, "y": 1.0 - (row - 0.5) * 0.345, "thickness": 12},
            hovertemplate=f"%{{y}} at %{{x:,}} s: %{{z}}{' ' + unit if unit else ''}<extra></extra>",
        )  # fmt: skip
    figure.update_yaxes(autorange="reversed")
    figure.update_xaxes(title={"text": "Time (s)"}, row=3, col=1)
    return theme.finish(figure)


#: From a grey that is near either background to a strong colour; to a calm one where much is no fault.
_CALM = [[0.0, "rgba(138, 148, 160, 0.12)"], [1.0, "#5b9bd5"]]
_HEAT = [[0.0, "rgba(138, 148, 160, 0.12)"], [0.5, "#5b9bd5"], [0.85, "#d98324"], [1.0, "#c2255c"]]


#: White text is legible on both ends.
_SHADES = [[0.0, "#6b7785"], [1.0, "#15568f"]]


def figure_importance(importance: Importance) -> go.Figure:
    """Share of each objective's variation that goes with each setting."""
    import plotly.graph_objects as go

    shares = [[round(100 * share, 1) for share in row] for row in importance.share]
    figure = go.Figure(
        go.Heatmap(
            x=[quantity(name).label for name in importance.objectives],
            y=[plain(name) for name in importance.settings],
            z=shares, zmin=0, zmax=100, colorscale=_SHADES, showscale=False,
            text=[[f"{share:.0f} %" for share in row] for row in shares], texttemplate="%{text}",
            textfont={"color": "#ffffff"},
            hovertemplate="%{y}: %{z} % of the variation of %{x}<extra></extra>",
        )
    )  # fmt: skip
    return theme.finish(
        figure, yaxis={"autorange": "reversed"}, xaxis={"side": "top"}, margin={"l": 10, "r": 10, "t": 50, "b": 10}
    )
