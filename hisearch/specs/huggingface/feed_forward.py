"""Feed-forward layers of a ``config.json``: dense widths and experts."""

from __future__ import annotations

from typing import Any

from hisearch.specs.huggingface.config import Config
from hisearch.specs.huggingface.families import Family
from hisearch.specs.source import Source


def feed_forward(source: Source, config: Config, family: Family) -> dict[str, Any]:
    """Dense width and experts.

    Raises:
        SpecError: experts in an order of layers that is not known.
    """
    if family.experts == "none":
        return {"intermediate_size": config.need("intermediate_size")}
    if family.experts == "deepseek":
        return _deepseek_experts(source, config, family)
    if family.experts == "minimax_m3":
        return _minimax_m3_experts(source, config, family)
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


def _deepseek_experts(source: Source, config: Config, family: Family) -> dict[str, Any]:
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
    if family.compressed and not experts["leading_dense_layers"]:
        return {"intermediate_size": 0, "moe": experts}
    return {"intermediate_size": config.need("intermediate_size"), "moe": experts}


def _minimax_m3_experts(source: Source, config: Config, family: Family) -> dict[str, Any]:
    """MiniMax-M3's: ``moe_layer_freq`` lists which layers have experts, behind dense ones of their own width."""
    listed = config.get("moe_layer_freq", [])
    dense = listed.index(1) if isinstance(listed, list) and 1 in listed else 0
    if not isinstance(listed, list) or listed != [0] * dense + [1] * (len(listed) - dense):
        raise source.error(("moe_layer_freq",), "expected 0 for leading dense layers, then 1 for each with experts")
    width, shared = config.need("intermediate_size"), config.count("n_shared_experts", 0)
    experts = {
        "experts": config.need("num_local_experts"),
        "experts_per_token": config.need("num_experts_per_tok"),
        "expert_intermediate_size": width,
        "shared_experts": shared,
        "shared_intermediate_size": shared * config.count("shared_intermediate_size", width),
        "leading_dense_layers": dense,
        "router_dtype": family.router_dtype,
    }
    return {"intermediate_size": config.need("dense_intermediate_size") if dense else 0, "moe": experts}


def _llama4_experts(config: Config) -> dict[str, Any]:
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
