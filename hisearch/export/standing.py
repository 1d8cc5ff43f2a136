"""What a deployment is to the study that it comes from, in words."""

from __future__ import annotations

from typing import NamedTuple

from hisearch.report.data.confidence import Confidence
from hisearch.report.words.doubts import Predicted, how_sure, predicted
from hisearch.search.model.trial import Trial
from hisearch.search.select.recommend import describe_miss
from hisearch.specs.wording import in_percent


class Standing(NamedTuple):
    """What READMEs say of a deployment beside how it is started.

    name: of the exported document. title: a heading. lines: what is known of it against the SLO, term by term.
    conditions: what keeps its figures from being the study's own. predicted: its figures. level: of their intervals, in
    words, "" where they have none. doubts: how far they are to be trusted. basis: what they rest on. trial: its number
    where it is not the recommendation.
    """

    name: str
    title: str
    lines: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()
    predicted: tuple[Predicted, ...] = ()
    level: str = ""
    doubts: tuple[str, ...] = ()
    basis: str = ""
    trial: int | None = None


class Ground(NamedTuple):
    """What a trial's figures rest on. profile: of its step times. relative_error: stated, of a step."""

    profile: str
    evidence: str
    relative_error: float


def standing_of(
    trial: Trial, recommended: Trial | None, ground: Ground, confidence: Confidence | None = None
) -> Standing:
    """Whether it is the recommendation, meets the SLO or misses it, by how much, and how sure that is.

    Args:
        trial: the trial whose deployment is exported.
        recommended: the study's recommendation; None where it has none.
        ground: what its figures rest on.
        confidence: how sure the recommendation is; None where that was not looked into.
    """
    name = f"trial-{trial.number}"
    if trial.error:
        failed = f"It failed: {trial.error}"
        title = f"Trial {trial.number}, whose simulation failed"
        return Standing(name, title, (failed,), (failed,), trial=trial.number)
    chosen = recommended is not None and trial.number == recommended.number
    conditions = _conditions(trial)
    own = confidence if chosen else None
    number = recommended.number if recommended is not None else None
    verdict = "meets" if trial.feasible else "does NOT meet"
    return Standing(
        "recommended" if chosen else name,
        "Recommended deployment" if chosen else f"Trial {trial.number}, which {verdict} the SLO{_scope(trial)}",
        lines=(*conditions, *describe_miss(trial)),
        conditions=conditions,
        predicted=predicted(trial, own),
        level=in_percent(own.level) if own is not None and own.intervals and own.level is not None else "",
        doubts=how_sure(trial, number, confidence, ground.relative_error),
        basis=f"Simulated, not measured: latency profile {ground.profile} ({ground.evidence}, stated error of one step "
        f"±{in_percent(ground.relative_error, 1)}).",
        trial=None if chosen else trial.number,
    )


def _scope(trial: Trial) -> str:
    """What a verdict is about, where that is not the study's own question: part of the trace, or another load."""
    scope = ""
    if trial.slice_fraction < 1.0:
        scope += f" on the first {100 * trial.slice_fraction:.3g} % of the trace only"
    if trial.load != 1.0:
        scope += f" at {trial.load:.3g} times the study's load"
    return scope


def _conditions(trial: Trial) -> tuple[str, ...]:
    """What keeps its figures from being the study's own."""
    found = []
    if trial.slice_fraction < 1.0:
        part = f"the first {100 * trial.slice_fraction:.3g} % of the trace"
        found.append(f"Simulated on {part} only: whether it meets the SLO on all of it is not known.")
    if trial.load != 1.0:
        found.append(f"Simulated at {trial.load:.3g} times the study's load.")
    return tuple(found)
