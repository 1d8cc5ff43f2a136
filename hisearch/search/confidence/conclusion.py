"""Steps after a search: the recommendation by its rule, its probability, and what would change it.

None of this counts against the search's budget: ``ConfidenceSpec`` has its own limits, and simulations are counted by
purpose. All results are the same for any number of workers (law L6); they are kept in a journal (law L9).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TypeVar

from hisearch.score.capacity import Capacity
from hisearch.search.confidence.answer import Candidate, Conclusion, Priced, Question
from hisearch.search.confidence.assessment import Assessment, Assessor, cheapest_shares
from hisearch.search.confidence.assurance import Likelihood
from hisearch.search.confidence.baseline import SIMULATIONS as BASELINE_SIMULATIONS
from hisearch.search.confidence.baseline import find_baseline
from hisearch.search.confidence.chance_constrained import ChanceConstrained, find_chance_constrained
from hisearch.search.confidence.changes import LOADS, Changes, Faster, StepChange
from hisearch.search.confidence.choice import Choice, Chooser
from hisearch.search.confidence.fresh_knowledge import SIMULATIONS as FRESH_SIMULATIONS
from hisearch.search.confidence.fresh_knowledge import find_fresh_knowledge
from hisearch.search.confidence.likely_alternatives import (
    keeps_formats,
    likeliest_for_less,
    likely_with_own_formats,
)
from hisearch.search.confidence.likely_prices import likely_price_break_evens
from hisearch.search.confidence.load_candidates import load_candidates
from hisearch.search.confidence.misses import MOST_DRAWS, Misses, find_misses
from hisearch.search.confidence.step_sensitivity import MAX_ALTERNATIVES, SCALED, SIMULATIONS
from hisearch.search.driver import SearchOutcome
from hisearch.search.evaluate.runner import TrialRunner
from hisearch.search.model.problem import Problem
from hisearch.search.model.trial import Recommendation, Trial
from hisearch.search.select.headroom import known_loads
from hisearch.search.select.pareto import front
from hisearch.search.select.price_sensitivity import PriceBreakEven
from hisearch.search.select.recommend import nearest_miss
from hisearch.search.select.rules import (
    against_baseline,
    table_limit_usd,
    table_rules,
)
from hisearch.search.select.setting_sensitivity import single_changes
from hisearch.specs.studies.study import PRICE

_T = TypeVar("_T")

#: Runner-ups to simulate under draws as well.
CANDIDATES = 4


def conclude(
    problem: Problem, runner: TrialRunner, outcome: SearchOutcome, assessor: Assessor, question: Question
) -> tuple[SearchOutcome, Conclusion | None]:
    """Choose by the rule, assess, and look for what would change the answer.

    Returns:
        The outcome with the chosen recommendation, and the conclusion; None if nothing is feasible.
    """
    if outcome.recommendation is None:
        return outcome, None
    return _Conclusions(problem, runner, outcome, assessor, question).run()


class _Conclusions:
    """Runs the steps of one conclusion; which trial is recommended is ``choice``'s."""

    def __init__(
        self, problem: Problem, runner: TrialRunner, outcome: SearchOutcome, assessor: Assessor, question: Question
    ) -> None:
        self._problem, self._runner, self._outcome = problem, runner, outcome
        self._assessor, self._question = assessor, question
        self._settings = question.confidence
        self._changes = Changes(problem, assessor, runner.trials)
        self._left = self._settings.what_if
        self._counts: dict[str, int] = {}
        self._loads: dict[int, Capacity] = {}
        self._chooser = Chooser(problem, runner, assessor, question, self._counting)

    @property
    def _trials(self) -> Sequence[Trial]:
        return self._runner.trials

    def run(self) -> tuple[SearchOutcome, Conclusion]:
        """Run all steps in a fixed order."""
        self._assessor.progress.started("5 conclusions", self._most, self._settings.seconds)
        limit_usd = table_limit_usd(self._trials, self._problem.objectives, self._question.recommend)
        self._tried_loads(limit_usd)
        self._chooser.loads = {number: carried.load for number, carried in self._loads.items()}
        by_rule = self._by_rule(limit_usd)
        choice = self._chooser.choose()
        recommendation = choice.recommendation
        between = self._likelier_for_less(choice)
        assessment, candidates = self._assess(choice, by_rule)
        confirmed = self._confirmed(recommendation)
        baseline = self._counted("baseline", BASELINE_SIMULATIONS, lambda: self._baseline(recommendation.trial))
        if baseline is not None:
            recommendation = _against(recommendation, baseline, self._problem.objectives)
            by_rule = tuple(_against(of_rule, baseline, self._problem.objectives) for of_rule in by_rule)
        fresh = self._counted(
            "fresh knowledge", FRESH_SIMULATIONS, lambda: find_fresh_knowledge(self._assessor, recommendation.trial)
        )
        # If the rule is not about price, a cheaper deployment is no alternative.
        least = recommendation.rule == "cheapest" and choice.is_nominal
        steps, faster = self._step_times(recommendation.trial, least)
        load_headroom = self._headroom(recommendation.trial)
        purchase = None
        if load_headroom:
            look = partial(self._changes.next_purchase, recommendation.trial, load_headroom)
            purchase = self._counted("next purchase", MAX_ALTERNATIVES + 1, look)
        chance_constrained = self._chance_constrained(recommendation.trial, assessment)
        misses = self._misses(recommendation.trial, assessment)
        prices = self._prices(recommendation, likely=choice.satisfied is True)
        self._assessor.progress.finished()
        changes = single_changes(self._trials, recommendation.trial)
        conclusion = Conclusion(
            recommendation, assessment, candidates, self._settings.required, choice.walk, choice.satisfied, confirmed,
            by_rule, limit_usd, self._question.recommend.usd_per_hour is not None, steps, faster,
            prices, tuple(setting for setting in changes if least or not setting.trial.feasible),
            load_headroom, purchase, self._nominal(choice), between,
            self._own_formats(choice) if choice.satisfied else None, chance_constrained, fresh, self._counts,
            lasts=self._assessor.holds_carried_on(recommendation.trial), misses=misses,
        )  # fmt: skip
        return self._concluded(recommendation, load_headroom), conclusion

    @property
    def _most(self) -> int:
        """Most simulations, for the listener."""
        settings = self._settings
        required = settings.required is not None
        walk = settings.search + settings.fresh_draws if required else settings.chance_constrained
        misses = 2 * MOST_DRAWS if settings.what_if else 0
        return settings.draws + (1 + CANDIDATES) * settings.candidate_draws + settings.what_if + misses + walk

    def _prices(self, recommendation: Recommendation, *, likely: bool) -> tuple[PriceBreakEven, ...]:
        """At which prices another is cheaper. likely: only what a few draws leave likely enough, as far as it was."""
        if PRICE not in self._problem.objectives or recommendation.rule != "cheapest":
            return ()
        settings, few = self._settings, min(self._settings.candidate_draws, self._settings.draws)

        def look(trial: Trial) -> Assessment | None:
            return self._counted("prices", few, lambda: self._assessor.assess([trial], [few], settings.level)[0])

        at_least = settings.required if likely and few else None
        return likely_price_break_evens(self._question.book, self._trials, recommendation.trial, at_least, look)

    def _concluded(self, recommendation: Recommendation, load_headroom: Capacity | None) -> SearchOutcome:
        """The search's outcome with the later simulations."""
        trials = self._trials
        return replace(
            self._outcome,
            trials=tuple(trials),
            front=tuple(front(trials, self._problem.objectives)),
            recommendation=recommendation,
            nearest_miss=None if recommendation else nearest_miss(trials),
            headroom=load_headroom,
        )

    def _counted(self, what: str, most: int, make: Callable[[], _T]) -> _T | None:
        """The result of ``make``, if ``what_if`` leaves it the simulations that it may need, and time allows."""
        if self._left < most or self._assessor.out_of_time:
            return None
        before = self._assessor.simulations
        with self._counting(what):
            result = make()
        self._left -= self._assessor.simulations - before
        return result

    @contextmanager
    def _counting(self, what: str) -> Iterator[None]:
        """Count the simulations made within for a purpose."""
        before = self._assessor.simulations
        yield
        if made := self._assessor.simulations - before:
            self._counts[what] = self._counts.get(what, 0) + made

    def _by_rule(self, limit_usd: float) -> tuple[Recommendation, ...]:
        """The recommendation of each rule; ``most_headroom`` only if several trials were tried at larger loads."""
        specs = table_rules(self._question.recommend, self._problem.objectives, limit_usd)
        return tuple(self._chooser.recommended(s) for s in specs if s.rule != "most_headroom" or len(self._loads) > 1)

    def _tried_loads(self, limit_usd: float) -> None:
        """Find the largest loads of the search's choice and of the likeliest other trials."""
        if not self._problem.demand.scales_with_load:
            return
        assert self._outcome.recommendation is not None
        best = self._outcome.recommendation.trial
        self._loads.update(known_loads(self._trials))
        of_study = (self._problem, self._outcome.execution, self._trials, best)
        candidates, most = load_candidates(*of_study, limit_usd, self._loads)
        look = partial(self._assessor.each, lambda candidate: self._changes.largest_load(*candidate), candidates)
        capacities = self._counted("other loads", most * LOADS, look)
        self._loads.update(
            {trial.number: largest for (trial, _), largest in zip(candidates, capacities or (), strict=False)}
        )

    def _headroom(self, trial: Trial) -> Capacity | None:
        if trial.number in self._loads or not self._problem.demand.scales_with_load:
            return self._loads.get(trial.number)
        return self._counted("other loads", LOADS, lambda: self._changes.largest_load(trial))

    def _nominal(self, choice: Choice) -> Priced | None:
        """The rule's own choice, under all draws, if there are any and another trial is recommended."""
        if choice.is_nominal or not self._settings.draws:
            return None
        return Priced(choice.nominal.trial, self._under_all_draws(choice.nominal.trial))

    def _likelier_for_less(self, choice: Choice) -> Priced | None:
        """The likeliest that costs less than the recommendation; None unless it is likelier than the nominal one."""
        if choice.likelihood is None or choice.is_nominal or self._assessor.out_of_time:
            return None
        of_trials = (choice.likelihood, choice.nominal.trial, choice.recommendation.trial)
        return likeliest_for_less(*of_trials, self._chooser.under_draws, self._settings.draws)

    def _own_formats(self, choice: Choice) -> Priced | None:
        """The cheapest that keeps the checkpoint's formats and is as likely as required."""
        required, recommendation = self._settings.required, choice.recommendation
        if required is None or recommendation.rule != "cheapest" or keeps_formats(self._problem, recommendation.trial):
            return None
        left = self._settings.search - self._counts.get("search for confidence", 0)
        likelihood = Likelihood(self._assessor, required, left, choice.nominal.trial)
        with self._counting("search for the checkpoint's formats"):
            trial = likely_with_own_formats(self._problem, self._runner, likelihood)
        return None if trial is None else Priced(trial, self._under_all_draws(trial))

    def _confirmed(self, recommendation: Recommendation) -> Assessment | None:
        """The recommendation under fresh draws, if it was chosen by its draws; None otherwise, or without time."""
        settings = self._settings
        if settings.required is None or not settings.fresh_draws or self._assessor.out_of_time:
            return None
        with self._counting("fresh draws"):
            fresh = self._assessor.under(self._assessor.uncertainty.fresh(settings.fresh_draws))
            return fresh.assess([recommendation.trial], [settings.fresh_draws], settings.level)[0]

    def _under_all_draws(self, trial: Trial) -> Assessment:
        return self._chooser.under_draws(trial, self._settings.draws)

    def _assess(
        self, choice: Choice, by_rule: Sequence[Recommendation]
    ) -> tuple[Assessment | None, tuple[Candidate, ...]]:
        """The recommendation under all draws; it, what other rules choose and its competitors under the first ones."""
        settings, few = self._settings, min(self._settings.candidate_draws, self._settings.draws)
        if not settings.draws:
            return None, ()
        recommendation, nominal = choice.recommendation, choice.nominal.trial
        trials = [recommendation.trial] + [nominal] * (not choice.is_nominal)
        trials += [trial for trial, _ in recommendation.runner_ups if trial.number != nominal.number][:CANDIDATES]
        trials += [of_rule.trial for of_rule in by_rule]
        trials = list({trial.number: trial for trial in trials}.values())
        with self._counting("candidates and the first draws"):
            assessments = (
                self._assessor.assess(trials, [few] * len(trials), settings.level) if few and len(trials) > 1 else []
            )
        assessment = self._under_all_draws(recommendation.trial)
        wins = cheapest_shares([self._assessor.known(trial.deployment, range(few)) for trial in trials])
        return assessment, tuple(
            Candidate(trial, assessed, won) for trial, assessed, won in zip(trials, assessments, wins, strict=False)
        )

    def _chance_constrained(self, best: Trial, assessed: Assessment | None) -> ChanceConstrained | None:
        """The price of a higher probability, if none is required."""
        if self._settings.required is not None or assessed is None or self._assessor.out_of_time:
            return None
        with self._counting("the chance-constrained one"):
            return find_chance_constrained(
                self._assessor, best, assessed, self._trials, self._settings.chance_constrained, self._settings.level
            )

    def _misses(self, best: Trial, assessed: Assessment | None) -> Misses | None:
        """Why draws of the recommendation miss the SLO."""
        if assessed is None or not self._settings.what_if or self._assessor.out_of_time:
            return None
        with self._counting("draws that miss"):
            return find_misses(self._assessor, best, assessed.draws)

    def _baseline(self, best: Trial) -> Trial | None:
        memory = self._question.memory_bytes[best.deployment.pools[0].accelerator]
        return find_baseline(self._problem, self._assessor, best, memory)

    def _step_times(self, best: Trial, least: bool) -> tuple[tuple[StepChange, ...], Faster | None]:
        """Allowed error of step times; with ``least``, also the speed-up at which a cheaper deployment would do.

        Both run in parallel if ``what_if`` allows.
        """
        most = len(SCALED) * SIMULATIONS + 2 * MAX_ALTERNATIVES
        both = least and self._left >= most + SIMULATIONS

        def look() -> tuple[tuple[StepChange, ...], Faster | None]:
            return self._changes.of_steps(best, faster=both)

        steps, faster = self._counted("step times", most + SIMULATIONS * both, look) or ((), None)
        if least and not both:
            faster = self._counted("step times", SIMULATIONS, lambda: self._changes.faster(best))
        return steps, faster


def _against(recommendation: Recommendation, baseline: Trial, objectives: Sequence[str]) -> Recommendation:
    return replace(
        recommendation, baseline=baseline, against_baseline=against_baseline(recommendation.trial, baseline, objectives)
    )
