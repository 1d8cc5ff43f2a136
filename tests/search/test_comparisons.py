"""What comes after the stages: alternatives sized on the whole trace, and the recommendation's neighbours."""

from dataclasses import replace

import pytest

from hisearch.search.driver import SearchOutcome, search
from hisearch.search.evaluate.runner import TrialRunner
from hisearch.search.model.deployments import configs_most_promising_first, deployment_of, parameters_of, router_configs
from hisearch.search.model.job import Evaluation, Job
from hisearch.search.model.problem import Problem
from hisearch.search.model.trial import Trial
from hisearch.search.refine.alternatives import size_alternatives
from hisearch.search.refine.local_search import local_search, neighbours
from hisearch.search.select.recommend import recommend
from hisearch.search.stages.ending import Untried
from hisearch.search.stages.execution import search_execution
from hisearch.search.stages.routing import search_routing
from hisearch.specs.deployments.deployment import EngineSpec, PoolSpec
from hisearch.specs.deployments.routing import RouterSpec
from hisearch.specs.studies.search_space import RoutingSpace
from tests.search.fakes import FakeEvaluator, make_problem


def start(problem: Problem, evaluate: FakeEvaluator, replicas: int = 6) -> TrialRunner:
    """A trial runner that has simulated one deployment on ``fast`` accelerators with SGLang."""
    runner = TrialRunner(evaluate, problem.budget, workers=1)
    engine = EngineSpec(name="sglang", chunk_tokens=2048, max_running_requests=64, memory_fraction=0.9)
    pool = PoolSpec(accelerator="fast", engine=engine)
    router = next(
        routing_config
        for routing_config in router_configs(problem.space.routing)
        if routing_config.policy == "cache_aware"
    )
    deployment = deployment_of(problem.model, problem.profile, pool, replicas, router)
    runner.run([Job(2, deployment, parameters_of(deployment))])
    return runner


def cheapest(trials: list[Trial], accelerator: str = "", engine: str = "") -> float:
    """Price of the cheapest feasible trial."""
    return min(
        trial.metrics["usd_per_hour"]
        for trial in trials
        if trial.feasible
        and accelerator in ("", trial.deployment.pool.accelerator)
        and engine in ("", trial.deployment.pool.engine.name)
    )


def test_alternatives_get_their_fewest_replicas_behind_the_recommendations_router() -> None:
    problem = make_problem()
    runner = start(problem, FakeEvaluator())
    size_alternatives(problem, search_execution(problem, keep=4).sized, runner, until=150)
    added = runner.trials[1:]
    assert all(trial.comparable for trial in added)
    assert {t.deployment.router.policy for t in added if t.deployment.pool.replicas > 1} == {"cache_aware"}
    assert {t.deployment.pool.accelerator for t in added} == {"slow", "fast", "dear"}
    # What the fake world needs: with the same settings on another engine nothing changes; ``slow`` carries 1 request/s.
    everything = [
        Job(2, d, {})
        for t in added
        for count in range(1, 33)
        for d in [deployment_of("toy-model", problem.profile, t.deployment.pool, count, t.deployment.router)]
    ]
    exhaustive = TrialRunner(FakeEvaluator(), problem.budget.model_copy(update={"simulations": 10**6}), workers=1)
    exhaustive.run(everything)
    others = [t for t in exhaustive.trials if t.deployment.pool.accelerator != "fast"]
    alternatives = [t for t in added if t.deployment.pool.accelerator != "fast"]
    assert cheapest(alternatives) == cheapest(others)
    assert cheapest(added, engine="vllm") == cheapest(exhaustive.trials, engine="vllm")


def test_alternatives_beyond_the_budget_are_untried() -> None:
    problem = make_problem()
    runner = start(problem, FakeEvaluator())
    size_alternatives(problem, search_execution(problem, keep=4).sized, runner, until=3)
    assert len(runner.trials) == 3
    assert Untried.ALTERNATIVES in runner.untried()


class SmallChunksAreBetter(FakeEvaluator):
    """A world in which small chunks lower TTFT on the whole trace, though not on slices."""

    def __call__(self, job: Job) -> Evaluation:
        evaluation = super().__call__(job)
        if job.slice_fraction < 1.0 or job.deployment.pool.engine.chunk_tokens > 128:
            return evaluation
        checks = tuple(
            replace(check, value_s=check.value_s / 4) if check.label == "ttft_p99" else check
            for check in evaluation.slo
        )
        metrics = evaluation.metrics | {"ttft_p99_s": evaluation.metrics["ttft_p99_s"] / 4}
        return replace(evaluation, metrics=metrics, slo=checks, feasible=all(check.holds for check in checks))


def test_a_neighbour_that_slices_dropped_is_found_in_the_end() -> None:
    problem = make_problem()
    runner = start(problem, SmallChunksAreBetter())
    first = recommend(runner.trials, problem.objectives)
    local_search(problem, runner, until=150)
    last = recommend(runner.trials, problem.objectives)
    assert first is not None
    assert last is not None
    assert first.trial.deployment.pool.engine.chunk_tokens == 2048
    assert last.trial.deployment.pool.engine.chunk_tokens == 128
    assert last.trial.metrics["usd_per_hour"] <= first.trial.metrics["usd_per_hour"]
    assert runner.untried() == set()
    neighbour_specs = {d.model_dump_json() for d in neighbours(problem, last.trial)}
    assert neighbour_specs <= {t.deployment.model_dump_json() for t in runner.trials}


class FiveNeedSmallChunks(FakeEvaluator):
    """Six replicas need large chunks, five small ones; otherwise they miss the SLO by 5 %. Fewer miss it by far."""

    def __call__(self, job: Job) -> Evaluation:
        evaluation, pool = super().__call__(job), job.deployment.pool
        large = pool.engine.chunk_tokens > 128
        ttft_s = (1.9 if large else 2.1) if pool.replicas >= 6 else (2.1 if large else 1.9)
        checks = tuple(
            replace(check, value_s=ttft_s if pool.replicas >= 5 else 9.0) if check.label == "ttft_p99" else check
            for check in evaluation.slo
        )
        return replace(evaluation, slo=checks, feasible=all(check.holds for check in checks))


def test_a_cheaper_deployment_that_narrowly_misses_is_tried_with_one_setting_changed() -> None:
    problem = make_problem()
    runner = start(problem, FiveNeedSmallChunks())
    assert runner.trials[0].feasible
    local_search(problem, runner, until=150)
    last = recommend(runner.trials, problem.objectives)
    assert last is not None
    pool = last.trial.deployment.pool
    assert (pool.replicas, pool.engine.chunk_tokens) == (5, 128)


def test_neighbours_differ_in_one_setting_and_cost_no_more() -> None:
    problem = make_problem()
    best = start(problem, FakeEvaluator()).trials[0]
    candidates = neighbours(problem, best)
    assert len({d.model_dump_json() for d in candidates}) == len(candidates) > 5
    for other in candidates:
        assert problem.planner.usd_per_hour(other) <= best.metrics["usd_per_hour"]
        ours, theirs = best.deployment.pool, other.pool
        assert theirs.accelerator == ours.accelerator
        assert theirs.replicas * theirs.tensor_parallel == ours.replicas * ours.tensor_parallel
        changed = [
            other.router != best.deployment.router,
            theirs.engine != ours.engine,
            theirs.tensor_parallel != ours.tensor_parallel,
        ]
        assert sum(changed) == 1
    assert {d.pool.engine.chunk_tokens for d in candidates} == {128, 2048}
    assert {d.router.policy for d in candidates} == {"round_robin", "power_of_two", "cache_aware"}


def test_neighbours_beyond_the_budget_are_untried() -> None:
    problem = make_problem()
    runner = start(problem, FakeEvaluator())
    local_search(problem, runner, until=4)
    assert len(runner.trials) == 4
    assert Untried.NEIGHBOURS in runner.untried()


@pytest.mark.parametrize("simulations", [150, pytest.param(400, marks=pytest.mark.slow)])
def test_a_complete_search_has_looked_at_every_neighbour_or_says_so(simulations: int) -> None:
    problem = make_problem(simulations=simulations)
    outcome: SearchOutcome = search(problem, TrialRunner(SmallChunksAreBetter(), problem.budget, workers=1))
    assert outcome.recommendation is not None
    neighbour_specs = {d.model_dump_json() for d in neighbours(problem, outcome.recommendation.trial)}
    tried_specs = {t.deployment.model_dump_json() for t in outcome.trials if t.comparable}
    assert (neighbour_specs <= tried_specs) or Untried.NEIGHBOURS in outcome.ending.untried


def test_routing_configs_begin_with_one_of_each_policy_the_most_promising_first() -> None:
    space = RoutingSpace(policies=["random", "round_robin", "power_of_two", "cache_aware"])
    routing_configs = configs_most_promising_first(space)
    assert [routing_config.policy for routing_config in routing_configs[:4]] == [
        "cache_aware",
        "round_robin",
        "power_of_two",
        "random",
    ]
    everything = router_configs(space)
    assert len(routing_configs) == len(everything)
    assert all(routing_config in routing_configs for routing_config in everything)


@pytest.mark.parametrize("until", [30, 45, 60, 80, 100, 140, 200, 300])
def test_a_router_that_the_budget_left_out_is_tried_on_the_whole_trace_or_named(until: int) -> None:
    problem = make_problem(simulations=400)
    policies = ["random", "round_robin", "power_of_two", "cache_aware"]
    routing = RoutingSpace.model_validate({**problem.space.routing.model_dump(), "policies": policies})
    problem = replace(problem, space=problem.space.model_copy(update={"routing": routing}))
    runner = TrialRunner(FakeEvaluator(), problem.budget, workers=1)
    search_routing(problem, search_execution(problem, keep=8).kept, runner, until)
    full_trials = [t for t in runner.trials if t.slice_fraction == 1.0 and t.deployment.pool.replicas > 1]
    slices = [t for t in runner.trials if t.slice_fraction < 1.0]
    routing_configs = {routing_config.model_dump_json() for routing_config in router_configs(routing)}

    def tried(trials: list[Trial], pool: PoolSpec) -> set[str]:
        worker = pool.model_copy(update={"replicas": 1})
        return {
            RouterSpec.model_dump_json(t.deployment.router)
            for t in trials
            if t.deployment.pool.model_copy(update={"replicas": 1}) == worker
        }

    unseen = [
        t
        for t in full_trials
        if not routing_configs <= tried(full_trials, t.deployment.pool) | tried(slices, t.deployment.pool)
    ]
    assert not unseen or Untried.ROUTERS in runner.untried()
