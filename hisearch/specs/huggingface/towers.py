"""Encoders of images beside the language model of a ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Pixels of the largest image that Qwen's processors keep (``size.longest_edge`` of their preprocessor_config.json);
#: vLLM logs "a budget of 16384 tokens, and profiled with 1 image items" of Qwen2.5-VL and Qwen3.5.
_QWEN_PIXELS = 16_777_216
#: Patches of the largest image that Kimi's processor keeps (``in_patch_limit``), and tokens of one of Gemma's.
_KIMI_PATCHES, _GEMMA3_TOKENS = 16_384, 256


def towers(config: Mapping[str, Any], kind: str, width: int) -> dict[str, Any]:
    """The section ``towers``; {} where the configuration has none, or one of an unknown form.

    Counted are a transformer of ``depth`` layers, patches and positions, and the projector: two layers over merged
    patches (Qwen, Kimi), one for each of Qwen's deep stacks too, or one layer (Gemma). Biases and norms are left out.

    Args:
        config: the whole ``config.json``.
        kind: of the language model.
        width: of its residual stream.
    """
    vision = config.get("vision_config")
    if not isinstance(vision, dict):
        return {}
    layers, hidden, inner, patch = (
        _first(vision, *names)
        for names in (
            ("depth", "vt_num_hidden_layers", "num_hidden_layers"), ("hidden_size", "vt_hidden_size"),
            ("intermediate_size", "vt_intermediate_size"), ("patch_size",),
        )
    )  # fmt: skip
    if not (layers and hidden and inner and patch):
        return {}
    matrices = 3 if vision.get("hidden_act") == "silu" else 2
    encoder = layers * (4 * hidden * hidden + matrices * hidden * inner)
    temporal = _first(vision, "temporal_patch_size") or 1
    encoder += hidden * (3 * temporal * patch * patch + _first(vision, "num_position_embeddings"))
    merged = _merged(vision)
    if not merged:
        return {"towers": {"parameters": encoder + hidden * width, **_gemma(kind), "width": hidden,
                           "intermediate_size": inner}}  # fmt: skip
    inputs, stacks = hidden * merged, len(vision.get("deepstack_visual_indexes") or ())
    encoder += (1 + stacks) * inputs * (inputs + width)
    patches = _KIMI_PATCHES if kind in ("kimi_k2", "deepseek_v3", "kimi_linear") else _QWEN_PIXELS // (patch * patch)
    return {
        "towers": {
            "parameters": encoder, "item_tokens": patches // merged, "patches": patches, "width": hidden,
            "intermediate_size": inner,
        }
    }  # fmt: skip


def _first(section: Mapping[str, Any], *names: str) -> int:
    """The first of ``names`` that is an integer; 0 where none is."""
    return next((section[name] for name in names if isinstance(section.get(name), int)), 0)


def _merged(vision: Mapping[str, Any]) -> int:
    """Patches that become one token; 0 where the projector does not merge them."""
    kernel = vision.get("merge_kernel_size")
    if isinstance(kernel, list) and len(kernel) == 2:
        return int(kernel[0]) * int(kernel[1])
    return _first(vision, "spatial_merge_size") ** 2


def _gemma(kind: str) -> dict[str, int]:
    return {"item_tokens": _GEMMA3_TOKENS} if kind == "gemma3" else {}
