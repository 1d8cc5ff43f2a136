"""Workers with cache tiers die and return: losses, remainders, and no page lost or held twice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hisearch.kernels.fleet import cluster
from hisearch.kernels.layout import hicache as hl
from hisearch.kernels.layout import sim as la
from hisearch.kernels.layout import tiers as tl
from hisearch.simulate import engine as engine_module
from hisearch.simulate.engine import simulate_fleet
from hisearch.simulate.plans.fleet import FleetPlan, Incident, PoolPlan
from hisearch.simulate.plans.plan import WorkerPlan
from hisearch.simulate.plans.tier_plan import MovementPlan, TierPlan, TransferLaw
from hisearch.simulate.results.tables import Outcome
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.specs.deployments.routing import RouterSpec
from hisearch.traces.compiled import CompiledTrace
from hisearch.traces.compiler import compile_trace
from hisearch.traces.trace import make_trace
from tests.kernels import invariants as shared
from tests.kernels import store_invariants, tier_invariants
from tests.kernels.group_systems import grouped, offloading_groups
from tests.kernels.systems import System, compiled, examples, lmcache_systems, offload_systems, plan
from tests.kernels.test_chunk_laws import check_block_tables, slots_of
from tests.kernels.tier_systems import TieredSystem, chains, limited_stores, tiered
from tests.reference.random_traces import TraceShape, random_trace

SHAPE = TraceShape(requests=40, rate_rps=12.0)
SYSTEMS = st.one_of(
    tiered(st.none() | limited_stores(), most_workers=3, shape=SHAPE),
    chains(most_workers=3, shape=SHAPE),
    grouped(st.none() | limited_stores(), most_workers=3, open_loop=False, shape=SHAPE),
)


def struck(system: TieredSystem, down_s: float, back_s: float, whole_host: bool) -> FleetPlan:
    """The deployment, with a worker or all of its host dying and coming back."""
    first = system.workers_per_node if whole_host else 1
    dead = list(range(min(first, system.workers)))
    incidents = [Incident(down_s, 0, w, "down") for w in dead]
    incidents += [Incident(down_s, 0, 0, "host_lost")] * whole_host
    incidents += [Incident(down_s + back_s, 0, system.workers + k, "up") for k in range(len(dead))]
    pool = PoolPlan(system.plan, system.workers, spare=len(dead), back_for=tuple(dead))
    return FleetPlan((pool,), system.router, incidents=tuple(incidents), retry_s=0.05, retries=100)


def run(fleet: FleetPlan, system: System) -> tuple[Any, la.Sim]:
    """The arrays as a run leaves them, of the fleet and of its pool."""
    records = engine_module.node_limit(fleet.pools[0], system.trace)
    # Trees of the dead keep their nodes.
    for _ in range(4):
        arrays, (sim,) = engine_module.allocate(fleet, system.trace, [records], seed=system.seed)
        _, _, faulty = cluster.run(arrays)
        if faulty < 0:
            return arrays, sim
        if sim.counters[la.FAULT] != la.NODE_POOL_FULL:
            break
        records *= 2
    # An engine may run out of memory whatever befalls it; anything else is a fault of the simulator.
    assert sim.counters[la.FAULT] == la.OUT_OF_MEMORY
    assume(False)
    raise AssertionError


@examples(150)
@given(SYSTEMS, st.floats(0.0, 4.0), st.floats(0.05, 2.0), st.booleans())
def test_nothing_is_lost_or_held_twice_when_workers_with_tiers_die(
    system: TieredSystem, down_s: float, back_s: float, whole_host: bool
) -> None:
    """L1, L3: whoever is left is sound, so are the stores, and records of the dead have been given back."""
    fleet = struck(system, down_s, back_s, whole_host)
    arrays, sim = run(fleet, system)
    assert set(sim.requests["outcome"].tolist()) <= {la.FINISHED, la.TOO_LARGE}
    records = tier_invariants._sorted_records(sim)
    for v in _stores_in_use(sim):
        _enter_losses(sim, v, whole_host)
        store_invariants.check_store(sim, v, records.runs[v])
    schedulers = int(sim.config.schedulers)
    alive = [w for w in range(int(sim.config.workers)) if not arrays.members[w // schedulers].died]
    for w in alive:
        worker = sim.workers[w]
        assert worker.waiting == worker.decoding == worker.running - worker.finished_pending == 0
        assert arrays.members[w // schedulers].inflight_requests == 0
        assert sim.hosts[w].fetching_tokens == 0
        shared._check_shape(sim, w, records.nodes[w])
    for w in set(range(int(sim.config.workers))) - set(alive):
        mine = sim.servers[hl.SERVERS * w : hl.SERVERS * (w + 1)]
        assert (mine["head"] < 0).all()
        assert (mine["slot"] < 0).all()
        assert sim.workers[w].event_slot < 0
    _check_fetch_records(sim)


def _enter_losses(sim: la.Sim, v: int, whole_host: bool) -> None:
    """Pages that a store lost with its host are neither expired nor evicted: count them for the balance."""
    tree = sim.trees[v]
    gone = tree.evicted_tokens + tree.expired_tokens + tree.given_tokens
    held = (tree.capacity_pages - tree.free_pages) * int(sim.config.page_tokens)
    if whole_host and sim.store_tiers[tree.tier].scope == hl.OF_NODE:
        assert tree.stored_tokens >= gone + held
        tree.expired_tokens += tree.stored_tokens - gone - held


def _stores_in_use(sim: la.Sim) -> set[int]:
    """Stores of workers, of existing nodes, and of the cluster; spare records are never touched."""
    stores = set()
    for tier in sim.store_tiers:
        places = range(int(sim.config.workers)) if tier.scope == hl.OF_WORKER else sim.hosts["place"].tolist()
        stores |= {int(tier.first) + place // int(tier.workers_per_store) for place in places}
    assert stores <= set(store_invariants.stores(sim))
    return stores


def _check_fetch_records(sim: la.Sim) -> None:
    """Every fetch that was begun is in the free list, or still with a server of a worker that is left."""
    used, free = int(sim.counters[la.FETCHES_USED]), set()
    f = int(sim.counters[la.FREE_FETCH])
    while f >= 0:
        assert f not in free
        free.add(f)
        f = int(sim.fetches[f].next)
    for f in set(range(used)) - free:
        assert sim.fetches[f].served or sim.fetches[f].registered
    assert (sim.requests["fetch"] < 0).all()


@examples(60)
@given(SYSTEMS, st.floats(0.5, 3.0))
def test_an_incident_after_the_end_changes_nothing(system: TieredSystem, back_s: float) -> None:
    """Workers that never come up, and their places, are of no effect."""
    late = struck(system, 1e6, back_s, True)
    plain = FleetPlan((PoolPlan(system.plan, system.workers),), system.router)
    try:
        expected = simulate_fleet(plain, system.trace, seed=system.seed)
    except engine_module.EngineOutOfMemory:
        assume(False)
    result = simulate_fleet(late, system.trace, seed=system.seed)
    np.testing.assert_array_equal(result.requests.finish_s, expected.requests.finish_s)
    np.testing.assert_array_equal(result.requests.storage_hit_tokens, expected.requests.storage_hit_tokens)


def _stored(scope: str, workers_per_node: int = 1) -> WorkerPlan:
    """SGLang with host memory, and a store that keeps everything."""
    engine = EngineSpec.model_validate({"name": "sglang", "max_running_requests": 4, "chunk_tokens": 256})
    law = TransferLaw(1e-5, 1e-7)
    host = TierPlan("host", "worker", 4000, 1)
    store = TierPlan("storage", scope, 2**40, 1, read=law, write=law)  # type: ignore[arg-type]
    movement = MovementPlan(
        "hicache", prefetch="wait_complete", prefetch_threshold_tokens=8, network_read=law, network_write=law
    )
    return replace(plan(engine, 2000), tiers=(host, store), movement=movement, workers_per_node=workers_per_node)


@pytest.mark.parametrize("kind", ["down", "host_down"])
@pytest.mark.parametrize("scope", ["worker", "node", "cluster"])
def test_what_a_worker_finds_when_it_is_back(scope: str, kind: str) -> None:
    """Its own caches are gone; its node's store outlives the worker, not the host; the cluster's outlives both."""
    lost = [Incident(5.0, 0, 0, "host_lost")] if kind == "host_down" else []
    fleet = FleetPlan(
        (PoolPlan(_stored(scope), 1, spare=1, back_for=(0,)),),
        incidents=(Incident(5.0, 0, 0, "down"), *lost, Incident(6.0, 0, 1, "up")),
    )
    result = simulate_fleet(fleet, _three_turns())
    assert (result.requests.outcome == Outcome.FINISHED).all()
    assert result.requests.worker.tolist() == [0, 0, 1]
    outlives = scope == "cluster" or (scope == "node" and kind == "down")
    assert result.requests.storage_hit_tokens[2] == (199 if outlives else 0)
    assert result.requests.hit_tokens[2] == result.requests.host_hit_tokens[2] == 0


def test_a_worker_that_is_back_is_on_its_node() -> None:
    """Of four workers on two nodes the last one dies; the fifth shares its node's store, and there are two of them."""
    fleet = FleetPlan(
        (PoolPlan(_stored("node", 2), 4, spare=1, back_for=(3,)),),
        RouterSpec(policy="round_robin"),
        incidents=(Incident(1.0, 0, 3, "down"), Incident(2.0, 0, 4, "up")),
    )
    result = simulate_fleet(fleet, compiled(random_trace(5, SHAPE)))
    assert (result.requests.outcome == Outcome.FINISHED).all()
    stores = [(store.first_worker, store.workers) for store in result.stores if store.tier == 2]
    assert stores == [(0, 2), (2, 2)]


@examples(30)
@given(st.integers(0, 10**6), st.floats(0.0, 3.0), st.floats(0.05, 2.0))
def test_no_request_is_lost_when_a_worker_with_a_host_cache_dies(seed: int, down_s: float, back_s: float) -> None:
    """TensorRT-LLM: its host pool dies with it."""
    engine = EngineSpec.model_validate(
        {"name": "trtllm", "max_running_requests": 6, "chunk_tokens": 64, "page_tokens": 8}
    )
    worker = replace(
        plan(engine, 800),
        tiers=(TierPlan("host", "worker", 1600, 8),),
        movement=MovementPlan("offload", host_read=TransferLaw(1e-4, 4e-6), host_write=TransferLaw(1e-4, 4e-6)),
    )
    fleet = FleetPlan(
        (PoolPlan(worker, 2, spare=1, back_for=(0,)),),
        incidents=(Incident(down_s, 0, 0, "down"), Incident(down_s + back_s, 0, 2, "up")),
        retry_s=0.05,
    )
    table = simulate_fleet(fleet, compiled(random_trace(seed, SHAPE)), seed=seed).requests
    assert set(table.outcome.tolist()) <= {Outcome.FINISHED, Outcome.TOO_LARGE}
    assert (table.finish_s[table.worker == 0] <= down_s).all()


@examples(80)
@given(
    st.one_of(offload_systems(), lmcache_systems(), offloading_groups(follow_up=0.3)),
    st.integers(2, 4),
    st.floats(0.0, 3.0),
    st.floats(0.05, 2.0),
    st.booleans(),
)
def test_no_request_is_lost_when_workers_of_vllm_with_tiers_die(
    system: System, workers: int, down_s: float, back_s: float, whole_host: bool
) -> None:
    """L1, L3: under its offloading connector, whose host memory is each worker's own, and under LMCache."""
    system = replace(system, workers=workers, sharing=1)
    plan = system.plan
    each = plan.workers_per_node if whole_host else 1
    dead = list(range(min(each, workers)))
    incidents = [Incident(down_s, 0, w, "down") for w in dead]
    incidents += [Incident(down_s, 0, 0, "host_lost")] * whole_host
    incidents += [Incident(down_s + back_s, 0, workers + k, "up") for k in dead]
    pool = PoolPlan(plan, workers, spare=len(dead), back_for=tuple(dead))
    fleet = FleetPlan((pool,), system.router, incidents=tuple(incidents), retry_s=0.05, retries=100)
    try:
        table = simulate_fleet(fleet, system.trace, seed=system.seed).requests
    except engine_module.EngineOutOfMemory:
        assume(False)
    assert set(table.outcome.tolist()) <= {Outcome.FINISHED, Outcome.TOO_LARGE}
    assert (table.finish_s[np.isin(table.worker, dead)] <= down_s).all()
    assert (table.scheduled_s[table.worker >= workers] >= down_s + back_s).all()
    arrays, sim = run(fleet, system)
    for w in range(int(sim.config.workers)):
        if not arrays.members[w // sim.config.schedulers].died:
            assert sim.workers[w].waiting == sim.workers[w].running == 0
            if not sim.offloading.kv_connector or sim.offloading.kv_connector == tl.LMCACHE:
                assert sim.trees[w].free_pages == sim.trees[w].capacity_pages
    if sim.offloading.kv_connector == tl.LMCACHE:
        check_block_tables(sim)
        for v in range(len(sim.block_tables)):
            assert not any(sim.blocks[v, slot].pins for slot in slots_of(sim, v))


def _three_turns() -> CompiledTrace:
    """A prompt, another one, and the first one again, much later.

    The second request lets the first one's pages be noted, and written to storage.
    """
    return compile_trace(
        make_trace(
            arrival_s=np.array([0.0, 2.0, 12.0]),
            input_tokens=np.array([200, 210, 200]),
            output_tokens=np.array([2, 2, 2]),
            shares_with=np.array([-1, -1, 0]),
            shared_tokens=np.array([0, 0, 200]),
        ),
        "three",
    )


@pytest.mark.parametrize("kind", ["down", "host_down"])
@pytest.mark.parametrize("scopes", [("worker",), ("node",), ("worker", "node"), ("worker", "cluster")])
def test_what_a_worker_finds_under_lmcache_when_it_is_back(scopes: tuple[str, ...], kind: str) -> None:
    """Host memory of its own is gone; what its node shares outlives the worker, not the host; the cluster's both."""
    engine = EngineSpec.model_validate({"name": "vllm", "max_running_requests": 4, "chunk_tokens": 256})
    law = TransferLaw(1e-5, 1e-7)
    tiers = tuple(TierPlan(f"tier {k}", scope, 4000, 16, read=law, write=law) for k, scope in enumerate(scopes))
    movement = MovementPlan(
        "lmcache", chunk_tokens=16, host_read=law, host_write=law, network_read=law, network_write=law
    )
    worker = replace(plan(engine, 2000), tiers=tiers, movement=movement)
    lost = [Incident(5.0, 0, 0, "host_lost")] if kind == "host_down" else []
    fleet = FleetPlan(
        (PoolPlan(worker, 1, spare=1, back_for=(0,)),),
        incidents=(Incident(5.0, 0, 0, "down"), *lost, Incident(6.0, 0, 1, "up")),
    )
    table = simulate_fleet(fleet, _three_turns()).requests
    assert (table.outcome == Outcome.FINISHED).all()
    assert table.worker.tolist() == [0, 0, 1]
    outlives = scopes[-1] == "cluster" or (scopes[-1] == "node" and kind == "down")
    assert (table.host_hit_tokens + table.storage_hit_tokens)[2] == (192 if outlives else 0)
    assert table.hit_tokens[2] == 0


def test_own_host_memory_of_vllm_is_gone_with_its_worker() -> None:
    engine = EngineSpec.model_validate({"name": "vllm", "max_running_requests": 4, "chunk_tokens": 256})
    fleet = FleetPlan(
        (PoolPlan(plan(engine, 2000, 4000), 1, spare=1, back_for=(0,)),),
        incidents=(Incident(5.0, 0, 0, "down"), Incident(6.0, 0, 1, "up")),
    )
    table = simulate_fleet(fleet, _three_turns()).requests
    assert (table.outcome == Outcome.FINISHED).all()
    assert (table.hit_tokens + table.host_hit_tokens + table.storage_hit_tokens)[2] == 0
