"""Predictions for a deployment and their reliability: the same text for reports and exports."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from hisearch.report.data.confidence import Confidence
from hisearch.report.words.terms import TermLine, term_lines
from hisearch.score.metrics import metric_of
from hisearch.score.quantities import UNDEFINED, percent, quantity, significant, usd
from hisearch.score.terms import Check, RejectionCheck
from hisearch.search.model.trial import Trial
from hisearch.specs.wording import SURE, counted, format_percent

#: Figures listed after the terms of an SLO: metric -> its name and its format.
_FIGURES: dict[str, tuple[str, Callable[[float], str]]] = {
    "goodput_rps": ("Goodput", lambda value: f"{significant(value)} requests/s"),
    "hit_rate": ("Prefix-cache hit rate", percent),
    "utilisation": ("Utilisation", percent),
    "usd_per_hour": ("Cost per hour", usd),
}


class Caution(NamedTuple):
    """A caution: a short title, and sentences."""

    title: str
    text: str


class Predicted(NamedTuple):
    """A predicted figure. bound, margin: of a term; spread: range over draws; chance: that the term holds; or ""."""

    name: str
    value: str
    bound: str = ""
    margin: str = ""
    spread: str = ""
    chance: str = ""


def predicted(trial: Trial, confidence: Confidence | None = None) -> tuple[Predicted, ...]:
    """Terms of the SLO and limits with their margins, then throughput and cost; undefined figures are left out.

    Args:
        trial: the deployment.
        confidence: of that deployment; None where unknown.
    """
    stated = confidence or Confidence()
    rows = [
        Predicted(
            line.term,
            line.value,
            line.bound,
            _margin(line),
            _spread_of(check, stated),
            _chance(stated.terms.get(line.label)),
        )
        for check, line in zip(trial.slo, term_lines(trial.slo), strict=True)
    ]
    for metric, (name, show) in _FIGURES.items():
        value = trial.metrics.get(metric, math.nan)
        if math.isfinite(value):
            rows.append(Predicted(name, show(value), spread=_between(stated.intervals.get(metric), show)))
    return tuple(rows)


def _margin(line: TermLine) -> str:
    if line.met:
        return line.margin
    return "**missed**" if line.margin == UNDEFINED else f"**missed**, {line.margin}"


def _chance(probability: float | None) -> str:
    return "" if probability is None else format_percent(probability)


def _spread_of(check: Check, confidence: Confidence) -> str:
    if check.model or isinstance(check, RejectionCheck):
        return ""
    return _between(confidence.intervals.get(metric_of(check.label)), quantity(check.label).show)


def _between(ends: tuple[float, float] | None, show: Callable[[float], str]) -> str:
    if ends is None:
        return ""
    low, high = show(ends[0]), show(ends[1])
    return low if low == high else f"{low} to {high}"


def format_chance(confidence: Confidence) -> str:
    """A sentence on the probability that the deployment meets the whole SLO; "" where unknown."""
    if confidence.chance is None:
        return ""
    spread = confidence.chance_range
    between = f" (confidence interval {format_percent(spread[0])} to {format_percent(spread[1])})" if spread else ""
    return (
        "With what is known of step times, workload and prices, it meets the whole SLO with a probability of "
        f"{format_percent(confidence.chance)}{between}."
    )


def thin_margin(trial: Trial, relative_error: float) -> str:
    """A warning that the tightest margin is within the error of the step times; else "", also for a missed SLO.

    Args:
        trial: the deployment.
        relative_error: stated error of a step (0.07 = 7 %).
    """
    margin = trial.worst_margin
    if not trial.feasible or not math.isfinite(margin) or margin >= relative_error:
        return ""
    return (
        f"The tightest margin ({percent(margin)}) is smaller than the latency profile's stated error "
        f"({percent(relative_error)}): measure this deployment before you rely on it."
    )


class Verdict(NamedTuple):
    """A term's verdict: a sign, a word, and its colour (``ok``, ``unsure`` or ``miss``)."""

    sign: str
    words: str
    kind: str


def verdict_of(line: TermLine, chance: float | None) -> Verdict:
    """Met, missed, or unsure: met in the simulation, but with a probability below ``SURE``."""
    if not line.met:
        return Verdict("✗", line.verdict, "miss")
    if chance is not None and chance < SURE:
        return Verdict("?", "unsure", "unsure")
    return Verdict("✓", line.verdict, "ok")


def may_miss(confidence: Confidence | None, run: str = "RUN") -> str:
    """A warning that the recommendation may miss the SLO, and what to do; "" where it is sure enough or unknown.

    Args:
        confidence: of the recommendation.
        run: the run's folder, quoted for a shell.
    """
    if confidence is None or confidence.chance is None or confidence.chance >= SURE:
        return ""
    text = format_chance(confidence)
    if confidence.satisfied is not None:  # a probability was requested: the answer states it
        return text
    command = f"hisearch run --resume {run} --confidence {SURE:g}"
    if confidence.chance_constrained_row:
        text = f"{text} {confidence.chance_constrained} Measure before you rely on it,"
        return f"{text} or have the likelier one recommended: {command}."
    text = f"{text} {confidence.chance_constrained}".rstrip()
    return (
        f"{text} Measure it before you rely on it, or ask for the cheapest that meets the SLO more surely: {command}."
    )


def how_sure(
    trial: Trial, recommended: int | None, confidence: Confidence | None, relative_error: float
) -> tuple[str, ...]:
    """Sentences on whether a deployment meets the SLO, for people about to start it.

    Args:
        trial: the deployment.
        recommended: number of the trial that ``confidence`` is about; None where the study recommends none.
        confidence: of the recommended trial; None where unknown.
        relative_error: stated error of a step of ``trial``.
    """
    thin = thin_margin(trial, relative_error)
    if not trial.comparable:
        return (thin,) if thin else ()
    if confidence is not None and confidence.chance is not None and trial.number == recommended:
        return (may_miss(confidence) or format_chance(confidence),)
    candidate = (
        next((row for row in confidence.candidates if row.trial == trial.number), None)
        if confidence is not None
        else None
    )
    if candidate is not None:
        draws_met = round(candidate.chance * candidate.draws)
        text = (
            f"Beside the recommendation it was simulated under {counted(candidate.draws, 'draw')}: it met the whole SLO"
        )
        text += f" in {draws_met:,} of them, which is too few to state a probability."
    else:
        text = "How likely it is to meet the SLO was not looked into"
        has_chance = confidence is not None and confidence.chance is not None and recommended is not None
        text += f": that is known of the recommendation, trial {recommended}, alone." if has_chance else "."
    return (text, thin) if thin else (text,)
