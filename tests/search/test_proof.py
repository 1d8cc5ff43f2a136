"""The search compared with an enumerated space, and the parts of its local search around the front."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from benchmarks.proof.enumeration import deployments, every_choice
from hisearch.search.driver import search
from hisearch.search.evaluate.runner import TrialRunner
from hisearch.search.model.job import Job
from hisearch.search.model.problem import Problem
from hisearch.search.model.trial import Trial
from hisearch.search.refine.gaussian import GaussianProcess, parameter_means
from hisearch.search.refine.improvement import Box, choose, hits
from hisearch.search.select.pareto import front, minimised
from hisearch.search.stages.execution import search_execution
from tests.search.fakes import OBJECTIVES, FakeEvaluator, make_problem


def small_problem(simulations: int) -> Problem:
    """A fake space of a few hundred deployments."""
    problem = make_problem(simulations=simulations, accelerators=("slow", "fast"))
    execution = problem.space.execution.model_copy(
        update={"max_replicas": 8, "chunk_tokens": [2048], "max_running_requests": [256], "engines": ["vllm"]}
    )
    routing = problem.space.routing.model_copy(update={"cache_threshold": [0.3]})
    cache = problem.space.cache.model_copy(update={"memory_fraction": (0.9, 0.9)})
    space = problem.space.model_copy(update={"execution": execution, "routing": routing, "cache": cache})
    return Problem(**{**vars(problem), "space": space})


@pytest.fixture(scope="module")
def every_trial() -> list[Trial]:
    evaluate = FakeEvaluator()
    jobs = [Job(0, deployment) for deployment in deployments(small_problem(1))]
    return [evaluate(job).trial(number, job) for number, job in enumerate(jobs)]


def hypervolume(trials: list[Trial], of: list[Trial]) -> float:
    """Share of the hypervolume of ``of``'s front that ``trials`` dominate, on the scale of that front."""
    import moocore

    exhaustive, reached = minimised(front(of, OBJECTIVES), OBJECTIVES), minimised(trials, OBJECTIVES)
    low, high = exhaustive.min(axis=0), exhaustive.max(axis=0)
    span = np.where(high > low, high - low, 1.0)
    ref = [1.1] * len(OBJECTIVES)
    volume = moocore.hypervolume((reached - low) / span, ref=ref) if len(reached) else 0.0
    return float(volume / moocore.hypervolume((exhaustive - low) / span, ref=ref))


def test_the_enumeration_holds_every_deployment_once(every_trial: list[Trial]) -> None:
    keys = {trial.deployment.model_dump_json() for trial in every_trial}
    assert len(keys) == len(every_trial)
    # 2 accelerators, 2 widths, 3 sizes; one replica, or 2 to 8 behind each of 3 routing configurations.
    assert len(every_trial) == 2 * 2 * 3 * (1 + 7 * 3)


def test_every_choice_of_tiers_is_counted() -> None:
    choices = make_problem().tier_choices("sglang")
    enumerated = list(every_choice(choices))
    assert len(enumerated) == choices.count()
    assert len({repr(choice) for choice in enumerated}) == len(enumerated)


def test_the_search_finds_the_exhaustive_front_with_a_third_of_the_simulations(every_trial: list[Trial]) -> None:
    problem = small_problem(80)
    outcome = search(problem, TrialRunner(FakeEvaluator(), problem.budget, workers=1))
    assert len(outcome.trials) <= 80
    assert hypervolume(list(outcome.front), every_trial) >= 0.995
    random = np.random.default_rng(0).permutation(len(every_trial))[:80]
    drawn = [every_trial[place] for place in random if every_trial[place].feasible]
    assert hypervolume(drawn, every_trial) < 0.995


def test_stage_1_loses_no_worker_of_the_exhaustive_front(every_trial: list[Trial]) -> None:
    kept = search_execution(small_problem(80), keep=40).kept
    workers = {(c.pool.accelerator, c.pool.tensor_parallel) for c in kept}
    for trial in front(every_trial, OBJECTIVES):
        assert (trial.deployment.pool.accelerator, trial.deployment.pool.tensor_parallel) in workers


def test_a_gaussian_process_interpolates_what_it_has_seen_and_is_uncertain_elsewhere() -> None:
    inputs = np.random.default_rng(1).random((40, 3))
    targets = np.sin(3 * inputs[:, 0]) + inputs[:, 1] ** 2
    process = GaussianProcess.fit(inputs, targets, parameter_means(3))
    mean, deviation = process.predict(inputs)
    assert np.abs(mean - targets).max() < 0.05
    _, far = process.predict(np.full((1, 3), 5.0))
    assert far[0] > 3 * deviation.max()
    drawn = process.draw(inputs[:5], np.random.default_rng(2).standard_normal((5, 4000)))
    np.testing.assert_allclose(drawn.mean(axis=1), mean[:5], atol=0.05)


def test_the_box_and_the_hits_are_a_hypervolume() -> None:
    points = np.array([[0.5, 0.5]])
    box = Box.beyond(points, np.zeros(2), np.ones(2), 4096)
    candidates = np.array([[[0.25, 0.5]], [[0.5, 0.25]], [[0.75, 0.75]]])
    share = hits(candidates, np.ones((3, 1), dtype=bool), box).mean(axis=1)
    # Three quarters are free. Each of the first two gains an eighth of the total; the third is dominated.
    np.testing.assert_allclose(share, [1 / 6, 1 / 6, 0.0], atol=0.01)
    assert box.won == pytest.approx(1 / 3, rel=0.05)


def test_a_batch_does_not_propose_the_same_point_twice() -> None:
    same = np.array([1, 1, 1, 0, 0], dtype=np.float32)
    other = np.array([0, 0, 0, 1, 1], dtype=np.float32)
    chosen = [index for index, _ in choose(np.array([same, same, other]), 3)]
    assert chosen == [0, 2]
    for order in itertools.permutations([same, same, other]):
        assert len(choose(np.array(order), 3)) == 2
