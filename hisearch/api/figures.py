"""A study's figures, for notebooks: ``result.figure.pareto().show()``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from hisearch.api.result import StudyResult


@dataclass(frozen=True)
class Figures:
    """A result's figures."""

    result: StudyResult

    def pareto(self) -> go.Figure:
        """The front in the study's objectives."""
        from hisearch.report.figures import figure_pareto

        return figure_pareto(self.result.report_input())

    def parallel(self) -> go.Figure:
        """Parallel coordinates of settings and objectives."""
        from hisearch.report.figures import figure_parallel

        return figure_parallel(self.result.report_input())

    def progress(self) -> go.Figure:
        """Hypervolume of the front against simulations."""
        from hisearch.report.figures import figure_progress

        return figure_progress(self.result.report_input())

    def capacity(self) -> go.Figure:
        """Share of good requests of the recommendation against load."""
        from hisearch.report.closeup_figures import figure_loads

        return figure_loads(self.result.report_input().capacity)
