"""More servers in front of workers, where the leader of a race has busy ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from hisearch.api.studies.climbing import BUSY, MORE_SERVERS, more_servers
from hisearch.search.model.deployments import deployment_of
from hisearch.search.model.job import Evaluation
from hisearch.search.model.problem import Problem
from hisearch.search.rate.entrants import Entrant
from hisearch.search.rate.race import Race
from hisearch.specs.deployments.deployment import DeploymentSpec
from hisearch.specs.deployments.pool import PoolSpec
from hisearch.specs.deployments.routing import RouterSpec
from tests.search.fakes import make_problem

#: Loads that a server and the engine carry, in a made-up world.
SERVER, ENGINE = 10.0, 25.0


def evaluate(deployment: DeploymentSpec, load: float, *, brief: bool = False) -> Evaluation:
    most = SERVER * (deployment.pool.engine.api_servers or 1)
    return Evaluation(metrics={"front_end_busy": load / most, "goodput_rps": load}, feasible=load <= min(most, ENGINE))


def raced(problem: Problem, by: Callable[..., Evaluation] = evaluate, **engine: object) -> Race:
    """A race whose leader is a single worker, with more servers where they help."""

    def each(holds: Callable[[Entrant], bool], entrants: Sequence[Entrant]) -> list[bool]:
        return [holds(entrant) for entrant in entrants]

    pool = PoolSpec.model_validate({"accelerator": "fast", "engine": {"name": "vllm", **engine}})
    race = Race(by, each, lambda: "")
    alone = deployment_of(problem.model, problem.profile, pool, 1, RouterSpec(policy="round_robin"))
    race.run([Entrant(alone, ("alone",), 1.0)])
    more_servers(problem, race)
    return race


def leader_of(race: Race) -> DeploymentSpec:
    assert race.leader is not None
    return race.leader.deployment


def test_busy_front_ends_get_more_until_the_engine_binds() -> None:
    race = raced(make_problem())
    assert leader_of(race).pool.engine.api_servers == MORE_SERVERS
    assert race.leader is not None
    assert race.leader.load == pytest.approx(ENGINE, rel=0.02)


def test_idle_ones_are_left_as_they_are() -> None:
    def idle(deployment: DeploymentSpec, load: float, *, brief: bool = False) -> Evaluation:
        return Evaluation(metrics={"front_end_busy": 0.9 * BUSY, "goodput_rps": load}, feasible=load <= SERVER)

    race = raced(make_problem(), idle)
    assert leader_of(race).pool.engine.api_servers is None
    assert race.tried == 1


def test_a_number_in_the_space_stays() -> None:
    problem = make_problem()
    execution = problem.space.execution.model_copy(update={"api_servers": 1})
    fixed = replace(problem, space=problem.space.model_copy(update={"execution": execution}))
    assert leader_of(raced(fixed, api_servers=1)).pool.engine.api_servers == 1
