"""The first deployment, by a rule, that is likely enough to meet the SLO.

For the cheapest, the candidates are walked by ascending price, at equal prices those with wider formats first. They are
the trials of the complete trace that met the SLO and, for the best of every accelerator with every engine, one replica
more at a time. For another rule they are walked in the rule's own order. Each is simulated in batches under the draws
of ``confidence.uncertainty``, ordered by how hard they were on the rule's first choice: a few that are easier than
those it may miss, then the others, hardest first. It is rejected once it misses all of the few, or the SLO under more
draws than the required probability allows. The few are so many that a deployment which is likely enough misses all of
them in at most ``WRONGLY`` of cases, even if hardness on one told nothing of another; that costs money, never
certainty. It is also rejected if it misses the SLO where a trace too short to tell is carried on to a steady state.
Candidates are skipped if none of their margins is wider than a rejected one's: equally tight ones will miss as often.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hisearch.search.confidence.assessment import BATCH, Assessor
from hisearch.search.evaluate.runner import TrialRunner
from hisearch.search.model.deployments import hardware, parameters_of, width_of_formats
from hisearch.search.model.growth import most_replicas, with_replicas
from hisearch.search.model.job import Job
from hisearch.search.model.problem import Problem
from hisearch.search.model.sizing import LEAST_GAIN
from hisearch.search.model.trial import Trial, price_of
from hisearch.search.refine.local_search import STAGE, Within, all_are
from hisearch.search.select.recommend import cheapest

#: Share of likely enough deployments that the first few draws may reject.
WRONGLY = 0.01


#: Most new deployments that a walk up the prices may simulate, beyond the search's budget.
GROWN = 64

#: What stops a runner -> what that ends a walk by.
_LIMITS = {"simulations": "deployments", "seconds": "budget", "usd": "budget"}


@dataclass(frozen=True)
class WalkResult:
    """Result of a walk.

    trial: the first that is likely enough, or None. looked_at: deployments simulated under draws. simulations: under
    draws. ended: what ended the walk early, a key of ``conclusion_words.ENDED``; "" where nothing did. over_window:
    draws in which the model's window alone rejects more requests than the SLO allows, whatever is deployed; 0 where
    such draws are few enough.
    """

    trial: Trial | None
    looked_at: int
    simulations: int
    ended: str = ""
    over_window: int = 0


class Likelihood:
    """Checks whether deployments meet the SLO with a probability, with no more simulations than needed."""

    def __init__(self, assessor: Assessor, at_least: float, limit: int, hardest_on: Trial) -> None:
        """Order the draws by the results of ``hardest_on``, which must be known for all of them.

        at_least: required probability. limit: most simulations from now on.
        """
        self.looked_at = 0
        self._assessor, self._limit = assessor, limit
        self._before = assessor.simulations
        draws = len(assessor.uncertainty)
        #: Draws under which a deployment may miss: the others are at least the required share.
        self._allowed = math.floor((1.0 - at_least) * draws + 1e-9)
        evaluations = assessor.known(hardest_on.deployment, range(draws))
        worst = [evaluation.worst_violation for evaluation in evaluations]
        hardest = sorted(range(draws), key=lambda number: (-worst[number], number))
        self._few = few_of(hardest, at_least, self._allowed)
        rest = [number for number in hardest if number not in self._few]
        self._batches = [self._few] * bool(self._few) + [rest[k : k + BATCH] for k in range(0, draws, BATCH)]
        self._rejected: list[Trial] = []
        self._shares: list[tuple[float, float, int, Trial]] = []

    @property
    def simulations(self) -> int:
        """Simulations so far."""
        return self._assessor.simulations - self._before

    def enough(self, trial: Trial) -> bool | None:
        """Whether a trial is likely enough; None if the limit or time leaves that open."""
        if any(no_wider(trial, rejected) for rejected in self._rejected):
            return False
        self.looked_at += 1
        lasts: list[bool | None] = []
        few = [] if self.simulations >= self._limit or self._assessor.out_of_time else self._few
        self._assessor.evaluations(
            [trial.deployment], [few], meanwhile=lambda: lasts.append(self._assessor.holds_carried_on(trial))
        )
        if lasts == [False]:
            self._rejected.append(trial)
            return False
        tested = missed = 0
        for batch in self._batches:
            if self.simulations >= self._limit or self._assessor.out_of_time:
                return None
            self._assessor.evaluations([trial.deployment], [batch])
            missed += sum(not evaluation.feasible for evaluation in self._assessor.known(trial.deployment, batch))
            tested += len(batch)
            if missed > self._allowed or (batch is self._few and missed == len(batch)):
                self._shares.append((missed / tested, price_of(trial), trial.number, trial))
                self._rejected.append(trial)
                return False
        return True

    def likeliest_rejected(self, usd: float, most: int) -> list[Trial]:
        """Of what was rejected and costs less than ``usd``, those that missed the least shares of their draws.

        Rejected ones have had few draws, the hardest first: the shares only roughly order them. Of equal shares wider
        margins come first; of deployments with the same workers, one is taken.
        """
        less = [row for row in self._shares if row[1] < usd]
        ordered = sorted(less, key=lambda row: (row[0], -row[3].worst_margin, *row[1:3]))
        by_workers: dict[str, Trial] = {}
        for *_, trial in ordered:
            by_workers.setdefault(hardware(trial.deployment), trial)
        return list(by_workers.values())[:most]

    def result(self, trial: Trial | None, ended: str = "") -> WalkResult:
        """The result of the walk."""
        return WalkResult(trial, self.looked_at, self.simulations, ended)

    @property
    def limit(self) -> str:
        """Which limit ``enough`` met."""
        return "seconds" if self._assessor.out_of_time else "simulations"


def few_of(hardest: Sequence[int], at_least: float, allowed: int) -> list[int]:
    """The draws by which hopeless deployments are rejected first; none if the rule itself rejects them as soon.

    hardest: all draws, the hardest first. allowed: draws that a likely enough deployment may miss. The few lie in the
    harder half of the others.
    """
    count = math.ceil(math.log(WRONGLY) / math.log(1.0 - at_least))
    others = len(hardest) - allowed
    spread = 2 * (count + 1)
    if count > allowed or others < spread:
        return []
    return [hardest[allowed + (place + 1) * others // spread] for place in range(count)]


def first_likely(order: Iterable[Trial], likelihood: Likelihood) -> WalkResult:
    """The first trial that is likely enough."""
    for trial in order:
        likely = likelihood.enough(trial)
        if likely is None:
            return likelihood.result(None, likelihood.limit)
        if likely:
            return likelihood.result(trial)
    return likelihood.result(None)


@dataclass(order=True)
class _Next:
    """A deployment to examine, by price, then the widest formats, then the widest margin, then number.

    trial: None if it is still to be simulated: ``base`` with ``replicas`` workers.
    """

    usd: float
    narrowness: tuple[float, ...]
    tightness: float
    number: int
    trial: Trial | None = field(compare=False)
    base: Trial | None = field(compare=False, default=None)
    replicas: int = field(compare=False, default=0)


class Walk:
    """One walk up the prices; see the module."""

    def __init__(self, problem: Problem, runner: TrialRunner, likelihood: Likelihood, within: Within = all_are) -> None:
        """Prepare a walk; ``within``: only such deployments are examined."""
        self._problem, self._runner, self._likelihood, self._within = problem, runner, likelihood, within
        self._queue: list[_Next] = []

    def run(self) -> WalkResult:
        """Walk until a deployment is likely enough."""
        self._fill()
        while self._queue:
            step = heapq.heappop(self._queue)
            trial = step.trial if step.trial is not None else self._simulate(step)
            if trial is None:
                continue
            likely = self._likelihood.enough(trial)
            if likely is None:
                return self._likelihood.result(None, self._likelihood.limit)
            if self._runner.stopped == "interrupted":
                return self._likelihood.result(None, self._runner.stopped)
            if likely:
                return self._likelihood.result(trial)
            if step.base is not None:
                self._grow(step.base, trial, step.replicas + 1)
        return self._likelihood.result(None, _LIMITS.get(self._runner.stopped, self._runner.stopped))

    def _fill(self) -> None:
        """Every feasible trial, and one more replica of the best of every kind."""
        feasible = [trial for trial in self._runner.trials if trial.meets_slo and self._within(trial.deployment)]
        for trial in feasible:
            step = _Next(price_of(trial), _narrowness(trial), -trial.worst_margin, trial.number, trial)
            heapq.heappush(self._queue, step)
        kinds = dict.fromkeys(_kind(trial) for trial in feasible)
        for kind in kinds:
            base = cheapest([trial for trial in feasible if _kind(trial) == kind], self._problem.objectives)
            if base is not None:
                self._grow(base, None, base.deployment.pools[0].replicas + 1)

    def _grow(self, base: Trial, last: Trial | None, replicas: int) -> None:
        """Queue ``base`` with ``replicas`` workers, unless the space has no more or the last replica gained nothing."""
        if replicas > most_replicas(self._problem, base.deployment):
            return
        if last is not None and last.worst_margin - base.worst_margin < LEAST_GAIN:
            return
        deployment = with_replicas(self._problem, base.deployment, replicas)
        usd = self._problem.planner.usd_per_hour(deployment) + base.metrics.get("energy_usd_per_hour", 0.0)
        number = len(self._runner.trials) + base.number
        step = _Next(round(usd, 6), _narrowness(base), -base.worst_margin, number, None, base, replicas)
        heapq.heappush(self._queue, step)

    def _simulate(self, step: _Next) -> Trial | None:
        """The deployment's trial at the study's own figures; None if it misses the SLO or cannot be simulated."""
        assert step.base is not None
        deployment = with_replicas(self._problem, step.base.deployment, step.replicas)
        trial = self._runner.run([Job(STAGE, deployment, parameters_of(deployment))])[0]
        if trial is None or not trial.meets_slo:
            return None
        return trial


def _narrowness(trial: Trial) -> tuple[float, ...]:
    return tuple(-width for width in width_of_formats(trial.deployment))


def _kind(trial: Trial) -> tuple[tuple[str, str, str], ...]:
    return tuple((pool.role, pool.accelerator, pool.engine.name) for pool in trial.deployment.pools)


def no_wider(trial: Trial, rejected: Trial) -> bool:
    """True if no margin of ``trial`` is wider than that of a rejected deployment of its kind."""
    if _kind(trial) != _kind(rejected):
        return False
    ours, theirs = _margins(trial), _margins(rejected)
    return all(ours.get(label, math.inf) <= margin for label, margin in theirs.items())


def _margins(trial: Trial) -> dict[str, float]:
    return {check.label: check.margin for check in trial.slo if check.margin is not None}
