"""Heads of softmax attention on one rank, for layers with full attention and for those with a sliding window."""

from __future__ import annotations

from typing import NamedTuple

from hisearch.latency.sharding import Shard
from hisearch.specs.models.model import ModelSpec


class LayerHeads(NamedTuple):
    """Attention of one rank and layer, without MLA: query heads, KV heads, widths of a key (or query) and a value."""

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int

    @property
    def kv_elements(self) -> int:
        """Elements that a token's keys and values have, which the KV cache keeps."""
        return self.kv_heads * (self.key_dim + self.value_dim)

    @property
    def query_elements(self) -> int:
        """Elements of a token's queries and of attention's output."""
        return self.heads * (self.key_dim + self.value_dim)


def full_heads(model: ModelSpec, part: Shard) -> LayerHeads:
    """Heads of the layers with full attention; of all layers where windows have the same."""
    return LayerHeads(part.heads, part.kv_heads, model.head_dim, model.value_head_dim or model.head_dim)


def window_heads(model: ModelSpec, part: Shard) -> LayerHeads:
    """Heads of the layers with a sliding window."""
    own = model.window_heads
    if own is None:
        return full_heads(model, part)
    return LayerHeads(part.window_heads, part.window_kv_heads, own.head_dim, own.value_head_dim or own.head_dim)
