"""What is predicted of a deployment, and how far that is to be trusted: one wording for reports and exports."""

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
from hisearch.specs.wording import SURE, counted, in_percent

#: Figures that stand beside the terms of an SLO: metric -> its name and how it is shown.
_FIGURES: dict[str, tuple[str, Callable[[float], str]]] = {
    "goodput_rps": ("Goodput", lambda value: f"{significant(value)} requests/s"),
    "hit_rate": ("Prefix-cache hit rate", percent),
    "utilisation": ("Utilisation", percent),
    "usd_per_hour": ("Cost per hour", usd),
}


class Caution(NamedTuple):
    """One thing to doubt: in a word or two, and in sentences."""

    title: str
    text: str


class Predicted(NamedTuple):
    """A predicted figure. bound, margin: of a term; spread: where draws put it; chance: that the term holds; or ""."""

    name: str
    value: str
    bound: str = ""
    margin: str = ""
    spread: str = ""
    chance: str = ""


def predicted(trial: Trial, confidence: Confidence | None = None) -> tuple[Predicted, ...]:
    """Terms of the SLO and limits with their margins, then what it delivers and costs; what is undefined is left out.

    Args:
        trial: the deployment.
        confidence: of that deployment; None where it was not looked into.
    """
    found = confidence or Confidence()
    rows = [
        Predicted(
            line.term,
            line.value,
            line.bound,
            _margin(line),
            _spread_of(check, found),
            _chance(found.terms.get(line.label)),
        )
        for check, line in zip(trial.slo, term_lines(trial.slo), strict=True)
    ]
    for metric, (name, show) in _FIGURES.items():
        value = trial.metrics.get(metric, math.nan)
        if math.isfinite(value):
            rows.append(Predicted(name, show(value), spread=_between(found.intervals.get(metric), show)))
    return tuple(rows)


def _margin(line: TermLine) -> str:
    if line.met:
        return line.margin
    return "**missed**" if line.margin == UNDEFINED else f"**missed**, {line.margin}"


def _chance(probability: float | None) -> str:
    return "" if probability is None else in_percent(probability)


def _spread_of(check: Check, found: Confidence) -> str:
    if check.model or isinstance(check, RejectionCheck):
        return ""
    return _between(found.intervals.get(metric_of(check.label)), quantity(check.label).show)


def _between(ends: tuple[float, float] | None, show: Callable[[float], str]) -> str:
    if ends is None:
        return ""
    low, high = show(ends[0]), show(ends[1])
    return low if low == high else f"{low} to {high}"


def format_chance(found: Confidence) -> str:
    """How likely the deployment is to meet the whole SLO, in a sentence; "" where that was not looked into."""
    if found.chance is None:
        return ""
    spread = found.chance_range
    between = f" (so many draws tell: between {in_percent(spread[0])} and {in_percent(spread[1])})" if spread else ""
    return (
        "With what is known of step times, workload and prices, it meets the whole SLO with a probability of "
        f"{in_percent(found.chance)}{between}."
    )


def thin_margin(trial: Trial, relative_error: float) -> str:
    """That the tightest margin is within the error of the step times; "" where it is not, or nothing is met.

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
    """What is said of a term: a sign, a word, and how it is coloured (``ok``, ``unsure`` or ``miss``)."""

    sign: str
    words: str
    kind: str


def verdict_of(line: TermLine, chance: float | None) -> Verdict:
    """Met, missed, or met in the simulation and unlikely enough otherwise that nobody should count on it."""
    if not line.met:
        return Verdict("✗", line.verdict, "miss")
    if chance is not None and chance < SURE:
        return Verdict("?", "unsure", "unsure")
    return Verdict("✓", line.verdict, "ok")


def may_miss(found: Confidence | None, run: str = "RUN") -> str:
    """That the recommendation may miss the SLO, and what to do about it; "" where it is sure enough or not known.

    Args:
        found: how sure it is.
        run: the run's folder, as a word of a shell.
    """
    if found is None or found.chance is None or found.chance >= SURE:
        return ""
    text = format_chance(found)
    if found.satisfied is not None:  # a probability was asked for: the answer says so itself
        return text
    command = f"hisearch run --resume {run} --confidence {SURE:g}"
    if found.chance_constrained_row:
        text = f"{text} {found.chance_constrained} Measure before you rely on it,"
        return f"{text} or have the one that is more likely to meet the SLO recommended: {command}."
    text = f"{text} {found.chance_constrained}".rstrip()
    return (
        f"{text} Measure it before you rely on it, or ask for the cheapest that meets the SLO more surely: {command}."
    )


def how_sure(trial: Trial, recommended: int | None, found: Confidence | None, relative_error: float) -> tuple[str, ...]:
    """What is known of whether a deployment meets the SLO, in sentences, for those who are about to start it.

    Args:
        trial: the deployment.
        recommended: number of the trial that ``found`` is about; None where the study recommends none.
        found: how sure that one is; None where it was not looked into.
        relative_error: stated error of a step of ``trial``.
    """
    thin = thin_margin(trial, relative_error)
    if not trial.comparable:
        return (thin,) if thin else ()
    if found is not None and found.chance is not None and trial.number == recommended:
        return (may_miss(found) or format_chance(found),)
    beside = next((one for one in found.candidates if one.trial == trial.number), None) if found is not None else None
    if beside is not None:
        held = round(beside.chance * beside.draws)
        text = f"Beside the recommendation it was simulated under {counted(beside.draws, 'draw')}: it met the whole SLO"
        text += f" in {held:,} of them, which is too few to state a probability."
    else:
        text = "How likely it is to meet the SLO was not looked into"
        known = found is not None and found.chance is not None and recommended is not None
        text += f": that is known of the recommendation, trial {recommended}, alone." if known else "."
    return (text, thin) if thin else (text,)
