"""Before stage 3 samples: cheaper accelerators and engines that miss the SLO, each once with the tiers it can afford.

Stages 1 and 2 know workers with the smallest tiers alone. A cheap accelerator with little memory may then drown in
prompts that it computes again, and miss the SLO too widely to be among the few misses that stage 3 samples, though
tiers would save it. Its best miss is therefore simulated once with the largest tiers with which it is still cheaper
than what serves. Where it serves, stage 3 starts from it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hisearch.search.cache import STAGE
from hisearch.search.deployments import parameters_of, with_cache
from hisearch.search.job import Job
from hisearch.search.ledger import Ledger
from hisearch.search.pareto import miss_order
from hisearch.search.polish import can_build
from hisearch.search.problem import Problem
from hisearch.search.trial import TermCheck, Trial
from hisearch.specs.deployment import DeploymentSpec

#: Share of the simulations left to stage 3 that the tries may take, at least one.
SHARE = 0.25

#: A miss of which less than this share of the computed prompt tokens could have been kept is not one of memory.
LEAST_REUSE = 0.1

#: Accelerator and engine of each pool.
_Family = tuple[tuple[str, str], ...]


def try_tiers(problem: Problem, ledger: Ledger, until: int) -> list[Trial]:
    """Simulate cheaper families' best misses with tiers, cheapest first.

    One at a time: what serves lowers the price below which the next one has to stay.

    Args:
        problem: the question.
        ledger: runs the simulations; what it holds of a family with larger tiers counts as its try.
        until: simulations at which stage 3 has to stop.

    Returns:
        Those that serve, cheapest first.
    """
    last = ledger.simulations + math.ceil(max(until - ledger.simulations, 0) * SHARE)
    serving: list[Trial] = []
    for miss in savable_misses(problem, ledger.considered):
        # A price that has fallen since may leave it no tiers, or no room at all.
        tried = with_largest_tiers(problem, miss.deployment, _cheapest_usd(ledger.considered))
        if tried is None:
            continue
        trial = ledger.run([Job(STAGE, tried, parameters_of(tried))], last)[0]
        if trial is None:
            break
        if trial.comparable and trial.serves:
            serving.append(trial)
    return sorted(serving, key=lambda trial: (trial.metrics["usd_per_hour"], trial.number))


def savable_misses(problem: Problem, trials: Sequence[Trial]) -> list[Trial]:
    """The best miss of every family that is cheaper than what serves and was not seen with more tiers; cheapest first.

    Left out is what tiers do not heal: rejected requests, limits, and misses of workers that hold nearly all of the
    prompts that come again.
    """
    comparable, cheapest_usd = [trial for trial in trials if trial.comparable], _cheapest_usd(trials)
    best: dict[_Family, Trial] = {}
    for trial in sorted((t for t in comparable if not t.feasible), key=miss_order):
        if trial.metrics["usd_per_hour"] < cheapest_usd and _may_be_saved(problem, trial):
            best.setdefault(_family(trial.deployment), trial)
    most_gib = {_family(trial.deployment): 0.0 for trial in comparable}
    for trial in comparable:
        family = _family(trial.deployment)
        most_gib[family] = max(most_gib[family], _tier_gib(trial.deployment))
    untried = [miss for family, miss in best.items() if most_gib[family] <= _tier_gib(miss.deployment)]
    return sorted(untried, key=lambda trial: (trial.metrics["usd_per_hour"], trial.number))


def with_largest_tiers(problem: Problem, deployment: DeploymentSpec, below_usd: float) -> DeploymentSpec | None:
    """The deployment with the largest tiers that can be built and leave it cheaper than ``below_usd``, nearest first.

    What a nearer tier holds comes back faster: of the affordable ones the largest first tier is taken, then the largest
    second one, and so on; of all else that there is to choose the first option. None where no tiers larger than its own
    are affordable.
    """
    memory_fraction = deployment.pool.engine.memory_fraction
    for choice in problem.tier_choices(deployment.pool.engine.name).largest_first():
        other = with_cache(deployment, memory_fraction=memory_fraction, choice=choice)
        if _tier_gib(other) <= _tier_gib(deployment) or not can_build(problem, other):
            continue
        if problem.planner.usd_per_hour(other) < below_usd:
            return other
    return None


def _may_be_saved(problem: Problem, miss: Trial) -> bool:
    """True where latency alone is missed, and an unlimited cache would have held much of what was computed."""
    if not all(check.holds or isinstance(check, TermCheck) for check in miss.slo):
        return False
    hit_rate = miss.metrics["hit_rate"]
    return problem.demand.ideal_hit_rate - hit_rate >= LEAST_REUSE * (1 - hit_rate)


def _family(deployment: DeploymentSpec) -> _Family:
    return tuple((pool.accelerator, pool.engine.name) for pool in deployment.pools)


def _tier_gib(deployment: DeploymentSpec) -> float:
    """GiB of the tiers of one worker of each pool."""
    return sum(tier.gib for pool in deployment.pools for tier in pool.tiers)


def _cheapest_usd(trials: Sequence[Trial]) -> float:
    """Dollars per hour of the cheapest deployment that serves; infinite without one."""
    return min((t.metrics["usd_per_hour"] for t in trials if t.comparable and t.feasible), default=math.inf)
