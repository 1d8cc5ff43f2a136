"""Which trial is recommended: by the rule, and by how likely it is to meet the SLO.

*Nominal* is the rule's own choice, at the study's own figures: of the rule cheapest that of ``recommend``, else the
first of ``preference``; the cheapest of all where nothing is within the rule's price limit. Other steps of a conclusion
(runner-ups, what other rules choose, fresh draws, what would change the answer) never change what is recommended.

    required probability  the nominal trial                              recommended    walk            satisfied
    none (at_least: 0,    meets the SLO where its load is carried on     nominal        None            None
    or no draws)          misses it then                                 next that      None            None
                                                                         meets it then
                          misses it then, as do all others               nominal        None            None
    p (at_least; 90 %     meets it in a share p of all draws, and where  nominal        None            True
    if not stated)        its load is carried on
                          was not given all draws: time ran out          nominal        ended: seconds  False
                          misses it, as would any: the model's window    nominal        over_window     False
                          rejects too many requests in too many draws
                          else: the walk finds a trial that meets both   that one       its trial       True
                          else: the walk finds none                      nominal        ended, or ""    whether it
                                                                                                        has p

*Next* is in the order of ``preference``. The *walk* (``assurance``) goes up the prices for the rule cheapest, further
replicas included; for another rule it goes through ``preference``. A load is only carried on where the trace is too
short to show a steady state (``Assessor.holds_carried_on``); ``Conclusion.lasts``: whether the recommendation holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

from hisearch.search.confidence.answer import Question
from hisearch.search.confidence.assessment import Assessment, Assessor
from hisearch.search.confidence.assurance import GROWN, Likelihood, Walk, WalkResult, first_likely
from hisearch.search.confidence.likely_alternatives import draws_over_window
from hisearch.search.evaluate.runner import TrialRunner
from hisearch.search.model.deployments import describe
from hisearch.search.model.problem import Problem
from hisearch.search.model.trial import Recommendation, Trial, price_of
from hisearch.search.select.rules import preference, recommend_by
from hisearch.specs.studies.study import RecommendSpec, RuleName
from hisearch.specs.wording import format_percent

#: Order of the walk for a probability, by rule.
_ORDERS: Mapping[RuleName, str] = {
    "cheapest": "their prices",
    "best_value": "their value on the front",
    "lowest_latency": "their latencies",
    "most_headroom": "the loads that they carry",
    "least_energy": "their energy per generated token",
}


@dataclass(frozen=True)
class Choice:
    """What is recommended, and how it came to be: a row of the module's table.

    nominal: the rule's own choice. likelihood: what rejected others on the walk; None without one.
    """

    recommendation: Recommendation
    nominal: Recommendation
    walk: WalkResult | None = None
    satisfied: bool | None = None
    likelihood: Likelihood | None = None

    @property
    def is_nominal(self) -> bool:
        """Whether the rule's own choice is recommended."""
        return self.recommendation.trial.number == self.nominal.trial.number


class Chooser:
    """Chooses once, when the loads are known that trials carry."""

    def __init__(
        self, problem: Problem, runner: TrialRunner, assessor: Assessor, question: Question,
        counting: Callable[[str], AbstractContextManager[None]],
    ) -> None:  # fmt: skip
        """Prepare; ``counting``: counts the simulations made within for a purpose."""
        self._problem, self._runner, self._assessor, self._question = problem, runner, assessor, question
        self._settings = question.confidence
        self._counting = counting
        #: Largest simulated load that met the SLO, by trial number.
        self.loads: Mapping[int, float] = {}

    def recommended(self, rule: RecommendSpec, chosen: tuple[Trial, str] | None = None) -> Recommendation:
        """The recommendation of a rule; chosen: a trial that was chosen by other means, and why."""
        trials, objectives = self._runner.trials, self._problem.objectives
        recommendation = recommend_by(trials, objectives, rule, chosen=chosen, loads=self.loads)
        assert recommendation is not None  # a feasible trial stays feasible
        return recommendation

    def choose(self) -> Choice:
        """The recommendation, by the module's table."""
        nominal = self.recommended(self._question.recommend)
        at_least, settings = self._settings.required, self._settings
        if at_least is None:
            return Choice(self._first_carried_on(nominal), nominal)
        assessed = self.under_draws(nominal.trial, settings.draws)
        holds_carried_on = self._holds_carried_on(nominal.trial)
        likely = assessed.draws == settings.draws and assessed.all_terms >= at_least - 1e-9
        if likely and holds_carried_on:
            return Choice(nominal, nominal, satisfied=True)
        if assessed.draws < settings.draws:  # time ran out
            return Choice(nominal, nominal, WalkResult(None, 0, 0, "seconds"), False)
        if over_window := draws_over_window(self._assessor, nominal.trial, settings.draws, at_least):
            return Choice(nominal, nominal, WalkResult(None, 0, 0, over_window=over_window), False)
        likelihood = Likelihood(self._assessor, at_least, settings.search, nominal.trial)
        with self._counting("search for confidence"):
            walk = self._walk(nominal, likelihood)
        if walk.trial is None:
            return Choice(nominal, nominal, walk, likely, likelihood)
        reason = self._reason(nominal, assessed, walk.trial, walk.looked_at, at_least)
        reason += "." if holds_carried_on else ", and misses it where the load is carried on to a steady state."
        recommendation = self.recommended(self._question.recommend, (walk.trial, reason))
        return Choice(recommendation, nominal, walk, True, likelihood)

    def under_draws(self, trial: Trial, draws: int) -> Assessment:
        """A trial under the first so many draws."""
        with self._counting("draws"):
            return self._assessor.assess([trial], [draws], self._settings.level)[0]

    def _walk(self, nominal: Recommendation, likelihood: Likelihood) -> WalkResult:
        """To the first likely enough trial: for the rule cheapest by ascending price, else in the rule's order."""
        if nominal.rule == "cheapest":
            self._runner.extend(GROWN)
            return Walk(self._problem, self._runner, likelihood).run()
        return first_likely(self._preference(), likelihood)

    def _preference(self) -> tuple[Trial, ...]:
        return preference(self._runner.trials, self._problem.objectives, self._question.recommend, self.loads)

    def _reason(
        self, nominal: Recommendation, nominal_assessed: Assessment, trial: Trial, looked_at: int, at_least: float
    ) -> str:
        """Why ``trial``, which the walk came to, is recommended; without its last full stop."""
        assessed = self._assessor.assess([trial], [self._settings.draws], self._settings.level)[0]
        usd = price_of(trial) - price_of(nominal.trial)
        return (
            f"{describe(trial.deployment)} is the first, of {looked_at} looked at in the order of "
            f"{_ORDERS[nominal.rule]}, that meets the SLO with a probability of at least {format_percent(at_least)}, "
            f"which is required: {format_percent(assessed.all_terms)}, at ${price_of(trial):,.2f} per hour. "
            f"The rule's own choice, {describe(nominal.trial.deployment)} at ${price_of(nominal.trial):,.2f} per hour "
            f"(${abs(usd):,.2f} {'more' if usd < 0 else 'less'}), meets it with "
            f"{format_percent(nominal_assessed.all_terms)}"
        )

    def _holds_carried_on(self, trial: Trial) -> bool:
        """Whether nothing shows that a trial misses the SLO in a steady state."""
        with self._counting("the load carried on"):
            return self._assessor.holds_carried_on(trial) is not False

    def _first_carried_on(self, nominal: Recommendation) -> Recommendation:
        """The first in the rule's order that meets the SLO where its load is carried on; its own if none does."""
        if self._holds_carried_on(nominal.trial):
            return nominal
        trial = next((trial for trial in self._preference() if self._holds_carried_on(trial)), None)
        if trial is None:
            return nominal
        reason = (
            f"{describe(trial.deployment)} is the first in the order of {_ORDERS[nominal.rule]} that meets the SLO "
            f"where the load is carried on to a steady state. The rule's own choice, "
            f"{describe(nominal.trial.deployment)}, misses it then."
        )
        return self.recommended(self._question.recommend, (trial, reason))
