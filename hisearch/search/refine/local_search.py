"""The end of a search: compares the recommendation with its neighbours in the space, on the complete trace.

Slices, samples and limits on candidates may have dropped a slightly better setting. A neighbour differs in one setting,
costs no more and uses no more accelerators. The recommendation moves to the best neighbour by its own rule, until none
is better. Two more deployments are followed in the same way: the equally priced one with the widest margin, which need
not be on the front, and the cheaper one that misses the SLO most narrowly. Whenever the recommendation has moved,
replicas are removed until it misses the SLO.
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
from hisearch.search.select.recommend import nearest_miss, recommended, widest
from hisearch.search.stages.cache import MEMORY_STEP
from hisearch.search.stages.clusters import role_problem, within_limits
from hisearch.search.stages.ending import Untried
from hisearch.search.stages.shortlist import moved
from hisearch.specs.deployments.deployment import DeploymentSpec, PoolSpec, check_pools
from hisearch.specs.deployments.speculation import SpeculationSpec
from hisearch.specs.machines.parallelism import Parallelism, degrees_of

#: Stage number of all trials after the three stages.
STAGE = 4

#: A cheaper deployment that misses the SLO by at most this share of a bound may meet it with one setting changed.
NARROW_MISS = 0.2

#: Difference in dollars per hour up to which sums count as equal.
_SAME_PRICE = 1e-6


#: Filters deployments: those that may meet the SLO, as far as the trials tell, in their order.
MayServe = Callable[[Sequence[Trial], Sequence[DeploymentSpec]], Sequence[DeploymentSpec]]


def all_may(_: Sequence[Trial], deployments: Sequence[DeploymentSpec]) -> Sequence[DeploymentSpec]:
    """A ``MayServe`` without knowledge, which leaves none out."""
    return deployments


#: Says which deployments a local search is about.
Within = Callable[[DeploymentSpec], bool]


def all_are(_: DeploymentSpec) -> bool:
    """A ``Within`` without bounds."""
    return True


def local_search(
    problem: Problem, runner: TrialRunner, until: int, may_serve: MayServe = all_may, within: Within = all_are
) -> None:
    """Move the recommendation to its best neighbour until none is better, or ``until`` simulations are made.

    within: only such deployments are looked at; the recommendation is then the best of these.
    """
    done: set[int] = set()
    while (best := recommended(trials := _within(runner, within), problem.objectives)) is not None:
        centres = (best, widest(best, trials), _narrow_miss(best, trials))
        centre = next((trial for trial in centres if trial is not None and trial.number not in done), None)
        if centre is None:
            return
        done.add(centre.number)
        others = may_serve(trials, [near for near in neighbours(problem, centre) if within(near)])
        jobs = [Job(STAGE, neighbour, parameters_of(neighbour)) for neighbour in others]
        runner.run(jobs, until, Untried.NEIGHBOURS if centre is best and within is all_are else "")
        descend(problem, runner, until, within)
        if within is not all_are and (runner.simulations >= until or runner.stopped):
            return


def _within(runner: TrialRunner, within: Within) -> list[Trial]:
    return [trial for trial in runner.considered if within(trial.deployment)]


def _narrow_miss(best: Trial, trials: Sequence[Trial]) -> Trial | None:
    """The cheaper deployment nearest to the SLO; None if it misses by more than ``NARROW_MISS``."""
    miss = nearest_miss([trial for trial in trials if _usd(trial) < _usd(best) - _SAME_PRICE])
    return miss if miss is not None and miss.worst_violation <= NARROW_MISS else None


def _usd(trial: Trial) -> float:
    return trial.metrics.get("usd_per_hour", math.inf)


def neighbours(problem: Problem, best: Trial) -> list[DeploymentSpec]:
    """Deployments of the space that differ from ``best`` in one setting and cost no more, each once."""
    by_key: dict[str, DeploymentSpec] = {}
    for changed_one in changed(problem, best.deployment):
        spec = canonical(changed_one)
        if spec is None or spec == best.deployment:
            continue
        key = spec.model_dump_json()
        if key in by_key or not can_build(problem, spec):
            continue
        if problem.planner.usd_per_hour(spec) <= best.metrics["usd_per_hour"] + _SAME_PRICE:
            by_key[key] = spec
    return list(by_key.values())


def descend(problem: Problem, runner: TrialRunner, until: int, within: Within = all_are) -> None:
    """Remove replicas from the recommended deployment, of those ``within``, until it misses the SLO."""
    done: set[int] = set()
    while (best := recommended(_within(runner, within), problem.objectives)) is not None and best.number not in done:
        fewer = one_less(best.deployment)
        if not fewer:
            return
        done.add(best.number)
        trials = runner.run([Job(best.stage, smaller, parameters_of(smaller)) for smaller in fewer], until)
        # If replicas cost nothing, fewer of them are no better: the winner stays.
        usd = best.metrics["usd_per_hour"]
        if any(trial is None or (trial.feasible and trial.metrics["usd_per_hour"] >= usd) for trial in trials):
            return


def can_build(problem: Problem, deployment: DeploymentSpec) -> bool:
    """True if the workers of every pool can be built."""
    return all(problem.planner.can_build(pool) for pool in deployment.pools)


def changed(problem: Problem, deployment: DeploymentSpec) -> Iterator[DeploymentSpec]:
    """Every change of one setting that the engines accept, in a fixed order; with several pools, pool by pool."""
    for index, pool in enumerate(deployment.pools):
        for changed_pool in _changed_pools(role_problem(problem, pool.role), pool):
            yield from _valid(deployment, [*deployment.pools[:index], changed_pool, *deployment.pools[index + 1 :]])
    if len(deployment.pools) > 1:
        for kv_dtype in problem.space.execution.kv_dtypes:
            yield from _valid(deployment, [p.model_copy(update={"kv_dtype": kv_dtype}) for p in deployment.pools])
        for speculation in problem.space.execution.speculation:
            yield from _valid(deployment, _in_all(deployment.pools, _speculation(speculation)))
        for counts in moved(tuple(pool.replicas for pool in deployment.pools)):
            if within_limits(problem, deployment.pools, counts):
                yield resized(deployment, counts)
    for routing_config in other_configs(problem.space, deployment):
        yield routing_config.of(deployment)


def _changed_pools(problem: Problem, pool: PoolSpec) -> Iterator[PoolSpec]:
    """Every change of one setting of a pool that its engine accepts."""
    for change in _pool_changes(problem, pool):
        data = pool.model_dump()
        change(data)
        try:
            yield PoolSpec.model_validate(data)
        except ValueError:  # the engine refuses these settings together
            continue


def _in_all(pools: Sequence[PoolSpec], change: Callable[[dict[str, Any]], None]) -> list[PoolSpec]:
    """The pools, each with the change if its engine accepts it."""
    changed_pools = []
    for pool in pools:
        data = pool.model_dump()
        change(data)
        try:
            changed_pools.append(PoolSpec.model_validate(data))
        except ValueError:
            changed_pools.append(pool)
    return changed_pools


def _valid(deployment: DeploymentSpec, pools: list[PoolSpec]) -> Iterator[DeploymentSpec]:
    """The deployment with other pools, if these are compatible: both sides of a KV transfer share the KV format."""
    variant = deployment.model_copy(update={"pools": pools})
    try:
        check_pools(variant)
    except ValueError:
        return
    yield variant


def _pool_changes(problem: Problem, pool: PoolSpec) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Possible changes of a pool, as functions on its plain data."""
    execution, cache = problem.space.execution, problem.space.cache
    for chunk in execution.chunk_tokens:
        yield _engine_setting("chunk_tokens", chunk)
    for running in execution.max_running_requests:
        yield _engine_setting("max_running_requests", running)
    for policy in execution.capacity_policies if pool.engine.name == "trtllm" else ():
        yield _engine_setting("capacity_policy", policy)
    for schedule in execution.schedules_of(pool.engine.name):
        yield _engine_settings({"ttft_targets_s": []} | problem.order_settings(schedule))
    for ratio in execution.swa_full_tokens_ratios if pool.engine.name in problem.window_pool_engines else ():
        yield _engine_setting("swa_full_tokens_ratio", ratio)
    for speculation in execution.speculations(pool.engine.name):
        yield _speculation(speculation)
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
    return _engine_settings({name: value})


def _engine_settings(settings: dict[str, Any]) -> Callable[[dict[str, Any]], None]:
    def change(data: dict[str, Any]) -> None:
        data["engine"] |= settings

    return change


def _speculation(speculation: SpeculationSpec | None) -> Callable[[dict[str, Any]], None]:
    """Other drafted tokens, with the overlap that goes with them."""

    def change(data: dict[str, Any]) -> None:
        data["engine"] = {name: value for name, value in data["engine"].items() if name != "overlap"} | {
            "speculation": speculation
        }

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
    """The same accelerators, split into wider or narrower workers."""

    def change(data: dict[str, Any]) -> None:
        data |= degrees_of(split) | {"replicas": replicas}

    return change
