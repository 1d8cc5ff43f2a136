"""The end of a search: the recommendation against its neighbours in the space, on the whole trace.

Slices, samples and limits on candidates may have dropped a setting that is a little better. A neighbour differs in one
setting, costs no more and uses no more accelerators; the recommendation moves to the best of them by its own rule, and
so on until none is better. The equally priced deployment with the widest margin, which need not be on the front, is
followed in the same way, and so is the cheaper one that misses the SLO most narrowly. Whenever the recommendation has
moved, replicas are taken off it until it misses the SLO.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hisearch.search.evaluate.runner import TrialRunner
from hisearch.search.model.deployments import canonical, one_less, parameters_of, resized
from hisearch.search.model.job import Job
from hisearch.search.model.problem import Problem
from hisearch.search.model.routing_configs import other_configs
from hisearch.search.model.tier_choices import TierChoice
from hisearch.search.model.trial import Trial
from hisearch.search.select.recommend import nearest_miss, recommend, widest
from hisearch.search.stages.cache import MEMORY_STEP
from hisearch.search.stages.clusters import role_problem, within_limits
from hisearch.search.stages.ending import UNTRIED_NEIGHBOURS
from hisearch.search.stages.shortlist import moved
from hisearch.specs.deployments.deployment import DeploymentSpec, PoolSpec
from hisearch.specs.deployments.pool_checks import check_pools
from hisearch.specs.machines.parallelism import Parallelism, degrees_of

#: What follows the three stages, as trials name it.
STAGE = 4

#: A cheaper deployment that misses the SLO by at most this share of a bound may meet it with one setting changed.
NARROW_MISS = 0.2

#: Dollars per hour by which sums in another order may differ.
_SAME_PRICE = 1e-6


#: Of deployments those that may meet the SLO, as far as is known after some trials, in their order.
MayServe = Callable[[Sequence[Trial], Sequence[DeploymentSpec]], Sequence[DeploymentSpec]]


def all_may(_: Sequence[Trial], deployments: Sequence[DeploymentSpec]) -> Sequence[DeploymentSpec]:
    """Nothing is known: a ``MayServe`` that leaves none out."""
    return deployments


def local_search(problem: Problem, runner: TrialRunner, until: int, may_serve: MayServe = all_may) -> None:
    """Move the recommendation to the best of its neighbours until none is better, or ``until`` simulations are made."""
    done: set[int] = set()
    while (found := recommend(trials := runner.considered, problem.objectives)) is not None:
        best = found.trial
        centres = (best, widest(best, trials), _narrow_miss(best, trials))
        centre = next((trial for trial in centres if trial is not None and trial.number not in done), None)
        if centre is None:
            return
        done.add(centre.number)
        others = may_serve(trials, neighbours(problem, centre))
        jobs = [Job(STAGE, other, parameters_of(other)) for other in others]
        runner.run(jobs, until, UNTRIED_NEIGHBOURS if centre is best else "")
        descend(problem, runner, until)


def _narrow_miss(best: Trial, trials: Sequence[Trial]) -> Trial | None:
    """The cheaper deployment that comes nearest to the SLO; None where that is missed by more than ``NARROW_MISS``."""
    found = nearest_miss([trial for trial in trials if _usd(trial) < _usd(best) - _SAME_PRICE])
    return found if found is not None and found.worst_violation <= NARROW_MISS else None


def _usd(trial: Trial) -> float:
    return trial.metrics.get("usd_per_hour", math.inf)


def neighbours(problem: Problem, best: Trial) -> list[DeploymentSpec]:
    """Deployments of the space that differ from ``best`` in one setting and cost no more, each once."""
    found: dict[str, DeploymentSpec] = {}
    for changed_one in changed(problem, best.deployment):
        other = canonical(changed_one)
        if other is None or other == best.deployment:
            continue
        key = other.model_dump_json()
        if key in found or not can_build(problem, other):
            continue
        if problem.planner.usd_per_hour(other) <= best.metrics["usd_per_hour"] + _SAME_PRICE:
            found[key] = other
    return list(found.values())


def descend(problem: Problem, runner: TrialRunner, until: int) -> None:
    """Take replicas off the recommended deployment until it misses the SLO."""
    done: set[int] = set()
    while (found := recommend(runner.considered, problem.objectives)) is not None and found.trial.number not in done:
        best = found.trial
        fewer = one_less(best.deployment)
        if not fewer:
            return
        done.add(best.number)
        trials = runner.run([Job(best.stage, other, parameters_of(other)) for other in fewer], until)
        # Where replicas cost nothing, fewer of them are no better: the winner stays, and so does the answer.
        usd = best.metrics["usd_per_hour"]
        if any(trial is None or (trial.feasible and trial.metrics["usd_per_hour"] >= usd) for trial in trials):
            return


def can_build(problem: Problem, deployment: DeploymentSpec) -> bool:
    """True where the workers of every pool can be built."""
    return all(problem.planner.can_build(pool) for pool in deployment.pools)


def changed(problem: Problem, deployment: DeploymentSpec) -> Iterator[DeploymentSpec]:
    """Every change of one setting that the engines take, in a fixed order; of several pools those of each in turn."""
    for index, pool in enumerate(deployment.pools):
        for other in _changed_pools(role_problem(problem, pool.role), pool):
            yield from _valid(deployment, [*deployment.pools[:index], other, *deployment.pools[index + 1 :]])
    if len(deployment.pools) > 1:
        for kv_dtype in problem.space.execution.kv_dtypes:
            yield from _valid(deployment, [p.model_copy(update={"kv_dtype": kv_dtype}) for p in deployment.pools])
        for counts in moved(tuple(pool.replicas for pool in deployment.pools)):
            if within_limits(problem, deployment.pools, counts):
                yield resized(deployment, counts)
    for routing_config in other_configs(problem.space, deployment):
        yield routing_config.of(deployment)


def _changed_pools(problem: Problem, pool: PoolSpec) -> Iterator[PoolSpec]:
    """Every change of one setting of a pool that its engine takes."""
    for change in _pool_changes(problem, pool):
        data = pool.model_dump()
        change(data)
        try:
            yield PoolSpec.model_validate(data)
        except ValueError:  # the engine refuses these settings together
            continue


def _valid(deployment: DeploymentSpec, pools: list[PoolSpec]) -> Iterator[DeploymentSpec]:
    """The deployment with other pools, where these go together: both sides of a hand-over share the KV's format."""
    other = deployment.model_copy(update={"pools": pools})
    try:
        check_pools(other)
    except ValueError:
        return
    yield other


def _pool_changes(problem: Problem, pool: PoolSpec) -> Iterator[Callable[[dict[str, Any]], None]]:
    """What may be changed of a pool, as functions on its plain data."""
    execution, cache = problem.space.execution, problem.space.cache
    for chunk in execution.chunk_tokens:
        yield _engine_setting("chunk_tokens", chunk)
    for running in execution.max_running_requests:
        yield _engine_setting("max_running_requests", running)
    low, high = cache.memory_fraction
    for step in (-MEMORY_STEP, MEMORY_STEP):
        yield _engine_setting("memory_fraction", min(max(round(pool.engine.memory_fraction + step, 6), low), high))
    for kv_dtype in execution.kv_dtypes:
        yield _setting("kv_dtype", kv_dtype)
    for weight_dtype in execution.weight_dtypes:
        yield _setting("weight_dtype", weight_dtype)
    for choice in problem.tier_choices(pool.engine.name).neighbours(pool):
        yield _tiers(choice)
    for split in execution.splits:
        if pool.accelerators % split.ranks == 0 and pool.accelerators // split.ranks <= execution.max_replicas:
            yield _split(split, pool.accelerators // split.ranks)


def _engine_setting(name: str, value: float | str) -> Callable[[dict[str, Any]], None]:
    def change(data: dict[str, Any]) -> None:
        data["engine"] |= {name: value}

    return change


def _setting(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(data: dict[str, Any]) -> None:
        data[name] = value

    return change


def _tiers(choice: TierChoice) -> Callable[[dict[str, Any]], None]:
    def change(data: dict[str, Any]) -> None:
        data["tiers"] = [tier.model_dump() for tier in choice.tiers]
        data["movement"] = choice.movement.model_dump()
        data["engine"] |= {"eviction": choice.eviction}

    return change


def _split(split: Parallelism, replicas: int) -> Callable[[dict[str, Any]], None]:
    """The same accelerators as wider or narrower workers."""

    def change(data: dict[str, Any]) -> None:
        data |= degrees_of(split) | {"replicas": replicas}

    return change
