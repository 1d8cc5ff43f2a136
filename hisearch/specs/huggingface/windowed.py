"""Architectures whose layers with a sliding window have other heads than those with full attention.

Sources of key names and defaults: ``Gemma4TextConfig``, ``MiMoV2FlashConfig`` and ``Step3p7TextConfig`` of transformers
5; vLLM 0.33.0, ``gemma4.py``, ``mimo_v2.py`` and ``step3p5.py`` of ``model_executor/models``.
"""

from __future__ import annotations

from typing import Any

from hisearch.specs.huggingface.config import Config


def window_heads(config: Config, kind: str) -> dict[str, Any]:
    """Heads, windows and what else is the architecture's own; {} for others."""
    translate = {"gemma4": _gemma4, "mimo_v2_flash": _mimo_v2, "step3p5": _step, "step3p7": _step}.get(kind)
    return {} if translate is None else {"architecture": kind, **translate(config)}


def _windows(window: int, windowed: int, layers: int) -> dict[str, Any]:
    if not window or not windowed:
        return {}
    return {"sliding_window_tokens": window, "sliding_window_layer_fraction": windowed / layers}


def _layer_types(config: Config) -> int:
    """Layers with a window; entries behind the last layer are of heads that draft tokens."""
    layers = config.need("num_hidden_layers")
    kinds = config.get("layer_types", [])
    if len(kinds) < layers:
        config.faults.append(f"layer_types has {len(kinds)} entries, expected {layers}")
    return sum(kind == "sliding_attention" for kind in kinds[:layers])


def _gemma4(config: Config) -> dict[str, Any]:
    for key in ("hidden_size_per_layer_input", "num_kv_shared_layers"):
        if config.count(key, 0):
            config.faults.append(f"{key} is {config.get(key, 0)}, of which only 0 is known")
    own_heads, own_width = config.need("num_key_value_heads"), config.need("head_dim")
    kv_heads, width = config.count("num_global_key_value_heads", own_heads), config.count("global_head_dim", own_width)
    in_windows = {"attention_heads": config.need("num_attention_heads"), "kv_heads": own_heads, "head_dim": own_width}
    return {
        "kv_heads": kv_heads,
        "head_dim": width,
        "values_are_keys": bool(config.get("attention_k_eq_v", False)),
        "norms_per_layer": 7 if config.get("enable_moe_block", False) else 4,
        "logit_softcap": config.get("final_logit_softcapping", None) is not None,
        **_windows(config.need("sliding_window"), _layer_types(config), config.need("num_hidden_layers")),
        **({"window_heads": in_windows} if (kv_heads, width) != (own_heads, own_width) else {}),
    }


def _mimo_v2(config: Config) -> dict[str, Any]:
    layers, pattern = config.need("num_hidden_layers"), config.get("hybrid_layer_pattern", [])
    if len(pattern) != layers:
        config.faults.append(f"hybrid_layer_pattern has {len(pattern)} entries, expected {layers}")
    width = config.need("head_dim")
    in_windows = {
        "attention_heads": config.need("swa_num_attention_heads", "num_attention_heads"),
        "kv_heads": config.need("swa_num_key_value_heads"),
        "head_dim": config.need("swa_head_dim", "head_dim"),
        "value_head_dim": config.count("swa_v_head_dim", 0),
    }
    return {
        "value_head_dim": config.count("v_head_dim", width),
        "attention_sinks": bool(config.get("add_swa_attention_sink_bias", False)),
        **_windows(config.need("sliding_window_size", "sliding_window"), sum(kind == 1 for kind in pattern), layers),
        "window_heads": in_windows,
    }


def _step(config: Config) -> dict[str, Any]:
    kv_heads, width = config.need("num_attention_groups", "num_key_value_heads"), config.need("head_dim")
    other = config.get("attention_other_setting", {})
    heads = config.count("num_sliding_attention_heads", 0) or int(other.get("num_attention_heads", 0))
    in_windows = {
        "attention_heads": heads,
        "kv_heads": int(other.get("num_attention_groups", kv_heads)),
        "head_dim": int(other.get("head_dim", width)),
    }
    others = {"attention_heads": config.need("num_attention_heads"), "kv_heads": kv_heads, "head_dim": width}
    windowed = _windows(config.count("sliding_window", 0), _layer_types(config), config.need("num_hidden_layers"))
    return {
        "kv_heads": kv_heads,
        "attention_head_gate": bool(config.get("use_head_wise_attn_gate", True)),
        **windowed,
        **({"window_heads": in_windows} if windowed and heads and in_windows != others else {}),
    }
