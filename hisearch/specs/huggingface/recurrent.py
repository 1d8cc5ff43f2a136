"""Layers with recurrent states of a ``config.json``, but those of the gated delta rule: Kimi Linear's and Nemotron-H's.

Sources: configuration classes of vLLM 0.33.0 (``transformers_utils/configs/kimi_linear.py``, ``nemotron_h.py``).
"""

from __future__ import annotations

from typing import Any

from hisearch.specs.huggingface.config import Config
from hisearch.specs.huggingface.families import Family
from hisearch.specs.wording import described

#: Layers of Nemotron-H by their letter in ``hybrid_override_pattern``, as ``layers_block_type`` names them.
_LETTERS = {"M": "mamba", "*": "attention", "E": "moe", "-": "mlp"}


def with_states(config: Config, family: Family) -> dict[str, Any]:
    """Fields of the architectures with Kimi Delta Attention or Mamba-2; {} of all others."""
    if family.states == "kda":
        return _kimi_linear(config)
    return _nemotron_h(config, family) if family.states == "mamba2" else {}


def _kimi_linear(config: Config) -> dict[str, Any]:
    """Kimi Delta Attention in the listed layers; latent attention in the others."""
    section = config.get("linear_attn_config", {})
    if not isinstance(section, dict) or not isinstance(section.get("kda_layers"), list):
        config.faults.append("linear_attn_config.kda_layers is missing")
        return {}
    states, width = Config(section), section.get("head_dim", 1)
    heads, head_dim = states.need("num_heads"), states.need("head_dim")
    linear = {
        "kind": "kda",
        "layers": len(section["kda_layers"]),
        "key_heads": heads,
        "value_heads": heads,
        "key_head_dim": head_dim,
        "value_head_dim": head_dim,
        "conv_kernel": states.count("short_conv_kernel_size", 4),
        "gate_rank": 0 if states.get("use_full_rank_gate", False) else width,
        "bounded_decay": states.get("gate_lower_bound", None) is not None,
    }
    config.faults += [f"linear_attn_config.{fault}" for fault in states.faults]
    return {
        "linear_attention": linear,
        "attention_output_gate": bool(config.get("mla_use_output_gate", False)),
        "rotary_embedding": not config.get("mla_use_nope", False),
        "residual_block_layers": config.count("attn_res_block_size", 0),
    }


def _nemotron_h(config: Config, family: Family) -> dict[str, Any]:
    """A pattern of layers, each Mamba-2, attention, experts or a dense FFN; none has rotary embeddings.

    Dense FFNs count as leading ones: a step costs the same.
    """
    kinds = _pattern(config)
    counts = {kind: kinds.count(kind) for kind in _LETTERS.values()}
    if not counts["mamba"] or not counts["attention"]:
        config.faults.append("the pattern of layers has no mamba or no attention, which is not known")
        return {}
    state = str(config.get("mamba_ssm_cache_dtype", "float32"))
    if state not in ("float32", "bfloat16"):
        config.faults.append(f"mamba_ssm_cache_dtype is {described(state)}, expected float32 or bfloat16")
    dense, experts = counts["mlp"], counts["moe"]
    fields: dict[str, Any] = {
        "layers": counts["mamba"] + counts["attention"],
        "ffn_layers": dense + experts,
        "gated_ffn": False,
        "rotary_embedding": False,
        "intermediate_size": config.need("intermediate_size") if dense else 0,
        "linear_attention": {
            "kind": "mamba2",
            "layers": counts["mamba"],
            "key_heads": config.need("n_groups"),
            "value_heads": config.need("mamba_num_heads"),
            "key_head_dim": config.need("ssm_state_size"),
            "value_head_dim": config.need("mamba_head_dim"),
            "conv_kernel": config.count("conv_kernel", 4),
            "state_dtype": "bf16" if state == "bfloat16" else "fp32",
            "chunk_tokens": config.count("chunk_size", 256),
        },
    }
    if experts:
        shared = config.count("n_shared_experts", 0)
        fields["moe"] = {
            "experts": config.need("n_routed_experts"),
            "experts_per_token": config.need("num_experts_per_tok"),
            "expert_intermediate_size": config.need("moe_intermediate_size"),
            "shared_experts": shared,
            "shared_intermediate_size": shared * config.need("moe_shared_expert_intermediate_size") if shared else 0,
            "leading_dense_layers": dense,
            "latent_size": config.count("moe_latent_size", 0),
            "router_dtype": family.router_dtype,
        }
    return fields


def _pattern(config: Config) -> list[str]:
    """Kinds of all layers, by ``layers_block_type`` or letter by letter."""
    named = config.get("layers_block_type", [])
    kinds = list(named) or [_LETTERS.get(letter, letter) for letter in str(config.get("hybrid_override_pattern", ""))]
    if unknown := sorted({str(kind) for kind in kinds if kind not in _LETTERS.values()}):
        config.faults.append(f"layers of kind {', '.join(unknown)} are not known")
    if not kinds:
        config.faults.append("layers_block_type or hybrid_override_pattern is missing")
    return kinds
