"""Local search around the front: its start, its end, and which deployments may serve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from hisearch.latency.device_memory.plan import DoesNotFit
from hisearch.search.evaluate.runner import TrialRunner
from hisearch.search.model.deployments import deployment_of, router_configs, starting_memory_fraction
from hisearch.search.model.job import Job
from hisearch.search.model.problem import Problem
from hisearch.search.refine.frontier import LEAST_TRIALS, Frontier, neighbourhood
from hisearch.search.rounds import Rounds, _known_workers
from hisearch.search.select.pareto import front
from hisearch.search.stages.screening import screen
from hisearch.specs.deployments.deployment import DeploymentSpec, PoolSpec
from tests.search.fakes import OBJECTIVES, FakeEvaluator, FakePlanner, make_problem


def simulated(problem: Problem, deployments: Sequence[DeploymentSpec]) -> TrialRunner:
    runner = TrialRunner(FakeEvaluator(), problem.budget, workers=1)
    runner.run([Job(1, deployment, {}) for deployment in deployments])
    return runner


def frontier_of(problem: Problem) -> Frontier:
    return Frontier(problem, _known_workers(screen(problem, 40)))


def sized(kind: str, counts: Sequence[int]) -> list[DeploymentSpec]:
    """A worker of stage 1 with each of these replica counts."""
    problem = make_problem()
    worker = next(c.pool for c in screen(problem, 40).sized if c.pool.accelerator == kind)
    router = router_configs(problem.space.routing)[0]
    return [deployment_of(problem.model, problem.profile, worker, count, router) for count in counts]


def test_too_few_trials_leave_nothing_out() -> None:
    problem = make_problem()
    runner = simulated(problem, sized("fast", range(1, LEAST_TRIALS)))
    candidates = sized("fast", [1, 30])
    assert list(frontier_of(problem).may_serve(runner.trials, candidates)) == candidates


def test_what_misses_by_far_is_left_out_and_what_serves_is_not() -> None:
    problem = make_problem()
    known = [1, 2, 3, 5, 6, 7, 8, 10, 12, 14, 16]
    runner = simulated(problem, sized("fast", known))
    frontier = frontier_of(problem)
    kept = frontier.may_serve(runner.trials, sized("fast", [1, 2, 4, 9, 11, 13]))
    replicas = [deployment.pool.replicas for deployment in kept]
    truth = {
        trial.deployment.pool.replicas: trial.feasible
        for trial in simulated(problem, sized("fast", range(1, 17))).trials
    }
    assert not truth[1]
    assert 1 not in replicas
    assert [count for count in (4, 9, 11, 13) if truth[count] and count not in replicas] == []


def test_a_front_that_moves_after_it_ended_is_widened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = make_problem(simulations=80)
    runner = simulated(problem, sized("fast", [6, 8]))
    course = Rounds(problem, screen(problem, 40), runner, lambda _: None)
    monkeypatch.setattr(Frontier, "widen", lambda *_: None)  # nothing is expected of any neighbour
    course._widen(40)
    assert course._front_ended
    runner.run([Job(1, *sized("fast", [1]))])  # off the front: all is as it was
    assert course._front_ended
    before = {trial.number for trial in front(runner.trials, OBJECTIVES)}
    runner.run([Job(1, *sized("fast", [12]))])
    assert {trial.number for trial in front(runner.trials, OBJECTIVES)} != before
    assert not course._front_ended


class TightPlanner(FakePlanner):
    """Models fit at the memory fraction that stage 1 sizes workers with, and not below it."""

    least = starting_memory_fraction(make_problem().space.cache)

    def requests_kv_tokens(self, pool: PoolSpec, context_tokens: float) -> int:
        if not self.can_build(pool):
            raise DoesNotFit("the model does not fit: 0.92 GiB short on each rank", 0.92 * 2**30)
        return super().requests_kv_tokens(pool, context_tokens)

    def can_build(self, pool: PoolSpec) -> bool:
        return pool.engine.memory_fraction >= self.least


def test_a_neighbour_that_does_not_fit_with_less_memory_is_left_out() -> None:
    problem, least = replace(make_problem(), planner=TightPlanner()), TightPlanner.least
    screening = screen(problem, 40)
    worker = next(candidate.pool for candidate in screening.sized if candidate.pool.accelerator == "fast")
    router = router_configs(problem.space.routing)[0]
    known = [deployment_of(problem.model, problem.profile, worker, n, router) for n in range(2, 3 + LEAST_TRIALS)]
    tight = [
        candidate for candidate in neighbourhood(problem, known[0]) if candidate.pool.engine.memory_fraction < least
    ]
    assert tight
    runner, frontier = simulated(problem, known), Frontier(problem, _known_workers(screening))
    frontier.widen(runner, len(known) + 8)
    assert len(runner.trials) > len(known)
    assert all(trial.deployment.pool.engine.memory_fraction >= least for trial in runner.trials)
    assert frontier.may_serve(runner.trials, tight) == tight
