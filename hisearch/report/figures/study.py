"""Draws a study's figures with Plotly; ``hisearch.report.figures.points`` makes their data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hisearch.report.data.inputs import ReportInput
from hisearch.report.figures import theme
from hisearch.report.figures.points import Axis, Dimension, ParetoData, Point, parallel_data, pareto_data, progress_data
from hisearch.report.figures.theme import LEGEND, digits, plain
from hisearch.report.words.settings import STAGES

if TYPE_CHECKING:
    import plotly.graph_objects as go

#: How often a line is drawn: parallel coordinates have no line width, and repeating a translucent line makes it bolder.
_STRENGTH = {"front": 2, "highlighted": 8}

#: Height of a label above the plot, and the share of the plot's width that "stage 1" takes on a phone.
_ROW_PIXELS, _LABEL_SHARE = 18, 0.2


def figure_pareto(data: ReportInput) -> go.Figure:
    """The first three objectives in space, or two in the plane if there are only two."""
    pareto = pareto_data(data)
    if len(pareto.axes) < 3:
        return _plane(pareto, 0, 1)
    import plotly.graph_objects as go

    figure = go.Figure()
    for group in _groups(pareto):
        x, y, z = ([point.values[i] for point in group.points] for i in range(3))
        figure.add_trace(go.Scatter3d(x=x, y=y, z=z, **group.style(small=0.6), **_hover(group.points, pareto)))
    scene = {
        key: _axis_layout(axis) | {"range": _range(axis)}
        for key, axis in zip(("xaxis", "yaxis", "zaxis"), pareto.axes, strict=False)
    }
    camera = {"eye": {"x": 1.42, "y": 1.42, "z": 0.62}, "center": {"x": 0, "y": 0, "z": -0.16}}
    return theme.finish(figure, scene=scene | {"camera": camera, "aspectmode": "cube"}, legend=LEGEND)


def figure_projection(data: ReportInput, x: str, y: str) -> go.Figure:
    """Two objectives in the plane, the region that the SLO allows shaded.

    Raises:
        ValueError: not objectives of the study, or undefined for all its trials.
    """
    pareto = pareto_data(data)
    drawn = [axis.name for axis in pareto.axes]
    for name in (x, y):
        if name not in drawn:
            raise ValueError(f"{name} is not an objective of this study that has values: {', '.join(drawn)}")
    return _plane(pareto, drawn.index(x), drawn.index(y))


def figure_parallel(data: ReportInput) -> go.Figure:
    """One line per trial through the settings that differ and the objectives; ``meta`` holds each line's trial."""
    import plotly.graph_objects as go

    parallel = parallel_data(data)
    codes = {"infeasible": 0, "dominated": 0, "front": 1, "highlighted": 2}
    lines = [i for i, status in enumerate(parallel.statuses) for _ in range(_STRENGTH.get(status, 1))]
    dimensions = []
    for dimension in parallel.dimensions:
        values = _spread(dimension)
        ticks = {
            "tickvals": [at for at, _ in dimension.ticks],
            "ticktext": [plain(text) for _, text in dimension.ticks],
        }
        dimensions.append({"label": _wrapped(dimension.title), "values": [values[i] for i in lines]} | ticks)
    line = {"color": [codes[parallel.statuses[i]] for i in lines], "cmin": 0, "cmax": 2}
    meta = [parallel.numbers[i] for i in lines]
    figure = go.Figure(go.Parcoords(dimensions=dimensions, line=line, labelside="top", meta=meta))
    return theme.finish(figure, margin={"l": 70, "r": 50, "t": 60, "b": 20})


def figure_progress(data: ReportInput) -> go.Figure:
    """Share of the latest hypervolume over the simulations, with the stages' beginnings."""
    import plotly.graph_objects as go

    progress = progress_data(data)
    figure = go.Figure(
        go.Scatter(
            x=progress.simulations,
            y=[digits(100 * share) for share in progress.share],
            mode="lines",
            line=theme.line(0, shape="hv"),
            hovertemplate="after simulation %{x}: %{y:.1f} %<extra></extra>",
        )
    )
    stages = sorted(progress.stages)
    rows = _rows([number for number, _ in stages], progress.simulations)
    for (number, stage), row in zip(stages, rows, strict=True):
        place = {"y": 1, "yanchor": "bottom", "xanchor": "left", "yshift": _ROW_PIXELS * row}
        figure.add_vline(
            x=number,
            line=theme.dotted(),
            annotation={"text": f"stage {stage}", **place},
        )
    top = 34 + _ROW_PIXELS * max(rows, default=0)
    return theme.finish(
        figure,
        margin={"l": 10, "r": 10, "t": top, "b": 10},
        xaxis={"title": {"text": "Simulation (number)"}},
        yaxis={"title": {"text": "Hypervolume (% of the latest)"}, "range": [0, 105]},
    )


def _rows(marks: Sequence[int], across: Sequence[int]) -> list[int]:
    """Row of each mark's label, from 0 at the axis, so that labels do not overlap; ``marks`` ascend."""
    width = _LABEL_SHARE * (max((*marks, *across), default=0) - min((*marks, *across), default=0))
    ends: list[float] = []
    label_rows = []
    for mark in marks:
        row = next((row for row, end in enumerate(ends) if end <= mark), len(ends))
        ends[row : row + 1] = [mark + width]
        label_rows.append(row)
    return label_rows


class _Group:
    """Points that share a legend entry and a style."""

    def __init__(self, name: str, points: list[Point], marker: dict[str, Any]) -> None:
        self.name = name
        self.points = points
        self.marker = marker

    def style(self, *, small: float = 1.0) -> dict[str, Any]:
        """Trace keywords; ``small`` scales the marker, which is drawn larger in space than in the plane."""
        marker = self.marker | {"size": self.marker["size"] * small}
        return {"name": self.name, "mode": "markers", "marker": marker}


def _groups(pareto: ParetoData) -> list[_Group]:
    """Legend entries, faintest first, empty ones left out."""
    by_status = {
        status: [p for p in pareto.points if p.status == status] for status in ("infeasible", "dominated", "front")
    }
    faint = {"opacity": 0.4, "size": 7}
    groups = [
        _Group(
            "Misses the SLO",
            by_status["infeasible"],
            faint | {"opacity": 0.6, "color": theme.FAINT, "symbol": "circle-open"},
        ),
        _Group(
            "Meets the SLO, but another is better",
            by_status["dominated"],
            faint | {"color": [theme.STAGE_COLOURS[p.stage] for p in by_status["dominated"]], "symbol": "circle"},
        ),
    ]
    prefix = "Front" if pareto.feasible else "Misses the SLO, unbeaten"
    for stage, name in STAGES.items():
        shape = (theme.STAGE_SHAPES if pareto.feasible else theme.HOLLOW_SHAPES)[stage]
        marker = {"color": theme.STAGE_COLOURS[stage], "symbol": shape, "size": 10}
        groups.append(
            _Group(f"{prefix}, stage {stage} ({name})", [p for p in by_status["front"] if p.stage == stage], marker)
        )
    highlighted = [p for p in pareto.points if p.status == "highlighted"]
    if highlighted:
        marker = {
            "color": theme.HIGHLIGHT,
            "symbol": theme.STAGE_SHAPES[highlighted[0].stage],
            "size": 17,
            "line": {"color": "#ffffff", "width": 2},
        }
        groups.append(_Group(pareto.highlight, highlighted, marker))
    return [group for group in groups if group.points]


def _hover(points: list[Point], pareto: ParetoData) -> dict[str, Any]:
    texts = [
        "<br>".join(
            [f"<b>Trial {p.number}, stage {p.stage}</b>", plain(p.label)]
            + [f"{a.quantity.title}: {v:,.4g}" for a, v in zip(pareto.axes, p.values, strict=True)]
        )
        for p in points
    ]
    numbers = [p.number for p in points]
    return {"text": texts, "customdata": numbers, "hovertemplate": "%{text}<extra></extra>"}


def _plane(pareto: ParetoData, first: int, second: int) -> go.Figure:
    import plotly.graph_objects as go

    figure = go.Figure()
    for group in _groups(pareto):
        x, y = ([point.values[i] for point in group.points] for i in (first, second))
        figure.add_trace(go.Scatter(x=x, y=y, **group.style(), **_hover(group.points, pareto)))
    axes = pareto.axes[first], pareto.axes[second]
    ranges = [_range(axis) for axis in axes]
    layouts = [_axis_layout(axis) | {"range": r} for axis, r in zip(axes, ranges, strict=True)]
    return theme.finish(figure, xaxis=layouts[0], yaxis=layouts[1], legend=LEGEND, **_slo_region(axes, ranges))


def _slo_region(axes: tuple[Axis, Axis], ranges: list[list[float]]) -> dict[str, Any]:
    """A rectangle up to each bound, and dashed, labelled lines at the bounds."""
    if all(axis.bound is None for axis in axes):
        return {}
    shapes: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    corners: dict[str, Any] = {}
    for letter, axis, limits in zip("xy", axes, ranges, strict=True):
        low, high = (10.0**v for v in limits) if axis.log else limits
        corners |= {f"{letter}0": low, f"{letter}1": high if axis.bound is None else axis.bound}
        if axis.bound is None:
            continue
        cross = "y" if letter == "x" else "x"
        at = {f"{letter}0": axis.bound, f"{letter}1": axis.bound, f"{cross}0": 0, f"{cross}1": 1}
        shapes.append({"type": "line", f"{cross}ref": "paper", "line": theme.bound_line(), "layer": "below"} | at)
        position = math.log10(axis.bound) if axis.log else axis.bound
        annotation: dict[str, Any] = {
            letter: position,
            cross: 1,
            f"{cross}ref": "paper",
            "text": f"SLO {axis.bound:g} {axis.quantity.unit}",
        }
        anchors: dict[str, dict[str, Any]] = {
            "x": {"xanchor": "right", "yanchor": "top", "textangle": -90},
            "y": {"xanchor": "right", "yanchor": "bottom"},
        }
        annotations.append(annotation | anchors[letter] | {"showarrow": False})
    shapes.insert(0, {"type": "rect", "fillcolor": theme.SLO_FILL, "line": {"width": 0}, "layer": "below"} | corners)
    return {"shapes": shapes, "annotations": annotations}


def _range(axis: Axis) -> list[float]:
    """Axis range for Plotly (exponents on a logarithmic axis), 6 % wider than the span."""
    low, high = (math.log10(v) for v in axis.span) if axis.log else axis.span
    pad = 0.06 * (high - low) or 0.5 * abs(high) or 1.0
    return [low - pad if axis.log else max(0.0, low - pad), high + pad]


def _axis_layout(axis: Axis) -> dict[str, Any]:
    layout: dict[str, Any] = {"title": {"text": axis.quantity.title}, "type": "log" if axis.log else "linear"}
    if axis.log:
        # Without a format of its own Plotly writes the ticks between powers of ten as their first digit alone.
        layout["dtick"] = "D2" if math.log10(axis.span[1] / axis.span[0]) <= 2 else 1
        layout["tickformat"] = f"{'$' if axis.quantity.unit.startswith('USD') else ''},.3~r"
    return layout


def _spread(dimension: Dimension) -> list[float]:
    """Values around their tick, by up to 0.14 of the ticks' distance, so that equal settings do not hide each other."""
    if not dimension.categorical:
        return [digits(value) for value in dimension.values]
    golden = (math.sqrt(5) - 1) / 2
    return [round(value + 0.28 * (i * golden % 1 - 0.5), 3) for i, value in enumerate(dimension.values)]


def _wrapped(text: str) -> str:
    """A dimension's title, broken before its last word."""
    return "<br>".join(plain(line) for line in text.rsplit(" ", 1))
