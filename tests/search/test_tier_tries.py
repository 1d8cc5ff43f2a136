"""Cheaper accelerators that only serve with tiers, and those that tiers do not help."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisearch.score.terms import TermCheck
from hisearch.search.driver import search
from hisearch.search.evaluate.runner import TrialRunner
from hisearch.search.model.job import Evaluation, Job
from hisearch.search.model.problem import Problem
from hisearch.search.records.journal import Journal
from hisearch.search.refine.tier_tries import SHARE, savable_misses, try_tiers, with_largest_tiers
from hisearch.search.stages.cache import bases
from hisearch.specs.studies.search_space import CacheSpace
from tests.search.fakes import (
    OBJECTIVES,
    TTFT_BOUND_S,
    FakeEvaluator,
    FakePlanner,
    make_deployment,
    make_problem,
    make_trial,
    tier_gib,
)


class Drowning(FakeEvaluator):
    """``fast`` workers miss TTFT forty times over with tiers below ``saved_at_gib``, whatever their number."""

    def __init__(self, saved_at_gib: float) -> None:
        super().__init__()
        self._saved_at_gib = saved_at_gib

    def __call__(self, job: Job) -> Evaluation:
        evaluation, pool = super().__call__(job), job.deployment.pool
        if pool.accelerator != "fast" or tier_gib(pool) >= self._saved_at_gib:
            return evaluation
        ttft_s = 40 * TTFT_BOUND_S
        checks = (TermCheck("ttft_p99", ttft_s, TTFT_BOUND_S), *evaluation.slo[1:])
        return replace(evaluation, metrics=evaluation.metrics | {"ttft_p99_s": ttft_s}, slo=checks, feasible=False)


def drowning_problem(simulations: int = 120) -> Problem:
    return make_problem(simulations=simulations, accelerators=("fast", "dear"))


def after_stage_2(problem: Problem, saved_at_gib: float) -> TrialRunner:
    """``dear`` workers that serve, three cheaper ones that do not, and ``fast`` ones that miss by far more."""
    runner = TrialRunner(Drowning(saved_at_gib), problem.budget, workers=1)
    deployments = [make_deployment("dear", replicas) for replicas in (5, 3, 2, 1)] + [make_deployment("fast", 7)]
    runner.run([Job(2, deployment) for deployment in deployments])
    return runner


def test_what_only_serves_with_tiers_is_tried_with_the_largest() -> None:
    problem = drowning_problem()
    runner = after_stage_2(problem, saved_at_gib=256.0)
    before = runner.simulations
    varied = bases(runner.considered, OBJECTIVES, tiers=True)
    assert {trial.deployment.pool.accelerator for trial in varied} == {"dear"}
    (saved,) = try_tiers(problem, runner, until=100)
    assert saved.deployment.pool.accelerator == "fast"
    assert tier_gib(saved.deployment.pool) == 256.0
    assert saved.stage == 3
    assert saved.feasible
    assert runner.simulations == before + 1
    assert saved.metrics["usd_per_hour"] < min(t.metrics["usd_per_hour"] for t in varied if t.feasible)


def test_what_tiers_do_not_save_is_tried_once() -> None:
    problem = drowning_problem()
    runner = after_stage_2(problem, saved_at_gib=math.inf)
    before = runner.simulations
    assert try_tiers(problem, runner, until=100) == []
    assert runner.simulations == before + 1
    assert try_tiers(problem, runner, until=100) == []
    assert runner.simulations == before + 1


@pytest.mark.parametrize(("budget_left", "tries"), [(0, 0), (1, 1), (4, 1), (5, 2), (100, 2)])
def test_tries_take_a_share_of_what_is_left(budget_left: int, tries: int) -> None:
    problem = drowning_problem()
    runner = after_stage_2(problem, saved_at_gib=math.inf)
    runner.run([Job(2, make_deployment("fast", 8, "vllm"))])
    before = runner.simulations
    try_tiers(problem, runner, before + budget_left)
    assert runner.simulations - before == tries
    assert tries <= math.ceil(budget_left * SHARE)
    assert runner.stopped == ""


def test_a_spent_budget_is_no_reason_to_stop() -> None:
    problem = drowning_problem(simulations=5)
    runner = after_stage_2(problem, saved_at_gib=256.0)
    assert try_tiers(problem, runner, until=5) == []
    assert (runner.simulations, runner.stopped) == (5, "")


def test_only_misses_that_memory_heals_are_tried() -> None:
    problem = drowning_problem()
    served = [make_trial(0, 1.0, 5.0, 54.0, accelerator="dear", replicas=6)]
    served += [make_trial(n, 2.1, 5.0, 9.0 * n, feasible=False, accelerator="dear", replicas=n) for n in (2, 3, 4)]

    def tried(replicas: int = 7, usd: float = 21.0, **miss: float | dict[str, int] | str) -> list[int]:
        trial = make_trial(9, 22.0, 5.0, usd, feasible=False, replicas=replicas, **miss)  # type: ignore[arg-type]
        return [savable.number for savable in savable_misses(problem, [*served, trial])]

    assert tried() == [9]
    assert tried(hit_rate=0.29) == []  # an unlimited cache would have 0.3
    assert tried(rejected={"kv": 10}) == []
    assert tried(replicas=1) == []  # too few for the load even if nothing were computed twice
    assert tried(usd=55.0) == []
    assert tried(error="broken") == []


def test_of_a_family_the_best_miss_is_tried_and_cheaper_families_come_first() -> None:
    problem = drowning_problem()
    trials = [make_trial(0, 1.0, 5.0, 54.0, accelerator="dear", replicas=6)]
    trials += [make_trial(n, 2.1, 5.0, 9.0 * n, feasible=False, accelerator="dear", replicas=n) for n in (2, 3, 4)]
    trials += [
        make_trial(5, 30.0, 5.0, 18.0, feasible=False, replicas=6),
        make_trial(6, 22.0, 5.0, 24.0, feasible=False, replicas=8),
        make_trial(7, 23.0, 5.0, 21.0, feasible=False, replicas=7, engine="vllm"),
    ]
    assert [trial.number for trial in savable_misses(problem, trials)] == [7, 6]


def test_where_nothing_serves_no_price_is_too_high() -> None:
    problem = drowning_problem()
    largest = with_largest_tiers(problem, make_deployment("fast", 7), math.inf)
    assert largest is not None
    assert tier_gib(largest.pool) == 256.0


@given(below_usd=st.floats(0.0, 40.0), minimum=st.sampled_from([0, 64]))
def test_the_largest_affordable_tiers_fill_nearer_ones_first(below_usd: float, minimum: int) -> None:
    problem = make_problem()
    tiers = [{"media": ["ddr5"], "gib": [0, 64, 256]}, {"media": ["nvme-gen4"], "gib": [0, 500, 4000]}]
    space = problem.space.model_copy(update={"cache": CacheSpace.model_validate({"tiers": tiers})})
    problem = replace(problem, space=space)
    deployment = make_deployment("fast", 2)
    if minimum:
        smaller = with_largest_tiers(
            problem, deployment, FakePlanner().usd_per_hour(deployment) + 0.002 * minimum + 1e-9
        )
        assert smaller is not None
        deployment = smaller
    affordable = [
        (near, far)
        for near in (64, 256)
        for far in (0, 500, 4000)
        if near + far > minimum and 6.0 + 0.001 * (near + far) * 2 < below_usd
    ]
    filled = with_largest_tiers(problem, deployment, below_usd)
    sizes = None if filled is None else tuple(tier.gib for tier in filled.pool.tiers)
    expected = max(affordable, default=None)
    assert sizes == (None if expected is None else tuple(gib for gib in expected if gib))


def test_the_search_recommends_what_only_serves_with_tiers() -> None:
    problem = drowning_problem()
    outcome = search(problem, TrialRunner(Drowning(256.0), problem.budget, workers=1))
    assert outcome.recommendation is not None
    best = outcome.recommendation.trial.deployment.pool
    assert (best.accelerator, tier_gib(best)) == ("fast", 256.0)


@pytest.mark.slow
@pytest.mark.parametrize("saved_at_gib", [256.0, math.inf])
def test_tries_are_the_same_for_any_workers_and_after_a_resume(tmp_path: Path, saved_at_gib: float) -> None:
    problem, journal = drowning_problem(), tmp_path / "journal.jsonl"
    with Journal(journal, "i") as kept:
        alone = search(
            problem, TrialRunner(Drowning(saved_at_gib), problem.budget, inputs="i", workers=1, journal=kept)
        )
    several = search(problem, TrialRunner(Drowning(saved_at_gib), problem.budget, inputs="i", workers=4))
    assert several.trials == alone.trials
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(lines[: len(lines) // 2]))
    with Journal(journal, "i", resume=True) as kept:
        resumed = search(
            problem, TrialRunner(Drowning(saved_at_gib), problem.budget, inputs="i", workers=2, journal=kept)
        )
    assert resumed.trials == alone.trials
