"""Blocks of linear attention's states in vLLM's KV pool, against start-up logs: their size, and requests that fit."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from latency_catalogue import H100, H200, QWEN3_32B

from hisearch.latency.device_memory.constants import GIB
from hisearch.latency.device_memory.kv_groups import KvGroups, kv_groups_of
from hisearch.latency.device_memory.plan import plan_memory
from hisearch.latency.parameters import layer_kv_bytes_per_token, layer_state_bytes
from hisearch.latency.sharding import InvalidParallelism, shard
from hisearch.simulate.plans.groups_plan import GroupsPlan
from hisearch.specs.deployments.pool import PoolSpec
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.machines.hardware import AcceleratorSpec
from hisearch.specs.models.model import ModelSpec

HOPPER, ADA = H200.model_copy(update={"compute_capability": 9.0}), H100.model_copy(update={"compute_capability": 8.9})
BLACKWELL = H200.model_copy(update={"compute_capability": 10.0})
QWEN35: ModelSpec = Catalogue().get("Model", "qwen3.5-397b-a17b").spec


def qwen35(layers: int, kv_heads: int, value_heads: int) -> ModelSpec:
    """A smaller Qwen3.5, Qwen3.6 or Qwen3-Next: three of four layers have linear attention with 16 heads of keys."""
    assert QWEN35.linear_attention is not None
    update = {"layers": layers * 3 // 4, "value_heads": value_heads}
    linear = QWEN35.linear_attention.model_copy(update=update)
    return QWEN35.model_copy(update={"layers": layers, "kv_heads": kv_heads, "linear_attention": linear})


MODELS = {"4b": qwen35(32, 4, 32), "9b": qwen35(32, 4, 32), "27b": qwen35(64, 4, 48), "35b-a3b": qwen35(40, 2, 32)}


def groups_of(
    model: ModelSpec, accelerator: AcceleratorSpec = ADA, *, kv_dtype: str = "bf16", tensor: int = 1, **engine: object
) -> KvGroups:
    groups = kv_groups_of(pool_of(kv_dtype=kv_dtype, tensor=tensor, **engine), model, accelerator)
    assert groups is not None
    return groups


def pool_of(*, kv_dtype: str = "bf16", tensor: int = 1, role: str = "unified", **engine: object) -> PoolSpec:
    settings = {"accelerator": "a", "kv_dtype": kv_dtype, "tensor_parallel": tensor, "role": role}
    return PoolSpec.model_validate(settings | {"engine": {"name": "vllm"} | engine})


@pytest.mark.parametrize(
    ("name", "kv_dtype", "version", "logged", "padding"),
    [
        ("27b", "bf16", "0.19.1", 784, 0.13),  # "Setting attention block size to 784 tokens", "Padding ... by 0.13%"
        ("9b", "bf16", "0.19.1", 528, 0.76),
        ("9b", "fp8", "0.19.1", 1056, 0.76),
        ("4b", "bf16", "0.29.0", 528, 0.76),
        ("35b-a3b", "bf16", "0.19.1", 1056, 0.76),  # 0.18.1
        ("35b-a3b", "fp8", "0.20.0", 2096, 0.0),
    ],
)
def test_blocks_have_the_tokens_that_start_up_logs_state(
    name: str, kv_dtype: str, version: str, logged: int, padding: float
) -> None:
    model = MODELS[name]
    groups = groups_of(model, kv_dtype=kv_dtype, version=version)
    assert groups.page_tokens == logged
    part = shard(model, 1)
    state = layer_state_bytes(model, part)
    page = logged * layer_kv_bytes_per_token(model, part, kv_dtype)  # type: ignore[arg-type]
    assert 100 * (page / state - 1) == pytest.approx(padding, abs=0.006)


@pytest.mark.parametrize(
    ("name", "kv_dtype", "version", "gib", "longest", "concurrency"),
    [
        # Qwen3.6-35B-A3B in NVFP4 on 32 GB: "Available KV cache memory: 2.95 GiB", "Maximum concurrency ...: 3.87x"
        ("35b-a3b", "fp8", "0.20.0", 2.95, 65_536, 3.87),
        # Qwen3.5-4B on 24 GB: 9.10 GiB, 8.17x
        ("4b", "bf16", "0.29.0", 9.10, 32_768, 8.17),
    ],
)
def test_requests_that_fit_are_those_of_start_up_logs(
    name: str, kv_dtype: str, version: str, gib: float, longest: int, concurrency: float
) -> None:
    model = MODELS[name]
    groups = groups_of(model, kv_dtype=kv_dtype, version=version)
    assert groups.page_tokens is not None
    token = groups.layers * layer_kv_bytes_per_token(model, shard(model, 1), kv_dtype)  # type: ignore[arg-type]
    blocks = int(gib * GIB // (groups.page_tokens * token))
    request = groups.full * math.ceil(longest / groups.page_tokens) + groups.states * groups.state_blocks
    assert blocks / request == pytest.approx(concurrency, abs=0.006)


def test_pages_are_multiples_of_what_kernels_export() -> None:
    """64 tokens on Hopper and Blackwell since 0.33; of 16 elsewhere, and without prefix caching."""
    assert groups_of(QWEN35, HOPPER, tensor=8).page_tokens == 576
    assert groups_of(QWEN35, BLACKWELL, tensor=8).checkpoints
    for accelerator, engine in ((ADA, {}), (HOPPER, {"version": "0.32.0"}), (HOPPER, {"prefix_caching": False})):
        groups = groups_of(QWEN35, accelerator, tensor=8, **engine)
        assert (groups.page_tokens, groups.checkpoints) == (528, False)
    # A block that is stated is kept where it is larger, or a part of the enlarged one.
    assert groups_of(QWEN35, ADA, tensor=8, page_tokens=64).page_tokens == 576
    assert groups_of(QWEN35, ADA, tensor=8, page_tokens=2048).page_tokens == 2048


def test_groups_of_a_model_with_three_layers_of_four() -> None:
    groups = groups_of(QWEN35, HOPPER, tensor=8)
    assert (groups.layers, groups.full, groups.states, groups.windowed, groups.count) == (15, 1, 3, 0, 4)
    assert groups.state_blocks == 3
    assert groups_of(QWEN35, ADA, tensor=8).state_blocks == 2
    assert groups_of(QWEN35, ADA, tensor=8, prefix_caching=False).state_blocks == 1


def test_where_states_are_set_aside_instead() -> None:
    drafts = {"method": "mtp", "draft_tokens": 1, "acceptance": [0.5]}
    for pool in (pool_of(role="prefill"), pool_of(speculation=drafts), pool_of(name="sglang")):
        assert kv_groups_of(pool, QWEN35, HOPPER) is None
    assert kv_groups_of(pool_of(), QWEN3_32B, HOPPER) is None


def test_settings_with_which_the_engine_does_not_start_are_refused() -> None:
    with pytest.raises(InvalidParallelism, match=r"chunked_prefill: false") as refused:
        groups_of(QWEN35, HOPPER, tensor=8, chunked_prefill=False, chunk_tokens=8192)
    assert refused.value.key == "engine.chunked_prefill"
    with pytest.raises(InvalidParallelism, match="less than a block of 528 tokens"):
        groups_of(QWEN35, HOPPER, tensor=8, chunk_tokens=512, max_running_requests=64, version="0.19.1")
    groups_of(QWEN35, HOPPER, tensor=8, chunk_tokens=512, max_running_requests=64)
    groups_of(QWEN35, HOPPER, tensor=8, chunked_prefill=False, chunk_tokens=8192, prefix_caching=False)


def test_no_states_are_set_aside_and_a_block_holds_one_group_s_layers() -> None:
    pool = pool_of(tensor=8)
    plans = [
        plan_memory(
            QWEN35, H200, tensor_parallel=8, weight_dtype="fp8", kv_dtype="bf16", engine=pool.engine, kv_groups=groups
        )
        for groups in (None, groups_of(QWEN35, ADA, tensor=8))
    ]
    set_aside, shared = plans
    assert shared.kv_bytes_per_token_per_rank == set_aside.kv_bytes_per_token_per_rank == 15 * 1024
    assert shared.window_kv_bytes == 0.0
    gained = set_aside.window_kv_bytes / shared.kv_bytes_per_token_per_rank
    assert shared.kv_capacity_tokens - set_aside.kv_capacity_tokens == pytest.approx(gained, abs=528)
    # Requests of 8 blocks hold half a block more, and three states.
    assert shared.requests_tokens(8 * 528) == pytest.approx(shared.kv_capacity_tokens * 8 / 11.5)


@given(
    layers=st.integers(2, 30).map(lambda fourth: 4 * fourth),
    kv_heads=st.sampled_from([1, 2, 4, 8]),
    value_heads=st.sampled_from([16, 32, 48, 64]),
    blocks=st.integers(1, 20_000),
    caches=st.booleans(),
)
def test_the_longest_request_is_the_longest_that_fits(
    layers: int, kv_heads: int, value_heads: int, blocks: int, caches: bool
) -> None:
    """Against counting the blocks of one page more and one less."""
    model = qwen35(layers, kv_heads, value_heads)
    groups = groups_of(model, HOPPER, prefix_caching=caches)
    engine, longest = groups.engine(pool_of().engine), 10**6
    tokens = groups.longest_request_tokens(blocks, engine, longest)
    states, pages = groups.states * groups.state_blocks, tokens // engine.page_size
    assert tokens == longest or groups.full * (pages + 1) + states > blocks
    assert tokens == 0 or groups.full * pages + states <= blocks
    plan = GroupsPlan(groups.full, 0, 0, states=groups.states)
    assert plan.count == groups.count == groups.full + groups.states
