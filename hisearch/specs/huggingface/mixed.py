"""Matrices that quantised checkpoints keep in a format of their own, by what lies beside their ``config.json``.

Known are Kimi K3's experts in MXFP4, and ModelOpt's lists of modules for Nemotron-H.
"""

from __future__ import annotations

from typing import Any

#: Ends of Nemotron-H's modules, and the matrices that they are.
MODULES = {
    ".mixer.in_proj": "linear_in_proj",
    ".mixer.out_proj": "linear_out_proj",
    ".mixer.q_proj": "qkv_proj",
    ".mixer.o_proj": "o_proj",
    ".mixer.up_proj": "gate_up_proj",
    ".mixer.down_proj": "down_proj",
    ".shared_experts.up_proj": "shared_gate_up_proj",
    ".shared_experts.down_proj": "shared_down_proj",
    ".fc1_latent_proj": "latent_down_proj",
    ".fc2_latent_proj": "latent_up_proj",
    "lm_head": "lm_head",
}
#: All but routed experts of Kimi K3: its checkpoint ignores attention, shared experts and dense FFNs, and the engines
#: load the latent's projections in 16 bits (vLLM 0.33.0, ``KimiK3ForConditionalGenerationConfig``).
AROUND_EXPERTS = [
    "qkv_down_proj", "q_up_proj", "q_proj", "kv_down_proj", "kv_up_proj", "o_proj", "attention_gate_proj",
    "linear_in_proj", "linear_out_proj", "gate_up_proj", "down_proj", "shared_gate_up_proj", "shared_down_proj",
    "latent_down_proj", "latent_up_proj",
]  # fmt: skip
#: Name of compressed-tensors' MXFP4.
MXFP4_FORMAT = "mxfp4-pack-quantized"


def listed_formats(layers: dict[str, Any]) -> dict[str, Any]:
    """``weight_dtype``, ``kept_wide`` and ``mixed_formats`` of ModelOpt's mixed precision.

    The format of the weights is that of routed experts; modules that are not listed stay in 16 bits.

    Args:
        layers: ``quantized_layers`` of ``hf_quant_config.json``: module names, and each one's ``quant_algo``.
    """
    experts, own = "", {}
    for module, settings in layers.items():
        algorithm = str(settings.get("quant_algo", "")) if isinstance(settings, dict) else ""
        dtype = "nvfp4" if "NVFP4" in algorithm else "fp8"
        if ".experts." in module:
            experts = dtype
        else:
            own.update({name: dtype for ending, name in MODULES.items() if module.endswith(ending)})
    weight_dtype = experts or "fp8"
    wide = [name for name in MODULES.values() if name not in own and name != "lm_head"]
    other = {name: dtype for name, dtype in own.items() if dtype != weight_dtype or name == "lm_head"}
    return {
        "weight_dtype": weight_dtype,
        "kept_wide": {weight_dtype: wide},
        "mixed_formats": {weight_dtype: other} if other else {},
    }


def excluded(modules: list[Any]) -> list[str]:
    """Matrices that stay in 16 bits in most layers, by ModelOpt's ``exclude_modules``.

    Where a checkpoint excludes a matrix in fewer layers than attention has, as Nemotron 3 Nano in NVFP4 does with six
    of its 23 layers of Mamba-2, it counts as quantised in all: the weights come out 2 % too small there.
    """
    counts = {name: sum(str(module).endswith(ending) for module in modules) for ending, name in MODULES.items()}
    attention = {"qkv_proj", "o_proj"}
    latent = {name for name in counts if name.startswith(("latent_", "shared_"))}
    return [name for name, count in counts.items() if count and name in attention | latent]
