"""What every router must do, whichever it is; a new policy is picked up by its name."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisearch.base.policies import ROUTERS
from hisearch.simulate import simulate
from hisearch.simulate.engine import simulate_fleet
from hisearch.simulate.plans.fleet import FleetPlan, PoolPlan
from hisearch.simulate.results.tables import Outcome
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.specs.deployments.routing import RouterName, RouterSpec
from tests.kernels.systems import (
    POLICIES,
    System,
    admission_with,
    compiled,
    examples,
    plan,
    settled,
    sglang_engines,
    systems,
    vllm_engines,
)
from tests.reference.random_traces import TraceShape, random_trace

ANY = systems(vllm_engines() | sglang_engines(), repeats=True, host=True)
ENGINE = EngineSpec(name="vllm")


def spec(policy: str, **parameters: float) -> RouterSpec:
    return RouterSpec.model_validate({"policy": policy, **parameters})


def test_every_policy_that_a_spec_may_name_exists() -> None:
    assert set(ROUTERS) == set(get_args(RouterName)) == set(POLICIES)


@pytest.mark.parametrize("policy", POLICIES)
@examples(40)
@given(system=ANY, workers=st.integers(1, 70))
def test_worker_is_valid(policy: str, system: System, workers: int) -> None:
    table = settled(replace(system, workers=workers, router=spec(policy))).requests
    assert ((table.worker >= 0) & (table.worker < workers))[table.finished].all()
    assert (table.worker[~table.finished] == -1).all()


@pytest.mark.parametrize("policy", POLICIES)
@examples(20)
@given(system=ANY)
def test_routes_are_decided_by_the_seed(policy: str, system: System) -> None:
    system = replace(system, workers=5, router=spec(policy))
    assert settled(system).requests.worker.tolist() == settled(system).requests.worker.tolist()


@pytest.mark.parametrize("policy", POLICIES)
@examples(20)
@given(system=ANY)
def test_one_worker_needs_no_router(policy: str, system: System) -> None:
    alone = replace(system, workers=1)
    routed = settled(replace(alone, router=spec(policy))).requests
    plain = settled(replace(alone, router=RouterSpec())).requests
    np.testing.assert_array_equal(routed.finish_s, plain.finish_s)
    np.testing.assert_array_equal(routed.hit_tokens, plain.hit_tokens)


@pytest.mark.parametrize("policy", [policy for policy in POLICIES if ROUTERS[policy].shares_load])
def test_load_is_shared(policy: str) -> None:
    """Unrelated requests of one size, arriving together, spread over the workers."""
    shape = TraceShape(requests=400, shared_prefixes=0, follow_up=0.0, same_time=1.0, repeat=0.0)
    trace = compiled(random_trace(1, shape))
    worker = plan(ENGINE, 1 << 20)
    counts = simulate(worker, trace, replicas=4, router=spec(policy), seed=5).workers.requests
    assert counts.sum() == 400
    # Random routes miss an even share by four standard deviations at most: 4 * sqrt(400 * 3 / 16) = 35.
    assert (np.abs(counts - 100) <= 35).all()


def test_round_robin_takes_turns() -> None:
    trace = compiled(random_trace(2, TraceShape(requests=30, follow_up=0.0)))
    table = simulate(plan(ENGINE, 1 << 20), trace, replicas=4, router=spec("round_robin")).requests
    assert table.worker.tolist() == [k % 4 for k in range(30)]


def test_power_of_two_is_random_where_workers_tell_no_loads() -> None:
    """vLLM answers no ``/get_load``: two workers, of which the first drawn is taken."""
    trace = compiled(random_trace(3, TraceShape(requests=400, follow_up=0.0, same_time=1.0, repeat=0.0)))
    counts = simulate(plan(ENGINE, 1 << 20), trace, replicas=2, router=spec("power_of_two")).workers.requests
    assert abs(int(counts[0]) - 200) <= 40  # four standard deviations


@pytest.mark.parametrize("mode", ["random", "min_load", "min_group"])
def test_manual_keeps_a_session_on_its_worker(mode: str) -> None:
    shape = TraceShape(requests=120, follow_up=0.7, fork=0.0, shared_prefixes=0, repeat=0.0, rate_rps=5.0)
    arrays = random_trace(4, shape)
    router = RouterSpec.model_validate({"policy": "manual", "assignment_mode": mode})
    table = simulate(plan(ENGINE, 1 << 20), compiled(arrays), replicas=4, router=router).requests
    for session in set(arrays.session.tolist()):
        assert len(set(table.worker[arrays.session == session].tolist())) == 1
    assert len(set(table.worker.tolist())) == 4


def test_the_first_worker_is_another_at_each_start() -> None:
    """With all idle an unmatched prompt goes to the first worker of the router's order, which the seed draws."""
    trace = compiled(random_trace(1, TraceShape(requests=1)))
    firsts = {
        int(
            simulate(plan(ENGINE, 1 << 20), trace, replicas=4, router=spec("cache_aware"), seed=seed).requests.worker[0]
        )
        for seed in range(40)
    }
    assert firsts == {0, 1, 2, 3}


def test_cache_aware_keeps_a_conversation_together() -> None:
    shape = TraceShape(requests=60, follow_up=0.7, fork=0.0, shared_prefixes=0, repeat=0.0, rate_rps=5.0)
    arrays = random_trace(4, shape)
    router = spec("cache_aware", cache_threshold=0.0, balance_abs_threshold=1000)
    table = simulate(plan(ENGINE, 1 << 20), compiled(arrays), replicas=4, router=router).requests
    followers = np.flatnonzero(arrays.previous >= 0)
    assert len(followers) > 20
    np.testing.assert_array_equal(table.worker[followers], table.worker[arrays.previous[followers]])


def test_cache_aware_balances_before_it_looks_at_caches() -> None:
    shape = TraceShape(requests=40, follow_up=0.0, shared_prefixes=1, same_time=1.0, repeat=1.0)
    trace = compiled(random_trace(5, shape))
    worker = plan(ENGINE, 1 << 20)
    together = spec("cache_aware", balance_abs_threshold=1000)
    spread = spec("cache_aware", balance_abs_threshold=3, balance_rel_threshold=1.0)
    assert simulate(worker, trace, replicas=4, router=together).workers.requests.max() == 40
    counts = simulate(worker, trace, replicas=4, router=spread).workers.requests
    assert counts.max() - counts.min() <= 4


def test_consistent_hash_keeps_sessions_together_within_its_load_factor() -> None:
    shape = TraceShape(requests=60, follow_up=0.7, fork=0.0, shared_prefixes=0, repeat=0.0, rate_rps=5.0)
    arrays = random_trace(4, shape)
    router = spec("consistent_hash", load_factor=1000.0)
    table = simulate(plan(ENGINE, 1 << 20), compiled(arrays), replicas=4, router=router).requests
    for session in set(arrays.session.tolist()):
        assert len(set(table.worker[arrays.session == session].tolist())) == 1
    together = TraceShape(requests=400, shared_prefixes=0, follow_up=0.0, same_time=1.0, repeat=0.0)
    tight = spec("consistent_hash", load_factor=1.0)
    counts = simulate(plan(ENGINE, 1 << 20), compiled(random_trace(1, together)), replicas=4, router=tight)
    assert counts.workers.requests.max() <= 101


def test_kv_aware_goes_where_the_prompt_is_cached() -> None:
    shape = TraceShape(requests=60, follow_up=0.7, fork=0.0, shared_prefixes=0, repeat=0.0, rate_rps=0.5)
    arrays = random_trace(4, shape)
    sees = simulate(plan(ENGINE, 1 << 20), compiled(arrays), replicas=4, router=spec("kv_aware"))
    blind = simulate(plan(ENGINE, 1 << 20), compiled(arrays), replicas=4, router=spec("round_robin"))
    followers = np.flatnonzero(arrays.previous >= 0)
    same = sees.requests.worker[followers] == sees.requests.worker[arrays.previous[followers]]
    assert same.mean() > 0.9
    assert sees.hit_rate > blind.hit_rate
    late = simulate(plan(ENGINE, 1 << 20), compiled(arrays), replicas=4, router=spec("kv_aware", staleness_s=1e6))
    assert late.hit_rate < sees.hit_rate


def test_cost_aware_fills_the_cheap_pool_first() -> None:
    trace = compiled(random_trace(7, TraceShape(requests=40, follow_up=0.0, same_time=1.0, repeat=0.0)))
    worker = plan(ENGINE, 1 << 20)
    pools = (PoolPlan(worker, 1, "dear", usd_per_hour=4.0), PoolPlan(worker, 2, "cheap", usd_per_hour=1.0))
    table = simulate_fleet(FleetPlan(pools, spec("cost_aware", fill_requests=5)), trace).requests
    assert table.worker[:10].tolist() == [1] * 5 + [2] * 5
    assert (table.worker[10:15] == 0).all()


@pytest.mark.parametrize(("policy", "expected"), [("queue_cap", 6), ("token_bucket", 5), ("slo_shedding", 4)])
def test_admission_turns_away_what_is_too_much(policy: str, expected: int) -> None:
    """Forty requests of one length at once, on two workers."""
    arrays = random_trace(7, TraceShape(requests=40, follow_up=0.0, same_time=1.0, repeat=0.0, shared_prefixes=0))
    worker = plan(ENGINE, 1 << 20)
    fleet = FleetPlan((PoolPlan(worker, 2),))
    arrays.arrival_s[:] = 0.0
    tokens_per_s = fleet.pools[0].prefill_tokens_per_s
    wait_s = float(np.sort(arrays.input_tokens)[:2].sum()) / tokens_per_s
    rule = admission_with(policy, requests_per_worker=3, rate_rps=1.0, burst_requests=5.0, max_wait_s=wait_s)
    outcome = simulate_fleet(replace(fleet, admission=rule), compiled(arrays)).requests.outcome
    let_in = int((outcome == Outcome.FINISHED).sum())
    assert (outcome[outcome != Outcome.FINISHED] == Outcome.SHED).all()
    if policy == "slo_shedding":
        assert 2 <= let_in < 40
    else:
        assert let_in == expected
