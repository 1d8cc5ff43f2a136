"""Compares a run with measurements: ``hisearch.verify_run(...)``, all that ``hisearch verify`` does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hisearch.base.shown import Shown
from hisearch.specs.wording import format_percent
from hisearch.verify.cases import Case
from hisearch.verify.diagnosis import Diagnosis, diagnose, refit
from hisearch.verify.findings import format_finding
from hisearch.traces.importers import read_measurements
from hisearch.verify.prediction import Correction, Predictor
from hisearch.verify.recalibrated import Recalibrated, recalibrated, write_profiles

if TYPE_CHECKING:
    from hisearch.api.studies.result import StudyResult
    from hisearch.search.model.trial import Trial
    from hisearch.simulate.plans.fleet import FleetPlan

#: Fewest requests for a cross-check of two halves.
_FEWEST = 40


@dataclass(frozen=True)
class Row:
    """One figure, seconds or per second. error: predicted / measured - 1. corrected: by the corrected model."""

    figure: str
    measured: float
    predicted: float
    error: float
    corrected: float
    corrected_error: float


@dataclass(frozen=True)
class Compared:
    """A measurement and its prediction.

    hit_rate: predicted share of prompt tokens that hit the cache. growing_wait: median TTFT, seconds, of the first and
    last quarter of the requests where waits kept growing; None where they did not, or that is not known.
    """

    tool: str
    source: str
    requests: int
    failed: int
    hit_rate: float
    growing_wait: tuple[float, float] | None
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class CrossCheck:
    """Error on held-out data before and after the correction. how: the split, as text."""

    how: str
    error_before: float
    error_after: float


@dataclass(frozen=True, repr=False)
class Verification(Shown):
    """The result of ``verify_run``.

    trial: whose deployment was measured. stated_error: of its latency profile. agrees: the measurements are within it.
    cross_check: None where there is too little data to hold out. profiles: recalibrated, one for each that prices
    pools; empty where no term of a profile is corrected. profile_name: of the profile to use for all pools.
    """

    run_dir: Path
    trial: int
    measurements: tuple[Compared, ...]
    diagnosis: Diagnosis
    cross_check: CrossCheck | None
    stated_error: float
    agrees: bool
    profile_name: str
    profiles: tuple[Recalibrated, ...]

    def facts(self) -> dict[str, str]:
        """See ``Shown``."""
        verdict = "within" if self.agrees else "beyond"
        facts = {"measured": f"{len(self.measurements)} runs of trial {self.trial}"}
        facts["verdict"] = f"{verdict} the stated error of {format_percent(self.stated_error)}"
        return facts | {f"finding {place}": text for place, text in enumerate(self.findings[:3], start=1)}

    @property
    def findings(self) -> list[str]:
        """The corrected terms as sentences, the largest effect first."""
        return [format_finding(name, self.diagnosis) for name in self.diagnosis.terms]

    @property
    def overloads(self) -> list[str]:
        """How far corrections hold for measurements whose waits kept growing, as sentences."""
        return [
            f"{measurement.source}: requests waited ever longer (median TTFT {measurement.growing_wait[0]:.2g} s in "
            f"the first quarter, {measurement.growing_wait[1]:.2g} s in the last), so that the deployment is beyond "
            "its limit at this load. Which prompts lose their hits decides such a queue, and prefill, lost hits and "
            "decode stand in for each other: take what is named as a direction, not as a value, and measure at a lower "
            "load"
            for measurement in self.measurements
            if measurement.growing_wait is not None and self.diagnosis.terms
        ]

    def write_profile(self, path: Path) -> list[Path]:
        """Write the recalibrated profile, and those that it chooses among where there are several.

        Returns:
            The files, ``path`` the first.

        Raises:
            ValueError: no term of a profile is corrected.
            FileExistsError: a file exists; none is overwritten.
        """
        return write_profiles(self.profile_name, self.profiles, path)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values; see docs/cli.md."""
        data = asdict(self)
        del data["profiles"]
        data["diagnosis"]["alternatives"] = [alternative.name for alternative in self.diagnosis.alternatives]
        return data | {
            "findings": self.findings, "overloads": self.overloads, "recalibrated": bool(self.profiles)
        }  # fmt: skip


def verify_run(
    run: str | Path | StudyResult, measured: Iterable[str | Path], *, trial: int | None = None
) -> Verification:
    """Compare measurements of a run's deployment with the simulation of the same requests.

    Args:
        run: the folder of a finished run, or its result.
        measured: outputs of guidellm, sglang.bench_serving or vllm bench serve, sent by the scripts in ``benchmark/``.
        trial: number of the trial whose deployment was measured; the recommendation's where absent.

    Raises:
        OSError, MeasurementError: a file cannot be used.
        ValueError: there is no such trial, or the deployment cannot serve what was sent.
    """
    from hisearch.api.studies.exporting import benchmark_of
    from hisearch.api.studies.stored_run import load_run
    from hisearch.simulate.engine import simulate_fleet
    from hisearch.traces.changes.replay import USUAL_REQUESTS

    result = load_run(run) if isinstance(run, str | Path) else run
    runs = [measurement for path in measured for measurement in read_measurements(Path(path))]
    chosen = _chosen(result, trial)
    replay = benchmark_of(result.simulation, chosen, USUAL_REQUESTS)
    fleet = _ignoring_eos(result.simulation.fleet(chosen.deployment))
    seed = result.resolved.study.seed
    predictors = [
        Predictor(measurement, replay, fleet, partial(simulate_fleet, seed=seed), seed) for measurement in runs
    ]
    cases = [
        Case(measurement, predict, measurement.requests.rows if measurement.requests is not None else None)
        for measurement, predict in zip(runs, predictors, strict=True)
    ]
    diagnosis = diagnose(cases)
    check = _cross_check(cases, diagnosis.terms)
    error = check.error_after if check is not None else diagnosis.error_after
    checked = check.how if check is not None else "no data was held out"
    profiles = recalibrated(
        result.resolved, chosen.deployment, diagnosis, (error, checked), [measurement.source for measurement in runs]
    )
    stated = max(pool.plan.costs.relative_error for pool in fleet.pools)
    return Verification(
        result.run_dir,
        chosen.number,
        tuple(_compared(case, diagnosis.correction) for case in cases),
        diagnosis,
        check,
        stated,
        diagnosis.error_before <= stated,
        f"{result.resolved.profile.name}-measured",
        profiles,
    )


def _chosen(result: StudyResult, number: int | None) -> Trial:
    if number is not None:
        return result.trial(number)
    if result.recommendation is None:
        raise ValueError(f"{result.run_dir}: nothing is recommended; name the trial that was measured with --trial")
    return result.recommendation.trial


def _ignoring_eos(fleet: FleetPlan) -> FleetPlan:
    """The fleet with EOS ignored, as benchmarks ask for every output token."""
    return replace(fleet, pools=tuple(replace(p, plan=replace(p.plan, ignore_eos=True)) for p in fleet.pools))


def _compared(case: Case, correction: Correction) -> Compared:
    """Every figure that the measurement and the prediction share."""
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
    return Compared(
        measurement.tool, measurement.source, measurement.sent, measurement.failed, hit_rate, growing, tuple(rows)
    )


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
