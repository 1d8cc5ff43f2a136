"""Workers that come and go."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisearch.simulate.engine import simulate, simulate_fleet
from hisearch.simulate.fleet import FleetPlan, Incident, PoolPlan, ScalerPlan
from hisearch.simulate.result import Outcome
from hisearch.specs.deployment import EngineSpec
from hisearch.specs.routing import RouterSpec
from tests.kernels.systems import compiled, examples, plan
from tests.reference.random_traces import TraceShape, random_trace

SHAPE = TraceShape(requests=60, rate_rps=10.0)


def pool(name: str = "vllm", replicas: int = 2, spare: int = 0, scaler: ScalerPlan | None = None) -> PoolPlan:
    engine = EngineSpec.model_validate({"name": name, "max_running_requests": 8, "chunk_tokens": 64})
    return PoolPlan(plan(engine, 4000), replicas, spare=spare, scaler=scaler)


@examples(25)
@given(
    seed=st.integers(0, 10**6),
    name=st.sampled_from(["vllm", "sglang", "trtllm"]),
    policy=st.sampled_from(["round_robin", "cache_aware", "least_outstanding_tokens", "power_of_two", "bucket"]),
    down_s=st.floats(0.0, 6.0),
    back_s=st.floats(0.1, 3.0),
)
def test_no_request_is_lost_when_a_worker_dies_and_another_is_there(
    seed: int, name: str, policy: str, down_s: float, back_s: float
) -> None:
    """L1: those of the dead worker are tried again; what comes back is another worker, with cold caches."""
    trace = compiled(random_trace(seed, SHAPE))
    incidents = (Incident(down_s, 0, 0, "down"), Incident(down_s + back_s, 0, 2, "up"))
    fleet = FleetPlan((pool(name, spare=1),), RouterSpec.model_validate({"policy": policy}), incidents=incidents)
    result = simulate_fleet(fleet, trace, seed=seed)
    assert (result.requests.outcome == Outcome.FINISHED).all()
    dead = result.requests.worker == 0
    assert (result.requests.finish_s[dead] <= down_s).all()
    assert (result.requests.scheduled_s[result.requests.worker == 2] >= down_s + back_s).all()
    assert result.workers.gone_s[0] == down_s or result.makespan_s < down_s


def test_requests_are_lost_where_no_worker_is_left() -> None:
    trace = compiled(random_trace(1, SHAPE))
    fleet = FleetPlan((pool(replicas=1),), incidents=(Incident(0.5, 0, 0, "down"),), retries=2, retry_s=0.1)
    table = simulate_fleet(fleet, trace).requests
    assert set(table.outcome.tolist()) == {Outcome.FINISHED, Outcome.LOST}
    assert (table.finish_s[table.finished] <= 0.5).all()


def test_a_drained_worker_finishes_what_it_has_and_takes_no_more() -> None:
    trace = compiled(random_trace(2, SHAPE))
    result = simulate_fleet(FleetPlan((pool(),), incidents=(Incident(1.0, 0, 1, "drain"),)), trace)
    mine = result.requests.worker == 1
    assert (result.requests.outcome == Outcome.FINISHED).all()
    assert (result.requests.arrival_s[mine] <= 1.0).all()
    assert result.workers.gone_s[1] == max(result.requests.finish_s[mine].max(), 1.0)


def test_an_incident_after_the_end_changes_nothing() -> None:
    trace = compiled(random_trace(2, SHAPE))
    plain = simulate(pool().plan, trace, replicas=2).requests
    late = simulate_fleet(FleetPlan((pool(),), incidents=(Incident(1e6, 0, 1, "down"),)), trace).requests
    np.testing.assert_array_equal(plain.finish_s, late.finish_s)


def test_an_autoscaler_keeps_within_its_bounds_and_pays_for_starting() -> None:
    scaler = ScalerPlan("requests_in_flight", target=3.0, least=1, most=4, period_s=0.2, startup_s=0.5, calm_s=1.0)
    trace = compiled(random_trace(4, replace(SHAPE, requests=200, rate_rps=30.0)))
    result = simulate_fleet(FleetPlan((pool(replicas=1, scaler=scaler),)), trace)
    assert (result.requests.outcome == Outcome.FINISHED).all()
    begun, gone = result.workers.begun_s, result.workers.gone_s
    used = ~np.isnan(begun)
    assert used.sum() > 1
    times = np.sort(np.concatenate([begun[used], gone[used & ~np.isnan(gone)]]))
    for at in times:
        there = used & (begun <= at) & ~(gone <= at)
        assert there.sum() <= 4 + (gone == at).sum()
    for worker in np.flatnonzero(used)[1:]:
        mine = result.requests.worker == worker
        assert (result.requests.arrival_s[mine] >= begun[worker] + 0.5).all()
    assert 1.0 <= result.mean_workers[0] <= 4.0


@pytest.mark.parametrize("metric", ["requests_in_flight", "wait_s"])
def test_more_load_means_more_workers(metric: str) -> None:
    means = []
    for rate in (2.0, 40.0):
        scaler = ScalerPlan(metric, 2.0 if metric == "requests_in_flight" else 0.01, 1, 6, 0.2, 0.1, 0.5)  # type: ignore[arg-type]
        trace = compiled(random_trace(4, replace(SHAPE, requests=200, rate_rps=rate)))
        means.append(simulate_fleet(FleetPlan((pool(replicas=1, scaler=scaler),)), trace).mean_workers[0])
    assert means[0] < means[1]
