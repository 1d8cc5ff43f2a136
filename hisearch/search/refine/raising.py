"""Replicas beyond the fewest that meet the SLO, where the load that deployments carry counts.

Stages 2 and 3 look for the fewest replicas. Most is carried by the most: as many as the space, its limits and the
rule's price allow. This end is simulated of the recommended workers, and of those of stage 1 that may carry as much
there by their estimates. Then gaps in price on the front are filled, the widest first, until none exceeds ``GAP``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from hisearch.search.evaluate.runner import TrialRunner
from hisearch.search.model.deployments import parameters_of, resized
from hisearch.search.model.growth import with_replicas
from hisearch.search.model.job import Job
from hisearch.search.model.problem import Problem
from hisearch.search.model.routing_configs import lone
from hisearch.search.model.sizing import Counts
from hisearch.search.model.trial import Trial, price_of
from hisearch.search.rate.entrants import entrants_of
from hisearch.search.refine.inputs import Expectations
from hisearch.search.refine.local_search import STAGE
from hisearch.search.select.pareto import front
from hisearch.search.select.recommend import recommended
from hisearch.search.stages.clusters import role_problem, within_limits
from hisearch.search.stages.ending import Untried
from hisearch.search.stages.execution import LEAST_MARGIN
from hisearch.search.stages.execution_report import ExecutionReport
from hisearch.search.stages.shortlist import key_of
from hisearch.specs.deployments.deployment import DeploymentSpec

#: Prices on the front are at most this factor apart, where a number of replicas lies between.
GAP = 2.0

#: Ends that are simulated before gaps are filled: the recommended workers', and the most promising.
FIRST_ENDS = 2


class Raising:
    """Raises replicas, after stage 1."""

    def __init__(self, problem: Problem, execution: ExecutionReport) -> None:
        """Prepare for deployments of stage 1's workers."""
        self._problem = problem
        self._expectations = Expectations(problem, [*execution.sized, *execution.sides])
        self._execution, self._electricity = execution, 0.0

    def run(self, runner: TrialRunner, until: int) -> None:
        """Simulate the ends and fill the gaps, until ``until`` simulations.

        Where nothing meets the SLO yet, the most promising end alone: what is left of the gaps leads to the fewest.
        """
        best = recommended(runner.considered, self._problem.objectives)
        self._electricity = 0.0 if best is None else _electricity_of(best)
        ends = self._ends(best)
        self._simulate(ends[: FIRST_ENDS if best is not None else 1], runner, until, Untried.MOST)
        simulated = -1
        while len(runner.trials) > simulated:
            simulated = len(runner.trials)
            self._simulate(list(self._between(runner.considered, ends)), runner, until, Untried.SIZES)
        if best is not None:
            self._simulate(ends, runner, until, Untried.MOST)

    def raise_recommended(self, runner: TrialRunner) -> None:
        """Simulate the end of the recommended workers alone, as far as the whole budget goes."""
        best = recommended(runner.considered, self._problem.objectives)
        end = self._largest(best.deployment) if best is not None else None
        if end is not None:
            self._simulate([end], runner, None, Untried.MOST)

    def _simulate(
        self, deployments: Sequence[DeploymentSpec], runner: TrialRunner, until: int | None, what: str
    ) -> None:
        runner.run([Job(STAGE, spec, parameters_of(spec)) for spec in deployments], until, what)

    def _ends(self, best: Trial | None) -> list[DeploymentSpec]:
        """The most of the recommended workers; then of stage 1's that may carry as much as any, best first.

        Of each group of stage 1, which batch limits vary, its most promising worker.
        """
        hopeful = [candidate for candidate in self._execution.sized if not candidate.shortfall]
        entrants = entrants_of(self._problem, replace(self._execution, sized=hopeful))
        firsts = {entrant.group: entrant.deployment for entrant in reversed(entrants)}
        ends = [end for spec in firsts.values() if (end := self._largest(spec)) is not None]
        ends.sort(key=lambda end: -self._expectations.rate_rps(end))
        least = max(map(self._expectations.rate_rps, ends), default=0.0) / (1 + LEAST_MARGIN)
        ends = [end for end in ends if self._expectations.rate_rps(end) >= least]
        own = self._largest(best.deployment) if best is not None else None
        return ends if own is None else [own, *(end for end in ends if end != own)]

    def _between(self, trials: Sequence[Trial], ends: Sequence[DeploymentSpec]) -> Iterator[DeploymentSpec]:
        """In every wide gap between prices, widest first: the workers of ``ends`` that are expected to carry most.

        From the cheapest that meets the SLO on, or from the dearest of these workers below it that does not.
        """
        best = recommended(trials, self._problem.objectives)
        if best is None:
            return
        workers = {key_of(end.pools) for end in ends}
        ladder = [trial for trial in trials if trial.comparable and key_of(trial.deployment.pools) in workers]
        least = max((price_of(t) for t in ladder if price_of(t) < price_of(best)), default=price_of(best))
        on_front = front(trials, self._problem.objectives)
        prices = sorted({price_of(t) for t in (*on_front, *ladder) if price_of(t) >= least})
        gaps = [(high / low, low, high) for low, high in pairwise(prices) if high > GAP * low > 0]
        for _, low, high in sorted(gaps, reverse=True):
            priced = [self._priced(end, math.sqrt(low * high)) for end in ends]
            inside = [spec for spec in priced if spec is not None and low < self._usd(spec) < high]
            if inside:
                yield max(inside, key=self._expectations.rate_rps)

    def _largest(self, deployment: DeploymentSpec) -> DeploymentSpec | None:
        """Its workers in their proportion, as many as are allowed; None if none are."""
        problem, pools = self._problem, deployment.pools
        most = sum(role_problem(problem, pool.role).max_replicas(pool) for pool in pools)
        for total in range(most, len(pools) - 1, -1):
            counts = dealt(tuple(pool.replicas for pool in pools), total)
            if within_limits(problem, pools, counts):
                spec = self._of(deployment, counts)
                if self._usd(spec) <= problem.most_usd_per_hour:
                    return spec
        return None

    def _priced(self, end: DeploymentSpec, usd: float) -> DeploymentSpec | None:
        """As many of an end's workers as come nearest to a price; None if they cost nothing."""
        counts = tuple(pool.replicas for pool in end.pools)
        each = self._usd(end) / sum(counts)
        if each <= 0:
            return None
        total = min(max(round(usd / each), len(counts)), sum(counts))
        return self._of(end, dealt(counts, total))

    def _of(self, deployment: DeploymentSpec, counts: Counts) -> DeploymentSpec:
        problem = self._problem
        if len(counts) == 1:
            return lone(problem.space, with_replicas(problem, deployment, counts[0]))
        return resized(deployment, counts)

    def _usd(self, deployment: DeploymentSpec) -> float:
        """Dollars per hour, with electricity in the share that it has of the recommendation's."""
        return round(self._problem.planner.usd_per_hour(deployment) * (1 + self._electricity), 6)


def _electricity_of(trial: Trial) -> float:
    """Dollars for electricity as a share of those for hardware."""
    electricity = trial.metrics.get("energy_usd_per_hour", 0.0)
    hardware = price_of(trial) - electricity
    return electricity / hardware if hardware > 0 else 0.0


def dealt(counts: Counts, total: int) -> Counts:
    """``total`` workers, at least one of each pool, in the proportion of ``counts``."""
    shares = [total * count / sum(counts) for count in counts]
    least = [max(math.floor(share), 1) for share in shares]
    behind = sorted(range(len(counts)), key=lambda index: (least[index] - shares[index], index))
    left = total - sum(least)
    return tuple(count + (index in behind[:left]) for index, count in enumerate(least))
