"""The input of a study's report: what every report has, and the whole input of an unfinished study, live or killed.

For an unfinished study nothing is simulated, no trace is read, and nothing is locked or changed: a live study is not
disturbed.
"""

from __future__ import annotations

import datetime
import math
import shlex
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hisearch.api.deployments.replay import price_book
from hisearch.api.provenance import price_notes, profile_note
from hisearch.api.run_folder import CONFIDENCE_JOURNAL, JOURNAL, check_one_model
from hisearch.api.run_lock import is_running
from hisearch.hardware.prices import CostBreakdown
from hisearch.report.data.inputs import CostRow, ReportInput, RunRecord, SoFar
from hisearch.report.words.settings import STAGES
from hisearch.search.model.simulation_counts import count_simulations
from hisearch.search.model.trial import Recommendation, Trial
from hisearch.search.records.journal import SoFar as Journalled
from hisearch.search.records.journal import read_so_far
from hisearch.search.select.failure import explain
from hisearch.search.select.formats import brief_formats, describe_formats
from hisearch.search.select.other_hardware import OtherHardware, other_hardware, worker_kind
from hisearch.search.select.pareto import front, hypervolume_progress
from hisearch.search.select.recommend import nearest_miss, recommend
from hisearch.specs.documents.resolve import load_study
from hisearch.specs.documents.resolved import ResolvedStudy


def basic_input(
    resolved: ResolvedStudy,
    trials: Sequence[Trial],
    on_front: Sequence[Trial],
    recommendation: Recommendation | None,
    missed: Trial | None,
    workload: str,
) -> ReportInput:
    """The report's input as far as the trials say it: no versions, wall time, failure, confidence and closeup.

    Args:
        resolved: the study.
        trials: all of them.
        on_front: the Pareto front.
        recommendation: None where nothing meets the SLO.
        missed: the nearest miss.
        workload: its name.
    """
    study = resolved.study
    chosen = recommendation.trial if recommendation is not None else missed
    shown = [trial for trial, _ in recommendation.runner_ups] if recommendation is not None else []
    return ReportInput(
        title=f"{resolved.name}: which deployment to buy",
        study=resolved.name,
        workload=workload,
        model_id=resolved.model.spec.huggingface_id,
        objectives=tuple(study.objectives),
        slo=tuple(resolved.slo.spec.terms),
        trials=tuple(trials),
        front=tuple(on_front),
        recommendation=recommendation,
        nearest_miss=missed,
        progress=hypervolume_progress(trials, study.objectives),
        replicas_down=study.availability.replicas_down,
        other_hardware=_other_hardware(resolved, trials, recommendation),
        whole_hosts=price_book(resolved.hardware).whole_hosts(chosen.deployment) if chosen is not None else None,
        costs=_cost_rows(resolved, [*([chosen] if chosen is not None else []), *shown]),
        provenance=RunRecord(
            profile=profile_note(resolved, chosen),
            versions={},
            seeds={"study": study.seed},
            inputs=resolved.input_digests(),
            wall_time_s=None,
            cpu_cores=None,
            prices=price_notes(resolved),
            warnings=chosen.warnings if chosen is not None else (),
            settings={"Load": f"{study.workload.load:g}"},
        ),
    )


def _other_hardware(
    resolved: ResolvedStudy, trials: Sequence[Trial], recommendation: Recommendation | None
) -> tuple[OtherHardware, ...]:
    if recommendation is None:
        return ()
    space = resolved.space.spec.execution
    kinds = (worker_kind(name, devices) for name in space.accelerators for devices in space.devices or [None])
    return tuple(other_hardware(price_book(resolved.hardware), trials, recommendation.trial, kinds))


def _cost_rows(resolved: ResolvedStudy, trials: Sequence[Trial]) -> tuple[CostRow, ...]:
    book = price_book(resolved.hardware)
    return tuple(_cost_row(trial, book.breakdown(trial.deployment)) for trial in trials)


def _cost_row(trial: Trial, cost: CostBreakdown) -> CostRow:
    parts = {"Accelerators": cost.accelerator_usd_per_hour, "Hosts": cost.host_usd_per_hour}
    if cost.device_usd_per_hour:
        parts["Devices"] = cost.device_usd_per_hour
    for tier in cost.tiers:
        parts[tier.medium] = parts.get(tier.medium, 0.0) + tier.usd_per_hour
    # Watts over the simulated time; unknown where no token was served.
    power_w = trial.metrics.get("joules_per_token", math.nan) * trial.metrics.get("total_tokens_per_s", math.nan)
    return CostRow(trial.number, tuple(parts.items()), power_w if math.isfinite(power_w) else None)


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
    check_one_model(folder)
    if not (folder / JOURNAL).is_file():
        raise FileNotFoundError(f"{folder}: the run has not begun to simulate (no {JOURNAL})")
    resolved = load_study(folder / "study.yaml")
    journal = read_so_far(folder / JOURNAL)
    study, trials = resolved.study, journal.trials
    recommendation = recommend(trials, study.objectives)
    missed = nearest_miss(trials) if recommendation is None else None
    failure = explain(trials) if recommendation is None else None
    simulated = count_simulations(trials).describe()
    on_front = front(trials, study.objectives)
    basis = basic_input(resolved, trials, on_front, recommendation, missed, _workload(resolved))
    latest_s = (folder / JOURNAL).stat().st_mtime
    return replace(
        basis,
        formats=describe_formats(resolved.model.spec, basis.highlighted, trials, resolved.space.spec.execution),
        formats_brief=brief_formats(resolved.model.spec, basis.highlighted),
        failure=failure.text if failure is not None else "",
        failure_heading="Nothing meets the SLO so far" if failure is not None and failure.examined else "No answer yet",
        provenance=replace(basis.provenance, settings={**basis.provenance.settings, "Simulated": simulated}),
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
            running=is_running(folder),
        ),
    )


def _workload(resolved: ResolvedStudy) -> str:
    """Name of the workload, without reading the trace."""
    from hisearch.traces.load import trace_name

    return trace_name(resolved.workload) if isinstance(resolved.workload, Path) else resolved.workload.name


def _stage(folder: Path, journal: Journalled) -> str:
    """The last known stage of the run, as text."""
    concluding = folder / CONFIDENCE_JOURNAL
    if concluding.is_file() and concluding.stat().st_mtime >= (folder / JOURNAL).stat().st_mtime:
        return "after the search: how sure the answer is"
    if journal.latest is None:
        return f"stage 1 ({STAGES[1]})" if not journal.unknown else "stage unknown"
    if journal.latest.load != 1.0:
        return "after the search: the best deployment at larger loads"
    return f"stage {journal.latest.stage} ({STAGES[journal.latest.stage]})"


def _utc(seconds: float) -> str:
    return f"{datetime.datetime.fromtimestamp(seconds, datetime.UTC):%Y-%m-%d %H:%M:%S} UTC"
