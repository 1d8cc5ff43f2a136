"""What every router must do, whichever it is; a new policy is picked up by its name."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisearch.simulate import simulate
from hisearch.simulate.engine import _ROUTERS
from hisearch.specs.deployment import EngineSpec
from hisearch.specs.routing import RouterName, RouterSpec
from tests.kernels.systems import (
    POLICIES,
    System,
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
    assert set(_ROUTERS) == set(get_args(RouterName)) == set(POLICIES)
    assert sorted(_ROUTERS.values()) == list(range(len(_ROUTERS)))


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


@pytest.mark.parametrize("policy", POLICIES)
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


def test_power_of_two_never_takes_the_only_loaded_worker() -> None:
    """Two workers: both are always drawn, so a request goes to the one with fewer prompt tokens in flight."""
    trace = compiled(random_trace(3, TraceShape(requests=40, follow_up=0.0, same_time=1.0, repeat=0.0)))
    table = simulate(plan(ENGINE, 1 << 20), trace, replicas=2, router=spec("power_of_two")).requests
    tokens, requests = [0, 0], [0, 0]
    for k in range(40):
        expected = min((0, 1), key=lambda w: (tokens[w], requests[w], w))
        assert table.worker[k] == expected
        tokens[expected] += int(trace.arrays.input_tokens[k])
        requests[expected] += 1


def test_cache_aware_keeps_a_conversation_together() -> None:
    shape = TraceShape(requests=60, follow_up=0.7, fork=0.0, shared_prefixes=0, repeat=0.0, rate_rps=5.0)
    arrays = random_trace(4, shape)
    router = spec("cache_aware", cache_threshold=0.0, balance_abs_threshold=1000)
    table = simulate(plan(ENGINE, 1 << 20), compiled(arrays), replicas=4, router=router).requests
    followers = np.flatnonzero(arrays.previous >= 0)
    assert len(followers) > 20
    np.testing.assert_array_equal(table.worker[followers], table.worker[arrays.previous[followers]])
    assert len(set(table.worker.tolist())) == 4


def test_cache_aware_balances_before_it_looks_at_caches() -> None:
    shape = TraceShape(requests=40, follow_up=0.0, shared_prefixes=1, same_time=1.0, repeat=1.0)
    trace = compiled(random_trace(5, shape))
    worker = plan(ENGINE, 1 << 20)
    together = spec("cache_aware", balance_abs_threshold=1000)
    spread = spec("cache_aware", balance_abs_threshold=3, balance_rel_threshold=1.0)
    assert simulate(worker, trace, replicas=4, router=together).workers.requests.tolist() == [40, 0, 0, 0]
    counts = simulate(worker, trace, replicas=4, router=spread).workers.requests
    assert counts.max() - counts.min() <= 4
