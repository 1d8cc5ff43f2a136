"""Encoders of images beside the language model of a ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Pixels of the largest image that Qwen's processors keep (``size.longest_edge`` of their preprocessor_config.json);
#: vLLM logs "a budget of 16384 tokens, and profiled with 1 image items" of Qwen2.5-VL and Qwen3.5.
_QWEN_PIXELS = 16_777_216
#: Patches of the largest image that Kimi's processor keeps (``in_patch_limit``).
_KIMI_PATCHES = 16_384
#: Tokens and patches of the largest image, by model. Gemma's are pooled to 16 x 16 of 4 x 4 patches, or to at most 280
#: of 3 x 3; Llama 4's are 17 tiles of 144 tokens and their marks, whose patches are not counted.
_IMAGES = {"gemma3": (256, 4096), "gemma4": (280, 2520), "llama4": (2465, 0)}


def towers(config: Mapping[str, Any], kind: str, width: int) -> dict[str, Any]:
    """The section ``towers``; {} where the configuration has none, or one of an unknown form.

    Counted are a transformer of ``depth`` layers, patches and positions, and the projector: two layers over merged
    patches (Qwen, Kimi), one for each of Qwen's deep stacks too, or one layer (others). Gemma 4's layers are gated, and
    its positions are of two axes. Biases and norms are left out.

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
    matrices = 3 if vision.get("hidden_act") == "silu" or kind == "gemma4" else 2
    encoder = layers * (4 * hidden * hidden + matrices * hidden * inner)
    temporal = _first(vision, "temporal_patch_size") or 1
    positions = _first(vision, "num_position_embeddings") + 2 * _first(vision, "position_embedding_size")
    encoder += hidden * (3 * temporal * patch * patch + positions)
    merged = _merged(vision)
    if not merged:
        return {"towers": {"parameters": encoder + hidden * width, **_image(kind), "width": hidden,
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


def _image(kind: str) -> dict[str, int]:
    tokens, patches = _IMAGES.get(kind, (0, 0))
    return {"item_tokens": tokens, "patches": patches} if tokens else {}
