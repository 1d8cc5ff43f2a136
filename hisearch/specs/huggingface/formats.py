"""Formats of a checkpoint's weights, by its ``config.json`` and the file of whoever quantised it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hisearch.specs.huggingface.config import Config
from hisearch.specs.huggingface.exclusions import AROUND_EXPERTS
from hisearch.specs.huggingface.families import Family
from hisearch.specs.huggingface.mixed_formats import MIXED, experts_in_other_format, mixed_formats
from hisearch.specs.source import Source, read_source

#: File next to a checkpoint that NVIDIA's ModelOpt quantised.
QUANT_CONFIG_FILE = "hf_quant_config.json"

_TORCH_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float8_e4m3fn": "fp8"}
_QUANT_METHODS = {"fp8": "fp8", "fbgemm_fp8": "fp8", "mxfp4": "fp4"}
_MODELOPT_ALGORITHMS = {"FP8": "fp8", "NVFP4": "nvfp4"}
_COMPRESSED = {"int 4": "int4", "int 8": "int8", "float 8": "fp8", "float 4": "nvfp4"}
#: compressed-tensors' name of MXFP4.
_MXFP4 = "mxfp4-pack-quantized"
_QUANT_BITS = {4: "int4", 8: "int8"}


def quantization_of(source: Source, config: Config) -> dict[str, Any]:
    """What the quantiser says: the section of ``config.json``, else its file next to it; {} where there is neither.

    Raises:
        SpecError: a file of ModelOpt that is none.
    """
    stated = config.get("quantization_config", {})
    return stated if isinstance(stated, dict) and stated else _modelopt_config(source)


def _modelopt_config(source: Source) -> dict[str, Any]:
    """Settings of ``hf_quant_config.json`` next to the configuration; {} where there is none."""
    path = Path(source.path).with_name(QUANT_CONFIG_FILE)
    if not path.is_file():
        return {}
    quant_source = read_source(path)
    quantization = quant_source.data.get("quantization") if isinstance(quant_source.data, dict) else None
    if not isinstance(quantization, dict):
        raise quant_source.error((), "expected a quantization section")
    return {**quantization, "quant_method": "modelopt"}


def _compressed(quantization: dict[str, Any]) -> tuple[str | None, str]:
    """Format of the weights of compressed-tensors' first group, and its name for error messages."""
    groups = quantization.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, dict) else None
    weights = first.get("weights") if isinstance(first, dict) else None
    kind = f"{weights.get('type')} {weights.get('num_bits')}" if isinstance(weights, dict) else "of no group"
    if quantization.get("format") == _MXFP4:
        return "fp4", f"compressed-tensors {kind}"
    return _COMPRESSED.get(kind), f"compressed-tensors {kind}"


def weight_formats(source: Source, config: Config, kind: str, family: Family) -> dict[str, Any]:
    """Fields of a ``ModelSpec`` that say what formats the weights have.

    Raises:
        SpecError: a quantisation or a type that is not known.
    """
    quantization = quantization_of(source, config)
    if str(quantization.get("quant_algo")) == MIXED:
        return mixed_formats(source, quantization)
    published = weight_dtype(source, config, quantization)
    # DeepSeek-V4's experts are in MXFP4 unless the configuration says otherwise, beside dense matrices in fp8 (vLLM
    # 0.33.0, ``models/deepseek_v4/quant_config.py``).
    default = "fp4" if kind == "deepseek_v4" else "fp8"
    if published == "fp8" and str(config.get("expert_dtype", default)) == "fp4":
        return experts_in_other_format("fp4", "fp8")
    if family.states == "kda" and quantization.get("format") == _MXFP4:
        return {"weight_dtype": published, "kept_wide": {published: AROUND_EXPERTS}}
    return {"weight_dtype": published}


def weight_dtype(source: Source, config: Config, quantization: dict[str, Any]) -> str:
    """Format of the weights where it is one.

    Raises:
        SpecError: a quantisation or a type that is not known.
    """
    if quantization:
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
