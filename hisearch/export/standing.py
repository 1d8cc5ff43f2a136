"""What a deployment is to the study that it comes from, in words."""

from __future__ import annotations

from typing import NamedTuple

from hisearch.search.recommend import describe_miss
from hisearch.search.trial import Trial


class Standing(NamedTuple):
    """name: of the exported document. title: a heading. lines: what is known of it against the SLO, term by term."""

    name: str
    title: str
    lines: tuple[str, ...]


def standing_of(trial: Trial, recommended: Trial | None) -> Standing:
    """Whether it is the recommendation, meets the SLO or misses it, and by how much.

    Args:
        trial: the trial whose deployment is exported.
        recommended: the study's recommendation; None where it has none.
    """
    name = f"trial-{trial.number}"
    if trial.error:
        return Standing(name, f"Trial {trial.number}, whose simulation failed", (f"It failed: {trial.error}",))
    lines = (*_conditions(trial), *describe_miss(trial))
    if recommended is not None and trial.number == recommended.number:
        return Standing("recommended", "Recommended deployment", lines)
    verdict = "meets" if trial.feasible else "does NOT meet"
    return Standing(name, f"Trial {trial.number}, which {verdict} the SLO{_scope(trial)}", lines)


def _scope(trial: Trial) -> str:
    """What a verdict is about, where that is not the study's own question: part of the trace, or another load."""
    scope = ""
    if trial.slice_fraction < 1.0:
        scope += f" on the first {100 * trial.slice_fraction:.3g}% of the trace only"
    if trial.load != 1.0:
        scope += f" at {trial.load:.3g} times the study's load"
    return scope


def _conditions(trial: Trial) -> tuple[str, ...]:
    """What keeps its figures from being the study's own."""
    found = []
    if trial.slice_fraction < 1.0:
        part = f"the first {100 * trial.slice_fraction:.3g}% of the trace"
        found.append(f"Simulated on {part} only: whether it meets the SLO on all of it is not known.")
    if trial.load != 1.0:
        found.append(f"Simulated at {trial.load:.3g} times the study's load.")
    return tuple(found)
