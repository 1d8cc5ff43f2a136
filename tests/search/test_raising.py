"""Replicas beyond the fewest that meet the SLO: where the load that deployments carry counts, and nowhere else."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisearch.search.driver import SearchOutcome, search
from hisearch.search.evaluate.runner import TrialRunner
from hisearch.search.model.job import Evaluation, Job
from hisearch.search.model.problem import Problem
from hisearch.search.model.trial import Trial, price_of
from hisearch.search.refine.raising import GAP, dealt
from hisearch.search.stages.ending import Untried
from hisearch.search.stages.shortlist import key_of
from hisearch.specs.studies.study import LimitSpec, RecommendSpec, RuleName
from tests.search.fakes import FakeEvaluator, make_problem

MOST_HEADROOM = RecommendSpec(rule="most_headroom")


class CapacityEvaluator(FakeEvaluator):
    """The fake world where capacity is an objective: what a deployment carries goes with its workers."""

    def __call__(self, job: Job) -> Evaluation:
        evaluation = super().__call__(job)
        if job.slice_fraction < 1.0:
            return replace(evaluation, metrics=evaluation.metrics | {"capacity_load": 1.0})
        low, high = 0.125, 1e4
        while high > 1.02 * low:
            middle = (low * high) ** 0.5
            holds = super().__call__(replace(job, load=middle)).feasible
            low, high = (middle, high) if holds else (low, middle)
        figures = {"capacity_load": low, "capacity_goodput_rps": 20.0 * low, "capacity_missed_load": high}
        return replace(evaluation, metrics=evaluation.metrics | figures, simulations=8)


def one_worker(problem: Problem, **execution: object) -> Problem:
    """The problem with a single setting of workers of one accelerator."""
    settings = {"accelerators": ["fast"], "engines": ["vllm"], "tensor_parallel": [1], "chunk_tokens": [2048]}
    update = settings | {"max_running_requests": [256]} | execution
    space = problem.space.model_copy(update={"execution": problem.space.execution.model_copy(update=update)})
    return replace(problem, space=space)


def searched(problem: Problem, workers: int = 1) -> SearchOutcome:
    by_capacity = "capacity" in problem.objectives
    evaluate, each = (CapacityEvaluator(), 8) if by_capacity else (FakeEvaluator(), 1)
    return search(problem, TrialRunner(evaluate, problem.budget, workers=workers, simulations_each=each))


def replicas_of(trials: list[Trial] | tuple[Trial, ...]) -> list[int]:
    return sorted({trial.deployment.pool.replicas for trial in trials})


@given(st.lists(st.integers(1, 40), min_size=1, max_size=2), st.integers(0, 90))
def test_workers_are_dealt_in_their_proportion(counts: list[int], more: int) -> None:
    total = len(counts) + more
    shares = dealt(tuple(counts), total)
    assert sum(shares) == total
    assert min(shares) >= 1
    assert all(abs(n - total * count / sum(counts)) <= 1 for n, count in zip(shares, counts, strict=True))


def test_the_front_of_capacity_goes_on_to_the_most_replicas() -> None:
    problem = replace(
        one_worker(make_problem(simulations=300), max_replicas=40), objectives=("capacity", "usd_per_hour")
    )
    outcome = searched(problem)
    assert outcome.recommendation is not None
    fewest = outcome.recommendation.trial.deployment.pool.replicas
    counts = replicas_of(outcome.front)
    assert (counts[0], counts[-1]) == (fewest, 40)
    assert all(more <= GAP * fewer or more == fewer + 1 for fewer, more in pairwise(counts))
    assert outcome.ending.used <= problem.budget.simulations + 8


def test_l6_the_number_of_workers_changes_nothing() -> None:
    problem = replace(make_problem(simulations=60), recommend=MOST_HEADROOM)
    outcomes = [searched(problem, workers) for workers in (1, 3)]
    assert outcomes[0].trials == outcomes[1].trials
    assert outcomes[0].ending == outcomes[1].ending


def test_a_limit_on_accelerators_ends_it() -> None:
    problem = one_worker(make_problem(simulations=200), max_replicas=40, tensor_parallel=[1, 2])
    limits = {"accelerators": LimitSpec(at_most=14)}
    outcome = searched(replace(problem, objectives=("capacity", "usd_per_hour"), limits=limits))
    assert max(trial.deployment.pool.accelerators for trial in outcome.trials) == 14
    assert len(replicas_of(outcome.front)) > 1


def test_a_rule_that_goes_by_the_load_raises_replicas_as_far_as_its_price() -> None:
    problem = replace(make_problem(simulations=100), recommend=RecommendSpec(rule="most_headroom", usd_per_hour=50.0))
    outcome = searched(problem)
    assert outcome.recommendation is not None
    assert price_of(outcome.recommendation.trial) < 30.0
    within = [trial for trial in outcome.trials if trial.meets_slo and price_of(trial) <= 50.0]
    carrying = max(within, key=lambda trial: trial.deployment.pool.replicas * trial.deployment.pool.tensor_parallel)
    assert carrying.deployment.pool.accelerator in {"slow", "fast"}
    assert max(price_of(trial) for trial in within) > 47.0
    best = outcome.recommendation.trial
    alike = [trial for trial in within if key_of(trial.deployment.pools) == key_of(best.deployment.pools)]
    assert max(map(price_of, alike)) + price_of(best) / best.deployment.pool.replicas > 50.0


@pytest.mark.parametrize("rule", ["best_value", "lowest_latency", "least_energy"])
def test_other_rules_change_nothing(rule: RuleName) -> None:
    problem = make_problem(simulations=40)
    spec = RecommendSpec(rule=rule, usd_per_hour=50.0)
    assert searched(replace(problem, recommend=spec)).trials == searched(problem).trials


def test_a_load_that_cannot_be_raised_raises_no_replicas() -> None:
    problem = make_problem(simulations=40)
    fixed = replace(problem, demand=replace(problem.demand, scales_with_load=False))
    assert searched(replace(fixed, recommend=MOST_HEADROOM)).trials == searched(fixed).trials


def test_more_replicas_that_the_budget_leaves_out_are_said_to_matter() -> None:
    problem = replace(make_problem(simulations=12), recommend=MOST_HEADROOM)
    ending = searched(problem).ending
    assert Untried.MOST in ending.untried
    assert ending.likely[0] == Untried.MOST
    assert "with as many replicas as are allowed" in ending.caution(recommended=True)
    assert "another deployment may carry more" in ending.caution(recommended=True)
    ample = searched(replace(one_worker(make_problem(simulations=300)), recommend=MOST_HEADROOM)).ending
    assert Untried.MOST not in ample.untried
