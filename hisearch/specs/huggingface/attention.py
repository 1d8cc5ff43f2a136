"""Attention of a ``config.json``: heads, latents, indexers, linear layers and windows."""

from __future__ import annotations

from typing import Any

from hisearch.specs.huggingface.config import Config
from hisearch.specs.huggingface.families import KV_OF_EACH_HEAD, Family
from hisearch.specs.wording import described


def attention(config: Config, kind: str, family: Family) -> dict[str, Any]:
    """Heads of softmax attention, or the widths of its latent; with an indexer, that."""
    heads = config.need("num_attention_heads")
    if not family.mla:
        head_dim = (
            config.count("head_dim", 0)
            or config.count("attention_head_dim", 0)
            or config.need("hidden_size") // max(heads, 1)
        )
        key = "num_key_value_heads"
        names = ("num_attention_groups", key) if kind.startswith("step") else (key,)
        kv_heads = config.count(key, heads) if kind in KV_OF_EACH_HEAD else config.need(*names)
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


def _sparse(config: Config, family: Family) -> dict[str, Any]:
    """The indexer of sparse attention; layers of type ``shared`` read what an earlier one's indexer chose."""
    if not family.sparse:
        return {}
    kinds = config.get("indexer_types", [])
    if not kinds and config.get("index_topk_freq", 1) != 1:
        config.faults.append("indexer_types is missing, which index_topk_freq above 1 needs")
    layers = sum(kind == "full" for kind in kinds) if "shared" in kinds else 0
    sizes = {"index_heads": "index_n_heads", "index_head_dim": "index_head_dim", "topk": "index_topk"}
    return {"sparse_attention": {"index_layers": layers, **{name: config.need(key) for name, key in sizes.items()}}}


def linear_attention(config: Config, family: Family) -> dict[str, Any]:
    """Layers with states; {} where the architecture has none."""
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


def window(config: Config, family: str) -> dict[str, Any]:
    """Windows, and the share of layers that have them; {} where all layers see everything."""
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


def _chunked_attention(config: Config) -> dict[str, Any]:
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
