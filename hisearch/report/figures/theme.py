"""Colours and templates of the figures, for light and for dark pages."""

from __future__ import annotations

import html
import math
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import plotly.graph_objects as go

#: Readable on both backgrounds (contrast of at least 3 to 1); each stage also has a shape of its own.
STAGE_COLOURS = {1: "#3b82c4", 2: "#c9701a", 3: "#1f9a6c", 4: "#8757c9"}
STAGE_SHAPES = {1: "cross", 2: "square", 3: "diamond", 4: "circle"}
#: The same shapes hollow; in space Plotly has no hollow cross.
HOLLOW_SHAPES = {1: "cross", 2: "square-open", 3: "diamond-open", 4: "circle-open"}
HIGHLIGHT = "#d6336c"
FAINT = "#8a94a0"
#: Colours of lines and bars in order, each with its own dash; readable on light and dark.
COLOURS = ("#3b82c4", "#c9701a", "#1f9a6c", "#8757c9", HIGHLIGHT, FAINT)
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SLO_FILL = "rgba(31, 154, 108, 0.13)"
SLO_LINE = "#1f9a6c"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
#: The legend above a figure.
LEGEND = {"orientation": "h", "x": 0, "xanchor": "left", "y": 1.01, "yanchor": "bottom"}
#: A logarithmic axis with a label at every power of ten.
LOG_AXIS = {"type": "log", "tickformat": ",.3~r", "dtick": 1}
GIB = float(2**30)

_LIGHT = {"text": "#1b2430", "grid": "#d9dee4", "line": "#8a94a0", "hover": "#ffffff", "faint": "#cdd3da"}
_DARK = {"text": "#e4e8ed", "grid": "#3a424d", "line": "#7d8794", "hover": "#1b2027", "faint": "#464f5a"}


def template(scheme: str) -> dict[str, Any]:
    """Plotly template of a colour scheme, ``light`` or ``dark``; backgrounds are transparent."""
    colours = {"light": _LIGHT, "dark": _DARK}[scheme]
    axis = {
        "gridcolor": colours["grid"],
        "linecolor": colours["line"],
        "zerolinecolor": colours["grid"],
        "tickcolor": colours["line"],
        "automargin": True,
    }
    scene = {
        "gridcolor": colours["grid"],
        "linecolor": colours["line"],
        "zerolinecolor": colours["grid"],
        "showbackground": False,
    }
    scale = [[0.0, colours["faint"]], [0.5, STAGE_COLOURS[3]], [1.0, HIGHLIGHT]]
    return {
        "data": {"parcoords": [{"line": {"colorscale": scale}}]},
        "layout": {
            "font": {"family": FONT, "size": 13, "color": colours["text"]},
            "paper_bgcolor": "rgba(0, 0, 0, 0)",
            "plot_bgcolor": "rgba(0, 0, 0, 0)",
            "xaxis": axis,
            "yaxis": axis,
            "scene": {"xaxis": scene, "yaxis": scene, "zaxis": scene},
            "hoverlabel": {
                "bgcolor": colours["hover"],
                "font": {"family": FONT, "color": colours["text"]},
                "align": "left",
            },
            "legend": {"bgcolor": "rgba(0, 0, 0, 0)"},
            "modebar": {"bgcolor": "rgba(0, 0, 0, 0)", "color": colours["line"], "activecolor": colours["text"]},
        },
    }


def finish(figure: go.Figure, **layout: Any) -> go.Figure:
    """Give a figure the light template, small margins and ``layout``; redrawing keeps the reader's zoom."""
    margin = {"l": 10, "r": 10, "t": 34, "b": 10}
    figure.layout.template = _merged_light()
    figure.update_layout(**({"margin": margin, "uirevision": "kept"} | layout))
    return figure


@cache
def _merged_light() -> go.layout.Template:
    """The light template over Plotly's own, which takes fifty milliseconds to merge."""
    import plotly.graph_objects as go

    return go.Figure().update_layout(template=template("light")).layout.template


def line(index: int, **changes: Any) -> dict[str, Any]:
    """Style of the line of that place in a figure."""
    return {"color": COLOURS[index % 6], "width": 2.5, "dash": DASHES[index % 6]} | changes


def bound_line() -> dict[str, Any]:
    """Style of the dashed line at a bound of the SLO, or where a size pays for itself."""
    return {"color": SLO_LINE, "width": 1.5, "dash": "dash"}


def dotted() -> dict[str, Any]:
    """Style of a faint line that marks a place."""
    return {"color": FAINT, "width": 1, "dash": "dot"}


def plain(text: str) -> str:
    """User text without markup: Plotly reads a subset of HTML in labels and hover texts."""
    return html.escape(text, quote=False)


def digits(value: float) -> float:
    """Four significant digits, enough for a figure."""
    return float(f"{value:.4g}")


def short(value: float | None) -> float | None:
    """The same; None where it is unknown or infinite."""
    return None if value is None or not math.isfinite(value) else digits(value)
