"""What follows a race: the leader's neighbours, and more servers in front of its workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hisearch.search.rate.entrants import Entrant
from hisearch.search.rate.race import Race
from hisearch.search.refine.local_search import can_build, changed
from hisearch.specs.deployments.deployment import DeploymentSpec
from hisearch.specs.deployments.pool import PoolSpec

if TYPE_CHECKING:
    from hisearch.search.model.problem import Problem

#: Busy share of the leader's front ends from which more are tried, how many times as many. From half on, tokens and
#: requests wait for each other.
BUSY, MORE_SERVERS = 0.5, 4


def climb(problem: Problem, race: Race) -> None:
    """Try the leader's neighbours, a setting at a time, until none carries more."""
    done: DeploymentSpec | None = None
    while race.leader is not None and race.leader.deployment != done:
        done = race.leader.deployment
        near = [spec for spec in changed(problem, done) if can_build(problem, spec)]
        race.challenge([Entrant(spec, ("neighbour",), 0.0) for spec in near])


def more_servers(problem: Problem, race: Race) -> None:
    """Where the leader's front ends are busy, more of them in front of each worker, then its neighbours again.

    A space that says how many there are has the last word.
    """
    while problem.space.execution.api_servers is None and race.leader is not None:
        leader = race.leader
        if leader.evaluation is None or leader.evaluation.metrics["front_end_busy"] < BUSY:
            return
        # Without a number vLLM starts one for each attention group.
        counts = [pool.engine.api_servers or pool.parallelism.attention_data for pool in leader.deployment.pools]
        engines = [{"api_servers": MORE_SERVERS * count} for count in counts]
        wider = with_engines(leader.deployment, engines)
        if wider is None or not can_build(problem, wider):
            return
        race.challenge([Entrant(wider, ("servers",), 0.0)])
        if race.leader is leader:
            return
        climb(problem, race)


def with_engines(deployment: DeploymentSpec, settings: Sequence[Mapping[str, int]]) -> DeploymentSpec | None:
    """The deployment with settings of each pool's engine changed; None where an engine refuses them together."""
    pools = []
    for pool, changes in zip(deployment.pools, settings, strict=True):
        data = pool.model_dump()
        data["engine"].update(changes)
        try:
            pools.append(PoolSpec.model_validate(data))
        except ValueError:
            return None
    return deployment.model_copy(update={"pools": pools})
