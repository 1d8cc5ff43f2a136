"""Loads results from run folders: ``hisearch.load_run(folder)``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hisearch.api.run_folder import CLOSEUP, JOURNAL, PROVENANCE, check_one_model, ended_in
from hisearch.api.studies.result import StudyResult
from hisearch.api.studies.study import Study, load_study
from hisearch.base.json_file import read_json
from hisearch.search.model.trial import Trial
from hisearch.specs.deployments.deployment import DeploymentSpec


def load_run(run_dir: str | Path) -> StudyResult:
    """The result of a finished run, from its folder; nothing is simulated or changed.

    A run that was resumed and has not ended again gives its earlier result (``kept_in``).

    Trials come from ``trials.parquet`` and the journal; stage 1's report is computed again. The unchanged trace is
    needed.

    Args:
        run_dir: the folder.

    Raises:
        FileNotFoundError: the folder does not hold a run, or the run has not ended.
        SpecError: an input of the run has changed or is gone.
        ValueError: the folder's files do not belong together, or it holds a run of several models.
    """
    folder = Path(run_dir)
    check_one_model(folder)
    place = ended_in(folder)
    missing = [JOURNAL] * (not (folder / JOURNAL).is_file()) + ["provenance.json"] * (place is None)
    if place is None or missing:
        raise FileNotFoundError(
            f"{folder}: the run has not ended (no {missing[0]}); go on with: hisearch run --resume {folder}"
        )
    facts = read_json(place / PROVENANCE)
    study = load_study(place / "study.yaml")
    return _rebuild(study, folder, place, facts)


def _rebuild(study: Study, folder: Path, place: Path, facts: dict[str, Any]) -> StudyResult:
    from hisearch.report.data.closeup import read_closeup
    from hisearch.report.data.stored import CONFIDENCE
    from hisearch.search.confidence.record import stored_conclusion
    from hisearch.search.driver import MOST_CANDIDATES, SearchOutcome
    from hisearch.search.evaluate.simulation import Simulation
    from hisearch.search.select.headroom import headroom
    from hisearch.search.select.pareto import front
    from hisearch.search.select.recommend import nearest_miss, recommend
    from hisearch.search.stages.ending import FINISHED, Ending
    from hisearch.search.stages.execution import search_execution

    simulation = Simulation(study.world())
    problem = study.problem(simulation)
    trials = _trials(folder, place, facts["run"]["inputs_digest"])
    concluded = stored_conclusion(place / CONFIDENCE, trials, problem.objectives)
    if concluded is None:
        recommendation = recommend(trials, problem.objectives)
        # From the loads that the search itself tried.
        capacity = headroom(trials, recommendation.trial) if recommendation is not None else None
    else:
        recommendation, capacity = concluded
    budget = facts["budget"]
    outcome = SearchOutcome(
        execution=search_execution(problem, MOST_CANDIDATES),  # it simulates nothing
        trials=tuple(trials),
        front=tuple(front(trials, problem.objectives)),
        recommendation=recommendation,
        nearest_miss=nearest_miss(trials) if recommendation is None else None,
        headroom=capacity,
        ending=Ending(
            stopped="" if budget["stopped"] == FINISHED else budget["stopped"],
            untried=tuple(budget["untried"]),
            budget=problem.budget,
            used=int(budget.get("within_budget", budget["simulations_used"])),
            # Runs of earlier versions did not record these.
            left_out=tuple(budget.get("left_out", ())),
            likely=tuple(budget.get("likely", budget["untried"])),
            proven=bool(budget.get("proven", False)),
            rule=problem.recommend.rule,
        ),
    )
    closeup = read_closeup(place / CLOSEUP) if (place / CLOSEUP).is_file() else None
    kept_in = place if place != folder else None
    result = StudyResult(study.resolved, outcome, simulation, facts, folder, closeup, kept_in)
    highlighted = result.highlighted
    if closeup is not None and (highlighted is None or closeup.trial != highlighted.number):
        raise ValueError(
            f"{place / CLOSEUP}: trial: expected {highlighted.number if highlighted else 'none'}, got {closeup.trial}"
        )
    return result


def _trials(folder: Path, place: Path, inputs: str) -> list[Trial]:
    """Every trial: its deployment from ``trials.parquet``, its exact result from the journal."""
    import pandas as pd

    from hisearch.search.model.deployments import parameters_of
    from hisearch.search.model.job import Job, job_digest
    from hisearch.search.records.journal import check_journal
    from hisearch.specs.documents.renamed_keys import current_data

    columns = ["number", "stage", "slice_fraction", "load", "deployment"]
    frame = pd.read_parquet(place / "trials.parquet", columns=columns)
    trials: list[Trial] = []
    journal = check_journal(folder / JOURNAL, inputs, resume=True)  # read only: a run may be writing it
    for row in frame.to_dict("records"):
        deployment = DeploymentSpec.model_validate(current_data(json.loads(row["deployment"]), DeploymentSpec))
        slice_fraction, load = float(row["slice_fraction"]), float(row["load"])
        job = Job(int(row["stage"]), deployment, parameters_of(deployment), slice_fraction, load)
        evaluation = journal.get(job.digest(inputs)) or journal.get(
            # Of journals of earlier versions: a digest of every field that deployments had then.
            job_digest(json.loads(row["deployment"]), slice_fraction, load, inputs)
        )
        if evaluation is None:
            raise ValueError(f"{folder}: trial {row['number']} of trials.parquet is not in {JOURNAL}")
        trials.append(evaluation.trial(int(row["number"]), job))
    return trials
