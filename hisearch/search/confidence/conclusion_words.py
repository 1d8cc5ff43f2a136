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
from hisearch.specs.wording import counted, in_percent, listed

#: Most sentences of prices and of settings.
PRICES = 6
SETTINGS = 8

_STEPS = {
    "all steps": "all steps, host work among them, are",
    "prefill": "prefill is",
    "decode": "decode steps are",
    "host work": "host work is",
}


def format_chance(found: Assessment, varied: Sequence[str]) -> str:
    """How likely the recommendation is to meet the SLO, and under what."""
    low, high = found.all_terms_range
    held = round(found.all_terms * found.draws)
    text = (
        f"Simulated again under {listed(list(varied))}, it meets the whole SLO in {held:,} of "
        f"{counted(found.draws, 'draw')}: a probability of {in_percent(found.all_terms)} (with "
        f"{in_percent(found.level)} confidence between {in_percent(low)} and {in_percent(high)}, as "
        "far as so many draws tell)."
    )
    if found.errors:
        text += f" {counted(found.errors, 'draw')} could not be simulated and count as missed."
    return text


def format_asked(found: Conclusion) -> str:
    """What came of the probability that was asked for; "" where none was."""
    if found.at_least is None or found.assessment is None:
        return ""
    return " ".join(text for text in (_looked_for(found, found.at_least), _confirmed(found, found.at_least)) if text)


def _looked_for(found: Conclusion, at_least: float) -> str:
    """How it was looked for."""
    wanted = f"A probability of at least {in_percent(at_least)} was asked for"
    if found.satisfied and found.assured is None:
        return f"{wanted}; the first choice has it."
    if found.assured is None:
        return f"{wanted}."
    looked_at = counted(found.assured.looked_at, "deployment")
    cheapest = found.recommendation.rule == "cheapest"
    if found.satisfied:
        order = "by price" if cheapest else f"in the order of the rule {found.recommendation.rule}"
        return f"{wanted}; {looked_at} were looked at {order} until one had it."
    if found.assured.spent:
        return (
            f"{wanted}. None was found: the limits on further simulations ended the search for it after {looked_at}. "
            "Raise spec.confidence.search or spec.confidence.seconds."
        )
    more = ", further replicas among them" if cheapest else " in the order of the rule"
    return (
        f"{wanted}. None of the {looked_at} that met the SLO and were looked at{more} has it: widen the space, loosen "
        "the SLO, or have step times with a smaller error (hisearch calibrate)."
    )


def _confirmed(found: Conclusion, at_least: float) -> str:
    """What draws say by which nothing was chosen."""
    one = found.confirmed
    if one is None:
        return ""
    low, high = one.all_terms_range
    text = (
        f"Under {one.draws:,} fresh draws, by which it was not chosen, it meets the SLO in "
        f"{round(one.all_terms * one.draws):,}: {in_percent(one.all_terms)} (between {in_percent(low)} and "
        f"{in_percent(high)})"
    )
    if found.satisfied and one.all_terms < at_least:
        text += ", less than was asked for: raise spec.confidence.draws, or ask for more"
    return f"{text}."


def format_step(one: StepChange, best: Trial) -> str:
    """How much slower steps may be, and what then."""
    found = one.break_even
    if found.missed is None:
        return f"If {_STEPS[found.what]} {MOST_FACTOR:g} times as slow as predicted, the SLO still holds."
    held = found.holds or 1.0
    text = f"If {_STEPS[found.what]} {in_percent(found.missed - 1, 1)} slower than predicted, "
    text += f"{_term(found.term)} is missed"
    text += f" (it holds at {in_percent(held - 1, 1)})" if held > 1.0 else ""
    return f"{text}{_then(one.instead, best)}."


def _term(label: str) -> str:
    """A term's label as people read it; ``EVERY_TERM`` as it is."""
    return label if label == EVERY_TERM else quantity(label).label


def _then(instead: Instead | None, best: Trial) -> str:
    if instead is None:
        return ""
    name = _told_apart(instead.deployment, best.deployment)
    return f"; then {name} is needed, at ${instead.usd_per_hour:,.2f} per hour"


def _told_apart(other: DeploymentSpec, ours: DeploymentSpec) -> str:
    """One line for another deployment; one that reads like ours is named by the settings in which it differs."""
    line = describe(other)
    if line != describe(ours):
        return line
    mine, theirs = parameters_of(ours), parameters_of(other)
    changed = [
        f"{setting_name(key)} {theirs.get(key, 'none')} instead of {mine.get(key, 'none')}"
        for key in dict.fromkeys((*mine, *theirs))
        if mine.get(key) != theirs.get(key)
    ]
    return f"the same with {listed(changed)}"


def format_faster(one: Faster) -> str:
    """How much faster steps would have to be for something cheaper."""
    what = f"{describe(one.trial.deployment)} at ${price_of(one.trial):,.2f} per hour"
    if one.break_even.holds is None:
        return f"Even with all steps {MOST_FACTOR:g} times as fast as predicted, {what} would not do."
    share = 1 - one.break_even.holds
    return f"If all steps are {in_percent(share, 1)} faster than predicted, {what} would do, the nearest cheaper one."


def format_price_break_even(one: PriceBreakEven) -> str:
    """Beyond which price another one is cheaper."""
    unit = "per hour" if one.unit == PER_HOUR else "per GiB and hour"
    way = "more" if one.dearer else "less"
    return (
        f"If {one.item} costs {way} than {_dollars(one.usd)} {unit} (now {_dollars(one.now_usd)}, "
        f"{in_percent(one.usd / one.now_usd - 1, 1, signed=True)}), {describe(one.trial.deployment)} is cheaper."
    )


def _dollars(usd: float) -> str:
    return f"${usd:,.2f}" if usd >= 0.1 else f"${usd:.3g}"


def format_setting(one: Setting, best: Trial) -> str:
    """What one setting does: to the SLO and to the price."""
    usd = price_of(one.trial) - price_of(best)
    price = (
        "at the same price" if abs(usd) < 0.005 else f"for ${abs(usd):,.2f} per hour {'more' if usd > 0 else 'less'}"
    )
    worst = max(one.trial.slo, key=lambda check: check.violation)
    verdict = (
        f"{titled(worst)} is missed by {in_percent(worst.violation)}"
        if not one.trial.feasible
        else f"the SLO holds, with a tightest margin of {in_percent(one.trial.worst_margin)} instead of "
        f"{in_percent(best.worst_margin)}"
    )
    return f"With {setting_name(one.name)} {one.instead} instead of {one.ours} {verdict}, {price}."


def format_next_purchase(one: NextPurchase) -> str:
    """What to buy next."""
    first = f"At {one.load:.3g} × this load {_term(one.term)} is missed"
    if one.instead is None:
        return f"{first}; nothing that was looked at carries that."
    usd = f"${one.instead.usd_per_hour:,.2f} per hour"
    return f"{first}: the next to buy is {describe(one.instead.deployment)}, which carries it at {usd}."


def format_limit(found: Conclusion) -> str:
    """Within which price rules that need one look, and why; "" where nothing limits them."""
    if math.isinf(found.limit_usd):
        return ""
    why = "the study's own limit" if found.limit_given else f"{TABLE_LIMIT:g} × the cheapest that meets the SLO"
    return f"{_dollars(found.limit_usd)} per hour, {why}"


def sentences(found: Conclusion) -> dict[str, list[str]]:
    """What would change the answer, by kind: steps, prices, settings, load; kinds without any are left out."""
    best = found.recommendation.trial
    changing = [one for one in found.settings if not one.trial.feasible or price_of(one.trial) < price_of(best)]
    said = {
        "steps": [format_step(one, best) for one in found.steps]
        + ([format_faster(found.faster)] if found.faster is not None else []),
        "prices": [format_price_break_even(one) for one in found.prices[:PRICES]],
        "settings": [format_setting(one, best) for one in changing[:SETTINGS]],
        "load": ([_carried(found.headroom)] if found.headroom is not None else [])
        + ([format_next_purchase(found.next_purchase)] if found.next_purchase is not None else []),
    }
    return {kind: texts for kind, texts in said.items() if texts}


def _carried(room: Capacity) -> str:
    text = f"The SLO holds up to {room.load:.3g} × this load"
    if math.isinf(room.infeasible_load):
        return f"{text} at least; more was not tried."
    return f"{text}, and no longer at {room.infeasible_load:.3g} ×."
