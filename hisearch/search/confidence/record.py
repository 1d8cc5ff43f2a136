"""``confidence.json``: a conclusion as plain data, and the recommendation read back; see docs/json.md."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hisearch.base.json_file import read_json
from hisearch.score.capacity import Capacity
from hisearch.score.terms import LimitCheck, check_from_json
from hisearch.search.confidence.answer import Conclusion, Priced
from hisearch.search.confidence.assessment import Assessment
from hisearch.search.confidence.baseline import BASELINE
from hisearch.search.confidence.conclusion_words import (
    format_between,
    format_chance,
    format_chance_constrained,
    format_limit,
    format_misses,
    format_nominal,
    format_required_probability,
    sentences,
)
from hisearch.search.confidence.step_sensitivity import Instead
from hisearch.search.model.deployments import parameters_of
from hisearch.search.model.trial import Recommendation, Trial, price_of
from hisearch.search.select.recommend import runner_ups
from hisearch.specs.deployments.deployment import DeploymentSpec
from hisearch.specs.documents.renamed_keys import current_data
from hisearch.specs.wording import SURE


def to_dict(conclusion: Conclusion, varied: list[str]) -> dict[str, Any]:
    """The file's object; ``varied``: the inputs that draws vary, as text."""
    assessment, best, headroom = conclusion.assessment, conclusion.recommendation, conclusion.headroom
    chance, misses = "" if assessment is None else format_chance(assessment, varied), format_misses(conclusion.misses)
    return {
        "recommendation": _recommended(best)
        | {"runner_ups": [{"trial": trial.number, "trade": trade} for trial, trade in best.runner_ups]},
        "at_least": conclusion.at_least,
        "satisfied": conclusion.satisfied,
        "lasts": conclusion.lasts,
        "search": _search(conclusion),
        "summary": " ".join(text for text in (chance, misses, format_required_probability(conclusion)) if text),
        "misses": None if conclusion.misses is None else asdict(conclusion.misses) | {"sentence": misses},
        "confirmed": None if conclusion.confirmed is None else _assessed(conclusion.confirmed),
        "varied": varied if assessment is not None else [],
        **({} if assessment is None else _assessed(assessment) | {"level": assessment.level}),
        **({} if assessment is None else {"errors": assessment.errors}),
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
            "queue_growth_rps": headroom.queue_growth_rps,
        },
        "nominal": _nominal(conclusion),
        "between": _between(conclusion),
        "own_formats": None if conclusion.own_formats is None else _priced(conclusion.own_formats),
        "chance_constrained": _chance_constrained(conclusion),
        "sensitivity": _sensitivity(conclusion),
        "sentences": sentences(conclusion),
        "simulations": dict(conclusion.simulations),
    }


def _search(conclusion: Conclusion) -> dict[str, Any] | None:
    """How the search for the required probability went; None where the first choice has it, or none is required."""
    walk = conclusion.walk
    if walk is None:
        return None
    return {
        "looked_at": walk.looked_at,
        "simulations": walk.simulations,
        "ended": walk.ended,
        "over_window": walk.over_window,
    }


def _between(conclusion: Conclusion) -> dict[str, Any] | None:
    between = conclusion.between
    return None if between is None else _priced(between) | {"sentence": format_between(between, conclusion)}


def _nominal(conclusion: Conclusion) -> dict[str, Any] | None:
    """The rule's own choice; None where it is the recommendation."""
    nominal = conclusion.nominal
    if nominal is None:
        return None
    return _priced(nominal) | {"sentence": format_nominal(nominal, conclusion.recommendation)}


def _priced(priced: Priced) -> dict[str, Any]:
    return {"trial": priced.trial.number, "usd_per_hour": price_of(priced.trial), **_assessed(priced.assessment)}


def _chance_constrained(conclusion: Conclusion) -> dict[str, Any] | None:
    """The chance-constrained recommendation; None where it was not searched."""
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
    checks = [check for check in trial.slo if math.isfinite(check.violation)]
    defined = [check for check in checks if not (isinstance(check, LimitCheck) and math.isnan(check.value))]
    return {
        "deployment": _plain(trial.deployment),
        "feasible": trial.feasible,
        "metrics": {name: value for name, value in trial.metrics.items() if math.isfinite(value)},
        "slo": [asdict(check) for check in defined],
    }


def _sensitivity(conclusion: Conclusion) -> dict[str, Any]:
    """The numbers behind the sentences."""
    faster, purchase = conclusion.faster, conclusion.next_purchase
    return {
        "steps": [
            {
                "what": change.break_even.what,
                "holds": change.break_even.holds,
                "missed": change.break_even.missed,
                "term": change.break_even.term,
                "instead": _deployment_of(change.instead),
                "instead_usd_per_hour": None if change.instead is None else change.instead.usd_per_hour,
            }
            for change in conclusion.steps
        ],
        "faster": None if faster is None else {"trial": faster.trial.number, "holds": faster.break_even.holds},
        "prices": [
            {
                "item": p.item, "unit": p.unit, "now_usd": p.now_usd, "usd": p.usd, "dearer": p.dearer,
                "trial": p.trial.number, "held": None if p.checked is None else p.checked.held,
                "draws": 0 if p.checked is None else p.checked.draws,
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
        if purchase is None
        else {"load": purchase.load, "term": purchase.term, "instead": _deployment_of(purchase.instead)},
    }  # fmt: skip


def _deployment_of(instead: Instead | None) -> dict[str, Any] | None:
    return None if instead is None else _plain(instead.deployment)


def _plain(deployment: DeploymentSpec) -> dict[str, Any]:
    return deployment.model_dump(mode="json")


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def stored_conclusion(
    path: Path, trials: Sequence[Trial], objectives: Sequence[str]
) -> tuple[Recommendation, Capacity | None] | None:
    """A run's recommendation and headroom from its ``confidence.json``; None without that file.

    Args:
        path: of the file.
        trials: the run's.
        objectives: the study's.

    Raises:
        ValueError: the file belongs to another run.
    """
    if not path.is_file():
        return None
    data = read_json(path)
    stored, headroom = data.get("recommendation"), data.get("headroom")
    if stored is None:  # written by another program
        return None
    feasible = {trial.number: trial for trial in trials if trial.meets_slo}
    kept = stored.get("runner_ups")
    unknown = [number for number in (stored["trial"], *(row["trial"] for row in kept or ())) if number not in feasible]
    if unknown:
        raise ValueError(f"{path}: recommendation: expected trials of this run that meet the SLO, got {unknown[0]}")
    chosen = feasible[stored["trial"]]
    recommendation = Recommendation(
        chosen,
        stored["reason"],
        runner_ups(chosen, list(feasible.values()), objectives)  # runs of earlier versions did not keep them
        if kept is None
        else tuple((feasible[row["trial"]], row["trade"]) for row in kept),
        stored["rule"],
        _stored_baseline(data["baseline"]),
        stored["against_baseline"],
    )
    if not headroom:
        return recommendation, None
    infeasible_load = math.inf if headroom["infeasible_load"] is None else headroom["infeasible_load"]
    growth = headroom.get("queue_growth_rps", 0.0)
    return recommendation, Capacity(
        headroom["load"], headroom["goodput_rps"], infeasible_load, headroom["simulations"], growth
    )


def _stored_baseline(data: dict[str, Any] | None) -> Trial | None:
    if data is None:
        return None
    deployment = DeploymentSpec.model_validate(current_data(data["deployment"], DeploymentSpec))
    checks = tuple(check_from_json(check) for check in data["slo"])
    return Trial(BASELINE, 0, deployment, parameters_of(deployment), data["metrics"], checks, data["feasible"])
