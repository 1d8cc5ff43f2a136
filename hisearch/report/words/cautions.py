"""Predictions for a deployment and their reliability: the same text for reports and exports."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from hisearch.report.data.confidence import Chance, Confidence
from hisearch.report.words.chances import format_chance
from hisearch.report.words.templating import text
from hisearch.report.words.terms import TermLine, term_lines
from hisearch.score.metrics import metric_of
from hisearch.score.quantities import UNDEFINED, percent, quantity, significant, usd
from hisearch.score.terms import Check, RejectionCheck
from hisearch.search.model.trial import Trial
from hisearch.specs.wording import SURE, format_percent

#: Figures listed after the terms of an SLO: metric -> its name and its format.
_FIGURES: dict[str, tuple[str, Callable[[float], str]]] = {
    "goodput_rps": ("Goodput", lambda value: f"{significant(value)} requests/s"),
    "hit_rate": ("Prefix-cache hit rate", percent),
    "usd_per_hour": ("Cost per hour", usd),
}


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
            format_percent(stated.terms[line.label]) if line.label in stated.terms else "",
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


def _spread_of(check: Check, confidence: Confidence) -> str:
    if check.model or isinstance(check, RejectionCheck):
        return ""
    return _between(confidence.intervals.get(metric_of(check.label)), quantity(check.label).show)


def _between(ends: tuple[float, float] | None, show: Callable[[float], str]) -> str:
    return "" if ends is None else " to ".join(dict.fromkeys(map(show, ends)))


def thin_margin(trial: Trial, relative_error: float) -> str:
    """A warning that the tightest margin is within the error of the step times; else "", also for a missed SLO.

    Args:
        trial: the deployment.
        relative_error: stated error of a step (0.07 = 7 %).
    """
    margin = trial.worst_margin
    thin = trial.feasible and math.isfinite(margin) and margin < relative_error
    return text("cautions", "thin_margin", margin, relative_error) if thin else ""


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


def verdict_on(feasible: bool, chance: Chance | None, *, chances_known: bool = False) -> Verdict:
    """The same of a whole deployment, from its simulation and its probability where that is known.

    chances_known: that of others beside it is.
    """
    if not feasible:
        return Verdict("✗", "misses the SLO", "miss")
    if chance is not None and chance.value < SURE:
        return Verdict("?", f"{format_chance(chance)} likely to meet it", "unsure")
    if chance is None and chances_known:
        return Verdict("–", "met as simulated, its chance is not known", "unsure")
    return Verdict("✓", "meets the SLO", "ok")


#: Heading over the answer of a search that an interrupt ended, before that answer was checked.
PROVISIONAL = "Provisional, as the search was interrupted"


def shortcoming(confidence: Confidence | None) -> str:
    """Why the nearest that was found is not recommended, as "meets the SLO with 38 % only"; "" where it is."""
    if confidence is None:
        return ""
    if confidence.lasts is False:
        return "misses the SLO where its load is carried on"
    if confidence.satisfied is False and confidence.chance is not None:
        return f"meets the SLO with {format_percent(confidence.chance)} only"
    return ""


def may_miss(confidence: Confidence | None, run: str = "RUN") -> str:
    """A warning that the recommendation may miss the SLO, and what to do; "" where it is sure enough or unknown.

    Args:
        confidence: of the recommendation.
        run: the run's folder, quoted for a shell.
    """
    if confidence is None or confidence.chance is None or confidence.chance >= SURE:
        return ""
    if confidence.satisfied is not None:  # a probability was requested: the answer states it
        return text("cautions", "chance", confidence)
    return text("cautions", "may_miss", confidence, run)


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
    known = confidence or Confidence()
    if known.chance is not None and trial.number == recommended:
        return (may_miss(known) or text("cautions", "chance", known),)
    candidate = next((row for row in known.candidates if row.trial == trial.number), None)
    sentence = text("cautions", "other_trial", candidate, recommended if known.chance is not None else None)
    return (sentence, thin) if thin else (sentence,)
