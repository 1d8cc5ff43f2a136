"""Figures of the cache tiers of one simulated deployment: where hits come from, room, links, what more is worth.

What is drawn is made apart from the drawing: ``hit_bars`` and ``occupancy_lines`` return plain data.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from hisearch.report import theme

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

#: A row of ``api.tiers.tier_rows``: HBM, then each tier below it.
TierRow = Mapping[str, Any]

_COLOURS = tuple(theme.STAGE_COLOURS.values())
#: More stores than these are drawn as the sum of their tier.
MOST_LINES = 8
COMPUTED = "computed"


class Value(Protocol):
    """What a figure asks of ``api.tiers.TierValue``."""

    @property
    def tier(self) -> str:
        """Name of the medium."""

    @property
    def usd_per_hour_saved_per_gib(self) -> float:
        """Price of the accelerator time that one more GiB frees."""

    @property
    def usd_per_gib_hour(self) -> float:
        """Price of the GiB."""


class HitBar(NamedTuple):
    """Share of the prompt tokens, in [0, 1], that a tier had; ``COMPUTED``: that none had."""

    name: str
    share: float


class OccupancyLine(NamedTuple):
    """A store, or a tier's stores together: time_s (T,), held: share of the capacity (T,), in [0, 1]."""

    name: str
    tier: int
    time_s: npt.NDArray[np.float64]
    held: npt.NDArray[np.float64]


def tier_names(rows: Sequence[TierRow]) -> list[str]:
    """Names of the tiers, HBM first: the medium, with its place where two tiers are made of the same."""
    media = [_plain(str(row["tier"])) for row in rows]
    return [f"{name} (tier {k})" if media.count(name) > 1 else name for k, name in enumerate(media)]


def hit_bars(rows: Sequence[TierRow]) -> list[HitBar]:
    """Where prompt tokens came from at the first admission; the shares add up to 1."""
    bars = [HitBar(name, float(row["hit_rate"])) for name, row in zip(tier_names(rows), rows, strict=True)]
    return [*bars, HitBar(COMPUTED, max(1.0 - sum(bar.share for bar in bars), 0.0))]


def occupancy_lines(series: pd.DataFrame) -> list[OccupancyLine]:
    """One line for each store, or for each tier where there are more than ``MOST_LINES`` stores.

    Args:
        series: ``SimulatedDeployment.tier_series`` at regular times, the same for all stores.
    """
    together = len(series[["tier", "store"]].drop_duplicates()) > MOST_LINES
    lines = []
    for tier in sorted(set(series["tier"].tolist())):
        of_tier = series[series["tier"] == tier]
        medium = _plain(str(of_tier["medium"].iloc[0]))
        if together:
            at = of_tier.groupby("time_s", sort=True)[["held_tokens", "capacity_tokens"]].sum()
            share = (at["held_tokens"] / at["capacity_tokens"]).to_numpy(np.float64)
            lines.append(OccupancyLine(f"{medium}, all stores", tier, at.index.to_numpy(np.float64), share))
            continue
        for store in sorted(set(of_tier["store"].tolist())):
            mine = of_tier[of_tier["store"] == store]
            share = (mine["held_tokens"] / mine["capacity_tokens"]).to_numpy(np.float64)
            lines.append(OccupancyLine(f"{medium} {store}", tier, mine["time_s"].to_numpy(np.float64), share))
    return lines


def figure_tier_hits(rows: Sequence[TierRow]) -> go.Figure:
    """Share of the prompt tokens that each tier had, and of those that had to be computed."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for k, bar in enumerate(hit_bars(rows)):
        figure.add_bar(
            y=["prompt tokens"],
            x=[100 * bar.share],
            name=bar.name,
            orientation="h",
            marker_color=theme.FAINT if bar.name == COMPUTED else _COLOURS[k % len(_COLOURS)],
            hovertemplate=f"{bar.name}: %{{x:.1f}} %<extra></extra>",
        )
    axis = {"title": {"text": "Prompt tokens (%)"}, "range": [0, 100]}
    return _finish(figure, barmode="stack", xaxis=axis, yaxis={"visible": False}, height=180)


def figure_tier_occupancy(series: pd.DataFrame) -> go.Figure:
    """How full the stores of each tier were over time; ``series`` as of ``occupancy_lines``."""
    import plotly.graph_objects as go

    figure = go.Figure()
    dashes = ("solid", "dot", "dash", "dashdot")
    drawn: dict[int, int] = {}
    for line in occupancy_lines(series):
        number = drawn.get(line.tier, 0)
        drawn[line.tier] = number + 1
        figure.add_scatter(
            x=line.time_s,
            y=100 * line.held,
            name=line.name,
            mode="lines",
            line={"color": _COLOURS[line.tier % len(_COLOURS)], "dash": dashes[number % len(dashes)], "shape": "hv"},
            hovertemplate=f"{line.name} at %{{x:,.0f}} s: %{{y:.1f}} %<extra></extra>",
        )
    return _finish(
        figure,
        xaxis={"title": {"text": "Simulated time (s)"}},
        yaxis={"title": {"text": "Room in use (%)"}, "range": [0, 105]},
    )


def figure_link_utilisation(rows: Sequence[TierRow]) -> go.Figure:
    """Busy share of each tier's busiest link, in each direction."""
    import plotly.graph_objects as go

    names = tier_names(rows)
    below = [(name, row) for name, row in zip(names, rows, strict=True) if "read_utilisation" in row]
    figure = go.Figure()
    for key, name, colour in (("write_utilisation", "written", 0), ("read_utilisation", "read", 1)):
        figure.add_bar(
            x=[tier for tier, _ in below],
            y=[100 * row[key] for _, row in below],
            name=name,
            marker_color=_COLOURS[colour],
            hovertemplate=f"%{{x}}, {name}: %{{y:.1f}} % of the time<extra></extra>",
        )
    return _finish(figure, barmode="group", yaxis={"title": {"text": "Busiest link in use (%)"}, "range": [0, 105]})


def figure_tier_values(values: Sequence[Value]) -> go.Figure:
    """What one more GiB of each tier would free in accelerator time for an hour, beside what it costs."""
    import plotly.graph_objects as go

    figure = go.Figure()
    tiers = [f"{_plain(value.tier)} (tier {k})" for k, value in enumerate(values, 1)]
    bars = (
        ("frees", [value.usd_per_hour_saved_per_gib for value in values], 2),
        ("costs", [value.usd_per_gib_hour for value in values], 1),
    )
    for name, usd, colour in bars:
        figure.add_bar(
            x=tiers,
            y=usd,
            name=name,
            marker_color=_COLOURS[colour],
            hovertemplate=f"%{{x}} {name} $%{{y:.6f}} a GiB-hour<extra></extra>",
        )
    return _finish(figure, barmode="group", yaxis={"title": {"text": "USD per GiB-hour"}, "rangemode": "tozero"})


def _plain(name: str) -> str:
    """A user's name without markup: Plotly reads a subset of HTML."""
    return html.escape(name, quote=False)


def _finish(figure: go.Figure, **layout: Any) -> go.Figure:
    """The house's template and margins."""
    legend = {"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"}
    margin = {"l": 10, "r": 10, "t": 34, "b": 10}
    return figure.update_layout(template=theme.template("light"), legend=legend, margin=margin, **layout)
