"""Checkpoints whose matrices have different formats: NVIDIA ModelOpt's ``MIXED_PRECISION``, and DeepSeek-V4's.

The narrowest format is that of the weights; matrices in another one are listed apart, and those in none stay wide.
"""

from __future__ import annotations

import re
from typing import Any, get_args

from hisearch.specs.models.model import MatrixName
from hisearch.specs.source import Source
from hisearch.specs.wording import described

MIXED = "MIXED_PRECISION"

#: Formats by ModelOpt's names, narrowest first. MXFP8 has a scale of a byte per 32 elements, which is not counted.
_ALGORITHMS = {"NVFP4": "nvfp4", "W4A16_NVFP4": "nvfp4", "FP8": "fp8", "FP8_PB_WO": "fp8", "MXFP8": "fp8"}
#: Of these, those whose weights are unpacked to 16 bits.
_WEIGHT_ONLY = frozenset({"W4A16_NVFP4"})

_EXPERTS = ("experts_gate_up_proj", "experts_down_proj")
#: Modules of checkpoints -> matrices that hold them; in this order.
_MODULES: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"shared_experts?\.(gate|up|w1|w3)(_proj)?", ("shared_gate_up_proj",)),
    (r"shared_experts?\.(down|w2)(_proj)?", ("shared_down_proj",)),
    (r"experts(\.\d+\.\w+)?", _EXPERTS),
    (r"linear_attn\.in_proj_(qkv|z|qkvz)", ("linear_in_proj",)),
    (r"linear_attn\.out_proj", ("linear_out_proj",)),
    (r"self_attn\.[qkv]_proj", ("qkv_proj", "qkv_index_proj")),
    (r"self_attn\.o_proj", ("o_proj",)),
    (r"self_attn\.index_[qk]_proj", ("qkv_index_proj",)),
    (r"self_attn\.(q_a_proj|kv_a_proj_with_mqa)", ("qkv_down_proj",)),
    (r"self_attn\.q_b_proj", ("q_up_proj",)),
    (r"self_attn\.kv_b_proj", ("kv_up_proj",)),
    (r"mlp\.(gate|up)_proj", ("gate_up_proj",)),
    (r"mlp\.down_proj", ("down_proj",)),
    (r"lm_head", ("lm_head",)),
    # Nemotron-H's.
    (r"shared_experts\.up_proj", ("shared_gate_up_proj",)),
    (r"mixer\.in_proj", ("linear_in_proj",)),
    (r"mixer\.out_proj", ("linear_out_proj",)),
    (r"mixer\.[qkv]_proj", ("qkv_proj",)),
    (r"mixer\.o_proj", ("o_proj",)),
    (r"mixer\.up_proj", ("gate_up_proj",)),
    (r"mixer\.down_proj", ("down_proj",)),
    (r"fc1_latent_proj", ("latent_down_proj",)),
    (r"fc2_latent_proj", ("latent_up_proj",)),
)


def experts_in_other_format(experts: str, others: str) -> dict[str, Any]:
    """Fields of a model with experts in one format, and its other matrices in another."""
    dense = [name for name in get_args(MatrixName) if name not in (*_EXPERTS, "lm_head")]
    return {"weight_dtype": experts, "other_formats": {experts: {others: dense}}}


def mixed_formats(source: Source, quantization: dict[str, Any]) -> dict[str, Any]:
    """Fields of a model by the modules that ``quantized_layers`` lists.

    Raises:
        SpecError: no modules, one that is not known, a format that is not, or matrices in several formats.
    """
    listed = quantization.get("quantized_layers")
    if not isinstance(listed, dict) or not listed:
        raise source.error(("quantization_config", "quantized_layers"), f"is {described(listed)}, expected modules")
    formats, weight_only = _formats(source, listed), set()
    for module in listed.values():
        if module["quant_algo"] in _WEIGHT_ONLY:
            weight_only.add(_ALGORITHMS[module["quant_algo"]])
    order = list(dict.fromkeys(_ALGORITHMS.values()))
    main = min(formats.values(), key=order.index)
    if quantization.get("quant_method") == "fp8":
        # A checkpoint in fp8 blocks, of which the listed modules are in another format.
        return {**experts_in_other_format(main, "fp8"), "weight_only": sorted(weight_only)}
    others: dict[str, list[str]] = {}
    for name, dtype in formats.items():
        if dtype != main or name == "lm_head":
            others.setdefault(dtype, []).append(name)
    wide = [name for name in get_args(MatrixName) if name not in formats and name != "lm_head"]
    return {
        "weight_dtype": main,
        "other_formats": {main: others} if others else {},
        "kept_wide": {main: wide},
        "weight_only": sorted(weight_only),
    }


def _formats(source: Source, listed: dict[str, Any]) -> dict[str, str]:
    """Format of each matrix that has one."""
    formats: dict[str, str] = {}
    for module, settings in listed.items():
        algorithm = settings.get("quant_algo") if isinstance(settings, dict) else None
        if algorithm not in _ALGORITHMS:
            message = f"{module} has the format {described(algorithm)}, known: {', '.join(_ALGORITHMS)}"
            raise source.error(("quantization_config", "quantized_layers"), message)
        names = next((names for pattern, names in _MODULES if re.search(rf"(^|\.){pattern}$", module)), None)
        if names is None:
            message = f"module {module} has a format of its own, but is none of those that are known"
            raise source.error(("quantization_config", "quantized_layers"), message)
        for name in names:
            if formats.setdefault(name, _ALGORITHMS[algorithm]) != _ALGORITHMS[algorithm]:
                message = f"{module} is in {_ALGORITHMS[algorithm]}, but others like it in {formats[name]}"
                raise source.error(("quantization_config", "quantized_layers"), message)
    return formats
