"""The result of a study, with its figures, documents and exports."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hisearch.api.studies.study_outcome import StudyOutcome

if TYPE_CHECKING:
    from hisearch.api.studies.figures import Figures
    from hisearch.report.data.inputs import ReportInput
    from hisearch.search.model.trial import Trial
    from hisearch.search.records.progress import Progress

_ENGINES = ("sglang", "vllm", "trtllm")


@dataclass(frozen=True)
class StudyResult(StudyOutcome):
    """``StudyOutcome`` with its figures, documents and exports."""

    @property
    def figure(self) -> Figures:
        """The report's figures, as plotly figures."""
        from hisearch.api.studies.figures import Figures

        return Figures(self)

    def write(self, run_dir: str | Path) -> tuple[Path, ...]:
        """Write the run folder's documents (not the journal and the database, which belong to the run).

        Returns:
            Paths kept of an earlier, different recommendation of the run.
        """
        from hisearch.api.studies.study_writing import write_run_folder

        return write_run_folder(self, Path(run_dir))

    def export(self, target: str | Path) -> list[Path]:
        """Write launch scripts.

        Args:
            target: an engine (``sglang``, ``vllm``, ``trtllm``) exports the best feasible deployment on it into
                ``recommended-<engine>`` of the run folder. Anything else is a folder for the recommendation's scripts.

        Raises:
            ValueError: there is no feasible deployment (on that engine).
            ExportError: the deployment cannot be expressed as launch commands.
        """
        if str(target) not in _ENGINES:
            if self.recommendation is None:
                raise ValueError("nothing to export: no deployment meets the SLO")
            return self.export_trial(self.recommendation.trial, Path(target))
        return self.export_trial(self.best_on(str(target)), self.run_dir / f"recommended-{target}")

    def export_trial(self, trial: Trial, folder: Path) -> list[Path]:
        """Write the launch scripts of any trial's deployment into ``folder``.

        Raises:
            ExportError: the deployment cannot be expressed as launch commands, or ``folder`` holds other files where
                these belong.
        """
        from hisearch.api.studies.exporting import export_trial

        return export_trial(self, trial, folder)

    def with_closeup(self, workers: int | None = None, progress: Progress | None = None) -> StudyResult:
        """The result with the report's details of the highlighted deployment, which is simulated for them.

        Args:
            workers: threads; all cores where absent.
            progress: notified of each simulation.
        """
        from hisearch.api.studies.closeup import close_up_of
        from hisearch.search.records.progress import SilentProgress

        closeup = close_up_of(self, workers or os.cpu_count() or 1, progress or SilentProgress())
        return replace(self, closeup=closeup)

    def report_input(self) -> ReportInput:
        """The input of the report.

        Raises:
            ValueError: the run folder's ``confidence.json`` is invalid.
        """
        from hisearch.api.studies.reporting import report_input

        return report_input(self)
