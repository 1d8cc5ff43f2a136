"""Compares a deployment, or a run's, with measurements: ``hisearch.verify_run(...)``, ``verify_deployment(...)``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hisearch.api.verification import Compared, CrossCheck, Row, Standing, Verification
from hisearch.specs.wording import format_percent, listed
from hisearch.traces.importers import read_measurements
from hisearch.verify.cases import Case
from hisearch.verify.diagnosis import diagnose, refit
from hisearch.verify.prediction import Correction, Predictor, corrected_fleet
from hisearch.verify.recalibrated import recalibrated
from hisearch.verify.requests import requests_of

if TYPE_CHECKING:
    from hisearch.api.studies.result import StudyResult
    from hisearch.search.evaluate.simulation import Simulation
    from hisearch.search.model.trial import Trial
    from hisearch.simulate.plans.fleet import FleetPlan
    from hisearch.specs.deployments.deployment import DeploymentSpec
    from hisearch.specs.documents.resolved import ResolvedDeployment, ResolvedStudy
    from hisearch.traces.changes.replay import Replay
    from hisearch.traces.importers.measurement import Measurement

#: Fewest requests for a cross-check of two halves.
_FEWEST = 40


@dataclass(frozen=True)
class _Subject:
    """What was measured. known: the requests that a client with so many was to send, and what messages call them.

    only: measurements of other requests than ``known`` are refused.
    """

    name: str
    resolved: ResolvedStudy | ResolvedDeployment
    deployment: DeploymentSpec
    fleet: FleetPlan
    seed: int
    known: Replay | None
    known_name: str
    only: bool = False


def verify_run(
    run: str | Path | StudyResult,
    measured: Iterable[str | Path],
    *,
    trial: int | None = None,
    profile: str | Path | None = None,
) -> Verification:
    """Compare measurements of a run's deployment with the simulation of the same requests.

    Measurements by the scripts in ``benchmark/`` are of the run's own requests. Of other requests those in the measured
    file are simulated, where it has them.

    Args:
        run: the folder of a finished run, or its result.
        measured: results of benchmark tools, see docs/traces.md.
        trial: number of the trial whose deployment was measured; the recommendation's where absent.
        profile: name or path of a latency profile to predict with instead of the study's, such as one that an earlier
            measurement has corrected.

    Raises:
        OSError, SpecError: a file cannot be used.
        ValueError: there is no such trial, the deployment cannot serve what was sent, or nobody knows what that was.
    """
    from hisearch.api.studies.exporting import benchmark_of
    from hisearch.api.studies.stored_run import load_run
    from hisearch.search.evaluate.simulation import Simulation
    from hisearch.specs.documents.catalogue import Catalogue
    from hisearch.traces.changes.replay import USUAL_REQUESTS

    result = load_run(run) if isinstance(run, str | Path) else run
    runs = _read(measured)
    chosen = _chosen(result, trial)
    replay = benchmark_of(result.simulation, chosen, USUAL_REQUESTS).replay
    simulation, resolved = result.simulation, result.resolved
    if profile is not None:
        document = Catalogue().get("LatencyProfile", str(profile))
        resolved = replace(resolved, profile=document)
        simulation = Simulation(replace(simulation.world, profile_name=document.name, profile=document.spec))
    fleet = simulation.fleet(chosen.deployment, whole=True)
    name = f"trial {chosen.number} of {result.run_dir}"
    seed = resolved.study.seed
    subject = _Subject(name, resolved, chosen.deployment, fleet, seed, replay, "the run's benchmark")
    verification = replace(_verified(subject, runs), run_dir=result.run_dir, trial=chosen.number)
    return replace(verification, standing=_standing(simulation, chosen, fleet, verification))


def verify_deployment(
    deployment: str | Path,
    measured: Iterable[str | Path],
    *,
    trace: str | Path | None = None,
    overrides: Iterable[str] = (),
    seed: int = 0,
) -> Verification:
    """Compare measurements of any deployment with its simulation.

    Args:
        deployment: name or path of a Deployment.
        measured: results of benchmark tools, see docs/traces.md.
        trace: the workload, or trace file, whose first requests were sent; where absent they are taken from the
            measured file, and their prompts share nothing.
        overrides: ``key.path=value`` settings on the deployment, as of ``--set``; ``spec.profile`` names the latency
            profile.
        seed: of the workload, of arrivals that no file records, and of the router's random stream.

    Raises:
        OSError, SpecError: a file cannot be used.
        ValueError: the deployment cannot serve what was sent, or nobody knows what that was.
    """
    from hisearch.api.deployments.deployment import plan_deployment
    from hisearch.api.deployments.workload import load_trace
    from hisearch.simulate.engine import simulate_fleet
    from hisearch.specs.documents.resolve import load_deployment
    from hisearch.traces.changes.replay import replay_of
    from hisearch.traces.changes.selection import head

    resolved = load_deployment(deployment, tuple(overrides))
    runs = _read(measured)
    fleet = plan_deployment(resolved)
    known, name = None, ""
    if trace is not None:
        workload = head(load_trace(trace, seed=seed), max((run.sent for run in runs), default=1))
        # Follow-ups get the times at which they arrive: a client knows nothing of sessions.
        known = replay_of(workload, simulate_fleet(fleet, workload, seed=seed).requests.arrival_s, len(workload))
        name = workload.name
    subject = _Subject(resolved.name, resolved, resolved.deployment, fleet, seed, known, name, only=trace is not None)
    return _verified(subject, runs)


def _read(measured: Iterable[str | Path]) -> list[Measurement]:
    return [measurement for path in measured for measurement in read_measurements(Path(path))]


def _verified(subject: _Subject, runs: Sequence[Measurement]) -> Verification:
    """Everything but what only a run has."""
    from hisearch.simulate.engine import simulate_fleet

    if not runs:
        raise ValueError("no measurement is given")
    # Benchmarks ask for every output token.
    pools = tuple(replace(pool, plan=replace(pool.plan, ignore_eos=True)) for pool in subject.fleet.pools)
    fleet = replace(subject.fleet, pools=pools)
    sent = [requests_of(run, subject.known, subject.known_name, only=subject.only) for run in runs]
    cases = [
        Case(
            of_run.measurement,
            Predictor(
                of_run.measurement, of_run.replay, fleet, partial(simulate_fleet, seed=subject.seed), subject.seed
            ),
            of_run.measurement.requests.rows if of_run.measurement.requests is not None else None,
        )
        for of_run in sent
    ]
    diagnosis = diagnose(cases)
    check = _cross_check(cases, diagnosis.terms)
    error = check.error_after if check is not None else diagnosis.error_after
    checked = check.how if check is not None else "no data was held out"
    profiles = recalibrated(
        subject.resolved, subject.deployment, diagnosis, (error, checked), [run.source for run in runs]
    )
    stated = max(pool.plan.costs.relative_error for pool in fleet.pools)
    compared = [
        _compared(case, diagnosis.correction, (of_run.note, *of_run.measurement.notes), run)
        for case, of_run, run in zip(cases, sent, runs, strict=True)
    ]
    return Verification(
        deployment=subject.name,
        run_dir=None,
        trial=None,
        measurements=tuple(compared),
        diagnosis=diagnosis,
        cross_check=check,
        profile=subject.resolved.profile.name,
        stated_error=stated,
        agrees=diagnosis.error_before <= stated,
        profile_name=f"{subject.resolved.profile.name.removesuffix('-measured')}-measured",
        profiles=profiles,
        standing=None,
    )


def _standing(simulation: Simulation, trial: Trial, fleet: FleetPlan, verification: Verification) -> Standing:
    """Simulate the study's own workload on the corrected deployment, and hold it against the SLO."""
    from hisearch.score.terms import check_to_dict

    correction = verification.diagnosis.correction
    evaluation = simulation.evaluate_fleet(
        trial.deployment, corrected_fleet(fleet, correction, front_end=True), trial.load
    )
    checks = tuple(check_to_dict(check) for check in evaluation.slo)
    if verification.unexplained is not None:
        return Standing(trial.number, None, checks, "not known: the difference is not explained")
    broken = [
        f"{check.label} by {format_percent(-check.margin)} of its bound" if check.margin is not None else check.label
        for check in evaluation.slo
        if not check.holds
    ]
    text = "it meets the SLO" if evaluation.feasible else f"it misses the SLO: {listed(broken)}"
    if correction.hits_lost:
        text += "; with all its cache hits, though some are lost"
    return Standing(trial.number, evaluation.feasible, checks, text)


def _chosen(result: StudyResult, number: int | None) -> Trial:
    if number is not None:
        return result.trial(number)
    if result.recommendation is None:
        raise ValueError(f"{result.run_dir}: nothing is recommended; name the trial that was measured with --trial")
    return result.recommendation.trial


def _compared(case: Case, correction: Correction, notes: tuple[str, ...], run: Measurement) -> Compared:
    """Every figure that the measurement and the prediction share; ``run``: as it was read."""
    measurement = case.measurement
    predicted, corrected = (
        case.predict(applied).figures | case.predicted(applied) for applied in (Correction(), correction)
    )
    measured = measurement.figures | case.measured()
    rows = [
        Row(
            name, measured[name], predicted[name], predicted[name] / measured[name] - 1, corrected[name],
            corrected[name] / measured[name] - 1,
        )
        for name in predicted
        if measured.get(name, 0.0) > 0
    ]  # fmt: skip
    hit_rate = case.predict(Correction()).hit_rate
    growing = measurement.requests.growing_wait() if measurement.requests is not None else None
    return Compared(run.tool, run.source, run.sent, run.failed, run.pacing, hit_rate, growing, tuple(rows), notes)


def _cross_check(cases: Sequence[Case], terms: Sequence[str]) -> CrossCheck | None:
    """Check each measurement by a correction from the others; a single one by halves of its requests."""
    if len(cases) > 1:
        errors = [
            _held_out_errors([other_case for other_case in cases if other_case is not case], case, terms)
            for case in cases
        ]
        how = f"each of {len(cases)} measurements by a correction from the others"
    else:
        (case,) = cases
        if case.rows is None or len(case.rows) < _FEWEST:
            return None
        halves = [case._replace(rows=case.rows[start::2]) for start in (0, 1)]
        errors = [_held_out_errors([halves[0]], halves[1], terms), _held_out_errors([halves[1]], halves[0], terms)]
        how = "every other request by a correction from the rest"
    before, after = np.mean(errors, axis=0)
    return CrossCheck(how, float(before), float(after))


def _held_out_errors(fitted: Sequence[Case], held: Case, terms: Sequence[str]) -> tuple[float, float]:
    """Errors of ``held`` before and after a correction fitted to ``fitted``."""
    return held.error(Correction()), held.error(refit(fitted, terms))
