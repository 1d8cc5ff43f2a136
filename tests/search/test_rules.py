"""Recommendation by rule, compared with slow reference implementations, and the baseline."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisearch.score.quantities import significant
from hisearch.search.confidence.assessment import Assessor
from hisearch.search.confidence.baseline import BASELINE, SIMULATIONS, default_engine, find_baseline
from hisearch.search.model.job import Evaluation, Job
from hisearch.search.model.trial import Trial, price_of
from hisearch.search.select.pareto import front
from hisearch.search.select.recommend import recommend
from hisearch.search.select.rules import (
    HEADROOM_CANDIDATES,
    against_baseline,
    headroom_candidates,
    knee,
    preference,
    recommend_by,
    table_limit_usd,
)
from hisearch.specs.deployments.agent_memory import AgentMemorySpec
from hisearch.specs.deployments.deployment import DeploymentSpec
from hisearch.specs.studies.study import RecommendSpec, StudySpec
from tests.search.fakes import OBJECTIVES, FakeEvaluator, make_deployment, make_problem, make_trial
from tests.search.test_confidence import Known, uncertainty

figure = st.integers(1, 6)
rows = st.lists(st.tuples(figure, figure, figure, figure, st.booleans()), min_size=1, max_size=20)


def trials_of(figures: list[tuple[int, int, int, int, bool]]) -> list[Trial]:
    return [
        make_trial(n, ttft / 4, goodput, usd, tpot_s=tpot / 150, feasible=feasible, replicas=n + 1)
        for n, (ttft, goodput, usd, tpot, feasible) in enumerate(figures)
    ]


@given(rows)
def test_the_knee_is_the_point_farthest_from_the_plane_of_the_worst(
    figures: list[tuple[int, int, int, int, bool]],
) -> None:
    """Restated: mean over the objectives that vary of log(value / best) / log(worst / best), the smallest first."""
    trials = trials_of(figures)
    points = [trial for trial in front(trials, OBJECTIVES) if trial.feasible]
    values = {
        "ttft": [t.metrics["ttft_p99_s"] for t in points],
        "goodput": [1 / t.metrics["goodput_rps"] for t in points],
        "usd": [t.metrics["usd_per_hour"] for t in points],
    }
    means = []
    for k in range(len(points)):
        shares = [
            math.log(column[k] / min(column)) / math.log(max(column) / min(column))
            for column in values.values()
            if max(column) / min(column) > 1.01
        ]
        means.append(sum(shares) / len(shares) if shares else 0.0)
    ranked = knee(trials, OBJECTIVES)
    assert {t.number for t in ranked} == {t.number for t in points}
    order = {t.number: mean for t, mean in zip(points, means, strict=True)}
    assert [order[t.number] for t in ranked] == pytest.approx(sorted(means))


def test_the_knee_is_held_against_the_next_prices() -> None:
    bent = [make_trial(n, ttft, 5.0, usd) for n, (ttft, usd) in enumerate([(1.9, 1.0), (0.3, 1.5), (0.2, 9.0)])]
    recommendation = recommend_by(bent, ("ttft_p99", "usd_per_hour"), RecommendSpec(rule="best_value"))
    assert recommendation is not None
    assert recommendation.trial.number == 1
    assert "33.3 % cheaper, with TTFT p99 533.3 % higher" in recommendation.reason
    assert "500.0 % dearer, with TTFT p99 33.3 % lower" in recommendation.reason


def test_the_knee_of_a_bent_front_is_its_bend() -> None:
    bent = [make_trial(0, 1.9, 5.0, 1.0), make_trial(1, 0.3, 5.0, 1.5), make_trial(2, 0.2, 5.0, 9.0)]
    assert knee(bent, ("ttft_p99", "usd_per_hour"))[0].number == 1


@given(rows, st.integers(1, 6), st.sampled_from(["cheapest", "best_value", "lowest_latency", "most_headroom"]))
def test_every_rule_recommends_what_meets_the_slo_within_its_price(
    figures: list[tuple[int, int, int, int, bool]], limit: int, rule: str
) -> None:
    trials = trials_of(figures)
    spec = RecommendSpec.model_validate({"rule": rule} | ({} if rule == "cheapest" else {"usd_per_hour": limit}))
    loads = {trial.number: 1.0 + trial.number / 10 for trial in trials if trial.feasible}
    recommendation = recommend_by(trials, OBJECTIVES, spec, loads=loads)
    feasible = [trial for trial in trials if trial.feasible]
    if not feasible:
        assert recommendation is None
        return
    assert recommendation is not None
    assert recommendation.trial.feasible
    assert recommendation.rule == rule
    inside = [trial for trial in feasible if price_of(trial) <= limit]
    if rule == "cheapest":
        assert recommendation.trial == recommend(trials, OBJECTIVES).trial  # type: ignore[union-attr]
    elif not inside:
        assert price_of(recommendation.trial) == min(map(price_of, feasible))
        assert "Nothing that was simulated meets the SLO within" in recommendation.reason
    elif rule == "lowest_latency":
        assert recommendation.trial.metrics["ttft_p99_s"] == min(t.metrics["ttft_p99_s"] for t in inside)
    elif rule == "most_headroom":
        assert loads[recommendation.trial.number] == max(loads[t.number] for t in inside)
    assert price_of(recommendation.trial) <= limit or rule == "cheapest" or not inside
    assert recommendation.trial.number not in {trial.number for trial, _ in recommendation.runner_ups}
    assert 1 <= recommendation.reason.count(". ") + 1 <= 3


@given(rows, st.integers(1, 6), st.sampled_from(["best_value", "lowest_latency", "most_headroom"]))
def test_what_a_rule_prefers_comes_first(figures: list[tuple[int, int, int, int, bool]], limit: int, rule: str) -> None:
    trials = trials_of(figures)
    spec = RecommendSpec.model_validate({"rule": rule, "usd_per_hour": limit})
    loads = {trial.number: 1.0 + trial.number / 10 for trial in trials if trial.feasible}
    order = preference(trials, OBJECTIVES, spec, loads)
    assert all(trial.feasible and price_of(trial) <= limit for trial in order)
    assert len({trial.number for trial in order}) == len(order)
    if order:
        assert order[0] == recommend_by(trials, OBJECTIVES, spec, loads=loads).trial  # type: ignore[union-attr]


@given(st.lists(st.tuples(figure, figure, figure, st.booleans()), min_size=1, max_size=20), st.integers(1, 6))
def test_the_least_energy_is_that_of_the_fewest_joules_per_generated_token_then_of_the_lowest_price(
    figures: list[tuple[int, int, int, bool]], limit: int
) -> None:
    trials = [with_energy(n, usd, watts, rate, feasible) for n, (usd, watts, rate, feasible) in enumerate(figures)]
    rule = RecommendSpec(rule="least_energy", usd_per_hour=limit)
    order = preference(trials, OBJECTIVES, rule, {})
    inside = [n for n, (usd, _, _, feasible) in enumerate(figures) if feasible and usd <= limit]
    ranked = sorted(inside, key=lambda n: (Fraction(figures[n][1], figures[n][2]), figures[n][0], n))
    assert [trial.number for trial in order] == ranked
    if ranked:
        recommendation = recommend_by(trials, OBJECTIVES, rule)
        assert recommendation is not None
        assert (recommendation.trial.number, recommendation.rule) == (ranked[0], "least_energy")
        _, watts, rate, _ = figures[ranked[0]]
        assert f"takes {significant(watts / rate)} J per generated token" in recommendation.reason
        assert f"within ${limit:.2f} per hour" in recommendation.reason


def with_energy(number: int, usd: float, watts: float, rate: float, feasible: bool) -> Trial:
    trial = make_trial(number, 1.0, 5.0, usd, feasible=feasible)
    return replace(trial, metrics=trial.metrics | {"mean_w": float(watts), "output_tokens_per_s": float(rate)})


def test_what_was_chosen_by_something_else_is_kept_with_its_reason() -> None:
    trials = trials_of([(2, 5, 3, 4, True), (1, 5, 4, 4, True)])
    recommendation = recommend_by(trials, OBJECTIVES, RecommendSpec(), chosen=(trials[1], "ChanceConstrained."))
    assert recommendation is not None
    assert (recommendation.trial.number, recommendation.reason) == (1, "ChanceConstrained.")


def test_candidates_for_headroom_have_the_widest_margins_one_of_each_price() -> None:
    trials = [make_trial(n, 0.2 + 0.1 * (n % 7), 5.0, 1.0 + n % 9) for n in range(40)]
    candidates = headroom_candidates(trials, RecommendSpec(rule="most_headroom", usd_per_hour=7.0))
    assert len(candidates) == HEADROOM_CANDIDATES == len({price_of(trial) for trial in candidates})
    margins = [trial.worst_margin for trial in candidates]
    assert margins == sorted(margins, reverse=True)
    assert all(price_of(trial) <= 7.0 for trial in candidates)
    best = max(t.worst_margin for t in trials if price_of(t) <= 7.0)
    assert margins[0] == best


def test_candidates_for_headroom_are_those_of_the_largest_expected_rates_where_these_are_known() -> None:
    trials = [make_trial(n, 0.2 + 0.1 * (n % 7), 5.0, 1.0 + n % 9, replicas=1 + n % 9) for n in range(40)]
    rule = RecommendSpec(rule="most_headroom", usd_per_hour=7.0)
    candidates = headroom_candidates(trials, rule, expected=lambda trial: 2.0 * trial.deployment.pool.replicas)
    assert [trial.deployment.pool.replicas for trial in candidates] == [7, 6, 5, 4]
    alike = [[t for t in trials if t.deployment == candidate.deployment] for candidate in candidates]
    assert [c.worst_margin for c in candidates] == [max(t.worst_margin for t in others) for others in alike]


def test_the_table_s_limit_is_the_study_s_or_twice_the_cheapest() -> None:
    trials = [make_trial(0, 1.0, 5.0, 4.0), make_trial(1, 0.5, 5.0, 6.0)]
    assert table_limit_usd(trials, OBJECTIVES, RecommendSpec()) == 8.0
    assert table_limit_usd(trials, OBJECTIVES, RecommendSpec(rule="lowest_latency", usd_per_hour=5.0)) == 5.0


def test_engines_start_with_their_own_defaults() -> None:
    gib = 2**30
    assert default_engine("vllm", 80 * gib).chunk_tokens == 8192
    assert default_engine("vllm", 48 * gib).chunk_tokens == 2048
    sizes = [default_engine("sglang", size * gib).chunk_tokens for size in (24, 48, 80, 141, 180)]
    assert sizes == [2048, 4096, 8192, 8192, 16384]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_baseline_has_the_fewest_replicas_of_plain_workers_that_meet_the_slo(engine: str) -> None:
    evaluator = FakeEvaluator()

    def what_if(deployment: DeploymentSpec, factors, load: float) -> Evaluation:  # type: ignore[no-untyped-def]
        assert (factors, load) == ({}, 1.0)
        return evaluator(Job(0, deployment))

    problem = make_problem()
    best = evaluator(Job(1, make_deployment("fast", 6, engine))).trial(3, Job(1, make_deployment("fast", 6, engine)))
    assessor = Assessor(uncertainty(4), Known(), what_if=what_if)
    simplest = find_baseline(problem, assessor, best, 80 * 2**30)
    assert simplest is not None
    assert simplest.feasible
    assert simplest.number == BASELINE
    pool = simplest.deployment.pools[0]
    assert (pool.engine.name, pool.accelerator, pool.tensor_parallel, pool.tiers) == (engine, "fast", 1, [])
    assert simplest.deployment.router.policy == "round_robin"
    fewer = simplest.deployment.model_copy(update={"pools": [pool.model_copy(update={"replicas": pool.replicas - 1})]})
    assert not evaluator(Job(0, fewer)).feasible
    assert assessor.simulations <= SIMULATIONS
    text = against_baseline(best, simplest, OBJECTIVES)
    assert f"${simplest.metrics['usd_per_hour']:,.2f} per hour" in text
    assert "TTFT p99" in text


@pytest.mark.parametrize(("engine", "slots"), [("sglang", 8), ("vllm", 1)])
def test_the_baseline_has_what_agents_calls_need_as_the_engine_keeps_it(engine: str, slots: int) -> None:
    evaluator = FakeEvaluator()
    agents = AgentMemorySpec.model_validate({"policy": "distance", "adapters": {"rank": 32}, "slots": 100})
    plain = make_deployment("fast", 6, engine)

    def baseline(of: AgentMemorySpec | None) -> AgentMemorySpec | None:
        pool = plain.pools[0].model_copy(update={"agents": of})
        job = Job(1, plain.model_copy(update={"pools": [pool]}))
        assessor = Assessor(uncertainty(4), Known(), what_if=lambda d, *_: evaluator(Job(0, d)))
        simplest = find_baseline(make_problem(), assessor, evaluator(job).trial(3, job), 80 * 2**30)
        assert simplest is not None
        return simplest.deployment.pools[0].agents

    memory = baseline(agents)
    assert memory is not None
    assert (memory.policy, memory.adapters, memory.slots) == ("lru", agents.adapters, slots)
    assert baseline(agents.model_copy(update={"adapters": None, "slots": None})) is None
    assert baseline(None) is None


def test_where_one_rank_never_does_the_baseline_has_more() -> None:
    def what_if(deployment: DeploymentSpec, factors, load: float) -> Evaluation:  # type: ignore[no-untyped-def]
        fake = FakeEvaluator(base_ttft_s=0.2 if deployment.pools[0].tensor_parallel > 1 else 90.0)
        return fake(Job(0, deployment))

    assessor = Assessor(uncertainty(4), Known(), what_if=what_if)
    simplest = find_baseline(make_problem(), assessor, make_trial(0, 1.0, 5.0, 4.0, replicas=4), 80 * 2**30)
    assert simplest is not None
    assert simplest.feasible
    assert simplest.deployment.pools[0].tensor_parallel == 2


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"recommend": {"rule": "lowest_latency"}}, "needs the most that may be spent"),
        ({"recommend": {"rule": "cheapest", "usd_per_hour": 5.0}}, "leave it out"),
        ({"confidence": {"at_least": 0.9, "draws": 0}}, "at_least needs draws"),
        ({"confidence": {"at_least": 1.0}}, "less than 1"),
    ],
)
def test_what_contradicts_itself_is_refused(keys: dict[str, object], message: str) -> None:
    plain = {"model": "m", "workload": {"trace": "t"}, "slo": "s", "space": "p"}
    with pytest.raises(ValueError, match=message):
        StudySpec.model_validate(plain | keys)


def test_equal_prices_and_free_hardware_are_said() -> None:
    free = make_trial(0, 1.0, 5.0, 0.0)
    assert "as dear" in against_baseline(free, make_trial(BASELINE, 1.0, 5.0, 0.0), OBJECTIVES)
    assert not np.isnan(price_of(free))
