"""Every deployment of a search space in turn: for exhaustive proofs and as candidates of a surrogate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hisearch.search.model.deployments import deployment_of, router_configs, with_cache
from hisearch.search.model.problem import Problem
from hisearch.search.model.tier_choices import TierChoice, TierChoices
from hisearch.search.stages.cache import memory_fractions
from hisearch.search.stages.execution import groups
from hisearch.specs.deployments.deployment import DeploymentSpec, PoolSpec


def deployments(problem: Problem) -> Iterator[DeploymentSpec]:
    """All deployments that can be built, each once, in a fixed order.

    The router is irrelevant to a single replica: it is only paired with the space's first routing configuration.
    """
    for pool in workers(problem):
        for replicas in range(1, problem.max_replicas(pool) + 1):
            yield from behind_routers(problem, pool, replicas)


def behind_routers(problem: Problem, pool: PoolSpec, replicas: int) -> Iterator[DeploymentSpec]:
    """``replicas`` of a worker with every router of the space; a single replica only with the first."""
    routing_configs = router_configs(problem.space.routing)
    for router in routing_configs if replicas > 1 else routing_configs[:1]:
        yield deployment_of(problem.model, problem.profile, pool, replicas, router)


def workers(problem: Problem) -> Iterator[PoolSpec]:
    """Every worker that can be built, with every setting of its memory and tiers, as pools of one replica."""
    for pools, _ in groups(problem):
        for pool in pools:
            if problem.max_replicas(pool) > 0 and _fits(problem, pool):
                yield from with_memory(problem, pool)


def _alone(problem: Problem, pool: PoolSpec) -> DeploymentSpec:
    """A worker by itself."""
    return deployment_of(problem.model, problem.profile, pool, 1, router_configs(problem.space.routing)[0])


def _fits(problem: Problem, pool: PoolSpec) -> bool:
    """True if the worker fits its accelerator and its host, whatever its tiers."""
    try:
        problem.planner.requests_kv_tokens(pool, problem.demand.mean_context_tokens)
        problem.planner.usd_per_hour(_alone(problem, pool))
    except ValueError:
        return False
    return True


def with_memory(problem: Problem, pool: PoolSpec) -> Iterator[PoolSpec]:
    """A worker with every memory fraction and every choice of tiers, as far as it can be built."""
    alone = _alone(problem, pool)
    choices = list(every_choice(problem.tier_choices(pool.engine.name)))
    for fraction in memory_fractions(problem.space.cache):
        for choice in choices:
            worker = with_cache(alone, memory_fraction=fraction, choice=choice).pool
            if problem.planner.can_build(worker):
                yield worker


def every_choice(choices: TierChoices) -> Iterator[TierChoice]:
    """All results of ``TierChoices.choose``: an odometer over the decisions on each path."""
    path: list[int] = []
    while True:
        sizes: list[int] = []

        def ask(name: str, options: Sequence[Any], sizes: list[int] = sizes) -> Any:
            if len(sizes) == len(path):
                path.append(0)
            sizes.append(len(options))
            return options[path[len(sizes) - 1]]

        yield choices.choose(ask)
        while path and path[-1] + 1 == sizes[len(path) - 1]:
            path.pop()
        if not path:
            return
        path[-1] += 1
