"""Configurations as published: only the keys that the conversion reads, and a few that it must leave alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hisearch.latency.parameters import active_parameter_count, parameter_count
from hisearch.specs.documents.catalogue import Catalogue, shipped_root
from hisearch.specs.documents.resolve import load_study
from hisearch.specs.errors import SpecError
from hisearch.specs.models.model import ModelSpec

LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16", "hidden_size": 4096,
    "intermediate_size": 14336, "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "vocab_size": 128256, "max_position_embeddings": 131072, "tie_word_embeddings": False, "rope_theta": 500000.0,
}  # fmt: skip
QWEN25_7B = {
    "model_type": "qwen2", "torch_dtype": "bfloat16", "hidden_size": 3584, "intermediate_size": 18944,
    "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4, "vocab_size": 152064,
    "max_position_embeddings": 32768, "sliding_window": 131072, "use_sliding_window": False, "max_window_layers": 28,
    "tie_word_embeddings": False,
}  # fmt: skip
QWEN3_32B = {
    "model_type": "qwen3", "torch_dtype": "bfloat16", "head_dim": 128, "hidden_size": 5120, "intermediate_size": 25600,
    "num_attention_heads": 64, "num_hidden_layers": 64, "num_key_value_heads": 8, "vocab_size": 151936,
    "max_position_embeddings": 40960, "sliding_window": None, "use_sliding_window": False, "tie_word_embeddings": False,
}  # fmt: skip
QWEN3_30B = {
    "model_type": "qwen3_moe", "torch_dtype": "bfloat16", "head_dim": 128, "hidden_size": 2048,
    "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
    "decoder_sparse_step": 1, "mlp_only_layers": [], "num_attention_heads": 32, "num_hidden_layers": 48,
    "num_key_value_heads": 4, "vocab_size": 151936, "max_position_embeddings": 40960, "tie_word_embeddings": False,
}  # fmt: skip
MIXTRAL = {
    "model_type": "mixtral", "torch_dtype": "bfloat16", "hidden_size": 4096, "intermediate_size": 14336,
    "num_local_experts": 8, "num_experts_per_tok": 2, "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 32768, "sliding_window": None,
    "tie_word_embeddings": False,
}  # fmt: skip
GPT_OSS = {
    "model_type": "gpt_oss", "head_dim": 64, "hidden_size": 2880, "intermediate_size": 2880, "num_local_experts": 128,
    "experts_per_token": 4, "num_experts_per_tok": 4, "num_attention_heads": 64, "num_hidden_layers": 36,
    "num_key_value_heads": 8, "vocab_size": 201088, "max_position_embeddings": 131072, "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 18, "tie_word_embeddings": False,
    "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]},
}  # fmt: skip
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3", "torch_dtype": "bfloat16", "hidden_size": 7168, "intermediate_size": 18432,
    "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8,
    "first_k_dense_replace": 3, "moe_layer_freq": 1, "num_attention_heads": 128, "num_key_value_heads": 128,
    "num_hidden_layers": 61, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128, "vocab_size": 129280, "max_position_embeddings": 163840, "tie_word_embeddings": False,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}  # fmt: skip
DEEPSEEK_V32 = {
    **DEEPSEEK_V3, "model_type": "deepseek_v32", "index_head_dim": 128, "index_n_heads": 64, "index_topk": 2048,
}  # fmt: skip
GLM_5 = {
    "model_type": "glm_moe_dsa", "dtype": "bfloat16", "head_dim": 64, "hidden_size": 6144, "intermediate_size": 12288,
    "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8,
    "first_k_dense_replace": 3, "moe_layer_freq": 1, "num_attention_heads": 64, "num_key_value_heads": 64,
    "num_hidden_layers": 78, "q_lora_rank": 2048, "kv_lora_rank": 512, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64,
    "v_head_dim": 256, "index_head_dim": 128, "index_n_heads": 32, "index_topk": 2048, "vocab_size": 154880,
    "max_position_embeddings": 202752, "tie_word_embeddings": False,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}  # fmt: skip
MINIMAX_M25 = {
    "model_type": "minimax_m2", "num_hidden_layers": 62, "hidden_size": 3072, "num_attention_heads": 48,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 1536, "vocab_size": 200064,
    "num_experts_per_tok": 8, "num_local_experts": 256, "max_position_embeddings": 196608,
    "tie_word_embeddings": False, "shared_intermediate_size": 0, "quantization_config": {"quant_method": "fp8"},
    "use_qk_norm": True, "qk_norm_type": "per_layer",
}  # fmt: skip
KIMI_K25 = {
    "vision_config": {
        "merge_kernel_size": [2, 2], "patch_size": 14, "vt_hidden_size": 1152, "vt_intermediate_size": 4304,
        "vt_num_hidden_layers": 27,
    },
    "model_type": "kimi_k25", "tie_word_embeddings": False,
    "text_config": {
        **{key: value for key, value in DEEPSEEK_V3.items() if key != "torch_dtype"}, "model_type": "kimi_k2",
        "n_routed_experts": 384, "first_k_dense_replace": 1, "num_attention_heads": 64, "num_key_value_heads": 64,
        "vocab_size": 163840, "max_position_embeddings": 262144,
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}}},
        },
    },
}  # fmt: skip
QWEN35 = {
    "vision_config": {
        "depth": 27, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 1152, "intermediate_size": 4304,
        "num_position_embeddings": 2304, "out_hidden_size": 4096, "patch_size": 16, "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    },
    "model_type": "qwen3_5_moe", "tie_word_embeddings": False, "text_config": {
        "model_type": "qwen3_5_moe_text", "dtype": "bfloat16", "attn_output_gate": True, "full_attention_interval": 4,
        "head_dim": 256, "hidden_size": 4096, "layer_types": [*["linear_attention"] * 3, "full_attention"] * 15,
        "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 64,
        "linear_value_head_dim": 128, "max_position_embeddings": 262144, "mlp_only_layers": [],
        "moe_intermediate_size": 1024, "num_attention_heads": 32, "num_experts": 512, "num_experts_per_tok": 10,
        "num_hidden_layers": 60, "num_key_value_heads": 2, "shared_expert_intermediate_size": 1024,
        "vocab_size": 248320, "mamba_ssm_dtype": "float32",
    },
}  # fmt: skip


def _write(folder: Path, config: dict[str, Any]) -> str:
    path = folder / "My Model/config.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(config, indent=2))
    return str(path)


def _convert(folder: Path, config: dict[str, Any]) -> ModelSpec:
    spec: ModelSpec = Catalogue(folder).get("Model", _write(folder, config)).spec
    return spec


def _refusal(folder: Path, config: dict[str, Any]) -> str:
    with pytest.raises(SpecError) as caught:
        _convert(folder, config)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("llama-3.1-8b", LLAMA_8B),
        ("qwen2.5-7b", QWEN25_7B),
        ("qwen3-32b", QWEN3_32B),
        ("qwen3-30b-a3b", QWEN3_30B),
        ("mixtral-8x7b", MIXTRAL),
        ("gpt-oss-120b", GPT_OSS),
        ("deepseek-v3", DEEPSEEK_V3),
        ("deepseek-v3.2", DEEPSEEK_V32),
        ("glm-5", GLM_5),
        ("minimax-m2.5", MINIMAX_M25),
        ("kimi-k2.5", KIMI_K25),
        ("qwen3.5-397b-a17b", QWEN35),
    ],
)
def test_a_published_configuration_is_the_model_that_ships(name: str, config: dict[str, Any], tmp_path: Path) -> None:
    shipped = Catalogue(shipped_root()).get("Model", name).spec
    # Its other checkpoints, what those in other formats keep wide, and what drafts yield, this one does not say.
    unsaid = {"huggingface_id", "checkpoints", "provenance", "kept_wide", "speculation"}
    assert _convert(tmp_path, config).model_dump(exclude=unsaid) == shipped.model_dump(exclude=unsaid)


#: What publishers of quantised checkpoints leave out, in their own spelling.
LEFT_OUT = {
    "kimi-k2.5": (
        KIMI_K25,
        {"quant_method": "modelopt", "quant_algo": "NVFP4",
         "ignore": ["lm_head", *(f"language_model.model.layers.{layer}.self_attn*" for layer in range(61))]},
    ),
    "glm-5": (
        GLM_5,
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": ["lm_head", *(
            f"model.layers.{layer}.self_attn.{part}"
            for layer in range(78)
            for part in ("indexer*", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj", "q_a_proj", "q_b_proj")
        )]},
    ),
    "qwen3.5-397b-a17b": (
        QWEN35,
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": ["lm_head", "*.mlp.shared_expert.*", *(
            f"model.language_model.layers.{layer}.{'self_attn' if layer % 4 == 3 else 'linear_attn'}*"
            for layer in range(60)
        )]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_a_quantiser_left_out_stays_wide(name: str, tmp_path: Path) -> None:
    config, quantization = LEFT_OUT[name]
    if "text_config" in config:
        inner = {key: value for key, value in config["text_config"].items() if key != "quantization_config"}
        config = {**config, "text_config": inner}
    spec = _convert(tmp_path, {**config, "quantization_config": quantization})
    assert spec.weight_dtype == "nvfp4"
    assert sorted(spec.kept_wide["nvfp4"]) == sorted(
        Catalogue(shipped_root()).get("Model", name).spec.kept_wide["nvfp4"]
    )


@pytest.mark.parametrize(
    ("quantization", "kept"),
    [
        ({"quant_method": "fp8", "modules_to_not_convert": ["lm_head", "gate", "o_proj"]}, ["o_proj"]),
        ({"quant_method": "fp8", "modules_to_not_convert": ["model.layers.*.self_attn"]}, ["qkv_proj", "o_proj"]),
        ({"quant_method": "fp8", "modules_to_not_convert": ["model.layers.3.mlp.down_proj"]}, None),
        ({"quant_method": "compressed-tensors", "config_groups": {"0": {"weights": {"type": "int", "num_bits": 4}}},
          "ignore": ["lm_head", "re:.*mlp.(gate|up|down)_proj"]}, ["gate_up_proj", "down_proj"]),
    ],
)  # fmt: skip
def test_matrices_left_out_of_a_dense_model(
    quantization: dict[str, Any], kept: list[str] | None, tmp_path: Path
) -> None:
    spec = _convert(tmp_path, {**LLAMA_8B, "quantization_config": quantization})
    assert spec.kept_wide.get(spec.weight_dtype) == kept


def test_a_mixture_with_a_sparse_mixer_states_its_operators_and_its_window(tmp_path: Path) -> None:
    changes = {"model_type": "phimoe", "num_local_experts": 16, "intermediate_size": 960, "sliding_window": 2047}
    spec = _convert(tmp_path, {**MIXTRAL, **changes})
    assert spec.moe is not None
    assert (spec.moe.experts, spec.moe.expert_intermediate_size, spec.moe.choice_operators) == (16, 960, 21)
    assert (spec.sliding_window_tokens, spec.sliding_window_layer_fraction) == (2047, 1.0)


def test_layers_without_an_indexer_of_their_own_are_counted(tmp_path: Path) -> None:
    kinds = ["full", "full", "full", *["shared", "shared", "shared", "full"] * 18, *["shared"] * 3]
    spec = _convert(tmp_path, {**GLM_5, "index_topk_freq": 4, "indexer_types": kinds})
    assert spec.sparse_attention is not None
    assert spec.sparse_attention.index_layers == 21
    assert "indexer_types is missing" in _refusal(tmp_path, {**GLM_5, "index_topk_freq": 4})


def test_a_hybrid_without_a_list_of_layers_goes_by_the_interval(tmp_path: Path) -> None:
    text = {key: value for key, value in QWEN35["text_config"].items() if key != "layer_types"}
    spec = _convert(tmp_path, {**QWEN35, "text_config": {**text, "full_attention_interval": 5}})
    assert spec.linear_attention is not None
    assert spec.linear_attention.layers == 48


def test_quantisation_is_read_from_the_adjacent_file(tmp_path: Path) -> None:
    quantisation_file = (tmp_path / _write(tmp_path, LLAMA_8B)).with_name("hf_quant_config.json")
    quantisation_file.write_text('{"quantization": {"quant_algo": "NVFP4", "group_size": 16}}')
    assert _convert(tmp_path, LLAMA_8B).weight_dtype == "nvfp4"
    quantisation_file.write_text('{"quantization": {"quant_algo": "MIXED_PRECISION"}}')
    assert "quantized_layers: is nothing, expected modules" in _refusal(tmp_path, LLAMA_8B)
    quantisation_file.write_text("[]")
    assert "hf_quant_config.json" in _refusal(tmp_path, LLAMA_8B)


@pytest.mark.parametrize(
    ("text", "bounded"), [('{"top_p": 0.9}', True), ('{"top_k": 20, "top_p": 1.0}', True), ("{}", False), (None, None)]
)
def test_sampling_is_read_from_the_adjacent_file(tmp_path: Path, text: str | None, bounded: bool | None) -> None:
    sampling_file = (tmp_path / _write(tmp_path, LLAMA_8B)).with_name("generation_config.json")
    if text is not None:
        sampling_file.write_text(text)
    assert _convert(tmp_path, LLAMA_8B).bounded_sampling == bounded


def test_bad_sampling_settings_are_refused_by_file_and_key(tmp_path: Path) -> None:
    sampling_file = (tmp_path / _write(tmp_path, LLAMA_8B)).with_name("generation_config.json")
    sampling_file.write_text("[]")
    assert "generation_config.json" in _refusal(tmp_path, LLAMA_8B)
    sampling_file.write_text('{"top_p": "most"}')
    assert "top_p" in _refusal(tmp_path, LLAMA_8B)


def test_deepseek_v2_lite_projects_queries_directly(tmp_path: Path) -> None:
    spec = _convert(tmp_path, {**DEEPSEEK_V3, "model_type": "deepseek_v2", "q_lora_rank": None, "n_shared_experts": 2})
    assert spec.mla is not None
    assert spec.moe is not None
    assert spec.mla.q_lora_rank == 0
    assert spec.moe.shared_intermediate_size == 4096


def test_defaults_of_the_transformers_library(tmp_path: Path) -> None:
    short = {key: value for key, value in LLAMA_8B.items() if key not in {"num_key_value_heads", "torch_dtype"}}
    spec = _convert(tmp_path, short)
    assert (spec.kv_heads, spec.head_dim, spec.weight_dtype) == (32, 128, "bf16")
    qwen = {key: value for key, value in QWEN25_7B.items() if key != "num_key_value_heads"}
    with pytest.raises(SpecError, match="num_key_value_heads is missing"):  # its class would take 32, of 28 heads
        _convert(tmp_path, qwen)


def test_a_window_in_the_upper_layers(tmp_path: Path) -> None:
    spec = _convert(tmp_path, {**QWEN25_7B, "use_sliding_window": True, "max_window_layers": 21})
    assert (spec.sliding_window_tokens, spec.sliding_window_layer_fraction) == (131072, 0.25)
    everywhere = _convert(tmp_path, {**LLAMA_8B, "model_type": "mistral", "sliding_window": 4096})
    assert (everywhere.sliding_window_tokens, everywhere.sliding_window_layer_fraction) == (4096, 1.0)


@pytest.mark.parametrize(
    ("quantization", "dtype"),
    [
        ({"quant_method": "awq", "bits": 4}, "int4"),
        ({"quant_method": "gptq", "bits": 8}, "int8"),
        ({"quant_method": "mxfp4"}, "fp4"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"0": {"weights": {"type": "float", "num_bits": 8}}},
            },
            "fp8",
        ),
        ({"quant_algo": "FP8", "producer": {"name": "modelopt"}}, "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
    ],
)
def test_quantised_weights(tmp_path: Path, quantization: dict[str, Any], dtype: str) -> None:
    assert _convert(tmp_path, {**LLAMA_8B, "quantization_config": quantization}).weight_dtype == dtype


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"model_type": "mamba"},
            "model_type: architecture 'mamba' is not known; known: llama, mistral, phi3, mimo, gemma3",
        ),
        (
            {"num_hidden_layers": None, "vocab_size": None},
            "config.json of model_type llama: num_hidden_layers is missing; vocab_size is missing",
        ),
        (
            {"model_type": "qwen2", "num_key_value_heads": None},
            "config.json of model_type qwen2: num_key_value_heads is missing",
        ),
        ({"hidden_size": "big"}, "hidden_size is text 'big', expected an integer"),
        ({"num_attention_heads": 30}, "attention_heads 30 is not a multiple of kv_heads 8"),
        ({"num_hidden_layers": 0}, "makes no model: layers: "),
        ({"torch_dtype": "float8"}, "torch_dtype: 'float8' is not known; known: bfloat16"),
        ({"quantization_config": {"quant_method": "exl2"}}, "quantization_config: quantization 'exl2' is not known"),
        (
            {"quantization_config": {"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}},
            "quantization_config: quantization 'modelopt W4A8_AWQ' is not known",
        ),
    ],
)
def test_what_is_not_understood_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    assert message in _refusal(tmp_path, {**LLAMA_8B, **change})


@pytest.mark.parametrize("change", [{"decoder_sparse_step": 2}, {"mlp_only_layers": [0]}])
def test_interleaved_experts_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    assert "interleaved with dense ones" in _refusal(tmp_path, {**QWEN3_30B, **change})


def test_what_is_no_configuration_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[1]")
    with pytest.raises(SpecError, match=r"x.json:1: expected the JSON object of a model's config.json"):
        Catalogue(tmp_path).get("Model", "x.json")


def test_a_study_takes_a_configuration_by_path(project: Path) -> None:
    path = _write(project, QWEN3_32B)
    study = load_study("mine", [f"spec.model={path}"])
    assert study.model.name == "my-model"
    assert study.model.spec.layers == 64
    assert study.input_digests()[path] == study.model.digest


@pytest.mark.parametrize(
    ("saved", "served"),
    [
        ("deepseek-ai/DeepSeek-V3.2", "deepseek-ai/DeepSeek-V3.2"),
        ("/data/checkpoints/v32", "my-model"),
        ("./out", "my-model"),
        ("", "my-model"),
    ],
)
def test_an_id_in_the_file_is_what_is_served(tmp_path: Path, saved: str, served: str) -> None:
    """``_name_or_path`` may as well be a folder of whoever saved the file."""
    assert _convert(tmp_path, {**LLAMA_8B, "_name_or_path": saved}).huggingface_id == served
    seeing = {"_name_or_path": saved, "text_config": LLAMA_8B, "model_type": "some_vl"}
    assert _convert(tmp_path, seeing).huggingface_id == served


def test_a_study_says_what_is_served(tmp_path: Path) -> None:
    settings = (f"spec.model={_write(tmp_path, LLAMA_8B)}", "spec.huggingface_id=acme/Llama-Tuned")
    study = load_study("quickstart", settings)
    assert (study.model.spec.huggingface_id, study.model_name) == ("acme/Llama-Tuned", "llama-tuned")
    path = tmp_path / "study.yaml"
    path.write_text(study.to_yaml(), encoding="utf-8")
    assert load_study(path).model.spec == study.model.spec
    with pytest.raises(SpecError, match=r"huggingface_id: 'tuned' is neither ORGANISATION/MODEL"):
        load_study("quickstart", ("spec.huggingface_id=tuned",))


def test_gemma_3_relies_on_defaults_of_its_library(tmp_path: Path) -> None:
    """gemma-3-4b-it as published: text_config leaves heads, head size and vocabulary to the library."""
    text = {
        "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
        "sliding_window": 1024,
    }  # fmt: skip
    model = _convert(tmp_path, {"model_type": "gemma3", "text_config": text, "torch_dtype": "bfloat16"})
    assert (model.attention_heads, model.kv_heads, model.head_dim) == (8, 4, 256)
    assert model.sliding_window_tokens == 1024
    assert model.sliding_window_layer_fraction == pytest.approx(29 / 34)
    assert parameter_count(model) == pytest.approx(3.88e9, rel=0.01)  # 4.3e9 published, 0.42e9 of them for pictures


def test_llama_4_alternates_experts_and_dense_layers(tmp_path: Path) -> None:
    """Llama-4-Maverick's text part: every second layer has 128 experts, three of four attend within chunks."""
    text = {
        "model_type": "llama4_text", "hidden_size": 5120, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
        "num_attention_heads": 40, "num_hidden_layers": 48, "num_key_value_heads": 8, "head_dim": 128,
        "num_local_experts": 128, "num_experts_per_tok": 1, "interleave_moe_layer_step": 2, "vocab_size": 202048,
        "max_position_embeddings": 1048576, "attention_chunk_size": 8192,
    }  # fmt: skip
    model = _convert(tmp_path, {"model_type": "llama4", "text_config": text, "torch_dtype": "bfloat16"})
    assert model.moe is not None
    assert model.moe.leading_dense_layers == 24
    assert parameter_count(model) == pytest.approx(400e9, rel=0.01)
    assert active_parameter_count(model) == pytest.approx(17e9, rel=0.08)
    assert (model.sliding_window_tokens, model.sliding_window_layer_fraction) == (8192, 0.75)


def test_qwen_2_5_vl_is_its_language_model(tmp_path: Path) -> None:
    config = {**LLAMA_8B, "model_type": "qwen2_5_vl", "vision_config": {"depth": 32}, "use_sliding_window": False}
    assert parameter_count(_convert(tmp_path, config)) == parameter_count(_convert(tmp_path, LLAMA_8B))
