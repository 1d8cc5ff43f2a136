"""The report's input from the result of a study of several models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hisearch.api.runs.run_folder import MODELS, REPORT
from hisearch.report.pages.fleet_page import Combined, FleetReport, ModelPart, SearchPart
from hisearch.report.words.terms import TermLine, term_lines
from hisearch.score.terms import LimitCheck
from hisearch.search.model.deployments import describe

if TYPE_CHECKING:
    from hisearch.api.fleets.fleet_outcome import FleetOutcome
    from hisearch.api.fleets.fleet_whole import CombinedDeployment
    from hisearch.search.select.fleet_front import Combination


def fleet_report(result: FleetOutcome, simulated: CombinedDeployment | None) -> FleetReport:
    """The input of the report of several models; ``simulated``: the recommended deployment, simulated."""
    best = result.recommendation
    parts: tuple[ModelPart, ...] = ()
    if best is not None and simulated is not None:
        parts = tuple(
            ModelPart(
                name=name,
                deployment=describe(trial.deployment),
                usd_per_hour=share.cost.total,
                requests=share.arrived,
                attainment=share.score.metrics["attainment"],
                terms=term_lines(share.score.slo),
                report=f"{MODELS}/{name}/{REPORT}",
            )
            for name, trial, share in zip(result.results, best.trials, simulated.shares, strict=True)
        )
    return FleetReport(
        name=result.resolved.name,
        description=result.resolved.document.description,
        axes=result.resolved.study.axes,
        feasible=simulated is not None and simulated.score.feasible,
        usd_per_hour=best.figures["usd_per_hour"] if best is not None else 0.0,
        parts=parts,
        coupled=_coupled(result, best),
        searches=_searches(result),
        front=tuple(
            Combined(
                combination.figures,
                tuple(describe(trial.deployment) for trial in combination.trials),
                combination == best,
            )
            for combination in sorted(result.front, key=lambda combination: combination.figures["usd_per_hour"])
        ),
        refused=result.refusal,
        cautions=tuple(dict.fromkeys(simulated.warnings)) if simulated is not None else (),
    )


def _coupled(result: FleetOutcome, best: Combination | None) -> tuple[TermLine, ...]:
    """Limits on all models together, checked for the recommendation."""
    if best is None:
        return ()
    limits = result.resolved.study.limits_by_name
    return term_lines(
        LimitCheck(name, best.figures[name], limit.bound, at_least=limit.at_most is None)
        for name, limit in limits.items()
        if name in best.figures
    )


def _searches(result: FleetOutcome) -> tuple[SearchPart, ...]:
    searches = []
    for name in result.resolved.parts:
        outcome = result.results.get(name)
        if outcome is None:
            searches.append(SearchPart(name, 0, 0, "not begun", "", ""))
            continue
        searches.append(
            SearchPart(
                name,
                sum(trial.simulations for trial in outcome.trials),
                len(outcome.front),
                outcome.outcome.ending.describe(),
                outcome.failure.text if outcome.failure is not None else "",
                f"{MODELS}/{name}/{REPORT}",
            )
        )
    return tuple(searches)
