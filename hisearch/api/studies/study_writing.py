"""Writes a study's run folder: documents, tables, report, exports."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from hisearch.api.runs.run_folder import (
    CLOSEUP,
    ENDED,
    PROVENANCE,
    REPORT,
    keep_former,
    replace_with,
    write_text,
    write_tree,
)
from hisearch.api.studies.exporting import export_trial
from hisearch.api.studies.reporting import report_input
from hisearch.api.studies.study_outcome import NOT_EXPORTED, StudyOutcome


def write_run_folder(result: StudyOutcome, folder: Path) -> tuple[Path, ...]:
    """Write everything but the journal and the database, which the run itself writes.

    Returns:
        Paths kept of an earlier, different recommendation of the run.

    Raises:
        OSError: the folder cannot be written.
    """
    from hisearch.export.engines.flags import ExportError
    from hisearch.report.pages.html import write_report
    from hisearch.search.tables import candidates_frame, trials_frame

    folder.mkdir(parents=True, exist_ok=True)
    outcome = result.outcome
    kept = keep_former(folder, outcome.recommendation.trial.number if outcome.recommendation is not None else None)
    trials, front = trials_frame(outcome.trials), trials_frame(outcome.front)
    candidates = candidates_frame(outcome.execution)
    write_text(folder / "study.yaml", result.resolved.to_yaml())
    write_text(folder / PROVENANCE, json.dumps(result.provenance, indent=2) + "\n")
    replace_with(folder / "trials.parquet", lambda path: trials.to_parquet(path, index=False))
    replace_with(folder / "candidates.csv", lambda path: candidates.to_csv(path, index=False))
    replace_with(
        folder / "front.csv", lambda path: front.drop(columns="deployment", errors="ignore").to_csv(path, index=False)
    )
    if result.closeup is not None:
        write_text(folder / CLOSEUP, result.closeup.to_json())
    if outcome.recommendation is not None:
        trial = outcome.recommendation.trial
        (folder / NOT_EXPORTED).unlink(missing_ok=True)
        try:
            write_tree(folder / "recommended", lambda path: export_trial(result, trial, path))
        except ExportError as error:
            write_text(folder / NOT_EXPORTED, f"The recommendation was not exported: {error}\n")
    replace_with(folder / REPORT, lambda path: write_report(report_input(result), path))
    shutil.rmtree(folder / ENDED, ignore_errors=True)
    return kept
