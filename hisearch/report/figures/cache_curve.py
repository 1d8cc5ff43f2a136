"""An LRU cache's hit rate over its capacity, as a page that opens offline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hisearch.report.figures import theme
from hisearch.traces.stats import CachePoint

if TYPE_CHECKING:
    import plotly.graph_objects as go


def figure_cache_curve(points: Sequence[CachePoint], *, trace_name: str, block_tokens: int) -> go.Figure:
    """Hit rate in % of prompt tokens over capacity in tokens, on a logarithmic scale."""
    import plotly.graph_objects as go

    title = f"{theme.plain(trace_name)}: hit rate of an LRU cache of {block_tokens}-token blocks"
    line = go.Scatter(
        x=[point.capacity_tokens for point in points],
        y=[100 * point.hit_rate for point in points],
        mode="lines+markers",
        line=theme.line(0),
        hovertemplate="%{x:,} tokens: %{y:.2f} %<extra></extra>",
    )
    return go.Figure(line).update_layout(
        template=theme.template("light"),
        title={"text": title},
        xaxis={"title": {"text": "Capacity (tokens)"}, "type": "log"},
        yaxis={"title": {"text": "Hit rate (% of prompt tokens)"}, "rangemode": "tozero"},
    )


def write_curve(path: Path, points: Sequence[CachePoint], *, trace_name: str, block_tokens: int) -> None:
    """Write the figure with all that it needs to open offline.

    Raises:
        OSError: the file cannot be written.
    """
    figure = figure_cache_curve(points, trace_name=trace_name, block_tokens=block_tokens)
    path.write_text(figure.to_html(include_plotlyjs=True), encoding="utf-8")
