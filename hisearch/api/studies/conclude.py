"""Conclusion of a study after its search: calls ``search.confidence``, and writes and reads ``confidence.json``."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hisearch.api.runs.run_folder import write_text
from hisearch.report.data.stored import CONFIDENCE
from hisearch.specs.studies.study import ConfidenceSpec
from hisearch.specs.wording import SURE, format_percent

if TYPE_CHECKING:
    from hisearch.score.capacity import Capacity
    from hisearch.search.confidence.assessment import Assessment
    from hisearch.search.confidence.conclusion import Conclusion, Question
    from hisearch.search.confidence.uncertainty import Draw, PriceRange, Uncertainty
    from hisearch.search.driver import SearchOutcome
    from hisearch.search.evaluate.runner import TrialRunner
    from hisearch.search.evaluate.simulation import Simulation
    from hisearch.search.model.job import Evaluation
    from hisearch.search.model.problem import Problem
    from hisearch.search.model.trial import Recommendation, Trial
    from hisearch.specs.deployments.deployment import DeploymentSpec
    from hisearch.specs.documents.resolved import ResolvedStudy

#: Journal of the simulations behind ``confidence.json``.
JOURNAL = "confidence.jsonl"


def conclude_study(
    resolved: ResolvedStudy, problem: Problem, simulation: Simulation, runner: TrialRunner, outcome: SearchOutcome,
    folder: Path, *, inputs: str, resume: bool,
) -> SearchOutcome:  # fmt: skip
    """Recommend by the study's rule, assess the recommendation, and write ``confidence.json``.

    Args:
        resolved: the study.
        problem: the search's.
        simulation: runs the simulations.
        runner: the search's trial runner.
        outcome: of the search.
        folder: the run's.
        inputs: digest of all inputs of simulations except the draws.
        resume: reuse simulations of an earlier run.

    Returns:
        The outcome with the final recommendation.
    """
    from hisearch.search.confidence.assessment import Assessor
    from hisearch.search.confidence.conclusion import conclude
    from hisearch.search.records.journal import Journal

    if outcome.recommendation is None:
        return outcome
    settings = resolved.study.confidence
    uncertainty = uncertainty_of(resolved, simulation)
    path = folder / JOURNAL
    if not resume:
        path.unlink(missing_ok=True)
    with Journal(path, inputs, resume=resume) as journal:
        assessor = Assessor(
            uncertainty,
            _evaluator(simulation, settings),
            what_if=_what_if_evaluator(simulation),
            workers=runner.workers,
            journal=journal,
            progress=runner.progress,
            seconds=settings.seconds,
        )
        outcome, conclusion = conclude(problem, runner, outcome, assessor, _question(resolved, simulation))
    if conclusion is not None:
        best = outcome.recommendation.trial if outcome.recommendation is not None else None
        record = to_dict(conclusion, format_varied(resolved, uncertainty, best))
        write_text(folder / CONFIDENCE, json.dumps(record, indent=2, allow_nan=False) + "\n")
    return outcome


def _question(resolved: ResolvedStudy, simulation: Simulation) -> Question:
    from hisearch.search.confidence.conclusion import Question

    spec = resolved.study
    memory = {name: accelerator.memory_bytes for name, accelerator in simulation.world.accelerators.items()}
    return Question(spec.recommend, spec.confidence, simulation.book, memory)


def uncertainty_of(resolved: ResolvedStudy, simulation: Simulation) -> Uncertainty:
    """The uncertain inputs of a study: step times, sessions, prices."""
    from hisearch.search.confidence.uncertainty import Uncertainty, normal_draws
    from hisearch.traces.changes.bootstrap import session_table

    spec = resolved.study
    settings = spec.confidence
    return Uncertainty(
        simulation.world.trace,
        spec.seed,
        normal_draws(settings.draws, spec.seed),
        price_ranges(resolved, simulation),
        session_table(simulation.world.trace) if settings.draws else None,
        settings.correlation,
    )


def price_ranges(resolved: ResolvedStudy, simulation: Simulation) -> tuple[PriceRange, ...]:
    """Each uncertain price of the space with its stated range; assumed ones without a range get the study's."""
    from hisearch.api.runs.provenance import price_notes
    from hisearch.search.confidence.uncertainty import PriceRange

    ranges, settings = [], resolved.study.confidence
    used = {note.item for note in price_notes(resolved)}
    for price in simulation.book.prices():
        if price.item not in used:
            continue
        share = settings.assumed_price_error if price.evidence == "assumed" else 0.0
        low, high = price.bounds if price.bounds is not None else (price.usd * (1 - share), price.usd * (1 + share))
        if low < high:
            ranges.append(PriceRange(price.item, price.usd, low, high))
    return tuple(ranges)


def _evaluator(simulation: Simulation, settings: ConfidenceSpec) -> Any:
    from hisearch.search.confidence.assessment import at_prices

    def evaluate(deployment: DeploymentSpec, draw: Draw) -> Evaluation:
        evaluation = simulation.evaluate_disturbed(
            deployment, draw.trace, lambda costs: draw.disturbed(costs, settings.correlation)
        )
        book = simulation.book
        return at_prices(evaluation, book.cost(deployment), book.at(draw.prices).cost(deployment))

    return evaluate


def _what_if_evaluator(simulation: Simulation) -> Any:
    from hisearch.search.confidence.uncertainty import with_factors

    def evaluate(deployment: DeploymentSpec, factors: Mapping[str, float], load: float) -> Evaluation:
        return simulation.evaluate_disturbed(
            deployment, simulation.world.trace, lambda costs: with_factors(costs, factors), load
        )

    return evaluate


def format_varied(resolved: ResolvedStudy, uncertainty: Uncertainty, best: Trial | None) -> list[str]:
    """The inputs that draws of ``best`` vary, as text."""
    from hisearch.api.runs.provenance import profile_note
    from hisearch.traces.changes.bootstrap import describe_schemes

    profile = profile_note(resolved, best)
    steps = (
        f"the stated error of the step times ({format_percent(profile.relative_error, 1)}, median, of profile "
        f"{profile.name}; regimes correlated at {uncertainty.correlation:g})"
    )
    items = [price.item for price in uncertainty.prices]
    return [steps, describe_schemes(uncertainty.sessions)] + [f"ranges of the prices of {', '.join(items)}"] * bool(
        items
    )


def to_dict(conclusion: Conclusion, varied: list[str]) -> dict[str, Any]:
    """``confidence.json``; see docs/confidence.md."""
    from hisearch.search.confidence.conclusion_words import (
        format_chance,
        format_limit,
        format_required_probability,
        sentences,
    )

    assessment, best = conclusion.assessment, conclusion.recommendation
    assessed = (
        {} if assessment is None else {**_assessed(assessment), "level": assessment.level, "errors": assessment.errors}
    )
    chance = "" if assessment is None else format_chance(assessment, varied)
    headroom = conclusion.headroom
    return {
        "recommendation": _recommended(best),
        "at_least": conclusion.at_least,
        "satisfied": conclusion.satisfied,
        "summary": " ".join(text for text in (chance, format_required_probability(conclusion)) if text),
        "confirmed": None if conclusion.confirmed is None else _assessed(conclusion.confirmed),
        "varied": varied if assessment is not None else [],
        **assessed,
        "intervals": {} if assessment is None else {name: list(ends) for name, ends in assessment.intervals.items()},
        "medians": {} if assessment is None else dict(assessment.medians),
        "candidates": [
            {"trial": candidate.trial.number, **_assessed(candidate.assessment), "cheapest": candidate.cheapest}
            for candidate in conclusion.candidates
        ],
        "rules": [_recommended(rule) for rule in conclusion.by_rule],
        "rules_within_usd_per_hour": _finite(conclusion.limit_usd),
        "rules_within": format_limit(conclusion),
        "baseline": None if best.baseline is None else _baseline(best.baseline),
        "headroom": {}
        if headroom is None
        else {
            "load": headroom.load,
            "infeasible_load": _finite(headroom.infeasible_load),
            "goodput_rps": headroom.goodput_rps,
            "simulations": headroom.simulations,
        },
        "chance_constrained": _chance_constrained(conclusion),
        "sensitivity": _sensitivity(conclusion),
        "sentences": sentences(conclusion),
        "simulations": dict(conclusion.simulations),
    }


def _chance_constrained(conclusion: Conclusion) -> dict[str, Any] | None:
    """The chance-constrained recommendation; None where it was not searched."""
    from hisearch.search.confidence.chance_constrained import format_chance_constrained
    from hisearch.search.select.recommend import price_of

    constrained = conclusion.chance_constrained
    if constrained is None:
        return None
    return {
        "at_least": SURE,
        "trial": constrained.trial.number if constrained.trial is not None else None,
        "usd_per_hour": price_of(constrained.trial) if constrained.trial is not None else None,
        **(_assessed(constrained.assessment) if constrained.assessment is not None else {}),
        "looked_at": constrained.looked_at,
        "spent": constrained.spent,
        "sentence": format_chance_constrained(constrained, conclusion.recommendation.trial),
    }


def _assessed(assessment: Assessment) -> dict[str, Any]:
    return {
        "draws": assessment.draws,
        "terms": dict(assessment.terms),
        "all_terms": assessment.all_terms,
        "all_terms_range": list(assessment.all_terms_range),
    }


def _recommended(recommendation: Recommendation) -> dict[str, Any]:
    return {
        "rule": recommendation.rule,
        "trial": recommendation.trial.number,
        "reason": recommendation.reason,
        "against_baseline": recommendation.against_baseline,
    }


def _baseline(trial: Trial) -> dict[str, Any]:
    from hisearch.score.terms import LimitCheck

    metrics = {name: value for name, value in trial.metrics.items() if math.isfinite(value)}
    checks = [check for check in trial.slo if math.isfinite(check.violation)]
    defined = [check for check in checks if not (isinstance(check, LimitCheck) and math.isnan(check.value))]
    return {
        "deployment": trial.deployment.model_dump(mode="json"),
        "feasible": trial.feasible,
        "metrics": metrics,
        "slo": [asdict(check) for check in defined],
    }


def _sensitivity(conclusion: Conclusion) -> dict[str, Any]:
    """The numbers behind the sentences."""
    return {
        "steps": [
            {
                "what": change.break_even.what,
                "holds": change.break_even.holds,
                "missed": change.break_even.missed,
                "term": change.break_even.term,
                "instead": None if change.instead is None else change.instead.deployment.model_dump(mode="json"),
                "instead_usd_per_hour": None if change.instead is None else change.instead.usd_per_hour,
            }
            for change in conclusion.steps
        ],
        "faster": None
        if conclusion.faster is None
        else {"trial": conclusion.faster.trial.number, "holds": conclusion.faster.break_even.holds},
        "prices": [
            {
                "item": p.item, "unit": p.unit, "now_usd": p.now_usd, "usd": p.usd, "dearer": p.dearer,
                "trial": p.trial.number,
            }
            for p in conclusion.prices
        ],
        "settings": [
            {
                "setting": s.name, "ours": s.ours, "instead": s.instead, "trial": s.trial.number,
                "feasible": s.trial.feasible, "worst_margin": _finite(s.trial.worst_margin),
            }
            for s in conclusion.settings
        ],
        "next": None
        if conclusion.next_purchase is None
        else {
            "load": conclusion.next_purchase.load,
            "term": conclusion.next_purchase.term,
            "instead": None
            if conclusion.next_purchase.instead is None
            else conclusion.next_purchase.instead.deployment.model_dump(mode="json"),
        },
    }  # fmt: skip


def stored_conclusion(
    folder: Path, resolved: ResolvedStudy, trials: Sequence[Trial]
) -> tuple[Recommendation, Capacity | None] | None:
    """A run's recommendation and headroom from its ``confidence.json``; None without that file.

    Raises:
        ValueError: the file belongs to another run.
    """
    from hisearch.score.capacity import Capacity
    from hisearch.search.model.trial import Recommendation
    from hisearch.search.select.recommend import runner_ups

    path = folder / CONFIDENCE
    if not path.is_file():
        return None
    data = json.loads(path.read_text(encoding="utf-8"))
    stored = data.get("recommendation")
    if stored is None:  # written by another program
        return None
    chosen = next((trial for trial in trials if trial.number == stored["trial"]), None)
    if chosen is None or not chosen.feasible:
        raise ValueError(f"{path}: recommendation.trial: expected a trial of this run that meets the SLO, got {stored}")
    feasible = [trial for trial in trials if trial.comparable and trial.feasible]
    headroom = data["headroom"]
    return (
        Recommendation(
            chosen,
            stored["reason"],
            runner_ups(chosen, feasible, resolved.study.objectives),
            stored["rule"],
            _stored_baseline(data["baseline"]),
            stored["against_baseline"],
        ),
        Capacity(
            headroom["load"],
            headroom["goodput_rps"],
            math.inf if headroom["infeasible_load"] is None else headroom["infeasible_load"],
            headroom["simulations"],
        )
        if headroom
        else None,
    )


def _stored_baseline(data: dict[str, Any] | None) -> Trial | None:
    from hisearch.score.terms import check_from_json
    from hisearch.search.confidence.baseline import BASELINE
    from hisearch.search.model.deployments import parameters_of
    from hisearch.search.model.trial import Trial
    from hisearch.specs.deployments.deployment import DeploymentSpec
    from hisearch.specs.documents.renamed_keys import current_data

    if data is None:
        return None
    deployment = DeploymentSpec.model_validate(current_data(data["deployment"], DeploymentSpec))
    checks = tuple(check_from_json(check) for check in data["slo"])
    return Trial(BASELINE, 0, deployment, parameters_of(deployment), data["metrics"], checks, data["feasible"])


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
