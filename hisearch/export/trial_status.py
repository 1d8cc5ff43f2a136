"""The status of a deployment in its study, as text."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from hisearch.report.data.confidence import Confidence
from hisearch.report.words.cautions import PROVISIONAL, Predicted, how_sure, predicted, shortcoming
from hisearch.search.model.deployments import without_replicas
from hisearch.search.model.trial import Trial
from hisearch.search.select.recommend import describe_miss
from hisearch.specs.studies.study import AvailabilitySpec
from hisearch.specs.wording import format_percent


class TrialStatus(NamedTuple):
    """A deployment's status in its study, for READMEs.

    name: of the exported document. title: a heading. lines: its SLO results, term by term. conditions: how its
    simulation differs from the study's. predicted: its figures. level: of their intervals, as text; "" without any.
    cautions: caveats of the figures. basis: the latency profile behind them. trial: its number where it is not the
    recommendation. e2e_p99_s: simulated time of a request, seconds; NaN where it is not known. rest_holds: whether the
    SLO holds with one replica of each pool away; None where that was not simulated.
    """

    name: str
    title: str
    lines: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()
    predicted: tuple[Predicted, ...] = ()
    level: str = ""
    cautions: tuple[str, ...] = ()
    basis: str = ""
    trial: int | None = None
    e2e_p99_s: float = math.nan
    rest_holds: bool | None = None


class Ground(NamedTuple):
    """The latency profile behind a trial's figures. relative_error: the stated one, of a step."""

    profile: str
    evidence: str
    relative_error: float


def trial_status(
    trial: Trial,
    recommended: Trial | None,
    ground: Ground,
    confidence: Confidence | None = None,
    *,
    interrupted: bool = False,
) -> TrialStatus:
    """The status of a trial: recommended or not, its margin to the SLO, and its confidence.

    Args:
        trial: the trial whose deployment is exported.
        recommended: the study's recommendation, if any.
        ground: the latency profile behind its figures.
        confidence: in the recommendation; None where it was not assessed.
        interrupted: the search was, before its answer was checked.
    """
    name = f"trial-{trial.number}"
    if trial.error:
        failed = f"It failed: {trial.error}"
        title = f"Trial {trial.number}, whose simulation failed"
        return TrialStatus(name, title, (failed,), (failed,), trial=trial.number)
    chosen = recommended is not None and trial.number == recommended.number
    conditions = _conditions(trial)
    trial_confidence = confidence if chosen else None
    number = recommended.number if recommended is not None else None
    verdict = "meets" if trial.feasible else "does NOT meet"
    return TrialStatus(
        "recommended" if chosen else name,
        _recommended(confidence, interrupted)
        if chosen
        else f"Trial {trial.number}, which {verdict} the SLO{_scope(trial)}",
        lines=(*conditions, *describe_miss(trial)),
        conditions=conditions,
        predicted=predicted(trial, trial_confidence),
        level=format_percent(trial_confidence.level)
        if trial_confidence is not None and trial_confidence.intervals and trial_confidence.level is not None
        else "",
        cautions=how_sure(trial, number, confidence, ground.relative_error),
        basis=f"Simulated, not measured: latency profile {ground.profile} ({ground.evidence}, stated error of one step "
        f"±{format_percent(ground.relative_error, 1)}).",
        trial=None if chosen else trial.number,
        e2e_p99_s=trial.metrics.get("e2e_p99_s", math.nan),
    )


def rest_holds(trial: Trial, trials: Iterable[Trial], availability: AvailabilitySpec) -> bool | None:
    """Whether the SLO holds with one replica of each pool away; None where that was not simulated.

    Args:
        trial: the deployment in question.
        trials: the study's, of which one may be what is left.
        availability: how many replicas of each pool were away in all of them.
    """
    if not trial.comparable:
        return None
    if availability.replicas_down:
        return trial.feasible
    rest = without_replicas(trial.deployment, 1)
    lone = sum(pool.replicas for pool in rest.pools) == 1  # A router has no choice, whatever it is.
    for other in trials:
        same = rest.model_copy(update={"router": other.deployment.router}) if lone else rest
        if other.comparable and other.deployment == same:
            return other.feasible
    return None


def _recommended(confidence: Confidence | None, interrupted: bool) -> str:
    """The heading of the recommendation; of the nearest that was found, with what it lacks."""
    if interrupted:
        return f"{PROVISIONAL}: the best deployment so far"
    lacks = shortcoming(confidence)
    return f"Nearest deployment that was found, which {lacks}" if lacks else "Recommended deployment"


def _scope(trial: Trial) -> str:
    """The scope of a verdict where it differs from the study's: a slice of the trace, or another load."""
    scope = ""
    if trial.slice_fraction < 1.0:
        scope += f" on the first {100 * trial.slice_fraction:.3g} % of the trace only"
    if trial.load != 1.0:
        scope += f" at {trial.load:.3g} times the study's load"
    return scope


def _conditions(trial: Trial) -> tuple[str, ...]:
    """How the trial's simulation differs from the study's."""
    conditions = []
    if trial.slice_fraction < 1.0:
        slice_text = f"the first {100 * trial.slice_fraction:.3g} % of the trace"
        conditions.append(f"Simulated on {slice_text} only: whether it meets the SLO on all of it is not known.")
    if trial.load != 1.0:
        conditions.append(f"Simulated at {trial.load:.3g} times the study's load.")
    return tuple(conditions)
