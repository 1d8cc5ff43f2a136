"""SGLang's pools of states and of full attention's KV: how they divide memory, what runs, where they are simulated."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from latency_catalogue import H100, H200, LLAMA_8B

from hisearch.latency.device_memory.plan import DoesNotFit, MemoryPlan, plan_memory
from hisearch.latency.device_memory.state_pools import check_pages, divide_states
from hisearch.latency.parameters import kv_bytes_per_token_per_rank, state_bytes_per_sequence_per_rank
from hisearch.latency.sharding import InvalidParallelism, Parallelism
from hisearch.simulate.plans.groups_plan import StatesPlan
from hisearch.simulate.plans.plan import plan_worker
from hisearch.specs.deployments.engine import EngineSpec
from hisearch.specs.deployments.pool import PoolSpec
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.models.model import ModelSpec

QWEN35: ModelSpec = Catalogue().get("Model", "qwen3.5-397b-a17b").spec
PROFILE = Catalogue().get("LatencyProfile", "roofline").spec


def pool_of(**engine: object) -> PoolSpec:
    settings = {"accelerator": "a", "tensor_parallel": 8, "weight_dtype": "fp8"}
    return PoolSpec.model_validate(settings | {"engine": {"name": "sglang"} | engine})


def planned(**engine: object) -> MemoryPlan:
    pool = pool_of(**engine)
    return plan_memory(QWEN35, H200, tensor_parallel=8, weight_dtype="fp8", kv_dtype=pool.kv_dtype, engine=pool.engine)


@given(
    spare=st.floats(1e9, 1e11), state=st.integers(1 << 16, 1 << 27), ratio=st.floats(0.05, 4.0),
    running=st.integers(1, 2000), overlap=st.booleans(), page=st.sampled_from([1, 64]),
)  # fmt: skip
def test_states_take_their_share(
    spare: float, state: int, ratio: float, running: int, overlap: bool, page: int
) -> None:
    """No more than their share, and one state more would be."""
    engine = EngineSpec.model_validate(
        {"name": "sglang", "mamba_full_memory_ratio": ratio, "max_running_requests": running, "overlap": overlap,
         "page_tokens": page}
    )  # fmt: skip
    pools, share = divide_states(spare, state, engine), spare * ratio / (1 + ratio)
    assert pools.request_states == 3 + (2 if overlap else int(page > 1))
    assert pools.taken_bytes == state * (pools.states + 1)
    assert pools.states == 0 or pools.taken_bytes <= share * (1 + 1e-9)
    assert pools.taken_bytes + state > share * (1 - 1e-9)


@pytest.mark.parametrize(
    ("name", "layers", "kv_heads", "value_heads", "tensor", "tokens", "states"),
    [
        ("Qwen3.8-27B-FP8, H100, --mem-fraction-static 0.85", 64, 4, 48, 1, 330_323, 124),
        ("Qwen3.5-9B, two GPUs", 32, 4, 32, 2, 327_310, 186),
    ],
)
def test_states_of_startup_logs(
    name: str, layers: int, kv_heads: int, value_heads: int, tensor: int, tokens: int, states: int
) -> None:
    """Public logs ("Mamba Cache is allocated", "KV Cache is allocated"): of the memory for both, as many states."""
    assert QWEN35.linear_attention is not None
    linear = QWEN35.linear_attention.model_copy(update={"layers": layers * 3 // 4, "value_heads": value_heads})
    model = QWEN35.model_copy(update={"layers": layers, "kv_heads": kv_heads, "linear_attention": linear})
    split = Parallelism(tensor)
    state = state_bytes_per_sequence_per_rank(model, split)
    per_token = kv_bytes_per_token_per_rank(model, split, "bf16")
    pools = divide_states(tokens * per_token + (states + 1) * state, state, EngineSpec(name="sglang"))
    assert pools.states == states, name


def test_running_requests_are_those_that_have_states() -> None:
    usual = planned(max_running_requests=2000)
    assert usual.state_pools is not None
    assert usual.state_pools.request_states == 5
    running = usual.state_pools.running_requests
    assert 0 < running == usual.state_pools.states // 5 < 2000
    assert usual.requests_tokens(10.0) == 10 * running
    assert usual.requests_tokens(1e6) == usual.kv_capacity_tokens
    assert usual.window_kv_bytes == (usual.state_pools.states + 1) * state_bytes_per_sequence_per_rank(
        QWEN35, Parallelism(8)
    )
    more = planned(max_running_requests=2000, mamba_full_memory_ratio=2.0)
    assert more.state_pools is not None
    assert more.state_pools.running_requests > running
    assert more.kv_capacity_tokens < usual.kv_capacity_tokens


def test_without_prefix_caching_a_state_each() -> None:
    plan = planned(prefix_caching=False, max_running_requests=300)
    assert plan.state_pools is not None
    assert (plan.state_pools.states, plan.state_pools.running_requests, plan.state_pools.slots) == (300, 300, 0)


def test_too_few_states_do_not_fit() -> None:
    with pytest.raises(
        DoesNotFit, match=r"states of linear attention; a running request needs 5; raise mamba_"
    ) as refused:
        planned(mamba_full_memory_ratio=0.0001)
    # All of it is there, but not a share of a ten thousandth.
    state = state_bytes_per_sequence_per_rank(QWEN35, Parallelism(8))
    assert 0 < refused.value.bytes_short < 6 * state * 10_001


def test_no_pools_elsewhere() -> None:
    assert planned(version="0.5.9").state_pools is None
    engine = EngineSpec(name="sglang")
    plain = plan_memory(LLAMA_8B, H100, tensor_parallel=1, weight_dtype=None, kv_dtype="bf16", engine=engine)
    assert plain.state_pools is None


@pytest.mark.parametrize(
    ("engine", "states"),
    [
        ({}, (2, 64, 256)),
        ({"overlap": False}, (0, 64, 256)),
        ({"overlap": False, "page_tokens": 128}, (1, 128, 256)),
        ({"prefix_caching": False}, (0, 64, 256)),
        ({"version": "0.5.9"}, None),
    ],
)
def test_what_workers_simulate(engine: dict[str, object], states: tuple[int, int, int] | None) -> None:
    pool = pool_of(max_running_requests=2000, **engine)
    worker = plan_worker(pool, model=QWEN35, accelerator=H200, host=None, media={}, profile=PROFILE)
    if states is None:
        assert worker.states is None
        return
    pools = worker.memory.state_pools
    assert pools is not None
    assert worker.states == StatesPlan(pools.states, *states)
    assert worker.engine.max_running_requests == min(pools.running_requests, 2000)


def test_pages_that_sglang_refuses() -> None:
    with pytest.raises(InvalidParallelism, match=r"every 256 tokens, whole pages; engine.page_tokens is 96"):
        check_pages(pool_of(page_tokens=96), QWEN35)
    check_pages(pool_of(page_tokens=96, prefix_caching=False), QWEN35)
    check_pages(pool_of(page_tokens=96), LLAMA_8B)
