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

from hisearch.search.cache import MEMORY_STEP
from hisearch.search.deployments import parameters_of, router_arms
from hisearch.search.ending import UNTRIED_NEIGHBOURS
from hisearch.search.job import Job
from hisearch.search.ledger import Ledger
from hisearch.search.problem import Problem
from hisearch.search.recommend import nearest_miss, recommend, widest
from hisearch.search.tier_choices import TierChoice
from hisearch.search.trial import Trial
from hisearch.specs.deployment import DeploymentSpec, PoolSpec
from hisearch.specs.parallelism import Parallelism, degrees_of
from hisearch.specs.routing import RouterSpec

#: What follows the three stages, as trials name it.
STAGE = 4

#: A cheaper deployment that misses the SLO by at most this share of a bound may meet it with one setting changed.
NARROW_MISS = 0.2

#: Dollars per hour by which sums in another order may differ.
_SAME_PRICE = 1e-6


def polish(problem: Problem, ledger: Ledger, until: int) -> None:
    """Move the recommendation to the best of its neighbours until none is better, or ``until`` simulations are made."""
    done: set[int] = set()
    while (found := recommend(trials := ledger.considered, problem.objectives)) is not None:
        best = found.trial
        centres = (best, widest(best, trials), _narrow_miss(best, trials))
        centre = next((trial for trial in centres if trial is not None and trial.number not in done), None)
        if centre is None:
            return
        done.add(centre.number)
        jobs = [Job(STAGE, other, parameters_of(other)) for other in neighbours(problem, centre)]
        ledger.run(jobs, until, UNTRIED_NEIGHBOURS if centre is best else "")
        descend(problem, ledger, until)


def _narrow_miss(best: Trial, trials: Sequence[Trial]) -> Trial | None:
    """The cheaper deployment that comes nearest to the SLO; None where that is missed by more than ``NARROW_MISS``."""
    found = nearest_miss([trial for trial in trials if _usd(trial) < _usd(best) - _SAME_PRICE])
    return found if found is not None and found.worst_violation <= NARROW_MISS else None


def _usd(trial: Trial) -> float:
    return trial.metrics.get("usd_per_hour", math.inf)


def neighbours(problem: Problem, best: Trial) -> list[DeploymentSpec]:
    """Deployments of the space that differ from ``best`` in one setting and cost no more, each once."""
    found: dict[str, DeploymentSpec] = {}
    for other in changed(problem, best.deployment):
        key = other.model_dump_json()
        if other == best.deployment or key in found or not problem.planner.can_build(other.pool):
            continue
        if problem.planner.usd_per_hour(other) <= best.metrics["usd_per_hour"] + _SAME_PRICE:
            found[key] = other
    return list(found.values())


def descend(problem: Problem, ledger: Ledger, until: int) -> None:
    """Take replicas off the recommended deployment until it misses the SLO."""
    done: set[int] = set()
    while (found := recommend(ledger.considered, problem.objectives)) is not None and found.trial.number not in done:
        best, pool = found.trial, found.trial.deployment.pool
        if pool.replicas == 1:
            return
        done.add(best.number)
        fewer = best.deployment.model_copy(update={"pools": [pool.model_copy(update={"replicas": pool.replicas - 1})]})
        trial = ledger.run([Job(best.stage, fewer, parameters_of(fewer))], until)[0]
        # Where replicas cost nothing, fewer of them are no better: the winner stays, and so does the answer.
        if trial is None or (trial.feasible and trial.metrics["usd_per_hour"] >= best.metrics["usd_per_hour"]):
            return


def changed(problem: Problem, deployment: DeploymentSpec) -> Iterator[DeploymentSpec]:
    """Every change of one setting that the engine takes, in a fixed order."""
    for change in _pool_changes(problem, deployment.pool):
        data = deployment.pool.model_dump()
        change(data)
        try:
            pool = PoolSpec.model_validate(data)
        except ValueError:  # the engine refuses these settings together
            continue
        yield deployment.model_copy(update={"pools": [pool]})
    if deployment.pool.replicas > 1:
        for router in _routers(problem, deployment.router):
            yield deployment.model_copy(update={"router": router})


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


def _routers(problem: Problem, router: RouterSpec) -> list[RouterSpec]:
    """The arms that differ in one parameter, and the first arm of every other policy."""
    arms = router_arms(problem.space.routing)
    firsts = {arm.policy: arm for arm in reversed(arms)}
    others = [arm for policy, arm in firsts.items() if policy != router.policy]
    ours = router.model_dump()
    beside = [
        arm
        for arm in arms
        if arm.policy == router.policy and sum(ours[name] != value for name, value in arm.model_dump().items()) == 1
    ]
    return beside + others
