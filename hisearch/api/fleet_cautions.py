"""What is said of a study of several models beside its answer: cautions, probabilities, limits that nothing keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hisearch.score.quantities import quantity, usd
from hisearch.specs.wording import format_percent, listed

if TYPE_CHECKING:
    from hisearch.api.fleet_study import FleetResult


def exceeded(result: FleetResult) -> str:
    """Why no combination of deployments that meet their SLOs is recommended, and how near the cheapest comes."""
    limits = list(result.resolved.study.limits_by_name)
    least = min(result.combinations, key=lambda combination: combination.figures["usd_per_hour"])
    figures = [f"{name} {quantity(name).show(least.figures[name])}" for name in limits if name in least.figures]
    return (
        f"Every model has deployments that meet its SLO; those of all together exceed the limits on {listed(limits)}. "
        f"The cheapest of them costs {usd(least.figures['usd_per_hour'])} an hour: {listed(figures)}."
    )


def beside_probability(result: FleetResult) -> tuple[str, ...]:
    """See ``FleetResult.beside_probability``."""
    if result.recommendation is None or not result.resolved.study.confidence.at_least:
        return ()
    return tuple(
        name
        for name, own, trial in result.choices(result.recommendation)
        if own.recommendation is not None and trial.number != own.recommendation.trial.number
    )


def cautions_of(result: FleetResult) -> tuple[str, ...]:
    """See ``FleetResult.cautions``."""
    from hisearch.report.pages.page import cautions
    from hisearch.report.words.cautions import how_sure

    if result.recommendation is None:
        return ()
    said = []
    for name, own, trial in result.choices(result.recommendation):
        report = own.report_input()
        number = None if own.recommendation is None else own.recommendation.trial.number
        if trial.number == number:
            said += [f"{name}: {note.title}: {note.brief}." for note in cautions(report)]
        error = report.provenance.profile.relative_error
        said += [f"{name}: {sentence}" for sentence in how_sure(trial, number, report.confidence, error)]
    wanted = result.resolved.study.confidence.at_least
    if result.beside_probability and wanted is not None:
        limits = listed(list(result.resolved.study.coupling))
        said.append(
            f"The deployments that hold with {format_percent(wanted)} exceed the limits on {limits} together: "
            f"{listed(list(result.beside_probability))} had to take another, as simulated."
        )
    return tuple(dict.fromkeys(said))
