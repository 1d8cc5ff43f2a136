"""Before stage 3 samples: cheaper accelerators and engines that miss the SLO, each tried once with affordable tiers.

Stages 1 and 2 only know workers with the smallest tiers. A cheap accelerator with little memory may then recompute many
prompts. It misses the SLO too widely to be among the few misses that stage 3 samples, though tiers would save it. Its
best miss is therefore simulated once, with the largest tiers that keep it cheaper than the serving deployments. If it
then serves, stage 3 starts from it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hisearch.search.evaluate.runner import TrialRunner
from hisearch.search.model.deployments import families, parameters_of, with_cache
from hisearch.search.model.estimates import estimate, of_worker
from hisearch.search.model.job import Job
from hisearch.search.model.problem import Problem
from hisearch.search.model.trial import TermCheck, Trial
from hisearch.search.refine.local_search import can_build
from hisearch.search.select.pareto import miss_order
from hisearch.search.select.recommend import cheapest_usd
from hisearch.search.stages.cache import STAGE
from hisearch.search.stages.execution import LEAST_MARGIN
from hisearch.specs.deployments.deployment import DeploymentSpec, PoolSpec

#: Share of stage 3's remaining simulations that the tries may take, at least one.
SHARE = 0.25

#: If less than this share of the computed prompt tokens is recomputation, memory is not the bottleneck.
LEAST_REUSE = 0.1

#: Accelerator and engine of each pool.
_Family = tuple[tuple[str, str], ...]


def try_tiers(problem: Problem, runner: TrialRunner, until: int) -> list[Trial]:
    """Simulate the best misses of cheaper families with tiers, cheapest first.

    One at a time: a deployment that serves lowers the price limit of the next one.

    Args:
        problem: the question.
        runner: runs the simulations; its trials of a family with larger tiers count as the family's try.
        until: simulations at which stage 3 must stop.

    Returns:
        The trials that serve, cheapest first.
    """
    last = runner.simulations + math.ceil((until - runner.simulations) * SHARE)
    serving: list[Trial] = []
    for miss in savable_misses(problem, runner.considered):
        if runner.simulations >= last or runner.stopped:
            break
        # The price limit may have fallen since, and leave too little for tiers.
        tried = with_largest_tiers(problem, miss.deployment, cheapest_usd(runner.considered))
        if tried is None:
            continue
        trial = runner.run([Job(STAGE, tried, parameters_of(tried))], last)[0]
        if trial is not None and trial.serves:
            serving.append(trial)
    return sorted(serving, key=lambda trial: (trial.metrics["usd_per_hour"], trial.number))


def savable_misses(problem: Problem, trials: Sequence[Trial]) -> list[Trial]:
    """The best miss of every family that is cheaper than the serving deployments, cheapest first.

    Families that serve, or that were tried with more tiers, are left out: stage 3 and the local search cover them. Also
    left out are misses that tiers cannot fix: rejected requests, limits, and a load that is too large even without any
    recomputation.
    """
    comparable, least_usd = [trial for trial in trials if trial.comparable], cheapest_usd(trials)
    serving = {families(trial.deployment) for trial in comparable if trial.feasible}
    best: dict[_Family, Trial] = {}
    for trial in sorted((t for t in comparable if families(t.deployment) not in serving), key=miss_order):
        if trial.metrics["usd_per_hour"] < least_usd and _may_be_saved(problem, trial):
            best.setdefault(families(trial.deployment), trial)
    most_gib: dict[_Family, float] = {}
    for trial in comparable:
        family = families(trial.deployment)
        most_gib[family] = max(most_gib.get(family, 0.0), _tier_gib(trial.deployment))
    untried = [miss for family, miss in best.items() if most_gib[family] <= _tier_gib(miss.deployment)]
    return sorted(untried, key=lambda trial: (trial.metrics["usd_per_hour"], trial.number))


def with_largest_tiers(problem: Problem, deployment: DeploymentSpec, below_usd: float) -> DeploymentSpec | None:
    """The deployment with the largest tiers that can be built and keep it cheaper than ``below_usd``, nearest first.

    A nearer tier returns its content faster. The largest affordable first tier is taken, then the largest second one,
    and so on; other choices take their first option. None if no tiers larger than its own are affordable.
    """
    memory_fraction = deployment.pool.engine.memory_fraction
    for choice in problem.tier_choices(deployment.pool.engine.name).largest_first():
        variant = with_cache(deployment, memory_fraction=memory_fraction, choice=choice)
        if _tier_gib(variant) <= _tier_gib(deployment) or not can_build(problem, variant):
            continue
        if problem.planner.usd_per_hour(variant) < below_usd:
            return variant
    return None


def _may_be_saved(problem: Problem, miss: Trial) -> bool:
    """True if only latency is missed, and tiers that hold every repeated prompt would carry the load.

    They would if much of the computation was recomputation, and if stage 1's estimate without it, with its error in
    favour, carries the busiest minute within the TPOT bound. Always False with prefill/decode disaggregation: cache
    hits do not relieve decode workers.
    """
    if not all(check.holds or isinstance(check, TermCheck) for check in miss.slo):
        return False
    hit_rate, ideal = miss.metrics["hit_rate"], problem.demand.ideal_hit_rate
    if ideal - hit_rate < LEAST_REUSE * (1 - hit_rate):
        return False
    pools = miss.deployment.pools
    unified = all(pool.role == "unified" for pool in pools)
    return unified and sum(_most_rps(problem, pool) for pool in pools) >= problem.demand.peak_rps


def _most_rps(problem: Problem, pool: PoolSpec) -> float:
    """Requests per second of a pool at the unlimited cache's hit rate, with the estimate's error in its favour."""
    bare, demand = pool.model_copy(update={"tiers": []}), problem.demand
    costs = problem.planner.costs(bare)
    kv_tokens = problem.planner.requests_kv_tokens(bare, demand.mean_context_tokens)
    best = estimate(costs.seconds, pool.engine, kv_tokens, demand, problem.slo, demand.ideal_hit_rate)
    most_rps = of_worker(best, pool.attention_data_parallel).capacity_rps
    return pool.replicas * most_rps * (1 + max(costs.relative_error, LEAST_MARGIN))


def _tier_gib(deployment: DeploymentSpec) -> float:
    """GiB of the tiers of one worker of each pool."""
    return sum(tier.gib for pool in deployment.pools for tier in pool.tiers)
