"""A study's figures, for notebooks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from hisearch.report.data.inputs import ReportInput


@dataclass(frozen=True)
class Figures:
    """``result.figure.pareto().show()``; ``report_input``: makes the input of the report."""

    report_input: Callable[[], ReportInput]

    def pareto(self) -> go.Figure:
        """The front in the study's objectives."""
        from hisearch.report.figures.study import figure_pareto

        return figure_pareto(self.report_input())

    def parallel(self) -> go.Figure:
        """Parallel coordinates of settings and objectives."""
        from hisearch.report.figures.study import figure_parallel

        return figure_parallel(self.report_input())

    def progress(self) -> go.Figure:
        """Hypervolume of the front against simulations."""
        from hisearch.report.figures.study import figure_progress

        return figure_progress(self.report_input())

    def capacity(self) -> go.Figure:
        """SLO attainment of the recommendation against load."""
        from hisearch.report.figures.closeup import figure_loads

        return figure_loads(self.report_input().loads)
