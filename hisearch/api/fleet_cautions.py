"""What is said of a study of several models besides its answer: cautions, probabilities, limits that nothing keeps."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from hisearch.score.quantities import quantity, usd
from hisearch.specs.wording import format_percent, listed

if TYPE_CHECKING:
    from hisearch.api.fleet_combined import ModelChoice
    from hisearch.search.select.fleet_front import Combination


def exceeded(combinations: Collection[Combination], limits: Sequence[str]) -> str:
    """Why no combination of deployments that meet their SLOs is recommended, and how near the cheapest comes."""
    least = min(combinations, key=lambda combination: combination.figures["usd_per_hour"])
    figures = [f"{name} {quantity(name).show(least.figures[name])}" for name in limits if name in least.figures]
    return (
        f"Every model has deployments that meet its SLO; those of all together exceed the limits on {listed(limits)}. "
        f"The cheapest of them costs {usd(least.figures['usd_per_hour'])} an hour: {listed(figures)}."
    )


def chosen_by_limits(choices: Sequence[ModelChoice]) -> tuple[str, ...]:
    """Models of which another deployment was taken than their own search recommends."""
    return tuple(
        name
        for name, result, trial in choices
        if result.recommendation is not None and trial.number != result.recommendation.trial.number
    )


def cautions_of(choices: Sequence[ModelChoice]) -> tuple[str, ...]:
    """What each model's own report would caution about its part, and how likely that holds."""
    from hisearch.report.pages.page import cautions
    from hisearch.report.words.cautions import how_sure

    said = []
    for name, result, trial in choices:
        report = result.report_input()
        own = None if result.recommendation is None else result.recommendation.trial.number
        if trial.number == own:
            said += [f"{name}: {note.title}: {note.brief}." for note in cautions(report)]
        error = report.provenance.profile.relative_error
        said += [f"{name}: {sentence}" for sentence in how_sure(trial, own, report.confidence, error)]
    return tuple(dict.fromkeys(said))


def past_limits(names: Sequence[str], wanted: float, limits: Sequence[str]) -> str:
    """That these models had to take another deployment than one that holds with the probability ``wanted``."""
    return (
        f"The deployments that hold with {format_percent(wanted)} exceed the limits on {listed(limits)} together: "
        f"{listed(names)} had to take another, as simulated."
    )
