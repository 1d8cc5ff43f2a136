"""The input of a study's report."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from hisearch.api.runs.provenance import format_simulations, price_notes, profile_note
from hisearch.api.studies.costs import cost_rows
from hisearch.api.studies.study_outcome import NOT_EXPORTED
from hisearch.report.data.inputs import ReportInput, RunRecord
from hisearch.search.select.pareto import hypervolume_progress

if TYPE_CHECKING:
    from hisearch.api.studies.study_outcome import StudyOutcome


def report_input(result: StudyOutcome) -> ReportInput:
    """The input of a study's report.

    ``capacity`` excludes the search's own simulations at other loads: they stop once their verdict is certain.

    Raises:
        ValueError: the run folder's ``confidence.json`` is invalid.
    """
    study, facts, failure = result.resolved.study, result.provenance, result.failure
    refused = result.run_dir / NOT_EXPORTED if result.recommendation is not None else None
    return ReportInput(
        title=f"{result.resolved.name}: which deployment to buy",
        study=result.resolved.name,
        workload=facts["trace"]["name"],
        model_id=result.resolved.model.spec.huggingface_id,
        objectives=tuple(study.objectives),
        slo=tuple(result.resolved.slo.spec.terms),
        trials=result.trials,
        front=result.front,
        recommendation=result.recommendation,
        nearest_miss=result.nearest_miss,
        failure=failure.text if failure is not None else "",
        failure_heading=failure.heading if failure is not None else "",
        cut_short=result.caution,
        not_exported=refused.read_text(encoding="utf-8").strip() if refused is not None and refused.is_file() else "",
        formats=result.formats,
        capacity=result.closeup.loads if result.closeup is not None else (),
        progress=hypervolume_progress(result.trials, study.objectives),
        costs=cost_rows(result.resolved, result.recommendation, result.nearest_miss),
        closeup=result.closeup,
        confidence=result.confidence,
        provenance=_record(result),
        run=shlex.quote(str(result.run_dir)),
    )


def _record(result: StudyOutcome) -> RunRecord:
    """The provenance of its figures."""
    facts, chosen = result.provenance, result.highlighted
    return RunRecord(
        profile=profile_note(result.resolved, chosen),
        versions=facts["versions"],
        seeds=facts["seeds"],
        inputs=facts["inputs"],
        wall_time_s=facts["run"]["wall_time_s"],
        cpu_cores=facts["cpu_cores"],
        prices=price_notes(result.resolved),
        warnings=(*facts["trace"]["warnings"], *(chosen.warnings if chosen is not None else ())),
        settings={
            "Requests": f"{facts['trace']['requests']:,}",
            "Load": f"{result.resolved.study.workload.load:g}",
            "Simulated": format_simulations(facts),
            "Stage 1": result.outcome.execution.summary(),
            "Ended": result.outcome.ending.describe(),
        },
    )
