"""What would change the answer: slower or faster steps, and larger loads."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from hisearch.score.capacity import Capacity
from hisearch.score.evaluate import Score
from hisearch.search.confidence.assessment import Assessor
from hisearch.search.confidence.step_sensitivity import (
    SCALED,
    BreakEven,
    Instead,
    break_even,
    instead_of,
    missed_term,
    scaled,
    step_break_even,
)
from hisearch.search.model.job import Evaluation
from hisearch.search.model.problem import Problem
from hisearch.search.model.trial import Trial, price_of
from hisearch.search.select.headroom import headroom, largest_load
from hisearch.search.select.recommend import nearest_miss

#: Most simulations for the largest load of a deployment.
LOADS = 8


@dataclass(frozen=True)
class StepChange:
    """How much slower some steps may be, and the alternative then."""

    break_even: BreakEven
    instead: Instead | None = None


@dataclass(frozen=True)
class Faster:
    """How much faster all steps would have to be for a cheaper deployment to meet the SLO."""

    trial: Trial
    break_even: BreakEven


@dataclass(frozen=True)
class NextPurchase:
    """The deployment for the smallest load that the recommendation misses; None if no alternative carries it."""

    load: float
    term: str
    instead: Instead | None


class Changes:
    """Looks for changes of a study's answer by simulation."""

    def __init__(self, problem: Problem, assessor: Assessor, trials: Sequence[Trial]) -> None:
        """Of a study with these trials, to which others may be added later."""
        self._problem, self._assessor, self._trials = problem, assessor, trials

    def largest_load(self, trial: Trial, start: float = 1.0) -> Capacity:
        """The largest load that a feasible trial carries, from a few simulations; known if it is an objective.

        start: the first load that is tried.
        """
        known = headroom(self._trials, trial)
        if known is not None:
            return known
        nominal = Score(trial.metrics, trial.slo, trial.feasible)

        def score_at(load: float) -> Score:
            if load == 1.0:
                return nominal
            evaluation = self._assessor.supposing(trial.deployment, {}, load)
            return Score(evaluation.metrics, evaluation.slo, evaluation.feasible)

        return largest_load(score_at, self._problem.most_load, start)

    def next_purchase(self, best: Trial, carried: Capacity) -> NextPurchase | None:
        """A deployment for the load that the recommendation no longer carries."""
        load = carried.infeasible_load
        if not math.isfinite(load):
            return None
        term = missed_term(self._assessor.supposing(best.deployment, {}, load))
        instead = instead_of(
            self._problem, self._trials, best, lambda spec: self._assessor.supposing(spec, {}, load), term
        )
        return NextPurchase(load, term, instead)

    def of_steps(self, best: Trial, *, faster: bool) -> tuple[tuple[StepChange, ...], Faster | None]:
        """How much slower each kind of step may be and, if asked for, the speed-up for a cheaper one; in parallel."""
        tasks: list[Callable[[], BreakEven | Faster | None]] = [
            partial(step_break_even, self._assessor, best, what) for what in SCALED
        ]
        tasks += [partial(self.faster, best)] * faster
        results = self._assessor.each(lambda make: make(), tasks)
        changes = self._with_alternatives(best, [result for result in results if isinstance(result, BreakEven)])
        return changes, next((result for result in results if isinstance(result, Faster)), None)

    def _with_alternatives(self, best: Trial, break_evens: Sequence[BreakEven]) -> tuple[StepChange, ...]:
        """Each break-even; with alternatives for all steps together and for the most sensitive kind."""
        missed = sorted(
            (item for item in break_evens[1:] if item.missed is not None), key=lambda item: item.missed or 0.0
        )
        chosen = {item.what for item in (*break_evens[:1], *missed[:1])}
        return tuple(
            StepChange(item, self._instead(best, item) if item.what in chosen and item.missed is not None else None)
            for item in break_evens
        )

    def _instead(self, best: Trial, change: BreakEven) -> Instead | None:
        factors = scaled(change.what, change.missed or 1.0)
        if self._assessor.out_of_time:
            return None
        return instead_of(
            self._problem, self._trials, best, lambda spec: self._assessor.supposing(spec, factors), change.term
        )

    def faster(self, best: Trial) -> Faster | None:
        """How much faster steps would have to be for the cheaper deployment nearest to the SLO."""
        cheaper = [trial for trial in self._trials if trial.comparable and price_of(trial) < price_of(best)]
        nearest = nearest_miss(cheaper)
        if nearest is None or nearest.rejects_too_many:
            return None
        what = "all steps"

        def at(factor: float) -> Evaluation:
            return self._assessor.supposing(nearest.deployment, scaled(what, factor))

        return Faster(nearest, break_even(what, at, nearest.worst_violation, slower=False))
