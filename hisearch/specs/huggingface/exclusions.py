"""Dense matrices that a quantised checkpoint keeps in 16 bits, by the modules that its quantiser left out.

Quantisers name them in three ways: ModelOpt's ``exclude_modules`` (or ``ignore``) with wildcards, ``ignore`` of
compressed-tensors with names or regular expressions (``re:``), ``modules_to_not_convert`` or ``ignored_layers`` of fp8
checkpoints with names or parts of names. A name stands for all modules below it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any

#: Matrix as ``latency.parameters`` names it -> modules of a layer that hold it, by any publisher's name. One of a
#: matrix that engines fuse stands for all of its parts.
_MODULES = {
    "qkv_proj": ("self_attn.q_proj", "self_attn.qkv_proj"),
    "q_proj": ("self_attn.q_proj",),
    "o_proj": ("self_attn.o_proj",),
    "qkv_down_proj": ("self_attn.kv_a_proj_with_mqa",),
    "kv_down_proj": ("self_attn.kv_a_proj_with_mqa",),
    "q_up_proj": ("self_attn.q_b_proj",),
    "kv_up_proj": ("self_attn.kv_b_proj",),
    "index_q_proj": ("self_attn.indexer.wq_b",),
    "index_k_proj": ("self_attn.indexer.wk",),
    "linear_in_proj": ("linear_attn.in_proj_qkv", "linear_attn.in_proj_qkvz"),
    "linear_out_proj": ("linear_attn.out_proj",),
    "gate_up_proj": ("mlp.gate_proj", "mlp.gate_up_proj", "feed_forward.gate_proj"),
    "down_proj": ("mlp.down_proj", "feed_forward.down_proj"),
    "shared_gate_up_proj": (
        "mlp.shared_expert.gate_proj", "mlp.shared_experts.gate_proj", "share_expert.gate_proj",
        "feed_forward.shared_expert.gate_proj",
    ),
    "shared_down_proj": (
        "mlp.shared_expert.down_proj", "mlp.shared_experts.down_proj", "share_expert.down_proj",
        "feed_forward.shared_expert.down_proj",
    ),
}  # fmt: skip
#: Of models whose dense FFN lies apart from the experts (``separate_shared``).
_SEPARATE_FFN = {"shared_gate_up_proj": ("mlp.gate_proj",), "shared_down_proj": ("mlp.down_proj",)}
_LISTS = ("exclude_modules", "ignore", "modules_to_not_convert", "ignored_layers")
#: Ends of Nemotron-H's modules -> matrices that they are.
_NEMOTRON = {
    ".mixer.q_proj": "qkv_proj",
    ".mixer.o_proj": "o_proj",
    ".shared_experts.up_proj": "shared_gate_up_proj",
    ".shared_experts.down_proj": "shared_down_proj",
    ".fc1_latent_proj": "latent_down_proj",
    ".fc2_latent_proj": "latent_up_proj",
}
#: All but routed experts of Kimi K3 in MXFP4: its checkpoint ignores attention, shared experts and dense FFNs, and
#: engines load the latent's projections in 16 bits (vLLM 0.33.0, ``KimiK3ForConditionalGenerationConfig``).
AROUND_EXPERTS = [
    "qkv_down_proj", "q_up_proj", "q_proj", "kv_down_proj", "kv_up_proj", "o_proj", "attention_gate_proj",
    "linear_in_proj", "linear_out_proj", "gate_up_proj", "down_proj", "shared_gate_up_proj", "shared_down_proj",
    "latent_down_proj", "latent_up_proj",
]  # fmt: skip
#: What stands before ``layers`` in names of modules.
_PREFIXES = ("model.", "language_model.model.", "model.language_model.")


def excluded_modules(quantization: dict[str, Any]) -> list[str]:
    """Names and patterns of the modules that were left out, as the quantiser writes them."""
    listed = [quantization.get(key) for key in _LISTS]
    return [str(pattern) for patterns in listed if isinstance(patterns, list) for pattern in patterns]


def kept_wide(patterns: Iterable[str], model: dict[str, Any]) -> list[str]:
    """Matrices that stay wide in most layers that have them, by the names of ``latency.parameters``.

    Layers with a window whose heads are others are as the rest.

    Args:
        patterns: of ``excluded_modules``.
        model: keys of a ``ModelSpec`` as read so far: layers and the sections of attention and experts.
    """
    listed = list(patterns)
    if not listed:
        return []
    kept = []
    modules = _MODULES | (_SEPARATE_FFN if (model.get("moe") or {}).get("separate_shared") else {})
    for name, layers in _layers_of(model).items():
        matched = sum(
            any(_matches(f"layers.{layer}.{module}", pattern) for module in modules[name] for pattern in listed)
            for layer in range(model["layers"])
        )
        if 2 * matched > layers:
            kept.append(name)
    if model.get("window_heads"):
        kept += [f"window_{name}" for name in ("qkv_proj", "o_proj") if name in kept]
    return kept


def kept_wide_of_nemotron(patterns: Iterable[str]) -> list[str]:
    """As ``kept_wide``, of Nemotron-H: attention, shared experts and the latent's projections.

    Where a checkpoint excludes a matrix of Mamba-2 in some layers, as Nemotron 3 Nano in NVFP4 does in six of 23, it
    counts as quantised in all: the weights come out 2 % too small there.
    """
    listed = list(patterns)
    return [name for ending, name in _NEMOTRON.items() if any(pattern.endswith(ending) for pattern in listed)]


def _layers_of(model: dict[str, Any]) -> dict[str, int]:
    """The model's dense matrices, and how many layers have each."""
    layers, moe = model["layers"], model.get("moe") or {}
    linear = (model.get("linear_attention") or {}).get("layers", 0)
    dense = moe.get("leading_dense_layers", 0) if moe else layers
    mla = model.get("mla")
    counts: dict[str, int] = {}
    if not model.get("attention_stays_wide"):
        if mla is None:
            attention = ["qkv_proj", "o_proj"]
        elif mla["q_lora_rank"]:
            attention = ["qkv_down_proj", "q_up_proj", "kv_up_proj", "o_proj"]
        else:
            attention = ["q_proj", "kv_down_proj", "kv_up_proj", "o_proj"]
        counts |= dict.fromkeys(attention, layers - linear)
    if model.get("sparse_attention"):
        counts |= dict.fromkeys(("index_q_proj", "index_k_proj"), layers)
    counts |= dict.fromkeys(("linear_in_proj", "linear_out_proj"), linear)
    counts |= dict.fromkeys(("gate_up_proj", "down_proj"), dense)
    counts |= dict.fromkeys(("shared_gate_up_proj", "shared_down_proj"), layers if moe.get("shared_experts") else 0)
    return {name: count for name, count in counts.items() if count}


def _matches(module: str, pattern: str) -> bool:
    """Whether a quantiser that left out ``pattern`` left out ``module``, ``layers.N.…``."""
    if pattern.startswith("re:"):
        return any(re.match(pattern[3:], prefix + module) for prefix in _PREFIXES)
    _, before_layers, name = pattern.rpartition("layers.")
    if before_layers:
        name = f"layers.{name}"
        return fnmatchcase(module, name) or fnmatchcase(module, f"{name}.*")
    if "*" in pattern:
        return any(fnmatchcase(prefix + module, pattern) for prefix in _PREFIXES)
    return pattern in module.split(".")
