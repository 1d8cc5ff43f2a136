"""Figures of a deployment's cache tiers: sources of hits, links, capacity in use, and the value of sizes.

Data and drawing are separate: ``tier_uses`` and ``tier_timeline`` return plain data, which a run keeps
in its ``closeup.json``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pandas as pd

from hisearch.report.data.closeup import StoreSeries, TierCurve, TierTimeline, TierUse
from hisearch.report.figures import theme
from hisearch.report.figures.theme import COLOURS, GIB, LEGEND, LOG_AXIS, digits, plain, short

if TYPE_CHECKING:
    import plotly.graph_objects as go

#: A row of ``api.deployments.tiers.tier_rows``: HBM, then each tier below it.
TierRow = Mapping[str, Any]

#: Of HBM; the tiers below it have the first three colours and dashes.
_OF_HBM = COLOURS[3]
#: Of the directions of a link.
_WRITTEN, _READ = "#d6336c", "#0c8599"
#: Of the stores of a tier.
_STORE_DASHES = ("solid", "dot", "dash", "dashdot")
#: More stores than these are drawn as the sum of their tier.
MOST_LINES = 8
COMPUTED = "computed"
#: Least return drawn, dollars freed per dollar; a logarithmic axis cannot show 0.
LEAST_RETURN = 0.01


class Value(Protocol):
    """The part of ``api.deployments.tiers.TierValue`` that figures use."""

    @property
    def tier(self) -> str:
        """Name of the medium."""

    @property
    def usd_per_hour_saved_per_gib(self) -> float:
        """Price of the accelerator time that one more GiB frees."""

    @property
    def usd_per_gib_hour(self) -> float:
        """Price of the GiB."""


def tier_uses(rows: Sequence[TierRow]) -> tuple[TierUse, ...]:
    """Use of each tier, HBM first; media of two tiers carry the tier's number."""
    media = [str(row["tier"]) for row in rows]
    names = [f"{name} (tier {k})" if media.count(name) > 1 else name for k, name in enumerate(media)]
    return tuple(_use(name, row) for name, row in zip(names, rows, strict=True))


def _use(name: str, row: TierRow) -> TierUse:
    capacity = int(row["capacity_tokens"])
    hits, peak = digits(row["hit_rate"]), digits(row["peak_tokens"] / capacity) if capacity else 0.0
    if "read_utilisation" not in row:
        return TierUse(name, hits, peak)
    return TierUse(
        name,
        hits,
        peak,
        digits(row["stored_bytes"] / GIB),
        digits(row["read_bytes"] / GIB),
        digits(row["write_utilisation"]),
        digits(row["read_utilisation"]),
    )


def computed_share(uses: Sequence[TierUse]) -> float:
    """Share of the prompt tokens that no tier had."""
    return max(1.0 - sum(use.hit_rate for use in uses), 0.0)


def tier_timeline(series: pd.DataFrame) -> TierTimeline:
    """A line for each store, or for each tier with more than ``MOST_LINES`` stores.

    Args:
        series: ``SimulatedDeployment.tier_series`` at regular times, the same for all stores.
    """
    together = len(series[["tier", "store"]].drop_duplicates()) > MOST_LINES
    stores = []
    for tier in sorted(set(series["tier"].tolist())):
        of_tier = series[series["tier"] == tier]
        medium = str(of_tier["medium"].iloc[0])
        groups = [(", all stores", of_tier)] if together else of_tier.groupby("store", sort=True)
        for store, of_store in groups:
            at = of_store.groupby("time_s", sort=True)[["held_tokens", "capacity_tokens"]].sum()
            held_shares = at["held_tokens"].to_numpy(np.float64) / at["capacity_tokens"].to_numpy(np.float64)
            name = f"{medium}{store}" if together else f"{medium} {store}"
            stores.append(StoreSeries(name, tier, tuple(digits(share) for share in held_shares)))
    return TierTimeline(tuple(sorted({float(at_s) for at_s in series["time_s"]})), tuple(stores))


def figure_tier_use(uses: Sequence[TierUse]) -> go.Figure:
    """Shares of the prompt tokens hit in each tier and computed; use of each tier's busiest link."""
    from plotly.subplots import make_subplots

    figure = make_subplots(rows=2, cols=1, vertical_spacing=0.3, row_heights=[len(uses) + 1, len(uses) - 1])
    names = [*(plain(use.name) for use in uses), COMPUTED]
    figure.add_bar(
        y=names,
        x=[round(100 * share, 2) for share in (*(use.hit_rate for use in uses), computed_share(uses))],
        orientation="h", showlegend=False, row=1, col=1,
        marker_color=[_OF_HBM, *(_colour(k) for k in range(1, len(uses))), theme.FAINT],
        hovertemplate="%{y}: %{x:.1f} % of the prompt tokens<extra></extra>",
    )  # fmt: skip
    below = uses[1:]
    for name, busy, colour in (
        ("link, written", [use.write_busy for use in below], _WRITTEN),
        ("link, read", [use.read_busy for use in below], _READ),
    ):
        figure.add_bar(
            y=[plain(use.name) for use in below], x=[round(100 * (share or 0.0), 2) for share in busy],
            orientation="h", name=name, marker_color=colour, row=2, col=1,
            hovertemplate=f"%{{y}}, {name}: %{{x:.1f}} % of the time<extra></extra>",
        )  # fmt: skip
    figure.update_yaxes(autorange="reversed")
    figure.update_xaxes(title={"text": "Prompt tokens (%)"}, rangemode="tozero", row=1, col=1)
    figure.update_xaxes(title={"text": "Time that the busiest link is in use (%)"}, rangemode="tozero", row=2, col=1)
    return theme.finish(figure, barmode="group", legend=LEGEND)


def figure_tier_occupancy(timeline: TierTimeline) -> go.Figure:
    """How full the stores of each tier were over time."""
    import plotly.graph_objects as go

    figure = go.Figure()
    drawn: dict[int, int] = {}
    for store in timeline.stores:
        number = drawn.get(store.tier, 0)
        drawn[store.tier] = number + 1
        figure.add_scatter(
            x=timeline.time_s, y=[round(100 * share, 2) for share in store.held], name=plain(store.name), mode="lines",
            line={"color": _colour(store.tier), "dash": _STORE_DASHES[number % 4], "shape": "hv"},
            hovertemplate=f"{plain(store.name)} at %{{x:,.0f}} s: %{{y:.1f}} %<extra></extra>",
        )  # fmt: skip
    return theme.finish(
        figure,
        xaxis={"title": {"text": "Time (s)"}},
        yaxis={"title": {"text": "Capacity in use (%)"}, "range": [0, 105]},
        legend=LEGEND,
        showlegend=True,
    )


def figure_tiers(curves: Sequence[TierCurve]) -> go.Figure:
    """Hit rate, TTFT and what the next dollar frees over the size of each tier; a diamond is the chosen size."""
    from plotly.subplots import make_subplots

    figure = make_subplots(rows=3, cols=1, shared_xaxes=True, vertical_spacing=0.07)
    for index, curve in enumerate(curves):
        line = theme.line(index)
        symbols = ["diamond" if point.gib == curve.chosen_gib else "circle" for point in curve.points]
        marker = {"symbol": symbols, "size": [13 if s == "diamond" else 7 for s in symbols], "color": line["color"]}
        for row, values in enumerate(
            ([100 * point.hit_rate for point in curve.points], [point.ttft_s for point in curve.points]), start=1
        ):
            figure.add_scatter(
                x=[short(point.gib) for point in curve.points], y=[short(value) for value in values],
                mode="lines+markers", line=line, marker=marker,
                name=plain(curve.name), showlegend=row == 1, row=row, col=1,
                hovertemplate=f"%{{x:,}} GiB: %{{y}}<extra>{plain(curve.name)}</extra>",
            )  # fmt: skip
        _add_returns(figure, curve, line)
    figure.add_hline(y=1, line=theme.bound_line(), row=3, col=1)
    figure.update_yaxes(title={"text": "Hit rate (%)"}, row=1, col=1)
    figure.update_yaxes(title={"text": f"{ttft_of(curves)} (s)"}, rangemode="tozero", row=2, col=1)
    figure.update_yaxes(title={"text": "Next $ frees ($)"}, tickprefix="$", **LOG_AXIS, row=3, col=1)
    figure.update_xaxes(**LOG_AXIS | {"dtick": "D2"})
    figure.update_xaxes(title={"text": "Size of the tier, all its stores (GiB)"}, row=3, col=1)
    return theme.finish(figure, legend=LEGEND)


def ttft_of(curves: Sequence[TierCurve]) -> str:
    """``TTFT p95``: the percentile that the curves are of."""
    return f"TTFT p{curves[0].ttft_percentile:g}"


def _add_returns(figure: go.Figure, curve: TierCurve, line: dict[str, Any]) -> None:
    """A level from each size to the next: dollars of machine time that a dollar spent on that step frees."""
    returns = curve.returns()
    if not returns:
        return
    levels = [*returns, returns[-1]]
    figure.add_scatter(
        x=[short(point.gib) for point in curve.points],
        y=[None if level is None else short(max(level, LEAST_RETURN)) for level in levels],
        mode="lines", line=line | {"shape": "hv"}, showlegend=False,
        text=["" if level is None else f"${level:,.2f}" for level in levels], row=3, col=1,
        hovertemplate=f"from %{{x:,}} GiB on: a dollar frees %{{text}}<extra>{plain(curve.name)}</extra>",
    )  # fmt: skip


def figure_tier_values(values: Sequence[Value]) -> go.Figure:
    """Price of the accelerator time that one more GiB of each tier frees in an hour, next to its cost."""
    import plotly.graph_objects as go

    figure = go.Figure()
    tiers = [f"{plain(value.tier)} (tier {k})" for k, value in enumerate(values, 1)]
    bars = (
        ("frees", [value.usd_per_hour_saved_per_gib for value in values], COLOURS[2]),
        ("costs", [value.usd_per_gib_hour for value in values], COLOURS[1]),
    )
    for name, usd, colour in bars:
        figure.add_bar(
            x=tiers,
            y=usd,
            name=name,
            marker_color=colour,
            hovertemplate=f"%{{x}} {name} $%{{y:.6f}} a GiB-hour<extra></extra>",
        )
    yaxis = {"title": {"text": "USD per GiB-hour"}, "rangemode": "tozero"}
    return theme.finish(figure, barmode="group", yaxis=yaxis, legend=LEGEND)


def _colour(tier: int) -> str:
    """Of the tier ``tier``, from 1 on below HBM."""
    return COLOURS[(tier - 1) % 3]
