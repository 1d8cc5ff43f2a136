"""Workers that come and go."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hisearch.base.policies import AUTOSCALERS
from hisearch.hardware.whole import Shared
from hisearch.kernels.fleet import cluster
from hisearch.latency.sharding import Parallelism
from hisearch.simulate import engine as engine_module
from hisearch.simulate.engine import simulate, simulate_fleet
from hisearch.simulate.plans.draw import Draw, SharedDraw
from hisearch.simulate.plans.fleet import FleetPlan, Incident, PoolPlan, TransferPlan
from hisearch.simulate.results.tables import Outcome
from hisearch.specs.deployments.cluster import AutoscaleSpec
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.specs.deployments.routing import RouterSpec
from tests.kernels.systems import ENGINES, POLICIES, compiled, examples, plan, router_with
from tests.kernels.test_lockstep_steps import lockstep_plan
from tests.reference.random_traces import TraceShape, random_trace

SHAPE = TraceShape(requests=60, rate_rps=10.0)
#: Before prefill and decode workers: two of these count the answers under way.
ROUTERS = {
    "least_outstanding_tokens": {"policy": "least_outstanding_tokens"},
    "cache_aware": {"policy": "cache_aware", "balance_abs_threshold": 0, "balance_rel_threshold": 1.0},
    "manual": {"policy": "manual", "assignment_mode": "min_group"},
}


def pool(name: str = "vllm", replicas: int = 2, spare: int = 0, scaler: AutoscaleSpec | None = None) -> PoolPlan:
    engine = EngineSpec.model_validate({"name": name, "max_running_requests": 8, "chunk_tokens": 64})
    return PoolPlan(plan(engine, 4000), replicas, spare=spare, scaler=scaler)


@examples(40)
@given(seed=st.integers(0, 10**6), steps=st.lists(st.tuples(st.floats(0.0, 8.0), st.booleans()), max_size=6))
def test_what_workers_share_is_there_for_as_long_as_they_are(seed: int, steps: list[tuple[float, bool]]) -> None:
    """Conservation: shared hardware draws idle power, counted moment by moment, by the workers that it is there for."""
    incidents, ups, downs = [], 0, 0
    for at_s, up in sorted(steps):
        if up:
            incidents.append(Incident(at_s, 0, 2 + ups, "up"))
            ups += 1
        elif downs < ups:
            incidents.append(Incident(at_s, 0, 2 + downs, "drain"))
            downs += 1
    shared = Shared(number=2, among=3, users=1, hosts=1, workers=4)
    draws = (SharedDraw(shared, shared.bought(2) / 2, 7.0), SharedDraw(Shared(1, 2, 1), 0.5, 30.0, False, host_w=11.0))
    worker = pool(spare=ups)
    plan = replace(worker.plan, shared_draws=draws)
    fleet = FleetPlan((replace(worker, plan=plan),), RouterSpec(), incidents=tuple(incidents))
    result = simulate_fleet(fleet, compiled(random_trace(seed, SHAPE)), seed=seed)
    (present,) = result.present_workers
    assert sum(share for _, share in present) == pytest.approx(1.0)
    assert sum(count * share for count, share in present) == pytest.approx(result.mean_workers[0])
    start_s, (use,) = float(result.requests.arrival_s.min()), result.pools
    own = Draw(plan.idle_w, plan.attached_idle_w, plan.power)
    begun, gone = result.workers.begun_s, np.nan_to_num(result.workers.gone_s, nan=np.inf)
    bounds = np.unique(np.clip(np.concatenate((begun, gone, [start_s])), start_s, start_s + result.makespan_s))
    bounds = np.append(bounds[~np.isnan(bounds)], start_s + result.makespan_s)
    joules = {"idle": 0.0, "attached": 0.0, "host": 0.0}
    for low, high in itertools.pairwise(bounds):
        count = int(((begun <= low) & (gone > low)).sum())
        devices, cards = shared.bought(count), -(-count // 2)
        plain = count * own.idle_w - count * (draws[0].part * 7.0 + 0.5 * 30.0)
        joules["idle"] += (high - low) * (plain + devices * 7.0 + cards * 30.0)
        joules["attached"] += (high - low) * (devices * 7.0 - count * draws[0].part * 7.0)
        joules["host"] += (high - low) * (cards * 11.0 - count * 0.5 * 11.0)
    present_s = result.mean_workers[0] * result.makespan_s
    assert use.idle_w * present_s == pytest.approx(joules["idle"])
    assert use.attached_idle_w * present_s == pytest.approx(joules["attached"], abs=1e-6)
    assert use.power.host_w * present_s == pytest.approx(joules["host"], abs=1e-6)


@examples(60)
@given(
    seed=st.integers(0, 10**6),
    name=st.sampled_from(ENGINES),
    policy=st.sampled_from(POLICIES),
    down_s=st.floats(0.0, 6.0),
    back_s=st.floats(0.1, 3.0),
)
# Believed caches outlived their workers, and drew requests to them.
@example(0, "vllm", "cache_aware", 1.4541323703632565, 0.5)
@example(945210, "vllm", "cache_aware", 1.3013321159370057, 0.215257897952906)
@example(828022, "trtllm", "cache_aware", 1.5934533885792925, 0.1108999721715433)
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


@examples(25)
@given(
    seed=st.integers(0, 10**6),
    name=st.sampled_from(["vllm", "sglang", "trtllm"]),
    reserve_first=st.booleans(),
    kind=st.sampled_from(["alone", "lockstep", "pipe"]),
    policy=st.sampled_from(sorted(ROUTERS)),
    role=st.sampled_from([0, 1]),
    down_s=st.floats(0.0, 6.0),
    back_s=st.floats(0.1, 3.0),
    local_tokens=st.sampled_from([0, 60]),
)
def test_disaggregated_workers_survive_the_death_of_either_worker(
    seed: int, name: str, reserve_first: bool, kind: str, policy: str, role: int, down_s: float, back_s: float,
    local_tokens: int,
) -> None:  # fmt: skip
    """L1; and whoever is left has given back all that it held for the dead one's requests (L3).

    The routers count no answer that has ended.
    """
    trace = compiled(random_trace(seed, SHAPE))
    split = {"alone": Parallelism(), "lockstep": Parallelism(attention_data=2), "pipe": Parallelism(pipeline=2)}[kind]
    if name == "trtllm" and kind == "pipe":
        split = Parallelism()
    engine = EngineSpec.model_validate({"name": name, "max_running_requests": 8, "chunk_tokens": 64})
    worker = lockstep_plan(engine, 4000, 2, ()) if kind == "lockstep" else replace(plan(engine, 4000), split=split)
    pools = tuple(PoolPlan(worker, 2, which, which, spare=1) for which in ("prefill", "decode"))  # type: ignore[arg-type]
    fleet = FleetPlan(
        pools,
        RouterSpec.model_validate(ROUTERS[policy]),
        RouterSpec.model_validate(ROUTERS[policy]),
        transfer=TransferPlan(reserve_first, reserve_first, 0.5, 0.01, 1e3, 1e6, 0.1, local_tokens, 8),
        incidents=(Incident(down_s, role, 0, "down"), Incident(down_s + back_s, role, 2, "up")),
        retry_s=0.05,
    )
    rooms = [engine_module.node_limit(pool, trace) for pool in pools]
    shared, sims = engine_module.allocate(fleet, trace, rooms, seed=seed)
    _, _, faulty = cluster.run(shared)
    assert faulty < 0
    assert (shared.members["streaming"] == 0).all()
    assert (shared.members["inflight_keys"] == 0).all()
    for sim in sims:
        assert not (sim.requests["outcome"] == Outcome.IN_FLIGHT).any()
        died = shared.members["died"][sim.config.first_member :][: sim.config.workers // sim.config.schedulers]
        alive = np.repeat(died == 0, sim.config.schedulers)
        assert (sim.workers["kv_pending"][alive] == 0).all()
        assert (sim.workers["waiting"][alive] == 0).all()
        # A pipeline's memory is its first micro-batch's.
        trees = sim.trees[: sim.config.workers][alive][:: sim.config.schedulers if kind == "pipe" else 1]
        assert (trees["free_pages"] + trees["evictable_pages"] == trees["capacity_pages"]).all()
    result = simulate_fleet(fleet, trace, seed=seed)
    table, dead = result.requests, 0 if role == 0 else 3
    assert (table.outcome == Outcome.FINISHED).all()
    assert (table.finish_s[table.worker == dead] <= down_s).all()
    assert (table.scheduled_s[table.prefill_worker == dead] <= down_s).all()
    assert result.workers.gone_s[dead] == down_s or result.makespan_s < down_s


@pytest.mark.parametrize("kind", ["lockstep", "pipe"])
def test_the_schedulers_of_a_dead_worker_die_with_it(kind: str) -> None:
    engine = EngineSpec.model_validate({"name": "vllm", "max_running_requests": 8, "chunk_tokens": 64})
    piped = replace(plan(engine, 4000), split=Parallelism(pipeline=3))
    worker = lockstep_plan(engine, 4000, 3, ()) if kind == "lockstep" else piped
    fleet = FleetPlan((PoolPlan(worker, 2),), incidents=(Incident(1.5, 0, 1, "down"),), retry_s=0.1)
    table = simulate_fleet(fleet, compiled(random_trace(8, SHAPE))).requests
    assert (table.outcome == Outcome.FINISHED).all()
    assert (table.worker == 1).any()
    assert (table.finish_s[table.worker == 1] <= 1.5).all()
    assert table.first_visible_s is not None
    assert not (table.first_visible_s < table.first_token_s).any()
    assert not (table.first_visible_s > table.finish_s).any()


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


@pytest.mark.parametrize("policy", POLICIES)
@examples(10)
@given(seed=st.integers(0, 10**6), name=st.sampled_from(ENGINES), at_s=st.floats(0.0, 4.0))
def test_no_router_sends_to_a_drained_worker(policy: str, seed: int, name: str, at_s: float) -> None:
    router = router_with(policy, cache_threshold=0.05)
    fleet = FleetPlan((pool(name, replicas=3),), router, incidents=(Incident(at_s, 0, 1, "drain"),))
    table = simulate_fleet(fleet, compiled(random_trace(seed, SHAPE)), seed=seed).requests
    assert (table.outcome == Outcome.FINISHED).all()
    # Incidents come before the arrivals of their moment.
    assert (table.arrival_s[table.worker == 1] < at_s).all()


def test_an_incident_after_the_end_changes_nothing() -> None:
    trace = compiled(random_trace(2, SHAPE))
    plain = simulate(pool().plan, trace, replicas=2).requests
    late = simulate_fleet(FleetPlan((pool(),), incidents=(Incident(1e6, 0, 1, "down"),)), trace).requests
    np.testing.assert_array_equal(plain.finish_s, late.finish_s)


def test_an_autoscaler_keeps_within_its_bounds_and_pays_for_starting() -> None:
    scaler = AutoscaleSpec(target=3.0, max_replicas=4, period_s=0.2, startup_s=0.5, calm_s=1.0)
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


@pytest.mark.parametrize("metric", AUTOSCALERS)
def test_more_load_means_more_workers(metric: str) -> None:
    means = []
    for rate in (2.0, 40.0):
        scaler = AutoscaleSpec(
            metric=metric, target=2.0 if metric == "requests_in_flight" else 0.01, max_replicas=6, period_s=0.2,
            startup_s=0.1, calm_s=0.5,
        )  # fmt: skip
        trace = compiled(random_trace(4, replace(SHAPE, requests=200, rate_rps=rate)))
        means.append(simulate_fleet(FleetPlan((pool(replicas=1, scaler=scaler),)), trace).mean_workers[0])
    assert means[0] < means[1]
