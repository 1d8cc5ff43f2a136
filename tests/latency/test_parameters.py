"""Parameter counts, weight and KV bytes, sharding: published figures and closed forms."""

from __future__ import annotations

import numpy as np
import pytest
from latency_catalogue import (
    DEEPSEEK_V3,
    GPT_OSS_120B,
    LLAMA_8B,
    LLAMA_70B,
    MODELS,
    QWEN3_30B_A3B,
    QWEN3_32B,
    QWEN3_235B_FP8,
    model,
)

from hisearch.latency.operators import active_experts
from hisearch.latency.parameters import (
    active_parameter_count,
    element_bytes,
    kv_bytes_per_token_per_rank,
    matrices,
    parameter_count,
    weight_bytes_per_rank,
    window_kv_bytes_per_token_per_rank,
)
from hisearch.latency.sharding import InvalidParallelism, shard
from hisearch.specs.models.model import MoeSpec


@pytest.mark.parametrize(
    ("spec", "published", "tolerance"),
    [
        (LLAMA_8B, 8_030_261_248, 0.0),  # safetensors' total
        (LLAMA_70B, 70_553_706_496, 0.0),
        (QWEN3_32B, 32_762_123_264, 1e-6),  # less its query and key norms
        (QWEN3_30B_A3B, 30_532_122_624, 1e-6),
        (QWEN3_235B_FP8, 235_093_634_560, 1e-6),
        (GPT_OSS_120B, 116.83e9, 1e-3),  # less its biases and sinks (model card, table 1)
        (DEEPSEEK_V3, 671.03e9, 1e-4),  # without the multi-token prediction layer
    ],
)
def test_parameter_count_is_the_published_one(spec, published, tolerance):
    assert parameter_count(spec) == pytest.approx(published, rel=tolerance)


@pytest.mark.parametrize(
    ("spec", "published"), [(QWEN3_30B_A3B, 3.3e9), (QWEN3_235B_FP8, 22e9), (DEEPSEEK_V3, 37e9), (GPT_OSS_120B, 5.1e9)]
)
def test_active_parameters_are_about_the_published_ones(spec, published):
    assert active_parameter_count(spec) == pytest.approx(published, rel=0.1)


def test_weights_are_split_and_the_wide_parts_stay_wide():
    assert weight_bytes_per_rank(LLAMA_8B, 1, "bf16") == 2 * parameter_count(LLAMA_8B)
    norms = (2 * 32 + 1) * 4096
    tables = 2 * 128256 * 4096
    matrices = parameter_count(LLAMA_8B) - norms - tables
    assert weight_bytes_per_rank(LLAMA_8B, 1, "fp8") == matrices + 2 * (norms + tables)
    assert weight_bytes_per_rank(LLAMA_8B, 4, "bf16") == 2 * (matrices / 4 + norms + tables / 4)


def test_a_router_in_single_precision_has_four_bytes_in_every_format():
    moe = QWEN3_30B_A3B.moe.model_copy(update={"router_dtype": "fp32"})
    single = QWEN3_30B_A3B.model_copy(update={"moe": moe})
    router = QWEN3_30B_A3B.layers * QWEN3_30B_A3B.hidden_size * moe.experts
    for dtype in ("bf16", "fp8", "int4"):
        more = weight_bytes_per_rank(single, 1, dtype) - weight_bytes_per_rank(QWEN3_30B_A3B, 1, dtype)
        assert more == 2 * router


def test_tied_embeddings_are_held_once():
    tied = LLAMA_8B.model_copy(update={"tie_word_embeddings": True})
    assert parameter_count(LLAMA_8B) - parameter_count(tied) == 128256 * 4096


def test_published_checkpoint_sizes():
    assert weight_bytes_per_rank(GPT_OSS_120B, 1, "fp4") == pytest.approx(65.3e9, rel=0.04)
    # "Loading model weights took 14.99 GiB" (vLLM, Llama-3.1-8B; buffers included).
    assert weight_bytes_per_rank(LLAMA_8B, 1, "bf16") == pytest.approx(14.99 * 2**30, rel=0.005)


def test_scales_of_four_bit_formats():
    elements = 8 * 1024 * 1024
    assert element_bytes("fp4") * elements == elements / 2 + elements / 32  # MXFP4: 8 bits per 32
    assert element_bytes("nvfp4") * elements == elements / 2 + elements / 16  # NVFP4: 8 bits per 16
    assert element_bytes("nvfp4") / element_bytes("fp4") == pytest.approx(1.0588, abs=1e-4)
    assert element_bytes("int4") * 128 == 64 + 2.5  # GPTQ: 16-bit scale and 4-bit zero per 128
    more = weight_bytes_per_rank(GPT_OSS_120B, 1, "nvfp4") - weight_bytes_per_rank(GPT_OSS_120B, 1, "fp4")
    assert more == pytest.approx(36 * 128 * 3 * 2880 * 2880 / 32)  # a byte per 32 elements of all experts
    # SGLang's fp4 KV cache: half a byte and a scale byte per 16 elements.
    wide = kv_bytes_per_token_per_rank(LLAMA_8B, 1, "bf16")
    assert kv_bytes_per_token_per_rank(LLAMA_8B, 1, "fp4") == wide / 2 * (0.5 + 1 / 16)


def test_what_a_checkpoint_keeps_wide_takes_sixteen_bits_in_its_format_alone():
    names = ["qkv_down_proj", "q_up_proj", "kv_up_proj"]
    kept = DEEPSEEK_V3.model_copy(update={"kept_wide": {"nvfp4": names}})
    rank_shard = shard(kept, 8)
    wide = [matrix for matrix in matrices(kept, rank_shard) if not matrix.takes("nvfp4")]
    assert sorted(matrix.name for matrix in wide) == sorted([*names, "router"])
    assert [matrix.name for matrix in matrices(kept, rank_shard) if not matrix.takes("fp8")] == ["router"]
    more = sum(matrix.elements for matrix in wide if matrix.name != "router") * (2.0 - element_bytes("nvfp4"))
    difference = weight_bytes_per_rank(kept, 8, "nvfp4") - weight_bytes_per_rank(DEEPSEEK_V3, 8, "nvfp4")
    assert difference == pytest.approx(more)
    assert weight_bytes_per_rank(kept, 8, "fp8") == weight_bytes_per_rank(DEEPSEEK_V3, 8, "fp8")


def test_kv_bytes_per_token():
    assert kv_bytes_per_token_per_rank(LLAMA_8B, 1, "bf16") == 131072
    assert kv_bytes_per_token_per_rank(LLAMA_70B, 8, "fp8") == 80 * 2 * 128
    assert kv_bytes_per_token_per_rank(QWEN3_30B_A3B, 4, "bf16") == kv_bytes_per_token_per_rank(
        QWEN3_30B_A3B, 8, "bf16"
    )  # 4 KV heads: replicated beyond TP 4
    latent = 61 * (512 + 64) * 2
    assert kv_bytes_per_token_per_rank(DEEPSEEK_V3, 1, "bf16") == latent
    assert kv_bytes_per_token_per_rank(DEEPSEEK_V3, 8, "bf16") == latent


def test_windowed_layers_keep_no_more_than_the_window():
    per_layer = 2 * 8 * 64 * 2
    assert kv_bytes_per_token_per_rank(GPT_OSS_120B, 1, "bf16") == 18 * per_layer
    assert window_kv_bytes_per_token_per_rank(GPT_OSS_120B, 1, "bf16") == 18 * per_layer
    everywhere = GPT_OSS_120B.model_copy(update={"sliding_window_layer_fraction": 1.0})
    assert kv_bytes_per_token_per_rank(everywhere, 1, "bf16") == 36 * per_layer
    assert window_kv_bytes_per_token_per_rank(everywhere, 1, "bf16") == 0


def small(**fields: object):
    shape = {"layers": 2, "hidden_size": 96, "attention_heads": 24, "kv_heads": 6, "head_dim": 4, "vocab_size": 100}
    return model("small", **{**shape, "intermediate_size": 192, **fields})


@pytest.mark.parametrize(
    ("spec", "ranks", "message"),
    [
        (LLAMA_8B, 3, "Llama-3.1-8B: tensor_parallel 3 does not divide attention_heads 32"),
        (small(), 4, "tensor_parallel 4 neither divides kv_heads 6 nor is a multiple of it"),
        (small(intermediate_size=190), 3, "tensor_parallel 3 does not divide intermediate_size 190"),
        (
            small(moe=MoeSpec(experts=4, experts_per_token=2, expert_intermediate_size=50)),
            3,
            "tensor_parallel 3 does not divide expert_intermediate_size 50",
        ),
    ],
)
def test_impossible_splits_say_which_width(spec, ranks, message):
    with pytest.raises(InvalidParallelism, match=message):
        shard(spec, ranks)


def test_an_unused_dense_width_does_not_matter():
    moe = MoeSpec(experts=4, experts_per_token=2, expert_intermediate_size=48)
    assert shard(small(intermediate_size=191, moe=moe), 3).expert_intermediate == 16


@pytest.mark.parametrize("spec", MODELS, ids=lambda m: m.huggingface_id)
def test_ranks_hold_the_whole_model_between_them(spec):
    total_bytes = weight_bytes_per_rank(spec, 1, "bf16")
    for ranks in (2, 4, 8):
        assert total_bytes <= ranks * weight_bytes_per_rank(spec, ranks, "bf16") < 1.06 * total_bytes


def test_active_experts_closed_forms():
    tokens = np.array([1.0, 2.0, 1e9])
    # One token uses exactly k; a second one k * (1 - k / E) more; many use all.
    assert active_experts(128, 8, tokens) == pytest.approx([8.0, 8.0 + 8.0 * (1 - 8 / 128), 128.0])
    assert list(active_experts(1, 1, np.array([0.0, 1.0, 5.0]))) == [0.0, 1.0, 1.0]


def test_active_experts_is_the_mean_of_draws():
    rng = np.random.default_rng(0)
    draws = [len({e for _ in range(5) for e in rng.choice(16, size=2, replace=False)}) for _ in range(4000)]
    assert active_experts(16, 2, np.array([5.0]))[0] == pytest.approx(np.mean(draws), rel=0.01)
