"""The report of an unfinished study, live or killed, from its folder.

Nothing is simulated, no trace is read, and nothing is locked or changed: a live study is not disturbed.
"""

from __future__ import annotations

import datetime
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hisearch.api.runs.run_folder import JOURNAL, check_one_model

if TYPE_CHECKING:
    from hisearch.report.data.inputs import ReportInput, RunRecord
    from hisearch.search.model.trial import Trial
    from hisearch.search.records.journal import SoFar as Journalled
    from hisearch.specs.documents.resolved import ResolvedStudy


def input_so_far(folder: Path, *, refresh_s: int = 0, other: str = "") -> ReportInput:
    """The report's input from the journal of a run.

    Args:
        folder: the run's.
        refresh_s: see ``hisearch.report.data.SoFar``.
        other: see ``hisearch.report.data.SoFar``.

    Raises:
        FileNotFoundError: the folder does not hold a run.
        SpecError: an input of the run is gone.
        ValueError: the folder holds a run of several models.
        JournalError: its journal is invalid.
    """
    from hisearch.api.studies.costs import cost_rows
    from hisearch.report.data.inputs import ReportInput, SoFar
    from hisearch.search.records.journal import read_so_far
    from hisearch.search.select.failure import explain
    from hisearch.search.select.formats import describe_formats
    from hisearch.search.select.pareto import front, hypervolume_progress
    from hisearch.search.select.recommend import nearest_miss, recommend
    from hisearch.specs.documents.resolve import load_study

    check_one_model(folder)
    if not (folder / JOURNAL).is_file():
        raise FileNotFoundError(f"{folder}: the run has not begun to simulate (no {JOURNAL})")
    resolved = load_study(folder / "study.yaml")
    journal = read_so_far(folder / JOURNAL)
    study, trials = resolved.study, journal.trials
    recommendation = recommend(trials, study.objectives)
    missed = nearest_miss(trials) if recommendation is None else None
    failure = explain(trials) if recommendation is None else None
    latest_s = (folder / JOURNAL).stat().st_mtime
    return ReportInput(
        title=f"{resolved.name}: which deployment to buy",
        study=resolved.name,
        workload=_workload(resolved),
        model_id=resolved.model.spec.huggingface_id,
        objectives=tuple(study.objectives),
        slo=tuple(resolved.slo.spec.terms),
        trials=trials,
        front=tuple(front(trials, study.objectives)),
        recommendation=recommendation,
        nearest_miss=missed,
        failure=failure.text if failure is not None else "",
        failure_heading=_heading(failure is not None and failure.examined),
        formats=describe_formats(
            resolved.model.spec,
            recommendation.trial if recommendation is not None else missed,
            trials,
            resolved.space.spec.execution,
        ),
        progress=hypervolume_progress(trials, study.objectives),
        costs=cost_rows(resolved, recommendation, missed),
        provenance=_record(resolved, journal, recommendation.trial if recommendation is not None else missed),
        so_far=SoFar(
            simulations=journal.simulations,
            budget=study.budget.simulations,
            stage=_stage(folder, journal),
            begun=_utc((folder / "study.yaml").stat().st_mtime),
            latest=_utc(latest_s) if journal.simulations else "",
            age_s=max(time.time() - latest_s, 0.0),
            resume=f"hisearch run --resume {shlex.quote(str(folder))}",
            unknown=len(journal.unknown),
            refresh_s=refresh_s,
            other=other,
        ),
    )


def _heading(examined: bool) -> str:
    return "Nothing meets the SLO so far" if examined else "No answer yet"


def _workload(resolved: ResolvedStudy) -> str:
    """Name of the workload, without reading the trace."""
    from hisearch.traces.load import trace_name

    return trace_name(resolved.workload) if isinstance(resolved.workload, Path) else resolved.workload.name


def _stage(folder: Path, journal: Journalled) -> str:
    """The last known stage of the run, as text."""
    from hisearch.api.studies.conclude import JOURNAL as OF_CONFIDENCE
    from hisearch.report.words.settings import STAGES

    concluding = folder / OF_CONFIDENCE
    if concluding.is_file() and concluding.stat().st_mtime >= (folder / JOURNAL).stat().st_mtime:
        return "after the search: how sure the answer is"
    if journal.latest is None:
        return f"stage 1 ({STAGES[1]})" if not journal.unknown else "stage unknown"
    if journal.latest.load != 1.0:
        return "after the search: the best deployment at larger loads"
    return f"stage {journal.latest.stage} ({STAGES[journal.latest.stage]})"


def _record(resolved: ResolvedStudy, journal: Journalled, chosen: Trial | None) -> RunRecord:
    """The provenance of the figures, as far as known before the end."""
    from hisearch.api.runs.provenance import price_notes, profile_note
    from hisearch.report.data.inputs import RunRecord
    from hisearch.specs.wording import counted

    on_whole_trace = sum(trial.simulations for trial in journal.trials if trial.slice_fraction == 1.0)
    return RunRecord(
        profile=profile_note(resolved, chosen),
        versions={},
        seeds={"study": resolved.study.seed},
        inputs=resolved.input_digests(),
        wall_time_s=None,
        cpu_cores=None,
        prices=price_notes(resolved),
        warnings=chosen.warnings if chosen is not None else (),
        settings={
            "Load": f"{resolved.study.workload.load:g}",
            "Simulated": f"{counted(journal.simulations, 'simulation')}, {on_whole_trace:,} of them on the whole trace",
        },
    )


def _utc(seconds: float) -> str:
    return f"{datetime.datetime.fromtimestamp(seconds, datetime.UTC):%Y-%m-%d %H:%M:%S} UTC"
