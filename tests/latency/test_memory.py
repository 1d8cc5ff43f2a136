"""Memory plans: their parts, their limits, and the ways they refuse; test_kv_logs.py holds them against logs."""

from __future__ import annotations

import pytest
from latency_catalogue import (
    GPT_OSS_120B,
    H100,
    H200,
    LLAMA_8B,
    LLAMA_70B,
    QWEN3_235B_FP8,
    SGLANG,
    VLLM,
)

from hisearch.latency.device_memory.plan import GIB, DoesNotFit, MemoryPlan, plan_memory, usable_bytes
from hisearch.latency.sharding import InvalidParallelism
from hisearch.specs.deployments.deployment import EngineSpec


def plan(model, accelerator=H100, *, tp=1, engine=VLLM, weight_dtype=None, kv_dtype="bf16", **more) -> MemoryPlan:
    return plan_memory(
        model, accelerator, tensor_parallel=tp, weight_dtype=weight_dtype, kv_dtype=kv_dtype, engine=engine,
        accelerator_name="h100-sxm", **more,
    )  # fmt: skip


def test_many_sequences_sort_their_logits():
    """VLLM of July 2025 (its issue 21348) left 178,880 tokens with 1,024 sequences: to within 1 % of device memory."""
    engine = EngineSpec(name="vllm", max_running_requests=1024)
    memory_plan = plan(QWEN3_235B_FP8, tp=4, engine=engine, engine_version="0.9.2")
    logged_bytes = 178_880 * memory_plan.kv_bytes_per_token_per_rank
    assert abs(memory_plan.kv_bytes - logged_bytes) < 0.01 * H100.memory_bytes


def test_parts_add_up_to_the_engines_share():
    memory_plan = plan(LLAMA_8B)
    total = memory_plan.weights_bytes + memory_plan.activation_bytes + memory_plan.runtime_bytes + memory_plan.kv_bytes
    share = 0.9 * usable_bytes(H100)
    assert share - 16 * memory_plan.kv_bytes_per_token_per_rank < total <= share


def test_capacity_is_whole_pages():
    engine = EngineSpec(name="vllm", page_tokens=48)
    assert plan(LLAMA_8B, engine=engine).kv_capacity_tokens % 48 == 0


def test_half_the_kv_bytes_hold_twice_the_tokens():
    full, half = plan(LLAMA_8B), plan(LLAMA_8B, kv_dtype="fp8")
    assert abs(half.kv_capacity_tokens - 2 * full.kv_capacity_tokens) <= 16


@pytest.mark.parametrize("engine", [VLLM, SGLANG], ids=lambda e: e.name)
def test_more_memory_ranks_or_fraction_never_hold_fewer_tokens(engine):
    # SGLang's static share leaves 10 % for activations and graphs; it is lowered so that every case fits.
    base = engine.model_copy(update={"memory_fraction": 0.8})
    more = engine.model_copy(update={"memory_fraction": 0.85})
    tokens = plan(LLAMA_70B, H200, tp=2, engine=base).kv_capacity_tokens
    assert plan(LLAMA_70B, H200, tp=4, engine=base).kv_capacity_tokens > tokens
    assert plan(LLAMA_70B, H200, tp=2, engine=more).kv_capacity_tokens > tokens
    assert (
        plan(LLAMA_70B, H100, tp=4, engine=base).kv_capacity_tokens
        < plan(LLAMA_70B, H200, tp=4, engine=base).kv_capacity_tokens
    )


def test_a_chunk_or_batch_costs_vllm_kv_and_sglang_headroom():
    big = {"chunk_tokens": 65536}
    assert plan(LLAMA_8B, engine=VLLM.model_copy(update=big)).kv_capacity_tokens < plan(LLAMA_8B).kv_capacity_tokens
    assert plan(LLAMA_8B, engine=SGLANG.model_copy(update=big)).kv_bytes == plan(LLAMA_8B, engine=SGLANG).kv_bytes
    with pytest.raises(DoesNotFit, match="activations and CUDA graphs"):
        plan(LLAMA_8B, engine=SGLANG.model_copy(update={"chunk_tokens": 65536, "memory_fraction": 0.95}))


def test_trtllm_takes_its_fraction_of_what_weights_and_activations_leave():
    engine = EngineSpec(name="trtllm", memory_fraction=0.5)
    half, most = plan(LLAMA_8B, engine=engine), plan(LLAMA_8B, engine=EngineSpec(name="trtllm"))
    left = usable_bytes(H100) - half.weights_bytes - half.activation_bytes - half.runtime_bytes - GIB
    block = 32 * half.kv_bytes_per_token_per_rank
    assert 0.5 * left - block < half.kv_bytes <= 0.5 * left
    assert 0.9 * left - block < most.kv_bytes <= 0.9 * left


def test_windowed_layers_take_a_fixed_share():
    few = plan(GPT_OSS_120B, tp=2, engine=EngineSpec(name="vllm", max_running_requests=64))
    many = plan(GPT_OSS_120B, tp=2, engine=EngineSpec(name="vllm", max_running_requests=256))
    assert few.window_kv_bytes == 18 * 2 * 4 * 64 * 2 * (64 * 128 + 8192)
    assert many.kv_capacity_tokens < few.kv_capacity_tokens


def test_refusal_names_model_accelerator_ranks_format_and_bytes():
    with pytest.raises(DoesNotFit) as caught:
        plan(LLAMA_70B)
    message = str(caught.value)
    assert "meta-llama/Llama-3.1-70B (bf16, tensor_parallel 1) on h100-sxm does not fit" in message
    assert f"{caught.value.bytes_short / GIB:.2f} GiB short" in message
    reserved = H100.model_copy(update={"reserved_bytes": H100.memory_bytes - usable_bytes(H100)})
    bigger = reserved.model_copy(update={"memory_bytes": reserved.memory_bytes + (caught.value.bytes_short + 1) / 0.9})
    assert plan(LLAMA_70B, bigger).kv_capacity_tokens == 16
    smaller = reserved.model_copy(update={"memory_bytes": bigger.memory_bytes - 1000})
    with pytest.raises(DoesNotFit):
        plan(LLAMA_70B, smaller)


def test_quantised_weights_fit_where_wide_ones_do_not():
    with pytest.raises(DoesNotFit):
        plan(LLAMA_70B, H200)
    assert plan(LLAMA_70B, H200, weight_dtype="fp8").kv_capacity_tokens > 100_000


def test_impossible_split_is_not_a_memory_question():
    with pytest.raises(InvalidParallelism):
        plan(LLAMA_8B, tp=5)
