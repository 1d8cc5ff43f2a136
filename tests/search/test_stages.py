import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from hisearch.latency.costs import CompiledCosts, LockstepCosts
from hisearch.latency.step_cost import decode_step_seconds, law_costs
from hisearch.search.driver import NothingFitsError, search
from hisearch.search.evaluate.runner import TrialRunner
from hisearch.search.model.demand import measure_demand
from hisearch.search.model.estimates import Estimate, estimate, largest, lone_seconds, of_worker, prefill_seconds
from hisearch.search.model.sizing import Sizing
from hisearch.search.stages.cache import bases, search_cache
from hisearch.search.stages.execution import group_count, search_execution
from hisearch.search.stages.routing import search_routing, slices
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.specs.studies.slo import SloSpec, SloTerm
from hisearch.traces.compiled import CompiledTrace, TraceArrays
from tests.search.fakes import OBJECTIVES, FakeEvaluator, make_problem, make_trial, tier_gib


@pytest.mark.parametrize(("guess", "needed", "most"), list(itertools.product([1, 3, 8, 20], [1, 2, 5, 13, 20], [20])))
def test_sizing_finds_the_fewest(guess: int, needed: int, most: int) -> None:
    sizing = Sizing(guess, most)
    tried = []
    while (counts := sizing.next) is not None:
        tried.append(counts)
        sizing.tell(counts, counts[0] >= needed, needed / counts[0] - 1)
    assert sizing.fewest == (needed,)
    assert len(tried) == len(set(tried))
    assert len(tried) <= 2 * math.log2(most) + 2


@pytest.mark.parametrize(("needed", "cap"), list(itertools.product([1, 2, 5, 13, 20], [1, 4, 12, 20])))
def test_a_capped_sizing_finds_the_fewest_up_to_the_cap(needed: int, cap: int) -> None:
    sizing = Sizing(8, 20)
    while (counts := sizing.next) is not None:
        sizing.tell(counts, counts[0] >= needed, needed / counts[0] - 1)
        sizing.cap(cap)
    assert sizing.fewest is not None or needed > cap
    if sizing.fewest is not None and sizing.fewest[0] <= cap:
        assert sizing.fewest == (needed,)


def test_sizing_gives_up_where_more_replicas_do_not_help() -> None:
    sizing = Sizing(2, 1024)
    tried = []
    while (counts := sizing.next) is not None:
        tried.append(counts)
        sizing.tell(counts, False, 0.5)
    assert tried == [(2,), (4,)]
    assert sizing.fewest is None
    assert sizing.best_guess == (4,)


@pytest.mark.parametrize("guess", [1, 7])
def test_sizing_asks_for_no_second_count_where_requests_are_rejected(guess: int) -> None:
    sizing = Sizing(guess, 1024)
    sizing.tell((guess,), False, 0.25, healable=False)
    assert sizing.next is None
    assert sizing.fewest is None
    assert sizing.best_guess == (guess,)


def test_stage_2_simulates_a_worker_that_rejects_requests_once() -> None:
    problem = make_problem(simulations=300)
    kept = search_execution(problem, keep=8).kept
    runner = TrialRunner(FakeEvaluator(rejected={"over_kv_memory": 2}), problem.budget, workers=1)
    search_routing(problem, kept, runner, until=250)
    pools = [trial.deployment.pool.model_copy(update={"replicas": 1}) for trial in runner.trials if trial.comparable]
    assert pools
    assert all(pools.count(pool) == 1 for pool in pools)


def test_requests_over_the_models_window_end_the_search() -> None:
    problem = make_problem(simulations=300)
    runner = TrialRunner(FakeEvaluator(rejected={"over_window": 1}), problem.budget, workers=1)
    outcome = search(problem, runner)
    assert outcome.recommendation is None
    assert {trial.stage for trial in outcome.trials} == {2}
    assert (outcome.stopped, outcome.ending.untried) == ("", ())
    assert len(outcome.trials) < 60


def test_sizing_reaches_the_limit_and_no_further() -> None:
    sizing = Sizing(3, 10)
    tried = []
    while (counts := sizing.next) is not None:
        tried.append(counts)
        sizing.tell(counts, False, 10.0 / counts[0])
    assert tried == [(3,), (6,), (10,)]


@pytest.mark.parametrize("limit", range(12))
def test_largest_is_the_boundary(limit: int) -> None:
    assert largest(lambda n: n <= limit, 10) == min(limit, 10)


def test_prefill_in_chunks_pays_for_all_tokens_and_each_step() -> None:
    costs = law_costs(0.5, 0.001, 0.0)
    assert prefill_seconds(costs, 100, 250, 0) == pytest.approx(3 * 0.5 + 0.25)
    assert prefill_seconds(costs, 100, 0, 40) == 0.0


def test_the_estimated_batch_is_the_largest_within_the_bound() -> None:
    problem = make_problem()
    engine = EngineSpec(name="vllm", max_running_requests=2000, chunk_tokens=2048)
    costs = law_costs(0.02, 4e-4, 1e-9)
    estimated = estimate(costs, engine, 10**9, problem.demand, problem.slo, 0.0)
    prefill = prefill_seconds(costs, 2048, 1000, 0)

    def tpot_s(batch: int) -> float:
        return decode_step_seconds(costs, batch, round(batch * 1050.0)) + (batch - 1) * prefill / 100

    assert estimated.limit == "tpot"
    assert tpot_s(estimated.batch) <= 0.05 < tpot_s(estimated.batch + 1)
    assert estimated.capacity_rps == pytest.approx(estimated.batch / (100 * tpot_s(estimated.batch) + prefill))


def test_a_small_memory_bounds_the_batch() -> None:
    problem = make_problem()
    engine = EngineSpec(name="sglang", max_running_requests=64)
    estimated = estimate(law_costs(1e-4, 1e-6, 0.0), engine, 10_500, problem.demand, problem.slo, 0.0)
    assert (estimated.batch, estimated.limit) == (10, "kv")


@pytest.mark.parametrize(
    ("policy", "batch"), [("guaranteed_no_evict", 5), ("static_batch", 5), ("max_utilization", 10)]
)
def test_declared_outputs_bound_the_batch_where_memory_is_reserved_for_them(policy: str, batch: int) -> None:
    problem = make_problem()
    engine = EngineSpec.model_validate({"name": "trtllm", "capacity_policy": policy, "max_running_requests": 64})
    demand = replace(problem.demand, mean_reserved_tokens=2100.0)
    estimated = estimate(law_costs(1e-4, 1e-6, 0.0), engine, 10_500, demand, problem.slo, 0.0)
    assert (estimated.batch, estimated.limit) == (batch, "kv")


def test_reserved_tokens_are_of_prompts_and_declared_outputs_over_all_decode_steps() -> None:
    trace = tree_trace()
    arrays = trace.arrays._replace(max_output_tokens=np.array([50, 20, 10, 10], dtype=np.int64))
    demand = measure_demand(CompiledTrace("tree", arrays, ["a", "b", "c", "d"], "digest"), make_problem().slo)
    assert demand.mean_reserved_tokens == pytest.approx((65 * 5 + 34 * 2 + 35 + 30) / 9)


def tree_trace() -> CompiledTrace:
    """Two sessions of two turns behind 10 shared tokens; each second prompt holds the first answer."""
    ints = {"dtype": np.int64}
    arrays = TraceArrays(
        arrival_s=np.array([0.0, 1.0, 2.0, np.nan]),
        input_tokens=np.array([15, 14, 25, 20], **ints),
        output_tokens=np.array([5, 2, 1, 1], **ints),
        max_output_tokens=np.array([5, 2, 1, 1], **ints),
        previous=np.array([-1, -1, -1, 1], dtype=np.int32),
        think_s=np.array([0.0, 0.0, 0.0, 3.0]),
        session=np.zeros(4, dtype=np.int32),
        tenant=np.zeros(4, dtype=np.int32),
        priority=np.zeros(4, dtype=np.int32),
        thinking_tokens=np.zeros(4, **ints),
        prompt_node=np.array([2, 4, 6, 8], dtype=np.int32),
        output_node=np.array([3, 5, 7, 9], dtype=np.int32),
        # 1: shared 0-10; 2: 10-15, 3: 15-20, 6: 20-25, 7: 25-26 | 4: 10-14, 5: 14-16, 8: 16-20, 9: 20-21
        parent=np.array([-1, 0, 1, 2, 1, 4, 3, 6, 5, 8], dtype=np.int32),
        start_tokens=np.array([0, 0, 10, 15, 10, 14, 20, 25, 16, 20], **ints),
        end_tokens=np.array([0, 10, 15, 20, 14, 16, 25, 26, 20, 21], **ints),
    )
    return CompiledTrace("tree", arrays, ["a", "b", "c", "d"], "digest")


def test_demand_counts_what_an_unlimited_cache_would_hit() -> None:
    slo = SloSpec(terms=[SloTerm(metric="ttft_s", percentile=99, at_most_s=2.0)])
    demand = measure_demand(tree_trace(), slo)
    assert demand.new_tokens.tolist() == [15, 4, 5, 4]
    assert demand.unique_tokens == 26 + 11
    assert demand.ideal_hit_rate == pytest.approx(1 - 28 / 74)
    # the follow-up is expected at 1 + 1 (half the TTFT bound) + 2 * 0.03 + 3 s
    assert demand.mean_rps == pytest.approx(4 / 5.06)
    assert measure_demand(tree_trace(), slo, load=2.0).mean_rps == pytest.approx(4 / 4.56)


def test_demand_leaves_out_what_the_models_window_refuses() -> None:
    slo = SloSpec(
        terms=[
            SloTerm(metric="ttft_s", percentile=99, at_most_s=2.0),
            SloTerm(metric="tpot_s", percentile=99, at_most_s=0.5),
        ]
    )
    demand, unlimited = measure_demand(tree_trace(), slo, window_tokens=21), measure_demand(tree_trace(), slo)
    assert demand.requests == 4
    assert demand.input_tokens.tolist() == [15, 14, 20]
    assert demand.new_tokens.tolist() == [15, 4, 4]
    assert demand.output_tokens.tolist() == [5, 2, 1]
    assert demand.unique_tokens == unlimited.unique_tokens - 6  # 20-25 of the prompt, and its answer
    assert demand.mean_rps == pytest.approx(3 / 5.5)
    assert demand.least_rps == pytest.approx(3 / 4 * unlimited.least_rps)
    for window_tokens in (26, 5):  # all fit, or none does
        assert measure_demand(tree_trace(), slo, window_tokens=window_tokens).input_tokens.tolist() == [15, 14, 25, 20]


def test_stage_1_looks_at_everything_and_keeps_every_accelerator_and_engine() -> None:
    problem = make_problem(accelerators=("slow", "fast", "dear", "tiny"))
    report = search_execution(problem, keep=4)
    assert report.combinations == group_count(problem) == 4 * 2 * 2 * 2 * 2
    assert report.skipped["does not fit"] + report.skipped["engine limits contradict"] == 2 * (4 + 3) + 2 * 4
    assert {c.pool.accelerator for c in report.kept} == {"slow", "fast", "dear"}
    assert {c.pool.engine.name for c in report.kept} == {"sglang", "vllm"}
    assert "3.00 GiB short" in report.nearest_fit


def test_stage_1_sizes_by_the_busiest_window() -> None:
    problem = make_problem()
    for candidate in search_execution(problem, keep=10).kept:
        enough = candidate.replicas * candidate.estimate.capacity_rps
        assert enough >= problem.demand.peak_rps or candidate.replicas == candidate.max_replicas
        assert (candidate.replicas - 1) * candidate.estimate.capacity_rps < problem.demand.peak_rps


def test_nothing_that_fits_is_an_error_that_says_how_much_is_missing() -> None:
    problem = make_problem(accelerators=("tiny",))
    with pytest.raises(NothingFitsError, match=r"3\.00 GiB short"):
        search(problem, TrialRunner(FakeEvaluator(), problem.budget))


def test_slices_grow_to_the_whole_trace() -> None:
    assert slices(9000, 300) == [pytest.approx(1 / 9), pytest.approx(1 / 3), 1.0]
    assert slices(3000, 300) == [pytest.approx(1 / 3), 1.0]
    assert slices(500, 300) == [1.0]
    assert slices(9000, 10) == [1.0]


def test_stage_2_finds_the_fewest_replicas_of_the_best_candidate() -> None:
    problem = make_problem(simulations=300)
    runner = TrialRunner(FakeEvaluator(), problem.budget, workers=1)
    search_routing(problem, search_execution(problem, keep=8).kept, runner, until=250)
    full_trials = [t for t in runner.trials if t.comparable]
    best = min((t for t in full_trials if t.feasible), key=lambda t: t.metrics["usd_per_hour"])
    pool, router = best.deployment.pool, best.deployment.router
    fewer = [
        t
        for t in full_trials
        if t.deployment.pool.model_copy(update={"replicas": 1}) == pool.model_copy(update={"replicas": 1})
        and t.deployment.pool.replicas == pool.replicas - 1
        and t.deployment.router == router
    ]
    assert len(fewer) == 1
    assert not fewer[0].feasible
    assert {t.deployment.router.policy for t in runner.trials} == {"round_robin", "power_of_two", "cache_aware"}
    assert router.policy == "cache_aware"  # which the fake world rewards
    assert any(t.slice_fraction < 1 for t in runner.trials)
    assert {t.deployment.pool.engine.name for t in full_trials if t.feasible} == {"sglang", "vllm"}
    assert {t.deployment.pool.accelerator for t in full_trials} == {"slow", "fast", "dear"}


def test_stage_3_starts_from_the_cheapest_and_from_narrow_misses() -> None:
    trials = [
        make_trial(0, 1.0, 5.0, 9.0),
        make_trial(1, 1.5, 5.0, 4.0),
        make_trial(2, 2.2, 5.0, 3.0, feasible=False),
        make_trial(3, 9.0, 5.0, 2.0, feasible=False),
        make_trial(4, 2.1, 5.0, 5.0, feasible=False),
    ]
    assert [t.number for t in bases(trials, OBJECTIVES)] == [1, 0, 2]
    assert [t.number for t in bases(trials[2:], OBJECTIVES)] == [4, 2]
    assert bases([], OBJECTIVES) == []


def test_stage_3_stays_within_the_space_and_the_limit() -> None:
    problem = make_problem(simulations=150)
    runner = TrialRunner(FakeEvaluator(), problem.budget, workers=1)
    search_routing(problem, search_execution(problem, keep=6).kept, runner, until=90)
    before = runner.simulations
    search_cache(problem, runner, until=140)
    stage_3 = runner.trials[before:]
    assert stage_3
    assert runner.simulations <= 140
    assert all(t.stage == 3 for t in stage_3)
    low, high = problem.space.cache.memory_fraction
    for trial in stage_3:
        pool = trial.deployment.pool
        assert low <= pool.engine.memory_fraction <= high
        assert tier_gib(pool) in problem.space.cache.tiers[0].sizes()
        assert pool.engine.eviction == "lru" or pool.engine.name == "sglang"
    assert len({tier_gib(t.deployment.pool) for t in stage_3}) > 1


def test_stage_3_goes_on_from_what_it_made_before() -> None:
    problem = make_problem(simulations=150)
    ledgers = [TrialRunner(FakeEvaluator(), problem.budget, workers=1) for _ in range(2)]
    for runner, number in zip(ledgers, (1, 2), strict=True):
        search_routing(problem, search_execution(problem, keep=6).kept, runner, until=90)
        search_cache(problem, runner, until=110)
        made = runner.simulations
        search_cache(problem, runner, until=140, number=number)
        assert runner.simulations > made
    assert ledgers[0].trials != ledgers[1].trials  # another number draws otherwise


def test_all_attention_groups_of_a_worker_serve() -> None:
    """A worker of four groups carries four times what one does; a lone request waits for its own tokens alone."""
    tokens = np.arange(2049.0)
    own_s, shared_s = 1e-5 * tokens, 4e-5 * tokens
    law = law_costs(0.0, 5e-5, 0.0)._replace(token_s=own_s + shared_s)
    costs = CompiledCosts(law, law, 0.0, "law", "assumed", 0.0, lockstep=LockstepCosts(own_s, shared_s))
    assert lone_seconds(costs, 1) is law
    np.testing.assert_allclose(lone_seconds(costs, 4).token_s[1:], (1e-5 + 1e-5) * tokens[1:])
    figures = Estimate(3, "kv", 0.02, 0.1, 2.5, 0.3)
    assert of_worker(figures, 4) == replace(figures, capacity_rps=10.0)
