"""A study's figures, for notebooks: ``result.figure.pareto().show()``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hisearch.api.studies.reporting import report_input

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from hisearch.api.studies.study_outcome import StudyOutcome


@dataclass(frozen=True)
class Figures:
    """A result's figures."""

    result: StudyOutcome

    def pareto(self) -> go.Figure:
        """The front in the study's objectives."""
        from hisearch.report.figures.study import figure_pareto

        return figure_pareto(report_input(self.result))

    def parallel(self) -> go.Figure:
        """Parallel coordinates of settings and objectives."""
        from hisearch.report.figures.study import figure_parallel

        return figure_parallel(report_input(self.result))

    def progress(self) -> go.Figure:
        """Hypervolume of the front against simulations."""
        from hisearch.report.figures.study import figure_progress

        return figure_progress(report_input(self.result))

    def capacity(self) -> go.Figure:
        """SLO attainment of the recommendation against load."""
        from hisearch.report.figures.closeup import figure_loads

        return figure_loads(report_input(self.result).capacity)
