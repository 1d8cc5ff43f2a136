"""A conclusion in sentences, for the report, the terminal and machines alike; their text: ``conclusions.j2``."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hisearch.hardware.price_book import PER_HOUR
from hisearch.score.quantities import HOURS_PER_MONTH, quantity
from hisearch.search.confidence.answer import Conclusion, Priced
from hisearch.search.confidence.assessment import Assessment
from hisearch.search.confidence.assurance import GROWN
from hisearch.search.confidence.chance_constrained import ChanceConstrained
from hisearch.search.confidence.changes import StepChange
from hisearch.search.confidence.misses import Misses
from hisearch.search.confidence.step_sensitivity import EVERY_TERM, MOST_FACTOR
from hisearch.search.model.deployments import describe, parameters_of, setting_name
from hisearch.search.model.trial import Recommendation, Trial, price_of
from hisearch.search.select.rules import TABLE_LIMIT
from hisearch.search.select.words import Words
from hisearch.specs.deployments.deployment import DeploymentSpec
from hisearch.specs.wording import SURE, listed

#: Most sentences on settings.
SETTINGS = 8

#: What ended the search for a probability -> its words.
ENDED = {
    "simulations": "the limit on simulations (spec.confidence.search)",
    "seconds": "the limit on seconds (spec.confidence.seconds)",
    "budget": "the study's own limit on seconds or dollars (spec.budget)",
    "deployments": f"the limit on new deployments with further replicas ({GROWN})",
    "interrupted": "an interrupt",
}


def format_chance(assessment: Assessment, varied: Sequence[str]) -> str:
    """How likely the recommendation is to meet the SLO, and under which draws."""
    return _WORDS.say("chance", assessment, list(varied))


def format_misses(misses: Misses | None) -> str:
    """Why draws miss the SLO; "" if none do, or that is not known."""
    return "" if misses is None else _WORDS.say("misses", misses)


def format_required_probability(conclusion: Conclusion) -> str:
    """How the search for the required probability went, and the result of fresh draws; "" if none is required."""
    if conclusion.at_least is None or conclusion.assessment is None:
        return ""
    return _WORDS.say("required", conclusion)


def format_chance_constrained(outcome: ChanceConstrained | None, best: Trial) -> str:
    """The price of a higher probability; "" if it was not looked for."""
    return "" if outcome is None else _WORDS.say("chance_constrained", outcome, best)


def format_nominal(nominal: Priced, recommendation: Recommendation) -> str:
    """What the rule's own choice costs less than the recommendation, and how likely it is to meet the SLO."""
    return _WORDS.say("nominal", nominal, recommendation)


def format_between(between: Priced, conclusion: Conclusion) -> str:
    """What the likeliest cheaper one costs less than the recommendation, and how likely it is to meet the SLO."""
    return _WORDS.say("between", between, conclusion.recommendation)


def format_step(change: StepChange, best: Trial) -> str:
    """How much slower steps may be, and the alternative then."""
    return _WORDS.say("step", change, best)


def format_limit(conclusion: Conclusion) -> str:
    """Price limit of rules that need one, and why; "" without a limit."""
    return "" if math.isinf(conclusion.limit_usd) else _WORDS.say("limit", conclusion)


def sentences(conclusion: Conclusion) -> dict[str, list[str]]:
    """What would change the answer, by kind: steps, prices, settings, load; empty kinds are left out."""
    best = conclusion.recommendation.trial
    changing = [
        item for item in conclusion.settings if not item.trial.feasible or price_of(item.trial) < price_of(best)
    ]
    said = {
        "steps": [format_step(item, best) for item in conclusion.steps]
        + ([_WORDS.say("faster", conclusion.faster)] if conclusion.faster is not None else []),
        "prices": [_WORDS.say("break_even_price", item) for item in conclusion.prices],
        "settings": [_WORDS.say("setting", item, best) for item in changing[:SETTINGS]]
        + ([_WORDS.say("fresh", conclusion.fresh)] if conclusion.fresh is not None else []),
        "load": ([_WORDS.say("carried", conclusion.headroom)] if conclusion.headroom is not None else [])
        + ([_WORDS.say("next_purchase", conclusion.next_purchase)] if conclusion.next_purchase is not None else []),
    }
    return {kind: texts for kind, texts in said.items() if texts}


def _held(assessment: Assessment) -> str:
    return f"{round(assessment.all_terms * assessment.draws):,}"


def _term(label: str) -> str:
    """A term's label for people; ``EVERY_TERM`` as it is."""
    return label if label == EVERY_TERM else quantity(label).label


def _distinguished(alternative: DeploymentSpec, ours: DeploymentSpec) -> str:
    """One line for another deployment; if it would read like ours, it is named by the differing settings."""
    line = describe(alternative)
    if line != describe(ours):
        return line
    mine, theirs = parameters_of(ours), parameters_of(alternative)
    changed = [
        f"{setting_name(key)} {theirs.get(key, 'none')} instead of {mine.get(key, 'none')}"
        for key in dict.fromkeys((*mine, *theirs))
        if mine.get(key) != theirs.get(key)
    ]
    return f"the same with {listed(changed)}"


_WORDS = Words(
    "conclusions.j2",
    filters={
        "seconds": lambda seconds: f"{seconds:g} s",
        "dollars": lambda usd: f"${usd:,.2f}" if usd >= 0.1 else f"${usd:.3g}",
        "setting_name": setting_name,
        "term": _term,
        "unlike": _distinguished,
    },
    names={
        "held": _held,
        "hours_per_month": HOURS_PER_MONTH,
        "infinity": math.inf,
        "most_factor": MOST_FACTOR,
        "ended": ENDED,
        "per_hour": PER_HOUR,
        "sure": SURE,
        "table_limit": TABLE_LIMIT,
    },
)
