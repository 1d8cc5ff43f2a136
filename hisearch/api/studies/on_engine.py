"""Which deployment on another engine a study would recommend: by its rule, and likely enough where that is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hisearch.report.data.confidence import Chance, Confidence
from hisearch.report.words.chances import format_chance
from hisearch.search.model.deployments import engines_of
from hisearch.search.model.trial import Trial, price_of
from hisearch.search.select.headroom import known_loads
from hisearch.search.select.recommend import recommended
from hisearch.search.select.rules import headroom_candidates, preference, recommend_by
from hisearch.specs.studies.study import RecommendSpec
from hisearch.specs.wording import counted, format_percent, listed


class Choice(NamedTuple):
    """A trial, and by what it was chosen, as a sentence without its full stop."""

    trial: Trial
    chosen_by: str


class Asked(NamedTuple):
    """A study's question and answer, as far as a choice goes by them.

    required: the probability of meeting the SLO, None where none is. best: the recommended trial, if any. confidence:
    in it, if known.
    """

    objectives: Sequence[str]
    rule: RecommendSpec
    required: float | None
    best: Trial | None
    confidence: Confidence


def choose_on(engine: str | None, trials: Sequence[Trial], asked: Asked) -> Choice | None:
    """The first on an engine, or on any, by the study's rule, of those likely enough as far as known; None without any.

    Left out while anything else is there is what is too unlikely by its draws, and what comes before the recommendation
    in the order of the rule: the search took none of these for likely enough. What is known to be likely enough comes
    first.
    """
    known = asked.confidence
    number = asked.best.number if asked.best is not None else None
    meeting = [t for t in trials if t.meets_slo and (engine is None or engines_of(t.deployment) == {engine})]
    choices, passed = meeting, set[int]()
    if asked.required is not None:
        chances = {trial.number: known.chance_of(trial.number, number) for trial in meeting}
        passed = _passed_over(trials, asked)
        unlikely = {n for n, chance in chances.items() if chance is not None and _highest(chance) < asked.required}
        likely = [t for t in meeting if (chance := chances[t.number]) and chance.value >= asked.required - 1e-9]
        choices = likely or [t for t in meeting if t.number not in passed | unlikely] or meeting
    trial = _first(choices, asked)
    if trial is None:
        return None
    rule, limit = asked.rule, asked.rule.usd_per_hour
    words = f"the rule {rule.rule}"
    if rule.rule == "most_headroom" and trial.number not in _loads(meeting):
        words = f"the widest margin, as for the rule {rule.rule} no other load of it was simulated"
    if limit is not None and price_of(trial) > limit:
        words = f"its price, as none is within the ${limit:,.2f} per hour of the rule {rule.rule}"
    likelihood = ""
    if asked.required is not None:
        likelihood = _likely(known.chance_of(trial.number, number), trial.number in passed, rule)
    required = "" if asked.required is None else f", where {format_percent(asked.required)} are required"
    on_engine = f" on {engine}" if engine else ""
    count = counted(len(meeting), "deployment")
    return Choice(trial, f"chosen by {words}, of {count}{on_engine} that met the SLO{likelihood}{required}")


def refusal(engine: str | None, tried: bool, engines: Sequence[str]) -> str:
    """Why there is nothing to choose. tried: whether any deployment on the engine was simulated."""
    on_engine = f" on {engine}" if engine else ""
    if tried:
        return f"no deployment{on_engine} meets the SLO; name one with --trial (see trials.parquet)"
    if engine is not None and engine not in engines:
        return (
            f"no deployment on {engine} was tried: the space has {listed(engines)}. Add {engine} to its "
            "execution.engines and run the study"
        )
    return f"no deployment{on_engine} was simulated, there is nothing to export"


def _first(trials: Sequence[Trial], asked: Asked) -> Trial | None:
    if asked.rule.rule == "cheapest":
        return recommended(trials, asked.objectives)
    loads = _loads(trials)
    if asked.rule.rule == "most_headroom" and not loads:
        candidates = headroom_candidates(trials, asked.rule, 1)
        if candidates:
            return candidates[0]
    recommendation = recommend_by(trials, asked.objectives, asked.rule, loads=loads)
    return None if recommendation is None else recommendation.trial


def _passed_over(trials: Sequence[Trial], asked: Asked) -> set[int]:
    """Numbers of the trials that come before a recommendation with the required probability, by the rule.

    The search rejected them under draws, or for margins no wider than a rejected one's
    (``search.confidence.assurance``). Which of both, and how many draws they missed, is not kept.
    """
    best = asked.best
    if best is None or asked.confidence.satisfied is not True:
        return set()
    if asked.rule.rule == "cheapest":
        return {trial.number for trial in trials if trial.meets_slo and price_of(trial) < price_of(best)}
    order = [trial.number for trial in preference(trials, asked.objectives, asked.rule, _loads(trials))]
    return set(order[: order.index(best.number)]) if best.number in order else set()


def _loads(trials: Sequence[Trial]) -> dict[int, float]:
    """Largest loads of trials, by number, where capacity is an objective."""
    known = known_loads([trial for trial in trials if trial.load == 1.0])
    return {number: largest.load for number, largest in known.items()}


def _highest(chance: Chance) -> float:
    return chance.value if chance.ends is None else chance.ends[1]


def _likely(chance: Chance | None, passed: bool, rule: RecommendSpec) -> str:
    """What is known of a trial's probability. passed: the search passed it over."""
    if chance is not None:
        return f"; it is {format_chance(chance)} likely to meet it"
    if passed:
        return (
            f"; it comes before the recommendation by the rule {rule.rule}, and that is the first that was found "
            "likely enough; its own probability is not known"
        )
    return "; how likely it is was not looked into"
