"""What follows a search: the recommendation by its rule, how sure it is, and what would change it.

Nothing here belongs to the search's budget: ``ConfidenceSpec`` has limits of its own, and every simulation is counted
by what it was for. All are the same for any number of workers (law L6); they are kept in a journal (law L9).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from hisearch.hardware.price_book import PriceBook
from hisearch.score.capacity import Capacity, capacity
from hisearch.score.evaluate import Score
from hisearch.search.confidence.assessment import Assessment, Assessor
from hisearch.search.confidence.assurance import Assured, Likelihood, Walk, first_of
from hisearch.search.confidence.baseline import SIMULATIONS as BASELINE_SIMULATIONS
from hisearch.search.confidence.baseline import find_baseline
from hisearch.search.confidence.chance_constrained import ChanceConstrained, find_chance_constrained
from hisearch.search.confidence.step_sensitivity import (
    EVERY_TERM,
    MAX_ALTERNATIVES,
    SCALED,
    SIMULATIONS,
    BreakEven,
    Instead,
    break_even,
    instead_of,
    scaled,
    step_break_even,
)
from hisearch.search.driver import SearchOutcome, headroom
from hisearch.search.evaluate.runner import TrialRunner
from hisearch.search.model.deployments import describe
from hisearch.search.model.job import Evaluation
from hisearch.search.model.problem import Problem
from hisearch.search.model.trial import Recommendation, Trial
from hisearch.search.select.pareto import front
from hisearch.search.select.price_sensitivity import PriceBreakEven, price_break_evens
from hisearch.search.select.recommend import PRICE, nearest_miss, price_of
from hisearch.search.select.rules import (
    HEADROOM_CANDIDATES,
    against_baseline,
    headroom_candidates,
    preference,
    recommend_by,
    table_limit_usd,
)
from hisearch.search.select.setting_sensitivity import Setting, single_changes
from hisearch.specs.studies.study import ConfidenceSpec, RecommendSpec, RuleName
from hisearch.specs.wording import in_percent

_T = TypeVar("_T")

#: Runner-ups that are simulated under draws as well.
CANDIDATES = 4

#: In which order a probability is looked for, by rule.
_ORDERS: Mapping[RuleName, str] = {
    "cheapest": "their prices",
    "best_value": "their value on the front",
    "lowest_latency": "their latencies",
    "most_headroom": "the loads that they carry",
}

#: Most deployments that a walk up the prices may simulate anew, beyond the search's budget.
GROWN = 64

#: Other loads that a deployment is simulated at: largest, steps, how near the two ends come, and how many at most.
MAX_LOAD = 8.0
GROWTH = 1.5
LOAD_TOLERANCE = 0.1
LOADS = 7


@dataclass(frozen=True)
class Question:
    """What to conclude. memory_bytes: of every accelerator, by name."""

    recommend: RecommendSpec
    confidence: ConfidenceSpec
    book: PriceBook
    memory_bytes: Mapping[str, float]


@dataclass(frozen=True)
class Candidate:
    """A deployment beside the recommendation, under the first of the same draws.

    cheapest: share of these draws in which it is the cheapest of all that were assessed and meet the SLO.
    """

    trial: Trial
    assessment: Assessment
    cheapest: float


@dataclass(frozen=True)
class StepChange:
    """How much slower some steps may be, and what would answer then."""

    break_even: BreakEven
    instead: Instead | None = None


@dataclass(frozen=True)
class Faster:
    """By how much all steps would have to be faster for a cheaper deployment to do."""

    trial: Trial
    break_even: BreakEven


@dataclass(frozen=True)
class NextPurchase:
    """What carries the smallest load that the recommendation does not; None where nothing looked at does."""

    load: float
    term: str
    instead: Instead | None


@dataclass(frozen=True)
class Conclusion:
    """What follows a search.

    assessment: of the recommendation, contenders[0] being the same under the first draws alone. at_least: probability
    that was asked for; assured: how it was looked for, None where the first choice has it. satisfied: whether the
    recommendation has it, None where none was asked for. confirmed: the recommendation under draws that it was not
    chosen by. by_rule: what each rule would recommend; limit_usd: within which price lowest_latency and most_headroom
    look there; limit_given: the study says so. chance_constrained: what a likelier one would cost, where none was asked
    for and the recommendation is not likely enough. simulations: by what they were for.
    """

    recommendation: Recommendation
    assessment: Assessment | None = None
    candidates: tuple[Candidate, ...] = ()
    at_least: float | None = None
    assured: Assured | None = None
    satisfied: bool | None = None
    confirmed: Assessment | None = None
    by_rule: tuple[Recommendation, ...] = ()
    limit_usd: float = math.inf
    limit_given: bool = False
    steps: tuple[StepChange, ...] = ()
    faster: Faster | None = None
    prices: tuple[PriceBreakEven, ...] = ()
    settings: tuple[Setting, ...] = ()
    headroom: Capacity | None = None
    next_purchase: NextPurchase | None = None
    chance_constrained: ChanceConstrained | None = None
    simulations: Mapping[str, int] = field(default_factory=dict)


def conclude(
    problem: Problem, runner: TrialRunner, outcome: SearchOutcome, assessor: Assessor, question: Question
) -> tuple[SearchOutcome, Conclusion | None]:
    """Choose by the rule, assess, and look for what would change the answer.

    Returns:
        The outcome with the recommendation that was chosen, and the conclusion; None where nothing is feasible.
    """
    if outcome.recommendation is None:
        return outcome, None
    return _Course(problem, runner, outcome, assessor, question).run()


class _Course:
    """One conclusion in the making."""

    def __init__(
        self, problem: Problem, runner: TrialRunner, outcome: SearchOutcome, assessor: Assessor, question: Question
    ) -> None:
        self._problem, self._runner, self._outcome = problem, runner, outcome
        self._assessor, self._question = assessor, question
        self._settings = question.confidence
        self._left = self._settings.what_if
        self._counts: dict[str, int] = {}
        self._loads: dict[int, Capacity] = {}

    @property
    def _trials(self) -> Sequence[Trial]:
        return self._runner.trials

    def run(self) -> tuple[SearchOutcome, Conclusion]:
        """All of it, in a fixed order."""
        self._assessor.progress.started("5 conclusions", self._most)
        limit_usd = table_limit_usd(self._trials, self._problem.objectives, self._question.recommend)
        self._tried_loads(limit_usd)
        by_rule = self._by_rule(limit_usd)
        first = self._recommended(self._question.recommend)
        found, assured, satisfied = self._assured(first)
        assessment, candidates = self._assess(found, first.trial)
        confirmed = self._confirmed(found)
        baseline = self._counted("baseline", BASELINE_SIMULATIONS, lambda: self._baseline(found.trial))
        if baseline is not None:
            found = _against(found, baseline, self._problem.objectives)
            by_rule = tuple(_against(one, baseline, self._problem.objectives) for one in by_rule)
        # Where something else than price speaks for the recommendation, what is cheaper is no answer in its place.
        least = found.rule == "cheapest" and found.trial.number == first.trial.number
        steps, faster = self._step_times(found.trial, least)
        room = self._headroom(found.trial)
        then = (
            self._counted("next purchase", MAX_ALTERNATIVES + 1, lambda: self._next(found.trial, room))
            if room
            else None
        )
        chance_constrained = self._chance_constrained(found.trial, assessment)
        self._assessor.progress.finished()
        changes = single_changes(self._trials, found.trial)
        conclusion = Conclusion(
            found, assessment, candidates, self._settings.at_least, assured, satisfied, confirmed, by_rule, limit_usd,
            self._question.recommend.usd_per_hour is not None, steps, faster,
            self._prices(found.trial) if least else (),
            tuple(one for one in changes if least or not one.trial.feasible),
            room, then, chance_constrained, self._counts,
        )  # fmt: skip
        return self._concluded(found, room), conclusion

    @property
    def _most(self) -> int:
        """Simulations at most, for the listener."""
        settings = self._settings
        walk = settings.search if settings.at_least is not None else 0
        walk += settings.fresh_draws if settings.at_least is not None else settings.chance_constrained
        return settings.draws + (1 + CANDIDATES) * settings.candidate_draws + settings.what_if + walk

    def _prices(self, best: Trial) -> tuple[PriceBreakEven, ...]:
        if PRICE not in self._problem.objectives:
            return ()
        return tuple(price_break_evens(self._question.book, self._trials, best))

    def _concluded(self, found: Recommendation, room: Capacity | None) -> SearchOutcome:
        """The search's outcome with what was simulated since."""
        trials = self._trials
        return replace(
            self._outcome,
            trials=tuple(trials),
            front=tuple(front(trials, self._problem.objectives)),
            recommendation=found,
            nearest_miss=None if found else nearest_miss(trials),
            headroom=room,
        )

    def _counted(self, what: str, most: int, make: Callable[[], _T]) -> _T | None:
        """What ``make`` finds, where ``what_if`` leaves it as many simulations as it may need, and time allows."""
        if self._left < most or self._assessor.out_of_time:
            return None
        before = self._assessor.simulations
        found = make()
        self._spent(what, before)
        self._left -= self._assessor.simulations - before
        return found

    def _spent(self, what: str, before: int) -> None:
        made = self._assessor.simulations - before
        if made:
            self._counts[what] = self._counts.get(what, 0) + made

    def _recommended(self, rule: RecommendSpec, chosen: tuple[Trial, str] | None = None) -> Recommendation:
        found = recommend_by(self._trials, self._problem.objectives, rule, chosen=chosen, loads=self._carried)
        assert found is not None  # a feasible trial stays one
        return found

    @property
    def _carried(self) -> Mapping[int, float]:
        return {number: found.load for number, found in self._loads.items()}

    def _by_rule(self, limit_usd: float) -> tuple[Recommendation, ...]:
        """What each rule recommends; the one of the largest load only where several were tried at larger loads."""
        rules: list[RuleName] = ["cheapest", "best_value", "lowest_latency"]
        rules += ["most_headroom"] if len(self._loads) > 1 else []
        specs = [
            RecommendSpec(rule=rule, usd_per_hour=limit_usd if rule in {"lowest_latency", "most_headroom"} else None)
            for rule in rules
        ]
        return tuple(self._recommended(spec) for spec in specs)

    def _tried_loads(self, limit_usd: float) -> None:
        """How much more than the study's load the search's choice and the likeliest others carry."""
        if not self._problem.demand.scales_with_load:
            return
        assert self._outcome.recommendation is not None
        best = self._outcome.recommendation.trial
        known = headroom(self._trials, best)
        if known is not None:
            self._loads[best.number] = known
        asked = self._question.recommend
        within = asked if asked.rule == "most_headroom" else RecommendSpec(rule="most_headroom", usd_per_hour=limit_usd)
        wanted = [t for t in headroom_candidates(self._trials, within) if t.number not in self._loads]
        found = self._counted(
            "other loads", HEADROOM_CANDIDATES * LOADS, lambda: self._assessor.each(self._capacity, wanted)
        )
        self._loads.update({trial.number: one for trial, one in zip(wanted, found or (), strict=False)})

    def _capacity(self, trial: Trial) -> Capacity:
        """The largest load that a feasible trial carries, from simulations at a few; known where it is an objective."""
        known = headroom(self._trials, trial)
        if known is not None:
            return known
        nominal = Score(trial.metrics, trial.slo, trial.feasible)

        def score_at(load: float) -> Score:
            if load == 1.0:
                return nominal
            found = self._assessor.supposing(trial.deployment, {}, load)
            return Score(found.metrics, found.slo, found.feasible and not found.error)

        return capacity(score_at, growth=GROWTH, max_load=MAX_LOAD, relative_tolerance=LOAD_TOLERANCE)

    def _headroom(self, trial: Trial) -> Capacity | None:
        if trial.number in self._loads or not self._problem.demand.scales_with_load:
            return self._loads.get(trial.number)
        return self._counted("other loads", LOADS, lambda: self._capacity(trial))

    def _assured(self, first: Recommendation) -> tuple[Recommendation, Assured | None, bool | None]:
        """The recommendation that is likely enough, where that is asked for; the rule's own where none is found."""
        wanted, settings = self._settings.at_least, self._settings
        if wanted is None:
            return first, None, None
        before = self._assessor.simulations
        own = self._assessor.assess([first.trial], [settings.draws], settings.level)[0]
        self._spent("draws", before)
        if own.draws == settings.draws and own.all_terms >= wanted - 1e-9:
            return first, None, True
        if own.draws < settings.draws:  # time ran out
            return first, Assured(None, 0, 0, spent=True), False
        before = self._assessor.simulations
        assured = self._first_likely(first, Likelihood(self._assessor, wanted, settings.search, first.trial))
        self._spent("search for confidence", before)
        if assured.trial is None:
            return first, assured, False
        found = self._assessor.assess([assured.trial], [settings.draws], settings.level)[0]
        usd = price_of(assured.trial) - price_of(first.trial)
        reason = (
            f"{describe(assured.trial.deployment)} is the first, of {assured.looked_at} looked at in the order of "
            f"{_ORDERS[first.rule]}, that meets the SLO with a probability of at least {in_percent(wanted)}, which was "
            f"asked for: {in_percent(found.all_terms)}, at ${price_of(assured.trial):,.2f} per hour. The rule's own "
            f"choice, {describe(first.trial.deployment)} at ${price_of(first.trial):,.2f} per hour (${abs(usd):,.2f} "
            f"{'more' if usd < 0 else 'less'}), meets it with {in_percent(own.all_terms)}."
        )
        return self._recommended(self._question.recommend, (assured.trial, reason)), assured, True

    def _first_likely(self, first: Recommendation, likelihood: Likelihood) -> Assured:
        """The first that is likely enough in the order of the rule, which goes up the prices for the cheapest."""
        if first.rule == "cheapest":
            self._runner.extend(GROWN)
            return Walk(self._problem, self._runner, likelihood).run()
        order = preference(self._trials, self._problem.objectives, self._question.recommend, self._carried)
        return first_of(order, likelihood)

    def _confirmed(self, found: Recommendation) -> Assessment | None:
        """What a recommendation that was chosen by its draws comes to under others; None where none was, or no time."""
        settings = self._settings
        if settings.at_least is None or not settings.fresh_draws or self._assessor.out_of_time:
            return None
        before = self._assessor.simulations
        fresh = self._assessor.under(self._assessor.uncertainty.fresh(settings.fresh_draws))
        assessment = fresh.assess([found.trial], [settings.fresh_draws], settings.level)[0]
        self._spent("fresh draws", before)
        return assessment

    def _assess(self, found: Recommendation, first: Trial) -> tuple[Assessment | None, tuple[Candidate, ...]]:
        """The recommendation under all draws; it and what stands beside it under the first of them."""
        settings, few = self._settings, min(self._settings.candidate_draws, self._settings.draws)
        if not settings.draws:
            return None, ()
        trials = [found.trial] + [first] * (first.number != found.trial.number)
        trials += [trial for trial, _ in found.runner_ups if trial.number != first.number][:CANDIDATES]
        before = self._assessor.simulations
        beside = self._assessor.assess(trials, [few] * len(trials), settings.level) if few and len(trials) > 1 else []
        self._spent("contenders and the first draws", before)
        before = self._assessor.simulations
        assessment = self._assessor.assess([found.trial], [settings.draws], settings.level)[0]
        self._spent("draws", before)
        wins = self._wins(trials, few)
        return assessment, tuple(
            Candidate(trial, one, won) for trial, one, won in zip(trials, beside, wins, strict=False)
        )

    def _wins(self, trials: Sequence[Trial], draws: int) -> list[float]:
        """Share of draws in which each is the cheapest that meets the SLO; the earlier one where prices are equal."""
        found = [self._assessor.known(trial.deployment, range(draws)) for trial in trials]
        wins = [0] * len(trials)
        for evaluations in zip(*found, strict=False):
            prices = [one.metrics[PRICE] if one.feasible and not one.error else math.inf for one in evaluations]
            if min(prices) < math.inf:
                wins[prices.index(min(prices))] += 1
        count = min((len(one) for one in found), default=0)
        return [won / count for won in wins] if count else []

    def _chance_constrained(self, best: Trial, own: Assessment | None) -> ChanceConstrained | None:
        """What it would cost to be surer, where nobody has asked for a probability."""
        if self._settings.at_least is not None or own is None or self._assessor.out_of_time:
            return None
        before = self._assessor.simulations
        found = find_chance_constrained(
            self._assessor, best, own, self._trials, self._settings.chance_constrained, self._settings.level
        )
        self._spent("a surer one", before)
        return found

    def _baseline(self, best: Trial) -> Trial | None:
        memory = self._question.memory_bytes[best.deployment.pools[0].accelerator]
        return find_baseline(self._problem, self._assessor, best, memory)

    def _step_times(self, best: Trial, least: bool) -> tuple[tuple[StepChange, ...], Faster | None]:
        """How far off step times may be; ``least``: also how much faster they would have to be for a cheaper answer.

        Side by side where ``what_if`` leaves room for both.
        """
        most = len(SCALED) * SIMULATIONS + 2 * MAX_ALTERNATIVES
        both = least and self._left >= most + SIMULATIONS
        asked: list[Callable[[], BreakEven | Faster | None]] = [
            partial(step_break_even, self._assessor, best, what) for what in SCALED
        ]
        asked += [partial(self._faster, best)] * both

        def look() -> tuple[tuple[StepChange, ...], Faster | None]:
            found = self._assessor.each(lambda make: make(), asked)
            changes = self._changes(best, [one for one in found if isinstance(one, BreakEven)])
            return changes, next((one for one in found if isinstance(one, Faster)), None)

        steps, faster = self._counted("step times", most + SIMULATIONS * both, look) or ((), None)
        if least and not both:
            faster = self._counted("step times", SIMULATIONS, lambda: self._faster(best))
        return steps, faster

    def _changes(self, best: Trial, found: Sequence[BreakEven]) -> tuple[StepChange, ...]:
        """Each break-even, and what would answer beyond that of all steps together and of the most delicate kind."""
        missed = sorted((one for one in found[1:] if one.missed is not None), key=lambda one: one.missed or 0.0)
        asked = {one.what for one in (*found[:1], *missed[:1])}
        return tuple(
            StepChange(one, self._instead(best, one) if one.what in asked and one.missed is not None else None)
            for one in found
        )

    def _instead(self, best: Trial, one: BreakEven) -> Instead | None:
        factors = scaled(one.what, one.missed or 1.0)
        if self._assessor.out_of_time:
            return None
        return instead_of(
            self._problem, self._trials, best, lambda other: self._assessor.supposing(other, factors), one.term
        )

    def _faster(self, best: Trial) -> Faster | None:
        """By how much faster steps would have to be for the cheaper deployment that comes nearest to the SLO."""
        cheaper = [trial for trial in self._trials if trial.comparable and price_of(trial) < price_of(best)]
        nearest = nearest_miss(cheaper)
        if nearest is None or nearest.rejects_too_many:
            return None
        what = "all steps"

        def at(factor: float) -> Evaluation:
            return self._assessor.supposing(nearest.deployment, scaled(what, factor))

        return Faster(nearest, break_even(what, at, nearest.worst_violation, slower=False))

    def _next(self, best: Trial, room: Capacity) -> NextPurchase | None:
        """What to buy next: what carries the load that the recommendation no longer does."""
        load = room.infeasible_load
        if not math.isfinite(load):
            return None
        missed = self._assessor.supposing(best.deployment, {}, load)
        term = max(missed.slo, key=lambda check: check.violation).label if missed.slo else EVERY_TERM
        instead = instead_of(
            self._problem, self._trials, best, lambda other: self._assessor.supposing(other, {}, load), term
        )
        return NextPurchase(load, term, instead)


def _against(found: Recommendation, baseline: Trial, objectives: Sequence[str]) -> Recommendation:
    return replace(found, baseline=baseline, against_baseline=against_baseline(found.trial, baseline, objectives))
