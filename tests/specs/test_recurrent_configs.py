"""Configurations of models with Kimi Delta Attention and with Mamba-2: only the keys that the conversion reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.documents.huggingface import read_config
from hisearch.specs.errors import SpecError
from hisearch.specs.models.model import ModelSpec

FULL = [4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60, 64, 68, 72, 76, 80, 84, 88, 92, 93]
KDA = {
    "head_dim": 128,
    "num_heads": 96,
    "short_conv_kernel_size": 4,
    "use_full_rank_gate": True,
    "gate_lower_bound": -5.0,
}
KIMI_K3 = {
    "model_type": "kimi_k3", "dtype": "bfloat16", "tie_word_embeddings": False,
    "text_config": {
        "model_type": "kimi_linear", "hidden_size": 7168, "intermediate_size": 33792, "num_hidden_layers": 93,
        "num_attention_heads": 96, "num_key_value_heads": 96, "q_lora_rank": 1536, "kv_lora_rank": 512,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "mla_use_nope": True,
        "mla_use_output_gate": True, "attn_res_block_size": 12, "first_k_dense_replace": 1, "moe_layer_freq": 1,
        "moe_intermediate_size": 3072, "num_experts": 896, "num_experts_per_token": 16, "num_shared_experts": 2,
        "routed_expert_hidden_size": 3584, "latent_moe_use_norm": True, "vocab_size": 163840,
        "max_position_embeddings": 1048576,
        "linear_attn_config": KDA | {"kda_layers": [layer for layer in range(1, 94) if layer not in FULL],
                                     "full_attn_layers": FULL},
        "quantization_config": {
            "quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized",
            "config_groups": {"group_0": {"weights": {"type": "float", "num_bits": 4, "group_size": 32}}},
        },
    },
}  # fmt: skip
KIMI_LINEAR = {
    "model_type": "kimi_linear", "dtype": "bfloat16", "hidden_size": 2304, "intermediate_size": 9216,
    "num_hidden_layers": 27, "num_attention_heads": 32, "num_key_value_heads": 32, "q_lora_rank": None,
    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "mla_use_nope": True,
    "first_k_dense_replace": 1, "moe_layer_freq": 1, "moe_intermediate_size": 1024, "num_experts": 256,
    "num_experts_per_token": 8, "num_shared_experts": 1, "vocab_size": 163840, "model_max_length": 1048576,
    "head_dim": 72,
    "linear_attn_config": {
        "head_dim": 128, "num_heads": 32, "short_conv_kernel_size": 4,
        "kda_layers": [layer for layer in range(1, 27) if layer % 4],
    },
}  # fmt: skip
NANO_PATTERN = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
NANO = {
    "model_type": "nemotron_h", "torch_dtype": "bfloat16", "hidden_size": 2688, "intermediate_size": 1856,
    "hybrid_override_pattern": NANO_PATTERN, "num_hidden_layers": 52, "num_attention_heads": 32,
    "num_key_value_heads": 2, "head_dim": 128, "mamba_num_heads": 64, "mamba_head_dim": 64, "ssm_state_size": 128,
    "n_groups": 8, "conv_kernel": 4, "chunk_size": 128, "mamba_ssm_cache_dtype": "float32", "n_routed_experts": 128,
    "num_experts_per_tok": 6, "moe_intermediate_size": 1856, "n_shared_experts": 1, "sliding_window": None,
    "moe_shared_expert_intermediate_size": 3712, "vocab_size": 131072, "max_position_embeddings": 262144,
    "tie_word_embeddings": False,
}  # fmt: skip
NAMES = {"M": "mamba", "*": "attention", "E": "moe", "-": "mlp"}
SUPER = NANO | {
    "hidden_size": 4096, "intermediate_size": 2688, "mamba_num_heads": 128, "n_routed_experts": 512,
    "num_experts_per_tok": 22, "moe_intermediate_size": 2688, "moe_latent_size": 1024,
    "moe_shared_expert_intermediate_size": 5376, "hybrid_override_pattern": None,
    "layers_block_type": ["mamba"] * 40 + ["attention"] * 8 + ["moe"] * 40, "num_hidden_layers": None,
}  # fmt: skip


def read(tmp_path: Path, config: dict[str, Any], **files: dict[str, Any]) -> ModelSpec:
    (tmp_path / "config.json").write_text(json.dumps(config))
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    spec: ModelSpec = read_config(tmp_path / "config.json").spec
    return spec


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("kimi-k3", KIMI_K3),
        ("kimi-linear-48b-a3b", KIMI_LINEAR),
        ("nemotron-3-nano-30b-a3b", NANO),
        ("nemotron-3-super-120b-a12b", SUPER),
    ],
)
def test_a_published_configuration_is_the_model_that_ships(name: str, config: dict[str, Any], tmp_path: Path) -> None:
    shipped: ModelSpec = Catalogue().get("Model", name).spec
    ignored = {"huggingface_id", "checkpoints", "provenance", "kept_wide", "other_formats", "weight_only", "towers"}
    assert read(tmp_path, config).model_dump(exclude=ignored) == shipped.model_dump(exclude=ignored)


def test_layers_are_read_by_letter_and_by_name(tmp_path: Path) -> None:
    named = NANO | {"hybrid_override_pattern": None, "layers_block_type": [NAMES[letter] for letter in NANO_PATTERN]}
    assert read(tmp_path, named) == read(tmp_path, NANO)
    dense = NANO | {"hybrid_override_pattern": "M-M-M*-M-", "intermediate_size": 4096}
    spec = read(tmp_path, dense)
    assert (spec.layers, spec.ffn_count, spec.intermediate_size, spec.moe) == (5, 4, 4096, None)
    both = read(tmp_path, NANO | {"hybrid_override_pattern": "M-MEM*E"})
    assert both.moe is not None
    assert (both.layers, both.ffn_count, both.moe.leading_dense_layers) == (4, 3, 1)


def test_experts_alone_are_quantised_in_kimi_k3(tmp_path: Path) -> None:
    spec = read(tmp_path, KIMI_K3)
    shipped: ModelSpec = Catalogue().get("Model", "kimi-k3").spec
    assert spec.weight_dtype == "fp4"
    assert set(shipped.kept_wide["fp4"]) <= set(spec.kept_wide["fp4"])


def test_mixed_precision_goes_by_the_list_of_modules(tmp_path: Path) -> None:
    layers = {
        "backbone.layers.0.mixer.in_proj": "FP8", "backbone.layers.0.mixer.out_proj": "FP8",
        "backbone.layers.1.mixer.experts.0.up_proj": "W4A16_NVFP4", "lm_head": "W4A16_NVFP4",
        "backbone.layers.1.mixer.shared_experts.up_proj": "W4A16_NVFP4",
        "backbone.layers.1.mixer.shared_experts.down_proj": "W4A16_NVFP4",
    }  # fmt: skip
    quantized = {name: {"quant_algo": algorithm} for name, algorithm in layers.items()}
    settings = {"quantization": {"quant_algo": "MIXED_PRECISION", "quantized_layers": quantized}}
    spec = read(tmp_path, NANO, hf_quant_config=settings)
    shipped: ModelSpec = Catalogue().get("Model", "nemotron-3.5-lightning-30b-a3b").spec
    assert (spec.weight_dtype, spec.other_formats) == ("nvfp4", shipped.other_formats)
    assert {"qkv_proj", "o_proj"} <= set(spec.kept_wide["nvfp4"])
    assert not {"shared_gate_up_proj", "linear_in_proj"} & set(spec.kept_wide["nvfp4"])


def test_excluded_modules_stay_wide_where_all_of_them_are(tmp_path: Path) -> None:
    modules = [f"backbone.layers.{layer}.mixer.{end}" for layer in (5, 12) for end in ("q_proj", "o_proj")]
    settings = {"quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head", *modules]}}
    assert read(tmp_path, NANO, hf_quant_config=settings).kept_wide == {"nvfp4": ["qkv_proj", "o_proj"]}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (NANO | {"hybrid_override_pattern": "MEX*"}, "layers of kind X are not known"),
        (NANO | {"hybrid_override_pattern": None}, "hybrid_override_pattern is missing"),
        (NANO | {"hybrid_override_pattern": "MEME"}, "no mamba or no attention"),
        (NANO | {"mamba_ssm_cache_dtype": "float8"}, "mamba_ssm_cache_dtype is text 'float8'"),
        (NANO | {"ssm_state_size": None}, "ssm_state_size is missing"),
        (KIMI_LINEAR | {"linear_attn_config": {}}, "linear_attn_config.kda_layers is missing"),
        (KIMI_LINEAR | {"linear_attn_config": {"kda_layers": [1]}}, "linear_attn_config.num_heads is missing"),
        (KIMI_LINEAR | {"moe_layer_freq": 2}, "only 1 is known"),
    ],
)
def test_what_is_not_understood_is_named(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        read(tmp_path, config)


@pytest.mark.parametrize(
    ("linear", "message"),
    [
        ({"kind": "kda", "value_heads": 8}, "as many heads of keys as of values"),
        ({"kind": "gated_delta", "gate_rank": 128}, "are of kda"),
        ({"kind": "mamba2", "bounded_decay": True}, "are of kda"),
    ],
)
def test_states_that_make_no_sense_are_refused(linear: dict[str, Any], message: str) -> None:
    spec: ModelSpec = Catalogue().get("Model", "qwen3.5-397b-a17b").spec
    assert spec.linear_attention is not None
    data = spec.model_dump() | {"linear_attention": spec.linear_attention.model_dump() | linear}
    with pytest.raises(ValueError, match=message):
        ModelSpec.model_validate(data)
