"""Groups of layers that share vLLM's KV pool: how many, how large, and which request is the longest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from latency_catalogue import GPT_OSS_120B, H100, LLAMA_8B

from hisearch.latency.device_memory.kv_groups import KvGroups, admitted_pages, groups_of_layers, kv_groups_of
from hisearch.latency.device_memory.plan import plan_memory
from hisearch.specs.deployments.engine import EngineSpec
from hisearch.specs.deployments.pool import PoolSpec


def pool_of(**fields: object) -> PoolSpec:
    return PoolSpec.model_validate({"accelerator": "h100-sxm", "engine": {"name": "vllm"}} | fields)


@pytest.mark.parametrize(
    ("full", "windowed", "groups"),
    [
        (18, 18, (18, 1, 1)),  # gpt-oss-120b
        (10, 52, (10, 1, 6)),  # Gemma 3 27B: the last group is padded
        (12, 13, (13, 1, 1)),  # less than 1.5 times as many: padded to the larger
        (12, 18, (12, 1, 2)),
        (0, 32, (32, 0, 1)),  # windows alone
    ],
)
def test_layers_of_a_group(full: int, windowed: int, groups: tuple[int, int, int]) -> None:
    assert groups_of_layers(full, windowed, 1024) == KvGroups(*groups, 1024)


@given(full=st.integers(0, 90), windowed=st.integers(1, 90))
def test_groups_hold_all_layers_and_less_than_a_group_of_padding_each(full: int, windowed: int) -> None:
    groups = groups_of_layers(full, windowed, 128)
    assert 0 <= groups.full * groups.layers - full < groups.layers
    assert 0 <= groups.windowed * groups.layers - windowed < groups.layers


def test_where_groups_are_simulated() -> None:
    assert kv_groups_of(pool_of(), GPT_OSS_120B, H100) == KvGroups(18, 1, 1, 128)
    assert kv_groups_of(pool_of(), LLAMA_8B, H100) is None
    assert kv_groups_of(pool_of(engine={"name": "sglang"}), GPT_OSS_120B, H100) is None
    assert kv_groups_of(pool_of(tiers=[{"medium": "ddr5", "gib": 64}]), GPT_OSS_120B, H100) is None
    assert kv_groups_of(pool_of(role="prefill"), GPT_OSS_120B, H100) is None
    chunks = GPT_OSS_120B.model_copy(update={"windows_are_chunks": True})
    assert kv_groups_of(pool_of(), chunks, H100) is None


def test_a_block_holds_the_layers_of_one_group() -> None:
    engine = EngineSpec(name="vllm")
    plans = [
        plan_memory(
            GPT_OSS_120B, H100, tensor_parallel=2, weight_dtype=None, kv_dtype="bf16", engine=engine, kv_groups=groups
        )
        for groups in (None, KvGroups(18, 1, 1, 128))
    ]
    set_aside, shared = plans
    assert shared.kv_bytes_per_token_per_rank == set_aside.kv_bytes_per_token_per_rank  # half of 36 layers, either way
    assert shared.window_kv_bytes == 0.0
    # What was set aside for 256 windows and a chunk is in the pool.
    gained = set_aside.window_kv_bytes / shared.kv_bytes_per_token_per_rank
    assert shared.kv_capacity_tokens - set_aside.kv_capacity_tokens == pytest.approx(gained, abs=engine.page_size)
    assert shared.least_kv_tokens == shared.kv_capacity_tokens // 2
    # A request of 1,280 tokens holds 1,280 of full attention and 128 of the window.
    assert shared.requests_tokens(1280.0) == pytest.approx(shared.kv_capacity_tokens / 1.1)


def test_windows_that_are_chunks_keep_all_kv() -> None:
    """VLLM turns its hybrid KV cache manager off for attention in chunks (Llama 4)."""
    engine = EngineSpec(name="vllm")
    chunks = GPT_OSS_120B.model_copy(update={"windows_are_chunks": True})
    plan = plan_memory(chunks, H100, tensor_parallel=2, weight_dtype=None, kv_dtype="bf16", engine=engine)
    full = GPT_OSS_120B.model_copy(update={"sliding_window_tokens": 0})
    same = plan_memory(full, H100, tensor_parallel=2, weight_dtype=None, kv_dtype="bf16", engine=engine)
    assert plan.kv_capacity_tokens == same.kv_capacity_tokens


@given(
    full=st.integers(0, 3),
    windowed=st.integers(1, 6),
    window=st.integers(2, 4096),
    blocks=st.integers(1, 20_000),
    chunk=st.sampled_from([256, 2048, 8192]),
    version=st.sampled_from(["0.19.1", "0.33.0"]),
)
def test_the_longest_request_is_the_longest_that_fits(
    full: int, windowed: int, window: int, blocks: int, chunk: int, version: str
) -> None:
    """Against counting the blocks of one page more and one less."""
    engine = EngineSpec(name="vllm", version=version, chunk_tokens=chunk, max_running_requests=64)
    longest = 131_072
    tokens = KvGroups(10, full, windowed, window).longest_request_tokens(blocks, engine, longest)
    most = admitted_pages(window, engine, longest)

    def needed(pages: int) -> int:
        return full * pages + windowed * (pages if most is None else min(pages, most))

    pages = tokens // engine.page_size
    assert needed(pages) <= blocks
    assert tokens == longest or needed(pages + 1) > blocks
