"""Configurations whose windowed layers have other heads: only the keys that the conversion reads."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest

from hisearch.latency.parameters import active_parameter_count, parameter_count
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.errors import SpecError
from hisearch.specs.huggingface.translation import model_from_config
from hisearch.specs.models.model import ModelSpec
from hisearch.specs.source import Source

FIVE_OF_SIX = ["sliding_attention"] * 5 + ["full_attention"]
GEMMA_4_26B = {
    "model_type": "gemma4", "dtype": "bfloat16", "tie_word_embeddings": True,
    "vision_config": {
        "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "patch_size": 16,
        "position_embedding_size": 10240, "pooling_kernel_size": 3,
    },
    "text_config": {
        "model_type": "gemma4_text", "attention_k_eq_v": True, "enable_moe_block": True, "dtype": "bfloat16",
        "final_logit_softcapping": 30.0, "global_head_dim": 512, "head_dim": 256, "hidden_size": 2816,
        "hidden_size_per_layer_input": 0, "intermediate_size": 2112, "layer_types": FIVE_OF_SIX * 5,
        "max_position_embeddings": 262144, "moe_intermediate_size": 704, "num_attention_heads": 16, "num_experts": 128,
        "num_global_key_value_heads": 2, "num_hidden_layers": 30, "num_key_value_heads": 8, "num_kv_shared_layers": 0,
        "sliding_window": 1024, "tie_word_embeddings": True, "top_k_experts": 8, "vocab_size": 262144,
    },
}  # fmt: skip
GEMMA_4_31B = GEMMA_4_26B | {
    "text_config": GEMMA_4_26B["text_config"] | {
        "enable_moe_block": False, "hidden_size": 5376, "intermediate_size": 21504, "layer_types": FIVE_OF_SIX * 10,
        "num_attention_heads": 32, "num_experts": None, "num_global_key_value_heads": 4, "num_hidden_layers": 60,
        "num_key_value_heads": 16, "top_k_experts": None, "moe_intermediate_size": None,
    },
}  # fmt: skip
MIMO = {
    "model_type": "mimo_v2_flash", "num_hidden_layers": 48, "hidden_size": 4096, "num_attention_heads": 64,
    "num_key_value_heads": 4, "head_dim": 192, "v_head_dim": 128, "intermediate_size": 16384, "vocab_size": 152576,
    "max_position_embeddings": 262144, "sliding_window": 128, "sliding_window_size": 128, "attention_chunk_size": 128,
    "swa_num_attention_heads": 64, "swa_num_key_value_heads": 8, "swa_head_dim": 192, "swa_v_head_dim": 128,
    "hybrid_layer_pattern": [0, 1, 1, 1, 1] + [0, 1, 1, 1, 1, 1] * 7 + [0], "moe_layer_freq": [0] + [1] * 47,
    "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": None, "num_experts_per_tok": 8,
    "add_swa_attention_sink_bias": True, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "quantization_config": {
        "quant_method": "fp8", "weight_block_size": [128, 128],
        "ignored_layers": [f"model.layers.{layer}.self_attn.o_proj" for layer in range(48)],
    },
}  # fmt: skip
#: Lists go on over the three layers that draft tokens.
STEP = {
    "model_type": "step3p7", "vision_config": {"width": 1536},
    "text_config": {
        "model_type": "step3p5", "hidden_size": 4096, "intermediate_size": 11264, "num_attention_heads": 64,
        "num_attention_groups": 8, "num_hidden_layers": 45, "head_dim": 128, "vocab_size": 128896,
        "max_position_embeddings": 262144, "moe_num_experts": 288, "moe_top_k": 8, "moe_intermediate_size": 1280,
        "share_expert_dim": 1280, "moe_layers_enum": ",".join(str(layer) for layer in range(3, 45)),
        "layer_types": (["full_attention"] + ["sliding_attention"] * 3) * 12, "sliding_window": 512,
        "attention_other_setting": {
            "attention_type": "sliding_attention", "num_attention_heads": 96, "num_attention_groups": 8,
            "head_dim": 128,
        },
        "use_head_wise_attn_gate": True, "num_nextn_predict_layers": 3, "torch_dtype": "bfloat16",
    },
}  # fmt: skip


def converted(config: dict[str, Any], **changes: object) -> ModelSpec:
    """``config`` with ``changes`` to its language model."""
    config = config | ({"text_config": config["text_config"] | changes} if "text_config" in config else changes)
    return model_from_config(Source(Path("config.json"), config, {}, ""), "somebody/model", datetime.date(2026, 11, 30))


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("gemma-4-26b-a4b", GEMMA_4_26B), ("gemma-4-31b", GEMMA_4_31B), ("mimo-v2-flash", MIMO),
        ("step-3.7-flash", STEP),
    ],
)  # fmt: skip
def test_a_published_configuration_is_the_model_that_ships(name: str, config: dict[str, Any]) -> None:
    shipped = Catalogue().get("Model", name).spec
    others = {"huggingface_id", "provenance", "kept_wide", "bounded_sampling", "architecture"}
    others |= {"towers"} if name == "step-3.7-flash" else set()  # of another form, whose size its publisher states
    model = converted(config)
    assert model.model_dump(exclude=others) == shipped.model_dump(exclude=others)
    assert {model.architecture, shipped.architecture} in ({shipped.architecture}, {"step3p5", "step3p7"})


def test_kinds_of_layers_differ_as_published() -> None:
    gemma, mimo, step = (converted(config) for config in (GEMMA_4_31B, MIMO, STEP))
    assert (gemma.head_dim, gemma.kv_heads, gemma.values_are_keys) == (512, 4, True)
    assert gemma.window_heads is not None
    assert (gemma.window_heads.head_dim, gemma.window_heads.kv_heads) == (256, 16)
    assert (mimo.head_dim, mimo.value_head_dim, mimo.attention_sinks) == (192, 128, True)
    assert step.window_heads is not None
    assert (step.attention_heads, step.window_heads.attention_heads, step.attention_head_gate) == (64, 96, True)


def test_a_quantised_checkpoint_says_what_it_left_alone() -> None:
    def nvfp4(*modules: str) -> dict[str, Any]:
        ignored = [f"model.language_model.layers.{layer}.{module}*" for layer in range(30) for module in modules]
        return GEMMA_4_26B | {
            "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ignored}
        }

    attention = ["qkv_proj", "o_proj", "window_qkv_proj", "window_o_proj"]
    assert converted(nvfp4("self_attn")).kept_wide == {"nvfp4": attention}
    with_dense = converted(nvfp4("self_attn", "mlp", "router")).kept_wide["nvfp4"]
    assert {"shared_gate_up_proj", "shared_down_proj"} <= set(with_dense)
    assert converted(nvfp4("router")).kept_wide == {}
    assert converted(MIMO).kept_wide == {"fp8": ["o_proj", "window_o_proj"]}


def test_heads_that_are_alike_are_no_section() -> None:
    alike = converted(GEMMA_4_31B, global_head_dim=256, num_global_key_value_heads=16)
    assert alike.window_heads is None
    # Without a setting of its own for windows, as its library's class has it.
    step = converted(STEP, attention_other_setting=None)
    assert step.window_heads is None
    assert step.sliding_window_layer_fraction == pytest.approx(33 / 45)


def test_step_is_read_by_both_names_of_its_keys() -> None:
    renamed = {
        "num_attention_groups": None, "num_key_value_heads": 8, "moe_num_experts": None, "num_experts": 288,
        "moe_top_k": None, "num_experts_per_tok": 8, "moe_layers_enum": None, "first_k_dense_replace": 3,
        "layer_types": STEP["text_config"]["layer_types"][:45],
    }  # fmt: skip
    assert converted(STEP, **renamed) == converted(STEP)
    assert parameter_count(converted(STEP)) == pytest.approx(196.81e9, rel=0.001)  # model card of Step-3.5-Flash
    assert active_parameter_count(converted(STEP)) == pytest.approx(11e9 + 128896 * 4096, rel=0.01)  # and an LM head


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (GEMMA_4_31B, {"hidden_size_per_layer_input": 256}, "hidden_size_per_layer_input is 256, of which only 0"),
        (GEMMA_4_31B, {"num_kv_shared_layers": 20}, "num_kv_shared_layers is 20, of which only 0"),
        (GEMMA_4_31B, {"layer_types": FIVE_OF_SIX}, "layer_types has 6 entries, expected 60"),
        (GEMMA_4_26B, {"top_k_experts": None}, "top_k_experts is missing"),
        (MIMO, {"hybrid_layer_pattern": [1] * 12}, "hybrid_layer_pattern has 12 entries, expected 48"),
        (MIMO, {"moe_layer_freq": [0, 1] * 24}, "moe_layer_freq: a layer without experts behind one with them"),
        (STEP, {"moe_layers_enum": "3,5,7"}, "moe_layers_enum: a layer without experts behind one with them"),
        (STEP, {"share_expert_dim": None}, "share_expert_dim or share_expert_dims is missing"),
    ],
)
def test_what_is_not_known_is_refused(config: dict[str, Any], changes: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        converted(config, **changes)
