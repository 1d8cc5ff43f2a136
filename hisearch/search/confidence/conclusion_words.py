"""A conclusion in sentences, for the report, the terminal and machines alike."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hisearch.hardware.price_book import PER_HOUR
from hisearch.score.capacity import Capacity
from hisearch.score.quantities import quantity, titled
from hisearch.search.confidence.assessment import Assessment
from hisearch.search.confidence.conclusion import Conclusion, Faster, NextPurchase, StepChange
from hisearch.search.confidence.step_sensitivity import EVERY_TERM, MOST_FACTOR, Instead
from hisearch.search.model.deployments import describe, parameters_of, setting_name
from hisearch.search.model.trial import Trial
from hisearch.search.select.price_sensitivity import PriceBreakEven
from hisearch.search.select.recommend import price_of
from hisearch.search.select.rules import TABLE_LIMIT
from hisearch.search.select.setting_sensitivity import Setting
from hisearch.specs.deployments.deployment import DeploymentSpec
from hisearch.specs.wording import counted, format_percent, listed

#: Most sentences on prices and on settings.
PRICES = 6
SETTINGS = 8

_STEPS = {
    "all steps": "all steps, host work among them, are",
    "prefill": "prefill is",
    "decode": "decode steps are",
    "host work": "host work is",
}


def format_chance(assessment: Assessment, varied: Sequence[str]) -> str:
    """How likely the recommendation is to meet the SLO, and under which draws."""
    low, high = assessment.all_terms_range
    held = round(assessment.all_terms * assessment.draws)
    text = (
        f"Simulated again under {listed(list(varied))}, it meets the whole SLO in {held:,} of "
        f"{counted(assessment.draws, 'draw')}: a probability of {format_percent(assessment.all_terms)} "
        f"({format_percent(assessment.level)} interval {format_percent(low)} to {format_percent(high)})."
    )
    if assessment.errors:
        text += f" {counted(assessment.errors, 'draw')} could not be simulated and count as missed."
    return text


def format_required_probability(conclusion: Conclusion) -> str:
    """Result for the required probability; "" if none is required."""
    if conclusion.at_least is None or conclusion.assessment is None:
        return ""
    return " ".join(
        text
        for text in (_search_result(conclusion, conclusion.at_least), _confirmed(conclusion, conclusion.at_least))
        if text
    )


def _search_result(conclusion: Conclusion, at_least: float) -> str:
    """How the search for the probability went."""
    clause = f"A probability of at least {format_percent(at_least)} was asked for"
    if conclusion.satisfied and conclusion.assured is None:
        return f"{clause}; the first choice has it."
    if conclusion.assured is None:
        return f"{clause}."
    looked_at = counted(conclusion.assured.looked_at, "deployment")
    cheapest = conclusion.recommendation.rule == "cheapest"
    if conclusion.satisfied:
        order = "by price" if cheapest else f"in the order of the rule {conclusion.recommendation.rule}"
        return f"{clause}; {looked_at} were looked at {order} until one had it."
    if conclusion.assured.spent:
        return (
            f"{clause}. None was found: the limits on further simulations ended the search for it after {looked_at}. "
            "Raise spec.confidence.search or spec.confidence.seconds."
        )
    more = ", further replicas among them" if cheapest else " in the order of the rule"
    return (
        f"{clause}. None of the {looked_at} that met the SLO and were looked at{more} has it: widen the space, loosen "
        "the SLO, or have step times with a smaller error (hisearch calibrate)."
    )


def _confirmed(conclusion: Conclusion, at_least: float) -> str:
    """Result of fresh draws, which did not select the recommendation."""
    fresh = conclusion.confirmed
    if fresh is None:
        return ""
    low, high = fresh.all_terms_range
    text = (
        f"Under {fresh.draws:,} fresh draws, by which it was not chosen, it meets the SLO in "
        f"{round(fresh.all_terms * fresh.draws):,}: {format_percent(fresh.all_terms)} "
        f"(between {format_percent(low)} and {format_percent(high)})"
    )
    if conclusion.satisfied and fresh.all_terms < at_least:
        text += ", less than was asked for: raise spec.confidence.draws, or ask for more"
    return f"{text}."


def format_step(change: StepChange, best: Trial) -> str:
    """How much slower steps may be, and the alternative then."""
    break_even = change.break_even
    if break_even.missed is None:
        return f"If {_STEPS[break_even.what]} {MOST_FACTOR:g} times as slow as predicted, the SLO still holds."
    held = break_even.holds or 1.0
    text = f"If {_STEPS[break_even.what]} {format_percent(break_even.missed - 1, 1)} slower than predicted, "
    text += f"{_term(break_even.term)} is missed"
    text += f" (it holds at {format_percent(held - 1, 1)})" if held > 1.0 else ""
    return f"{text}{_then(change.instead, best)}."


def _term(label: str) -> str:
    """A term's label for people; ``EVERY_TERM`` as it is."""
    return label if label == EVERY_TERM else quantity(label).label


def _then(instead: Instead | None, best: Trial) -> str:
    if instead is None:
        return ""
    name = _distinguished(instead.deployment, best.deployment)
    return f"; then {name} is needed, at ${instead.usd_per_hour:,.2f} per hour"


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


def format_faster(faster: Faster) -> str:
    """How much faster steps would have to be for a cheaper deployment."""
    what = f"{describe(faster.trial.deployment)} at ${price_of(faster.trial):,.2f} per hour"
    if faster.break_even.holds is None:
        return f"Even with all steps {MOST_FACTOR:g} times as fast as predicted, {what} would not do."
    share = 1 - faster.break_even.holds
    return (
        f"If all steps are {format_percent(share, 1)} faster than predicted, {what} would do, the nearest cheaper one."
    )


def format_price_break_even(price: PriceBreakEven) -> str:
    """Price beyond which another deployment is cheaper."""
    unit = "per hour" if price.unit == PER_HOUR else "per GiB and hour"
    direction = "more" if price.dearer else "less"
    return (
        f"If {price.item} costs {direction} than {_dollars(price.usd)} {unit} (now {_dollars(price.now_usd)}, "
        f"{format_percent(price.usd / price.now_usd - 1, 1, signed=True)}), "
        f"{describe(price.trial.deployment)} is cheaper."
    )


def _dollars(usd: float) -> str:
    return f"${usd:,.2f}" if usd >= 0.1 else f"${usd:.3g}"


def format_setting(setting: Setting, best: Trial) -> str:
    """Effect of one setting on the SLO and on the price."""
    usd = price_of(setting.trial) - price_of(best)
    price = (
        "at the same price" if abs(usd) < 0.005 else f"for ${abs(usd):,.2f} per hour {'more' if usd > 0 else 'less'}"
    )
    worst = max(setting.trial.slo, key=lambda check: check.violation)
    verdict = (
        f"{titled(worst)} is missed by {format_percent(worst.violation)}"
        if not setting.trial.feasible
        else f"the SLO holds, with a tightest margin of {format_percent(setting.trial.worst_margin)} instead of "
        f"{format_percent(best.worst_margin)}"
    )
    return f"With {setting_name(setting.name)} {setting.instead} instead of {setting.ours} {verdict}, {price}."


def format_next_purchase(purchase: NextPurchase) -> str:
    """The deployment to buy next."""
    first = f"At {purchase.load:.3g} × this load {_term(purchase.term)} is missed"
    if purchase.instead is None:
        return f"{first}; nothing that was looked at carries that."
    usd = f"${purchase.instead.usd_per_hour:,.2f} per hour"
    return f"{first}: the next to buy is {describe(purchase.instead.deployment)}, which carries it at {usd}."


def format_limit(conclusion: Conclusion) -> str:
    """Price limit of rules that need one, and why; "" without a limit."""
    if math.isinf(conclusion.limit_usd):
        return ""
    why = "the study's own limit" if conclusion.limit_given else f"{TABLE_LIMIT:g} × the cheapest that meets the SLO"
    return f"{_dollars(conclusion.limit_usd)} per hour, {why}"


def sentences(conclusion: Conclusion) -> dict[str, list[str]]:
    """What would change the answer, by kind: steps, prices, settings, load; empty kinds are left out."""
    best = conclusion.recommendation.trial
    changing = [
        item for item in conclusion.settings if not item.trial.feasible or price_of(item.trial) < price_of(best)
    ]
    said = {
        "steps": [format_step(item, best) for item in conclusion.steps]
        + ([format_faster(conclusion.faster)] if conclusion.faster is not None else []),
        "prices": [format_price_break_even(item) for item in conclusion.prices[:PRICES]],
        "settings": [format_setting(item, best) for item in changing[:SETTINGS]],
        "load": ([_carried(conclusion.headroom)] if conclusion.headroom is not None else [])
        + ([format_next_purchase(conclusion.next_purchase)] if conclusion.next_purchase is not None else []),
    }
    return {kind: texts for kind, texts in said.items() if texts}


def _carried(load_headroom: Capacity) -> str:
    text = f"The SLO holds up to {load_headroom.load:.3g} × this load"
    if math.isinf(load_headroom.infeasible_load):
        return f"{text} at least; more was not tried."
    return f"{text}, and no longer at {load_headroom.infeasible_load:.3g} ×."
