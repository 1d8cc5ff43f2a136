"""A model's operators in the laws' terms: the format whose law applies, and the heads."""

from __future__ import annotations

from collections.abc import Mapping

from hisearch.latency.laws.attention import Heads
from hisearch.latency.matrices.heads import LayerHeads, full_heads, window_heads
from hisearch.latency.operators import ACTIVATION_BYTES
from hisearch.latency.parameters import (
    kv_element_bytes,
    layer_kv_bytes_per_token,
    window_layer_kv_bytes_per_token,
)
from hisearch.latency.sharding import Shard
from hisearch.specs.base import DType
from hisearch.specs.models.model import ModelSpec

#: Format without a law -> formats whose law prices it.
NEAREST: dict[str, tuple[str, ...]] = {
    "fp8": ("fp8_block",), "fp8_block": ("fp8",), "fp16": ("bf16",), "fp32": ("bf16",),
}  # fmt: skip


def law_of(known: Mapping[str, object], name: str) -> str | None:
    """The format whose law prices ``name``: its own, else its nearest, else none."""
    return next((choice for choice in (name, *NEAREST.get(name, ())) if choice in known), None)


def weights_law(model: ModelSpec, weight_dtype: DType | None) -> str:
    """Format of the weights by its name in the laws.

    Checkpoints that are published in fp8 have a scale per block of 128 x 128; those that an engine quantises, one per
    channel or tensor.
    """
    dtype = weight_dtype if weight_dtype is not None else model.weight_dtype
    if dtype == model.weight_dtype:
        return checkpoint_law(model, dtype)
    return "bf16" if dtype in ("fp16", "fp32") else dtype


def checkpoint_law(model: ModelSpec, dtype: DType) -> str:
    """Format of matrices that a published checkpoint has in ``dtype``, by its name in the laws.

    NVFP4 weights that are unpacked to 16 bits are as MXFP4's, which are everywhere. fp8 that was published, alone
    or beside MXFP4 (DeepSeek-V4), has a scale for each block; beside NVFP4 one for each matrix (ModelOpt's).
    """
    if dtype == "nvfp4" and dtype in model.weight_only:
        return "fp4"
    if dtype == "fp8" and model.weight_dtype in ("fp8", "fp4"):
        return "fp8_block"
    return "bf16" if dtype in ("fp16", "fp32") else dtype


def _shared_heads(heads: LayerHeads, kv_bytes: float) -> Heads:
    """Attention without MLA."""
    return Heads(heads.heads, heads.kv_heads, (heads.key_dim + heads.value_dim) / 2.0, kv_bytes)


def windowed_heads(model: ModelSpec, part: Shard, kv_dtype: DType) -> Heads | None:
    """Attention of a layer with a sliding window on one rank, of chunks and of new tokens; None: as in other layers."""
    if model.window_heads is None:
        return None
    return _shared_heads(window_heads(model, part), window_layer_kv_bytes_per_token(model, part, kv_dtype))


def prefill_heads(model: ModelSpec, part: Shard, kv_dtype: DType) -> Heads:
    """Attention of a chunk on one rank; MLA rebuilds keys and values of every head, in 16 bits."""
    if model.mla is None:
        return _shared_heads(full_heads(model, part), layer_kv_bytes_per_token(model, part, kv_dtype))
    key, value = model.mla.qk_nope_head_dim + model.mla.qk_rope_head_dim, model.mla.v_head_dim
    return Heads(part.heads, part.heads, (key + value) / 2.0, part.heads * (key + value) * ACTIVATION_BYTES)


def decode_heads(model: ModelSpec, part: Shard, kv_dtype: DType) -> Heads:
    """Attention of a new token on one rank; MLA reads one latent for all heads.

    Of ranks that share a sequence's KV each attends with the heads of all to its part of the tokens.
    """
    ranks = part.parallelism.decode_context
    if model.mla is None:
        known = full_heads(model, part)
        known = known._replace(heads=ranks * known.heads)
        return _shared_heads(known, layer_kv_bytes_per_token(model, part, kv_dtype))
    latent, rotary = model.mla.kv_lora_rank, model.mla.qk_rope_head_dim
    return Heads(ranks * part.heads, 1, latent + rotary / 2.0, (latent + rotary) * kv_element_bytes(kv_dtype))
