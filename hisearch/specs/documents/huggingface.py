"""Hugging Face ``config.json`` -> :class:`ModelSpec`.

Field names and defaults follow the configuration classes of the transformers library
(https://huggingface.co/docs/transformers/model_doc), read 2026-11.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import ValidationError

from hisearch.specs.documents.document import Document
from hisearch.specs.models.model import ModelSpec
from hisearch.specs.source import Source, read_source
from hisearch.specs.wording import described


class _Family(NamedTuple):
    """What an architecture is made of.

    experts: keys of its routed experts: none, with a width of their own, with that of ``intermediate_size``,
        DeepSeek's (leading dense layers, shared experts), or Llama 4's (every n-th layer, a shared expert as wide).
    single_router: engines multiply by the router in 32 bits (vLLM's and SGLang's models; SGLang's of GLM-4 since its
        pull request 21660 of March 2026).
    choice_operators: see ``MoeSpec``.
    defaults: of keys that published configurations leave to the library.
    """

    experts: Literal["none", "own", "intermediate", "deepseek", "llama4"] = "none"
    mla: bool = False
    sparse: bool = False
    linear: bool = False
    single_router: bool = False
    choice_operators: int = 1
    defaults: Mapping[str, Any] = {}

    @property
    def router_dtype(self) -> Literal["bf16", "fp32"]:
        """See ``MoeSpec``."""
        return "fp32" if self.single_router else "bf16"


#: Defaults of ``Gemma3TextConfig``, on which the published configurations of Gemma 3 rely.
_GEMMA3 = {
    "vocab_size": 262_208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
    "max_position_embeddings": 131_072, "tie_word_embeddings": True, "sliding_window": 4096,
    "sliding_window_pattern": 6,
}  # fmt: skip

#: By ``model_type``; that of the language model in ``text_config``, where there is one, less its ``_text``.
_FAMILIES = {
    "llama": _Family(), "mistral": _Family(), "phi3": _Family(), "mimo": _Family(),
    "gemma3": _Family(defaults=_GEMMA3), "llama4": _Family("llama4"), "qwen2_vl": _Family(), "qwen2_5_vl": _Family(),
    "qwen2": _Family(), "qwen3": _Family(), "qwen3_vl": _Family(), "qwen3_5": _Family(linear=True),
    "mixtral": _Family("intermediate"), "gpt_oss": _Family("intermediate"),
    "phimoe": _Family("intermediate", choice_operators=21),
    "minimax_m2": _Family("intermediate", single_router=True),
    "qwen3_moe": _Family("own"), "qwen3_vl_moe": _Family("own"),
    "qwen3_next": _Family("own", linear=True), "qwen3_5_moe": _Family("own", linear=True),
    "glm4_moe": _Family("deepseek", single_router=True),
    "deepseek_v2": _Family("deepseek", mla=True), "deepseek_v3": _Family("deepseek", mla=True),
    "kimi_k2": _Family("deepseek", mla=True), "deepseek_v32": _Family("deepseek", mla=True, sparse=True),
    "glm_moe_dsa": _Family("deepseek", mla=True, sparse=True),
}  # fmt: skip

#: Every head has KV of its own where ``num_key_value_heads`` is left out; other classes have numbers of their own.
_KV_OF_EACH_HEAD = ("llama", "phi3")

#: ``ORGANISATION/MODEL``.
_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)

#: File next to a checkpoint that NVIDIA's ModelOpt quantised.
QUANT_CONFIG_FILE = "hf_quant_config.json"
#: File next to a checkpoint whose publisher says how to sample.
GENERATION_CONFIG_FILE = "generation_config.json"

_TORCH_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float8_e4m3fn": "fp8"}
_QUANT_METHODS = {"fp8": "fp8", "fbgemm_fp8": "fp8", "mxfp4": "fp4"}
_MODELOPT_ALGORITHMS = {"FP8": "fp8", "NVFP4": "nvfp4"}
_COMPRESSED = {"int 4": "int4", "int 8": "int8", "float 8": "fp8", "float 4": "nvfp4"}
_QUANT_BITS = {4: "int4", 8: "int8"}


class _Config:
    """Keys of a ``config.json``; collects faults: keys that are missing or no integers."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data
        self.faults: list[str] = []

    def need(self, *names: str) -> int:
        """The integer under the first of ``names`` that is present; 1, and a fault, where none is."""
        for name in names:
            if self.data.get(name) is not None:
                return self.count(name, 1)
        self.faults.append(f"{' or '.join(names)} is missing")
        return 1

    def count(self, name: str, default: int) -> int:
        """The integer under ``name``; ``default`` where it is absent, null or, with a fault, no integer."""
        value = self.get(name, default)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
        self.faults.append(f"{name} is {described(value)}, expected an integer")
        return default

    def get(self, name: str, default: Any) -> Any:
        """Value of ``name``; ``default`` where it is absent or null."""
        value = self.data.get(name)
        return default if value is None else value


def read_config(path: Path) -> Document[ModelSpec]:
    """The model described by a ``config.json``, named after the file or, if that is called ``config``, its folder.

    Raises:
        SpecError: not a configuration, an architecture that is not known, or keys that are missing.
    """
    source = read_source(path)
    if not isinstance(source.data, dict):
        raise source.error((), "expected the JSON object of a model's config.json")
    stem = path.stem if path.stem != "config" else path.absolute().parent.name
    name = re.sub(r"[^a-z0-9._-]+", "-", stem.lower()).strip("-._") or "model"
    as_of = datetime.date.fromtimestamp(path.stat().st_mtime)
    return Document("Model", name, model_from_config(source, name, as_of), source)


def model_from_config(source: Source, name: str, as_of: datetime.date) -> ModelSpec:
    """Converts the configuration in ``source.data``.

    Args:
        source: a ``config.json`` as read.
        name: what to call the model where the configuration does not say.
        as_of: date for the provenance.

    Raises:
        SpecError: an architecture that is not known, keys that are missing, values that make no model.
    """
    raw_config, inner = source.data, source.data.get("text_config")
    if isinstance(inner, dict):
        # A multimodal model: its language model is served token by token.
        outer_keys = ("_name_or_path", "tie_word_embeddings", "quantization_config", "dtype")
        kept = {key: raw_config[key] for key in outer_keys if key in raw_config}
        raw_config = {**kept, **inner}
    config = _Config(raw_config)
    kind = str(config.get("model_type", "")).removesuffix("_text")
    if kind not in _FAMILIES:
        message = (
            f"architecture '{kind}' is not known; known: {', '.join(_FAMILIES)}. Any other can be written by hand, as "
            "a document of kind Model (docs/specs.md#model): copy the nearest of `hisearch list Model`"
        )
        raise source.error(("model_type",), message)
    family = _FAMILIES[kind]
    config.data = {**family.defaults, **{key: value for key, value in config.data.items() if value is not None}}
    data = {
        "huggingface_id": _published_id(config) or name,
        "layers": config.need("num_hidden_layers"),
        "hidden_size": config.need("hidden_size"),
        "vocab_size": config.need("vocab_size"),
        "tie_word_embeddings": config.get("tie_word_embeddings", False),
        "max_context_tokens": config.need("max_position_embeddings"),
        "weight_dtype": _weight_dtype(source, config),
        "attention_stays_wide": kind == "gpt_oss",
        "qk_norm_per_layer": config.get("qk_norm_type", "") == "per_layer",
        "attention_output_gate": family.linear and config.get("attn_output_gate", True),
        "provenance": {"source": f"config.json of {name}", "as_of": as_of},
        **_bounded_sampling(source),
        **_attention(config, kind, family),
        **_linear(config, family),
        **_feed_forward(source, config, family),
        **_window(config, kind),
    }
    if config.faults:
        raise source.error((), f"config.json of model_type {kind}: {'; '.join(config.faults)}")
    try:
        return ModelSpec.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        raise source.error((), f"makes no model: {key}: {first['msg']}".replace(": : ", ": ")) from None


def _published_id(config: _Config) -> str:
    """Its ``_name_or_path`` where that is an id; "" where it is absent, or a folder of whoever saved the file."""
    name = str(config.get("_name_or_path", ""))
    return name if _ID.fullmatch(name) else ""


def _attention(config: _Config, kind: str, family: _Family) -> dict[str, Any]:
    heads = config.need("num_attention_heads")
    if not family.mla:
        head_dim = config.count("head_dim", 0) or config.need("hidden_size") // max(heads, 1)
        key = "num_key_value_heads"
        kv_heads = config.count(key, heads) if kind in _KV_OF_EACH_HEAD else config.need(key)
        return {"attention_heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
    mla: dict[str, int] = {
        "q_lora_rank": config.count("q_lora_rank", 0),
        **{key: config.need(key) for key in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")},
    }
    return {
        "attention_heads": heads,
        "kv_heads": heads,
        "head_dim": mla["qk_nope_head_dim"] + mla["qk_rope_head_dim"],
        "attention": "mla",
        "mla": mla,
        **_sparse(config, family),
    }


def _sparse(config: _Config, family: _Family) -> dict[str, Any]:
    """The indexer of sparse attention; layers of type ``shared`` read what an earlier one's indexer chose."""
    if not family.sparse:
        return {}
    kinds = config.get("indexer_types", [])
    if not kinds and config.get("index_topk_freq", 1) != 1:
        config.faults.append("indexer_types is missing, which index_topk_freq above 1 needs")
    layers = sum(kind == "full" for kind in kinds) if "shared" in kinds else 0
    sizes = {"index_heads": "index_n_heads", "index_head_dim": "index_head_dim", "topk": "index_topk"}
    return {"sparse_attention": {"index_layers": layers, **{name: config.need(key) for name, key in sizes.items()}}}


def _linear(config: _Config, family: _Family) -> dict[str, Any]:
    if not family.linear:
        return {}
    layers, every = config.need("num_hidden_layers"), config.count("full_attention_interval", 4)
    kinds = config.get("layer_types", [])
    linear = sum(kind == "linear_attention" for kind in kinds) if kinds else layers - layers // max(every, 1)
    state = str(config.get("mamba_ssm_dtype", "float32"))
    if state not in ("float32", "bfloat16"):
        config.faults.append(f"mamba_ssm_dtype is {described(state)}, expected float32 or bfloat16")
    return {
        "linear_attention": {
            "layers": linear,
            "key_heads": config.need("linear_num_key_heads"),
            "value_heads": config.need("linear_num_value_heads"),
            "key_head_dim": config.need("linear_key_head_dim"),
            "value_head_dim": config.need("linear_value_head_dim"),
            "conv_kernel": config.count("linear_conv_kernel_dim", 4),
            "state_dtype": "bf16" if state == "bfloat16" else "fp32",
        }
    }


def _feed_forward(source: Source, config: _Config, family: _Family) -> dict[str, Any]:
    if family.experts == "none":
        return {"intermediate_size": config.need("intermediate_size")}
    if family.experts == "deepseek":
        return _deepseek_experts(source, config, family)
    if family.experts == "llama4":
        return _llama4_experts(config)
    if config.get("decoder_sparse_step", 1) != 1 or config.get("mlp_only_layers", []):
        message = "MoE layers interleaved with dense ones (decoder_sparse_step, mlp_only_layers) are not known"
        raise source.error((), message)
    shared = config.count("shared_expert_intermediate_size", 0)
    experts = {
        "experts": config.need("num_local_experts", "num_experts"),
        "experts_per_token": config.need("num_experts_per_tok", "experts_per_token"),
        "expert_intermediate_size": config.need(
            "moe_intermediate_size" if family.experts == "own" else "intermediate_size"
        ),
        "shared_experts": 1 if shared else 0,
        "shared_intermediate_size": shared,
        "router_dtype": family.router_dtype,
        "choice_operators": family.choice_operators,
    }
    return {"intermediate_size": 0, "moe": experts}


def _deepseek_experts(source: Source, config: _Config, family: _Family) -> dict[str, Any]:
    if config.get("moe_layer_freq", 1) != 1:
        raise source.error(("moe_layer_freq",), "only 1 is known: every layer after the leading dense ones is MoE")
    width, shared = config.need("moe_intermediate_size"), config.count("n_shared_experts", 0)
    experts = {
        "experts": config.need("n_routed_experts"),
        "experts_per_token": config.need("num_experts_per_tok"),
        "expert_intermediate_size": width,
        "shared_experts": shared,
        "shared_intermediate_size": shared * width,
        "leading_dense_layers": config.count("first_k_dense_replace", 0),
        "router_dtype": family.router_dtype,
    }
    return {"intermediate_size": config.need("intermediate_size"), "moe": experts}


def _llama4_experts(config: _Config) -> dict[str, Any]:
    """Llama 4's: every ``interleave_moe_layer_step``-th layer has experts, and a shared one as wide as a routed one.

    The dense layers between are counted as leading ones: a step costs the same.
    """
    layers, step = config.need("num_hidden_layers"), max(config.count("interleave_moe_layer_step", 1), 1)
    listed_layers = config.get("moe_layers", None)
    with_experts = len(listed_layers) if isinstance(listed_layers, list) else layers // step
    width = config.need("intermediate_size")
    experts = {
        "experts": config.need("num_local_experts"),
        "experts_per_token": config.need("num_experts_per_tok"),
        "expert_intermediate_size": width,
        "shared_experts": 1,
        "shared_intermediate_size": width,
        "leading_dense_layers": layers - with_experts,
    }
    return {"intermediate_size": config.need("intermediate_size_mlp"), "moe": experts}


def _window(config: _Config, family: str) -> dict[str, Any]:
    if family == "llama4":
        return _chunked_attention(config)
    window = config.count("sliding_window", 0)
    if not window or not config.get("use_sliding_window", not family.startswith("qwen")):
        return {}
    kinds = config.get("layer_types", [])
    layers = config.need("num_hidden_layers")
    if kinds:
        windowed = sum(kind == "sliding_attention" for kind in kinds) / len(kinds)
    elif family.startswith("qwen"):
        windowed = (layers - config.count("max_window_layers", 0)) / layers
    elif family == "gemma3":
        every = max(config.count("sliding_window_pattern", 6), 1)
        windowed = (layers - layers // every) / layers
    else:
        windowed = 0.5 if family == "gpt_oss" else 1.0
    sinks = {"attention_sinks": True} if family == "gpt_oss" else {}
    return {"sliding_window_tokens": window, "sliding_window_layer_fraction": windowed, **sinks} if windowed > 0 else {}


def _chunked_attention(config: _Config) -> dict[str, Any]:
    """Llama 4's layers with rotary embedding attend within chunks, which is at most a window of that size."""
    window = config.count("attention_chunk_size", 8192)
    layers, kinds = config.need("num_hidden_layers"), config.get("no_rope_layers", [])
    every = max(config.count("no_rope_layer_interval", 4), 1)
    chunked = sum(bool(kind) for kind in kinds) / len(kinds) if kinds else (layers - layers // every) / layers
    if not window or not chunked:
        return {}
    return {
        "sliding_window_tokens": window, "sliding_window_layer_fraction": chunked, "windows_are_chunks": True
    }  # fmt: skip


def _modelopt_config(source: Source) -> dict[str, Any]:
    """Settings of ``hf_quant_config.json`` next to the configuration; {} where there is none."""
    path = Path(source.path).with_name(QUANT_CONFIG_FILE)
    if not path.is_file():
        return {}
    quant_source = read_source(path)
    quantization = quant_source.data.get("quantization") if isinstance(quant_source.data, dict) else None
    if not isinstance(quantization, dict):
        raise quant_source.error((), "expected a quantization section")
    return {"quant_method": "modelopt", "quant_algo": quantization.get("quant_algo")}


def _bounded_sampling(source: Source) -> dict[str, Any]:
    """Whether ``generation_config.json`` next to the configuration bounds sampling; {} where there is none."""
    path = Path(source.path).with_name(GENERATION_CONFIG_FILE)
    if not path.is_file():
        return {}
    generation_source = read_source(path)
    if not isinstance(generation_source.data, dict):
        raise generation_source.error((), "expected the JSON object of a model's generation_config.json")
    top_p, top_k = generation_source.data.get("top_p"), generation_source.data.get("top_k")
    for name, value in (("top_p", top_p), ("top_k", top_k)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise generation_source.error((name,), f"is {described(value)}, expected a number")
    return {"bounded_sampling": (top_p is not None and top_p < 1) or (top_k is not None and top_k > 0)}


def _compressed(quantization: dict[str, Any]) -> tuple[str | None, str]:
    """Format of the weights of compressed-tensors' first group, and its name for error messages."""
    groups = quantization.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, dict) else None
    weights = first.get("weights") if isinstance(first, dict) else None
    kind = f"{weights.get('type')} {weights.get('num_bits')}" if isinstance(weights, dict) else "of no group"
    return _COMPRESSED.get(kind), f"compressed-tensors {kind}"


def _weight_dtype(source: Source, config: _Config) -> str:
    quantization = config.get("quantization_config", {}) or _modelopt_config(source)
    if isinstance(quantization, dict) and quantization:
        method = quantization.get("quant_method")
        algorithm = quantization.get("quant_algo")
        if method == "modelopt" or (method is None and algorithm is not None):
            dtype = _MODELOPT_ALGORITHMS.get(str(algorithm))
            method = f"modelopt {algorithm}"
        elif method == "compressed-tensors":
            dtype, method = _compressed(quantization)
        else:
            dtype = _QUANT_METHODS.get(str(method)) or _QUANT_BITS.get(quantization.get("bits", 0))
        if dtype is None:
            raise source.error(("quantization_config",), f"quantization '{method}' is not known")
        return dtype
    torch_dtype = config.get("torch_dtype", None) or config.get("dtype", "bfloat16")
    if torch_dtype not in _TORCH_DTYPES:
        known = ", ".join(_TORCH_DTYPES)
        raise source.error(("torch_dtype",), f"'{torch_dtype}' is not known; known: {known}")
    return _TORCH_DTYPES[torch_dtype]
