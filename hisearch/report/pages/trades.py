"""What a cheaper, a surer, a faster and an uninterrupted deployment cost, for the first screen and the terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal, NamedTuple

from hisearch.report.data.confidence import Chance, Confidence
from hisearch.report.data.inputs import ReportInput
from hisearch.report.words.cautions import Verdict, verdict_on
from hisearch.report.words.chances import format_chance
from hisearch.report.words.terms import violation_of
from hisearch.score.quantities import percent, quantity, usd
from hisearch.score.stated import LATENCIES
from hisearch.search.model.deployments import describe, hardware
from hisearch.search.model.trial import Trial, metric_of, price_of
from hisearch.search.select.recommend import is_near
from hisearch.search.select.speculation import drafts_of
from hisearch.specs.wording import SURE, format_percent

Role = Literal["cheaper", "surer", "faster", "survives an update"]
ROLES: tuple[Role, ...] = ("cheaper", "surer", "faster")

#: A faster deployment may cost this many times as much as the recommendation, where another is fast enough.
_DEARER = 2.0


class Trade(NamedTuple):
    """A trade against the recommendation.

    trial: None where there is none, ``effect`` then says so, and where it was simulated without its spare replica.
    change: of the price, as text; "" without a deployment. effect: what it gives or takes, as text. hardware, line:
    short and full description, the short one with drafted tokens where they are other than the recommendation's.
    verdict: whether it meets the SLO.
    """

    role: Role
    trial: Trial | None
    price: str
    change: str
    effect: str
    hardware: str
    line: str
    verdict: Verdict


def trades(data: ReportInput) -> tuple[Trade, ...]:
    """The trades in the order of ``ROLES``, then one more replica where it was priced; () without a recommendation."""
    if data.recommendation is None:
        return ()
    trials = {"cheaper": _cheaper(data), "surer": _chance_constrained(data), "faster": _faster(data)}
    return (*(_trade(role, trials[role], data) for role in ROLES), *_spare(data))


def _spare(data: ReportInput) -> tuple[Trade, ...]:
    """One more replica of each pool, so that the SLO holds while one is away; () where that is not known."""
    if data.spare is None:
        return ()
    spare, best = data.spare, _best(data)
    effect = "The SLO holds while a replica is updated, drained or lost"
    chance = chance_of(spare.of_trial, data)
    effect += f", {format_chance(chance)} likely" if chance is not None else ""
    effect += "" if spare.within_space else "; more replicas than the space allows"
    line, price = hardware(spare.deployment), spare.usd_per_hour
    change = price_change_of(price, best)
    return (
        Trade(
            "survives an update",
            None,
            f"{usd(price)} an hour",
            change,
            effect,
            line,
            describe(spare.deployment),
            verdict_on(True, chance),
        ),
    )


def first_latency(data: ReportInput) -> str | None:
    """The first latency among the objectives, else among the SLO's terms: ``ttft_p99``; None without any."""
    labels = (*data.objectives, *(term.label for term in data.slo))
    return next((label for label in labels if label.partition("_")[0] in LATENCIES), None)


def _cheaper(data: ReportInput) -> Trial | None:
    """The likeliest for less, the rule's own choice, the cheapest within the SLO, or a near miss."""
    best = _best(data)
    known = data.confidence or Confidence()
    for priced in (known.between, known.nominal):
        if priced is not None and priced.usd_per_hour < price_of(best):
            return next(trial for trial in data.trials if trial.number == priced.trial)
    less = [trial for trial in data.trials if trial.comparable and price_of(trial) < price_of(best)]
    meeting = [trial for trial in less if trial.feasible]
    if meeting:
        return min(meeting, key=lambda trial: (price_of(trial), trial.number))
    near = [trial for trial in less if is_near(trial)]
    return min(near, key=lambda trial: (trial.worst_violation, price_of(trial), trial.number), default=None)


def _chance_constrained(data: ReportInput) -> Trial | None:
    """The chance-constrained recommendation, else the cheapest candidate with a higher probability."""
    best, known = _best(data), data.confidence or Confidence()
    by_number = {trial.number: trial for trial in data.trials}
    stated = known.chance_constrained
    if stated is not None and stated.trial is not None and stated.trial != best.number:
        return by_number.get(stated.trial)
    if known.chance is None:
        return None
    likelier = [
        by_number[row.trial]
        for row in known.candidates
        if row.trial in by_number and row.chance_range is not None and row.chance_range[0] > known.chance
    ]
    return min(likelier, key=lambda trial: (price_of(trial), trial.number), default=None)


def _faster(data: ReportInput) -> Trial | None:
    """The lowest first latency: by the rule of that name, else on the front within twice the price, else on it all.

    Where a probability is required, none that costs less than the cheapest with it: those lack it.
    """
    best, latency = _best(data), first_latency(data)
    if latency is None or not math.isfinite(best.metrics.get(metric_of(latency), math.nan)):
        return None
    by_number = {trial.number: trial for trial in data.trials}
    rules = data.confidence.rules if data.confidence is not None else ()
    by_rule = [by_number[row.trial] for row in rules if row.rule == "lowest_latency" and row.trial in by_number]
    near = [trial for trial in data.front if price_of(trial) <= _DEARER * price_of(best)]
    for trials in (by_rule, near, data.front):
        fastest = _lowest([trial for trial in trials if _likely_enough(trial, data)], metric_of(latency))
        if fastest is not None and fastest.metrics[metric_of(latency)] < best.metrics[metric_of(latency)]:
            return fastest
    return None


def _likely_enough(trial: Trial, data: ReportInput) -> bool:
    """False for what costs less than the cheapest that is as likely as required."""
    assert data.recommendation is not None
    known = data.confidence
    walked = known is not None and known.satisfied is True and data.recommendation.rule == "cheapest"
    return not walked or price_of(trial) >= price_of(data.recommendation.trial)


def _lowest(trials: Iterable[Trial], metric: str) -> Trial | None:
    finite = [trial for trial in trials if math.isfinite(trial.metrics.get(metric, math.nan))]
    return min(finite, key=lambda trial: (trial.metrics[metric], price_of(trial), trial.number), default=None)


def _best(data: ReportInput) -> Trial:
    assert data.recommendation is not None
    return data.recommendation.trial


def _trade(role: Role, trial: Trial | None, data: ReportInput) -> Trade:
    if trial is None:
        return Trade(role, None, "", "", _reason_for_none(role, data), "", "", verdict_on(False, None))
    effect = {"cheaper": _effect_of_cheaper, "surer": _effect_of_chance_constrained, "faster": _effect_of_faster}[role]
    return Trade(
        role,
        trial,
        f"{usd(price_of(trial))} an hour",
        price_change(trial, _best(data)),
        effect(trial, data),
        _equipment(trial, data),
        describe(trial.deployment),
        verdict_on(
            trial.feasible, chance_of(trial.number, data), chances_known=chance_of(_best(data).number, data) is not None
        ),
    )


def _equipment(trial: Trial, data: ReportInput) -> str:
    """Its hardware, and its drafted tokens where the recommendation drafts otherwise."""
    drafts, best = (drafts_of(of.deployment) for of in (trial, _best(data)))
    changed = [] if drafts == best else [drafts or "without drafted tokens"]
    return ", ".join([hardware(trial.deployment), *changed])


def price_change(trial: Trial, best: Trial) -> str:
    """``+$11.40 (+54 %)``, ``−$4.80 (−23 %)``, ``same price``."""
    return price_change_of(price_of(trial), best)


def price_change_of(price: float, best: Trial) -> str:
    """The same of a price in dollars per hour."""
    change = price - price_of(best)
    if change == 0:
        return "same price"
    share = f" ({format_percent(change / price_of(best), signed=True)})" if price_of(best) > 0 else ""
    return f"{'+' if change > 0 else '−'}{usd(abs(change))}{share}"


def _reason_for_none(role: Role, data: ReportInput) -> str:
    if role == "surer":
        known = data.confidence.chance if data.confidence is not None else None
        if known is None:
            return "How likely it holds was not looked into." if data.so_far is None else "Follows when the study ends."
        if known >= SURE:
            return f"Not needed: it holds with {format_percent(known)}."
        satisfied = data.confidence is not None and data.confidence.satisfied
        return "Not looked for: it is as likely as was required." if satisfied else "None found."
    if role == "faster":
        return "No faster one was found."
    less = any(trial.comparable and price_of(trial) < price_of(_best(data)) for trial in data.trials)
    return "No cheaper one comes near the SLO." if less else "No cheaper one was simulated."


def _effect_of_cheaper(trial: Trial, data: ReportInput) -> str:
    if not trial.feasible:
        return violation_of(trial)
    chance = format_chance(chance_of(trial.number, data))
    if chance:
        return f"{chance} likely to hold the SLO{_instead(data)}{_cheapest(trial, data)}"
    return f"{percent(trial.worst_margin)} of the tightest bound left, not {percent(_best(data).worst_margin)}"


def _cheapest(trial: Trial, data: ReportInput) -> str:
    """The nominally cheapest, where it costs less than the trade: ``; the cheapest, $64.80, with 42 %``."""
    nominal = data.confidence.nominal if data.confidence is not None else None
    if nominal is None or nominal.usd_per_hour >= price_of(trial):
        return ""
    return f"; the cheapest, {usd(nominal.usd_per_hour)}, with {format_percent(nominal.chance)}"


def _effect_of_chance_constrained(trial: Trial, data: ReportInput) -> str:
    chance = format_chance(chance_of(trial.number, data))
    return f"{chance} likely to hold the SLO{_instead(data)}" if chance else "more likely to hold the SLO"


def _instead(data: ReportInput) -> str:
    chance = format_chance(chance_of(_best(data).number, data))
    return f", not {chance}" if chance else ""


def chance_of(trial: int, data: ReportInput) -> Chance | None:
    """The probability of a trial, by its number; None where it is not known."""
    return data.confidence.chance_of(trial, _best(data).number) if data.confidence is not None else None


def _effect_of_faster(trial: Trial, data: ReportInput) -> str:
    latency = first_latency(data) or ""
    shown, metric = quantity(latency), metric_of(latency)
    best = _best(data)
    text = f"{shown.label} {shown.show(trial.metrics[metric])}, not {shown.show(best.metrics[metric])}"
    if chance := format_chance(chance_of(trial.number, data)):
        text += f"; {chance} likely to hold the SLO"
    if price_of(trial) == price_of(best) and trial.worst_margin < best.worst_margin:
        return f"{text}; {percent(trial.worst_margin)} of its tightest bound left, not {percent(best.worst_margin)}"
    return text
