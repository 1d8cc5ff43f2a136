"""Configurations of DeepSeek-V4, MiniMax-M3 and checkpoints in several formats: the keys that the conversion reads."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hisearch.latency.estimators.scaled import ScaledEstimator
from hisearch.latency.parameters import lm_head, matrices, parameter_count, weight_bytes_per_rank
from hisearch.latency.priced import PricedWorker
from hisearch.latency.sharding import Parallelism, shard
from hisearch.latency.workers.roofline import compute_dtypes, format_warnings
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.errors import SpecError
from hisearch.specs.huggingface.translation import model_from_config
from hisearch.specs.models.model import ModelSpec
from hisearch.specs.source import read_source

CATALOGUE = Catalogue()
FLASH = {
    "model_type": "deepseek_v4", "expert_dtype": "fp4", "hc_mult": 4, "head_dim": 512, "hidden_size": 4096,
    "index_head_dim": 128, "index_n_heads": 64, "index_topk": 512, "max_position_embeddings": 1048576,
    "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1, "num_attention_heads": 64,
    "num_experts_per_tok": 6, "num_hidden_layers": 43, "num_hash_layers": 3, "num_key_value_heads": 1, "o_groups": 8,
    "o_lora_rank": 1024, "q_lora_rank": 1024, "qk_rope_head_dim": 64, "sliding_window": 128, "vocab_size": 129280,
    "tie_word_embeddings": False, "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0],
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}  # fmt: skip
M3 = {
    "model_type": "minimax_m3", "hidden_size": 6144, "intermediate_size": 3072, "dense_intermediate_size": 12288,
    "shared_intermediate_size": 3072, "num_hidden_layers": 60, "num_attention_heads": 64, "num_key_value_heads": 4,
    "head_dim": 128, "vocab_size": 200064, "max_position_embeddings": 1048576, "num_local_experts": 128,
    "num_experts_per_tok": 4, "n_shared_experts": 1, "moe_layer_freq": [0] * 3 + [1] * 57, "torch_dtype": "bfloat16",
    "qk_norm_type": "per_head", "tie_word_embeddings": False,
    "sparse_attention_config": {
        "use_sparse_attention": True, "sparse_attention_freq": [0] * 3 + [1] * 57, "sparse_block_size": 128,
        "sparse_disable_index_value": [0] * 3 + [1] * 57, "sparse_index_dim": 128, "sparse_num_index_heads": 4,
        "sparse_topk_blocks": 16,
    },
}  # fmt: skip
QWEN36 = {
    "model_type": "qwen3_5_text", "hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 64,
    "num_attention_heads": 24, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 248320,
    "max_position_embeddings": 262144, "full_attention_interval": 4, "linear_num_key_heads": 16,
    "linear_num_value_heads": 48, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    "tie_word_embeddings": False,
}  # fmt: skip
#: As NVIDIA's ModelOpt names modules of Qwen3.6-27B.
QWEN36_MODULES = {
    **{
        f"model.language_model.layers.{layer}.{name}": {"quant_algo": "FP8"}
        for layer in range(64)
        for name in (
            ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
            if layer % 4 == 3
            else ("linear_attn.in_proj_qkv", "linear_attn.in_proj_z", "linear_attn.out_proj")
        )
    },
    **{
        f"model.language_model.layers.{layer}.mlp.{name}": {"quant_algo": "W4A16_NVFP4", "group_size": 16}
        for layer in range(64)
        for name in ("gate_proj", "up_proj", "down_proj")
    },
    "lm_head": {"quant_algo": "W4A16_NVFP4", "group_size": 16},
}


def convert(folder: Path, config: dict[str, Any], quantised: dict[str, Any] | None = None) -> ModelSpec:
    (folder / "config.json").write_text(json.dumps(config))
    if quantised is not None:
        (folder / "hf_quant_config.json").write_text(json.dumps({"quantization": quantised}))
    return model_from_config(read_source(folder / "config.json"), "it", datetime.date(2026, 11, 30))


def architecture(model: ModelSpec) -> dict[str, Any]:
    """Fields that say how it is built, without names and formats."""
    ignored = {
        "huggingface_id", "provenance", "weight_dtype", "other_formats", "kept_wide", "weight_only", "checkpoints",
        "towers", "bounded_sampling",
    }  # fmt: skip
    return {name: value for name, value in model.model_dump().items() if name not in ignored}


def test_deepseek_v4_is_the_catalogues(tmp_path: Path) -> None:
    model, known = convert(tmp_path, FLASH), CATALOGUE.get("Model", "deepseek-v4-flash").spec
    assert architecture(model) == architecture(known)
    assert model.weight_dtype == "fp4"
    assert weight_bytes_per_rank(model, 1, "fp4") == weight_bytes_per_rank(known, 1, "fp4")


@pytest.mark.parametrize(
    ("change", "weight_dtype"),
    [
        ({"model_type": "deepseek_ref", "expert_dtype": None}, "fp8"),
        ({"expert_dtype": "fp8"}, "fp8"),
        ({"expert_dtype": None}, "fp4"),
        ({"quantization_config": None, "torch_dtype": "bfloat16"}, "bf16"),
    ],
)
def test_formats_of_deepseek_v4(tmp_path: Path, change: dict[str, Any], weight_dtype: str) -> None:
    assert convert(tmp_path, FLASH | change).weight_dtype == weight_dtype


def test_nvfp4_experts_beside_fp8(tmp_path: Path) -> None:
    """NVIDIA's checkpoint: fp8 blocks, of which the listed experts are in NVFP4."""
    experts = {f"layers.{layer}.ffn.experts": {"quant_algo": "NVFP4", "group_size": 16} for layer in range(43)}
    section = {
        "quant_method": "fp8", "quant_algo": "MIXED_PRECISION", "quantized_layers": experts, "ignore": ["*.attn.*"]
    }  # fmt: skip
    model, known = convert(tmp_path, FLASH | {"quantization_config": section}), CATALOGUE.get(
        "Model", "deepseek-v4-flash"
    ).spec  # fmt: skip
    assert model.weight_dtype == "nvfp4"
    assert weight_bytes_per_rank(model, 1, "nvfp4") == weight_bytes_per_rank(known, 1, "nvfp4")


def test_minimax_m3_is_the_catalogues(tmp_path: Path) -> None:
    known = CATALOGUE.get("Model", "minimax-m3").spec
    assert architecture(convert(tmp_path, M3)) == architecture(known)
    inner = {key: value for key, value in M3.items() if key != "model_type"}
    nested = convert(tmp_path, {"model_type": "minimax_m3_vl", "text_config": inner})
    assert architecture(nested) == architecture(known)


@pytest.mark.parametrize(
    ("config", "change", "message"),
    [
        (FLASH, {"compress_ratios": [4] * 10}, "compress_ratios is"),
        (FLASH, {"o_groups": None}, "o_groups is missing"),
        (M3, {"moe_layer_freq": [0, 1, 0] * 20}, "expected 0 for leading dense layers"),
        (M3, {"sparse_attention_config": {"sparse_attention_freq": [1] * 60}}, "sparse_block_size is missing"),
        (
            M3,
            {"sparse_attention_config": M3["sparse_attention_config"] | {"sparse_disable_index_value": [0] * 60}},
            "index values",
        ),
    ],
)
def test_what_is_missing_or_not_known_is_refused(
    tmp_path: Path, config: dict[str, Any], change: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        convert(tmp_path, config | change)


def test_mixed_precision_by_its_modules(tmp_path: Path) -> None:
    """Qwen3.6-27B: attention in fp8, FFNs and the LM head in NVFP4 that is unpacked to 16 bits."""
    model = convert(tmp_path, QWEN36, {"quant_algo": "MIXED_PRECISION", "quantized_layers": QWEN36_MODULES})
    assert model.weight_dtype == "nvfp4"
    assert model.weight_only == ["nvfp4"]
    formats = {matrix.name: matrix.format("nvfp4") for matrix in matrices(model, shard(model, 1))}
    assert formats == {
        "qkv_proj": "fp8", "o_proj": "fp8", "linear_in_proj": "fp8", "linear_out_proj": "fp8",
        "linear_scalar_proj": "bf16", "gate_up_proj": "nvfp4", "down_proj": "nvfp4",
    }  # fmt: skip
    ffn, head = 64 * 3 * 5120 * 17408, 248320 * 5120
    attention = 16 * (5120 * (2 * 24 + 8) * 256 + 24 * 256 * 5120) + 48 * (5120 * (2 * 2048 + 2 * 6144) + 6144 * 5120)
    wide = parameter_count(model) - ffn - attention - head
    by_hand = (ffn + head) * (0.5 + 1 / 16) + attention + 2 * wide
    assert weight_bytes_per_rank(model, 1, "nvfp4") == pytest.approx(by_hand, rel=1e-9)
    # Another format of the same model has it everywhere, and its LM head in 16 bits.
    assert weight_bytes_per_rank(model, 1, "fp8") == pytest.approx(ffn + attention + 2 * (wide + head), rel=1e-9)
    h200, b200 = (CATALOGUE.get("Accelerator", name).spec for name in ("h200", "b200"))
    for accelerator, profile in ((h200, "vllm-h200"), (b200, "vllm-b200")):
        laws = CATALOGUE.get("LatencyProfile", profile).spec
        priced = PricedWorker(model, accelerator, Parallelism(), None, "bf16", EngineSpec(name="vllm"), 512, 8, 9999)
        worker = ScaledEstimator(profile, laws).worker(priced)
        assert worker.format_of(lm_head(model, worker.part)) == "fp4"
        assert np.all(worker.sequence_s(np.array([1.0, 8.0])) > 0)
        assert (
            "no law of dense products in fp4: the roofline prices them"
            in ScaledEstimator(profile, laws).compile(priced).warnings
        )
    assert compute_dtypes(b200, model, "nvfp4") == {"nvfp4": "bf16", "fp8": "fp8"}
    assert format_warnings(b200, model, "nvfp4") == ()


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ({}, "expected modules"),
        ({"model.layers.0.mlp.gate_proj": {"quant_algo": "INT3"}}, "INT3"),
        ({"model.layers.0.mixer.conv1d": {"quant_algo": "FP8"}}, "none of those that are known"),
        (
            {
                "model.layers.0.mlp.gate_proj": {"quant_algo": "FP8"},
                "model.layers.1.mlp.gate_proj": {"quant_algo": "NVFP4"},
            },
            "but others like it in fp8",
        ),
    ],
)
def test_mixed_precision_that_is_not_understood_is_refused(
    tmp_path: Path, modules: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        convert(tmp_path, QWEN36, {"quant_algo": "MIXED_PRECISION", "quantized_layers": modules})


def test_weights_that_an_accelerator_cannot_multiply_are_said_once_for_each_format() -> None:
    h200, a100 = (CATALOGUE.get("Accelerator", name).spec for name in ("h200", "a100-80gb"))
    flash = CATALOGUE.get("Model", "deepseek-v4-flash").spec
    assert [text.split()[4] for text in format_warnings(h200, flash, "fp4")] == ["fp4"]
    assert [text.split()[4] for text in format_warnings(a100, flash, "fp4")] == ["fp4", "fp8"]
    assert compute_dtypes(h200, flash, "fp4") == {"fp4": "bf16", "fp8": "fp8"}
