"""What the requests of each priority and each tenant get and cost: figure and number table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hisearch.report.data.closeup import ClassFigures
from hisearch.report.figures import theme
from hisearch.report.figures.drawing import Drawing, NumberTable, drawing
from hisearch.report.figures.theme import COLOURS, plain
from hisearch.score.fairness import ServiceDifference
from hisearch.score.quantities import UNDEFINED, percent, significant, usd

if TYPE_CHECKING:
    import plotly.graph_objects as go


def figure_classes(classes: Sequence[ClassFigures]) -> go.Figure:
    """Good requests and dollars per hour of each class."""
    from plotly.subplots import make_subplots

    titles = ["Good (%)", "$ per hour"]
    figure = make_subplots(rows=1, cols=2, shared_yaxes=True, horizontal_spacing=0.06, subplot_titles=titles)
    names = [plain(each.name) for each in classes]
    columns = ([100 * each.attainment for each in classes], [each.usd_per_hour for each in classes])
    for number, (title, values) in enumerate(zip(titles, columns, strict=True)):
        figure.add_bar(
            y=names, x=[round(value, 4) for value in values], orientation="h", showlegend=False,
            marker_color=COLOURS[number], row=1, col=number + 1, name=title,
            hovertemplate=f"%{{y}}: %{{x}}<extra>{title}</extra>",
        )  # fmt: skip
    figure.update_yaxes(autorange="reversed")
    figure.update_xaxes(rangemode="tozero")
    return theme.finish(figure)


def classes_drawing(
    classes: Sequence[ClassFigures], difference: ServiceDifference | None, label: str
) -> tuple[Drawing, go.Figure]:
    """The figure with its texts and numbers. difference: the largest of two tenants' service, where any wait."""
    rows = tuple(
        (
            each.name,
            f"{each.requests:,}",
            UNDEFINED if each.ttft_p95_s is None else f"{significant(each.ttft_p95_s)} s",
            UNDEFINED if each.tpot_p95_s is None else f"{significant(each.tpot_p95_s)} s",
            percent(each.attainment),
            significant(each.goodput_rps),
            usd(each.usd_per_hour),
        )
        for each in classes
    )
    columns = ("Class", "Requests", "TTFT p95", "TPOT p95", "Meet their terms", "Goodput (requests/s)", "An hour")
    table = NumberTable("Classes of requests at the study's load", columns, rows)
    return drawing("classes", "half", label, classes, difference, table=table), figure_classes(classes)
