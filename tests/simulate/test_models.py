"""Several models behind one router."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisearch.base.policies import ROUTERS
from hisearch.simulate.engine import ModelNotServed, simulate_fleet
from hisearch.simulate.plans.fleet import FleetPlan, Incident, PoolPlan, ServedModel, TransferPlan
from hisearch.simulate.plans.models import models_of_requests
from hisearch.simulate.results.parts import of_model
from hisearch.simulate.results.tables import Outcome, RequestTable
from hisearch.specs.deployments.cluster import AutoscaleSpec
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.specs.deployments.routing import RouterSpec
from hisearch.traces.compiled import CompiledTrace, TraceArrays
from hisearch.traces.models import RequestModels
from tests.kernels.systems import POLICIES, admission_with, compiled, examples, plan, router_with
from tests.reference.random_traces import TraceShape, random_trace

LARGE, SMALL = ServedModel("large", ("org/Large",)), ServedModel("small", ("org/Small", "mini"))
SHAPE = TraceShape(requests=50, rate_rps=12.0, prompt_tokens=200, output_tokens=30)
#: They draw among equals. The first model's draws are those of a deployment of its own.
PLATFORMS = ("dynamo_kv", "endpoint_picker", "prefix_aware", "prefix_cache")
#: Policies that draw nothing and put no member's number on a ring: they do not depend on the members' numbers.
PLACELESS = [
    policy
    for policy in POLICIES
    if not ROUTERS[policy].hash_order and policy not in ("random", "consistent_hash", *PLATFORMS)
]


def worker(name: str, tokens: int = 4000, chunk: int = 128) -> object:
    engine = EngineSpec.model_validate({"name": name, "max_running_requests": 16, "chunk_tokens": chunk})
    return plan(engine, tokens)


def pool(model: ServedModel, engine: str, replicas: int, name: str, **settings: object) -> PoolPlan:
    return PoolPlan(worker(engine), replicas, name, model=model, **settings)  # type: ignore[arg-type]


def _keys(arrays: TraceArrays) -> np.ndarray:
    """The earliest times at which requests can arrive, made to rise with their numbers."""
    key = arrays.arrival_s.copy()
    for r in np.flatnonzero(arrays.previous >= 0):
        key[r] = key[arrays.previous[r]]
    return np.maximum.accumulate(key)


def together(traces: tuple[TraceArrays, TraceArrays], names: tuple[str, str]) -> tuple[CompiledTrace, list[np.ndarray]]:
    """One trace of both, each asking for its model; and where the requests of each are in it."""
    count = [len(arrays.arrival_s) for arrays in traces]
    nodes = len(traces[0].parent)
    order = np.argsort(np.concatenate([_keys(arrays) for arrays in traces]), kind="stable")
    rank = np.empty(sum(count), np.int32)
    rank[order] = np.arange(sum(count))
    columns = {}
    for name in TraceArrays._fields[:12]:
        first, second = (getattr(arrays, name) for arrays in traces)
        if name == "previous":
            second = np.where(second >= 0, second + count[0], -1)
        elif name == "session":
            second = second + first.max() + 1
        elif name.endswith("_node"):
            # Node 0 is the root of both.
            second = np.where(second > 0, second + nodes - 1, 0)
        columns[name] = np.concatenate([first, second])[order].astype(first.dtype)
    before = columns["previous"]
    columns["previous"] = np.where(before >= 0, rank[np.maximum(before, 0)], -1).astype(np.int32)
    parent = np.where(traces[1].parent[1:] > 0, traces[1].parent[1:] + nodes - 1, 0)
    columns["parent"] = np.concatenate([traces[0].parent, parent]).astype(np.int32)
    for name in ("start_tokens", "end_tokens"):
        columns[name] = np.concatenate([getattr(traces[0], name), getattr(traces[1], name)[1:]])
    model = np.repeat(np.array([0, 1], np.int32), count)[order]
    trace = replace(compiled(TraceArrays(**columns)), models=RequestModels(names, model))
    return trace, [rank[: count[0]], rank[count[0] :]]


def columns_of(table: RequestTable) -> Iterator[tuple[str, np.ndarray]]:
    return ((field.name, getattr(table, field.name)) for field in fields(RequestTable))


@examples(30)
@given(
    seed=st.integers(0, 10**6),
    policy=st.sampled_from(PLACELESS),
    engines=st.tuples(st.sampled_from(["vllm", "sglang", "trtllm"]), st.sampled_from(["vllm", "sglang"])),
    replicas=st.tuples(st.integers(1, 3), st.integers(1, 70)),
    admission=st.sampled_from(["none", "queue_cap", "slo_shedding"]),
)
def test_models_that_share_nothing_are_served_as_by_two_deployments(
    seed: int, policy: str, engines: tuple[str, str], replicas: tuple[int, int], admission: str
) -> None:
    """The slow reference: each model's requests alone, on its pools alone."""
    parts = (random_trace(seed, SHAPE), random_trace(seed + 2, replace(SHAPE, requests=40)))
    trace, places = together(parts, ("org/Large", "small"))
    router = router_with(policy, staleness_s=0.5 if seed % 2 else 0.0)
    rule = admission_with(admission, requests_per_worker=3, max_wait_s=0.05)
    pools = (
        pool(LARGE, engines[0], replicas[0], "first", usd_per_hour=3.0),
        pool(SMALL, engines[1], replicas[1], "second"),
        pool(LARGE, engines[1], 1, "third", usd_per_hour=1.0),
    )
    fleet = FleetPlan(pools, router, admission=rule)
    result = simulate_fleet(fleet, trace, seed=seed)
    for number, model in enumerate((LARGE, SMALL)):
        alone = FleetPlan(tuple(p for p in pools if p.model == model), router, admission=rule)
        expected = simulate_fleet(alone, compiled(parts[number]), seed=seed)
        of_this = of_model(result, number)
        for name, values in columns_of(of_this.requests):
            np.testing.assert_array_equal(values, getattr(expected.requests, name), err_msg=name)
        for name in ("steps", "requests", "busy_s", "prefill_tokens", "decode_tokens", "peak_kv_tokens"):
            np.testing.assert_array_equal(getattr(of_this.workers, name), getattr(expected.workers, name), err_msg=name)
        np.testing.assert_array_equal(of_this.gap_counts, expected.gap_counts)
        assert (result.asked.model[places[number]] == number).all()  # type: ignore[union-attr]


@examples(20)
@given(
    seed=st.integers(0, 10**6),
    policies=st.tuples(st.sampled_from([*PLACELESS, *PLATFORMS]), st.sampled_from(PLACELESS)),
    key=st.sampled_from(["session", "prefix"]),
)
def test_a_model_may_have_a_router_of_its_own(seed: int, policies: tuple[str, str], key: str) -> None:
    """The slow reference: each model's requests alone, behind its own router alone."""
    parts = (random_trace(seed, SHAPE), random_trace(seed + 2, SHAPE))
    trace, _ = together(parts, ("large", "small"))
    settings: list[dict[str, Any]] = [
        {"max_tree_characters": 2000, "eviction_interval_s": 0.5} if seed % 2 else {"staleness_s": 0.3},
        {"cache_threshold": 0.1, "hash_key": key},
    ]
    routers = [router_with(p, **s) for p, s in zip(policies, settings, strict=True)]
    pools = (pool(LARGE, "sglang", 3, "first"), pool(SMALL, "vllm", 4, "second"))
    fleet = FleetPlan(pools, routers[0], own_routers={"small": (routers[1], RouterSpec())})
    result = simulate_fleet(fleet, trace, seed=seed)
    for number, router in enumerate(routers):
        expected = simulate_fleet(FleetPlan(pools[number : number + 1], router), compiled(parts[number]), seed=seed)
        for name, values in columns_of(of_model(result, number).requests):
            np.testing.assert_array_equal(values, getattr(expected.requests, name), err_msg=name)


@examples(20)
@given(
    seed=st.integers(0, 10**6),
    policy=st.sampled_from(POLICIES),
    reserve_first=st.booleans(),
    engine=st.sampled_from(["vllm", "sglang"]),
)
def test_requests_go_to_pools_of_their_model_alone(seed: int, policy: str, reserve_first: bool, engine: str) -> None:
    """One model in a pool that grows and loses a worker, the other disaggregated (L1)."""
    parts = (random_trace(seed, SHAPE), random_trace(seed + 2, SHAPE))
    trace, places = together(parts, ("small", "large"))
    grows = AutoscaleSpec(
        metric="wait_s", target=0.01, min_replicas=1, max_replicas=3, period_s=0.3, startup_s=0.2, calm_s=1e3
    )
    pools = (
        pool(LARGE, engine, 2, "prompts", role="prefill"),
        pool(SMALL, engine, 1, "small", spare=3, scaler=grows),
        pool(LARGE, engine, 2, "outputs", role="decode"),
        pool(SMALL, engine, 2, "fixed"),
    )
    transfer = TransferPlan(
        reserve_first=reserve_first, base_s=0.001, bytes_per_token=1e3, bytes_per_s=1e6, reserved_tokens=8
    )
    fleet = FleetPlan(
        pools,
        RouterSpec.model_validate({"policy": policy}),
        RouterSpec(policy="random"),
        transfer=transfer,
        incidents=(Incident(1.0, 3, 0, "down"),),
    )
    result = simulate_fleet(fleet, trace, seed=seed)
    assert (result.requests.outcome == Outcome.FINISHED).all()
    of = {use.name: range(use.first_worker, use.first_worker + use.workers) for use in result.pools}
    small, large = places
    assert set(result.requests.worker[small]) <= {*of["small"], *of["fixed"]}
    assert set(result.requests.prefill_worker[large]) <= set(of["prompts"])
    assert set(result.requests.worker[large]) <= {*of["outputs"], *of["prompts"]}
    shares = [of_model(result, number) for number in range(2)]
    assert sum(len(share.requests.outcome) for share in shares) == len(trace)
    assert sum(share.workers.busy_s.sum() for share in shares) == pytest.approx(result.workers.busy_s.sum())
    assert (sum(share.gap_counts for share in shares) == result.gap_counts).all()


def test_each_model_transfers_kv_of_its_own_size() -> None:
    parts = (random_trace(3, SHAPE), random_trace(4, SHAPE))
    trace, _ = together(parts, ("large", "small"))
    pools = tuple(
        pool(model, "sglang", 1, f"{model.name}-{role}", role=role, kv_bytes_per_token=size)
        for model, size in ((LARGE, 3e3), (SMALL, 1e3))
        for role in ("prefill", "decode")
    )
    transfer = TransferPlan(reserve_first=True, bytes_per_s=1e6, reserved_tokens=8)
    result = simulate_fleet(FleetPlan(pools, transfer=transfer), trace)
    for number, size in enumerate((3e3, 1e3)):
        for use in of_model(result, number).kv_transfers:
            assert use.tokens > 0
            assert use.busy_s == pytest.approx(use.tokens * size / 1e6)


def test_a_model_that_nobody_serves_is_refused() -> None:
    parts = (random_trace(3, SHAPE), random_trace(4, SHAPE))
    fleet = FleetPlan((pool(LARGE, "vllm", 1, "a"), pool(SMALL, "vllm", 1, "b")))
    trace, _ = together(parts, ("large", "mini"))
    assert (simulate_fleet(fleet, trace).requests.outcome == Outcome.FINISHED).all()
    with pytest.raises(ModelNotServed, match="'other', which no pool serves; served: large, small"):
        simulate_fleet(fleet, together(parts, ("large", "other"))[0])
    with pytest.raises(ModelNotServed, match="names no model, but the pools serve large, small"):
        simulate_fleet(fleet, replace(trace, models=None))
    alone = FleetPlan((pool(LARGE, "vllm", 1, "a"),))
    assert (simulate_fleet(alone, replace(trace, models=None)).requests.outcome == Outcome.FINISHED).all()
    with pytest.raises(ModelNotServed, match=r"'mini'.* LoRA adapter, import the trace with --adapters mini=RANK"):
        models_of_requests(alone, trace)
