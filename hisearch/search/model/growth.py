"""The same deployment with another number of replicas."""

from __future__ import annotations

from hisearch.search.model.deployments import configs_most_promising_first
from hisearch.search.model.problem import Problem
from hisearch.specs.deployments.deployment import DeploymentSpec


def most_replicas(problem: Problem, deployment: DeploymentSpec) -> int:
    """Most replicas that the space allows; with several pools, the current number, as none of them is grown."""
    pool = deployment.pools[0]
    return pool.replicas if len(deployment.pools) > 1 else problem.max_replicas(pool)


def with_replicas(problem: Problem, deployment: DeploymentSpec, replicas: int) -> DeploymentSpec:
    """The deployment with ``replicas`` workers behind its router; a lone worker gets the space's most promising one."""
    pool = deployment.pools[0]
    router = deployment.router if pool.replicas > 1 else configs_most_promising_first(problem.space.routing)[0]
    return deployment.model_copy(update={"pools": [pool.model_copy(update={"replicas": replicas})], "router": router})
