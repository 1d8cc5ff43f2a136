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
    if family.states == "mamba2":
        # With the pattern of its layers (``recurrent``).
        return {}
    if family.experts == "none":
        return {"intermediate_size": config.need("intermediate_size")}
    if family.experts == "deepseek":
        return _deepseek_experts(source, config, family)
    if family.experts == "kimi":
        return _kimi_experts(source, config, family)
    if family.experts == "minimax_m3":
        return _minimax_m3_experts(source, config, family)
    if family.experts == "llama4":
        return _llama4_experts(config)
    if family.experts == "gemma4":
        return _gemma4_experts(config)
    if family.experts == "step":
        return _step_experts(source, config, family)
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
    listed_layers = config.get("moe_layer_freq", 1)
    leading = config.count("first_k_dense_replace", 0)
    if isinstance(listed_layers, list):
        leading = _leading_dense(source, "moe_layer_freq", [bool(moe) for moe in listed_layers])
    elif listed_layers != 1:
        raise source.error(("moe_layer_freq",), "only 1 is known: every layer after the leading dense ones is MoE")
    width, shared = config.need("moe_intermediate_size"), config.count("n_shared_experts", 0)
    experts = {
        "experts": config.need("n_routed_experts"),
        "experts_per_token": config.need("num_experts_per_tok"),
        "expert_intermediate_size": width,
        "shared_experts": shared,
        "shared_intermediate_size": shared * width,
        "leading_dense_layers": leading,
        "router_dtype": family.router_dtype,
    }
    dense = 0 if family.compressed and not leading else config.need("intermediate_size")
    return {"intermediate_size": dense, "moe": experts}


def _leading_dense(source: Source, key: str, with_experts: list[bool]) -> int:
    """Leading layers without experts, of a list that says it of each.

    Raises:
        SpecError: a layer without experts behind one with them.
    """
    leading = with_experts.index(True) if any(with_experts) else len(with_experts)
    if not all(with_experts[leading:]):
        raise source.error((key,), "a layer without experts behind one with them is not known")
    return leading


def _gemma4_experts(config: Config) -> dict[str, Any]:
    """Gemma 4's: every layer has a dense FFN, and in parallel to it, with ``enable_moe_block``, routed experts."""
    dense = config.need("intermediate_size")
    if not config.get("enable_moe_block", False):
        return {"intermediate_size": dense}
    experts = {
        "experts": config.need("num_experts"),
        "experts_per_token": config.need("top_k_experts"),
        "expert_intermediate_size": config.need("moe_intermediate_size", "expert_intermediate_size"),
        "shared_experts": 1,
        "shared_intermediate_size": dense,
        "separate_shared": True,
    }
    return {"intermediate_size": 0, "moe": experts}


def _step_experts(source: Source, config: Config, family: Family) -> dict[str, Any]:
    """Step-3.5's; ``moe_layers_enum`` names the layers with experts, which are all behind the third if it is absent."""
    layers, named = config.need("num_hidden_layers"), config.get("moe_layers_enum", None)
    leading = config.count("first_k_dense_replace", 3)
    if named is not None:
        numbers = {int(number) for number in (named.split(",") if isinstance(named, str) else named)}
        leading = _leading_dense(source, "moe_layers_enum", [layer in numbers for layer in range(layers)])
    shared = config.need("share_expert_dim", "share_expert_dims")
    experts = {
        "experts": config.need("moe_num_experts", "num_experts", "n_routed_experts"),
        "experts_per_token": config.need("moe_top_k", "num_experts_per_tok"),
        "expert_intermediate_size": config.need("moe_intermediate_size"),
        "shared_experts": 1 if shared else 0,
        "shared_intermediate_size": shared,
        "leading_dense_layers": leading,
        "router_dtype": family.router_dtype,
    }
    return {"intermediate_size": config.need("intermediate_size"), "moe": experts}


def _kimi_experts(source: Source, config: Config, family: Family) -> dict[str, Any]:
    """Kimi Linear's and K3's: DeepSeek's order of layers; K3's routed experts work in a latent."""
    if config.get("moe_layer_freq", 1) != 1:
        raise source.error(("moe_layer_freq",), "only 1 is known: every layer after the leading dense ones is MoE")
    width, shared = config.need("moe_intermediate_size"), config.count("num_shared_experts", 0)
    latent = config.count("routed_expert_hidden_size", 0)
    experts = {
        "experts": config.need("num_experts"),
        "experts_per_token": config.need("num_experts_per_token"),
        "expert_intermediate_size": width,
        "shared_experts": shared,
        "shared_intermediate_size": shared * width,
        "leading_dense_layers": config.count("first_k_dense_replace", 0),
        "latent_size": latent,
        "latent_norm": bool(latent) and bool(config.get("latent_moe_use_norm", False)),
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
