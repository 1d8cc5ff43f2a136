"""What attention reads that has compressed entries, or chooses blocks of tokens; figures are of one layer and rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from hisearch.latency.matrices.block_sparse import index_key_bytes, local_index_heads
from hisearch.latency.matrices.compressed import block_products, entry_bytes, index_entry_bytes
from hisearch.latency.matrices.matrix import kv_element_bytes
from hisearch.latency.sharding import Shard
from hisearch.specs.base import DType
from hisearch.specs.models.model import ModelSpec
from hisearch.specs.models.sparse_kinds import BlockSparseSpec, CompressedAttentionSpec

#: Heads for which sparse kernels of compressed attention are made at least (vLLM 0.33.0, ``models/deepseek_v4/nvidia``:
#: ``get_padded_num_q_heads`` of 64 or 128).
LEAST_HEADS = 64

#: Bytes of an element of queries and outputs.
QUERY_BYTES = 2.0


@dataclass(frozen=True)
class IndexShape:
    """The indexer of sparse attention in one layer, replicated on every rank.

    topk: tokens that a query reads.
    flops_per_pair, bytes_per_token: of scoring a pair, and of a token's index key. They are means over layers: some may
        lack an indexer.
    """

    topk: int
    flops_per_pair: float
    bytes_per_token: float


@dataclass(frozen=True)
class EntriesShape:
    """Layers of one rank that read entries of ``ratio`` tokens; figures are of one layer.

    products: dense products of attention. flops_per_pair, bytes_per_entry, query_bytes: of attention; no query bytes
        where a window's has them.
    index: chooses what a query reads, at most ``index.topk`` entries; its figures are by entry too. None: all.
    """

    layers: int
    ratio: int
    products: frozenset[str]
    flops_per_pair: float
    bytes_per_entry: float
    query_bytes: float
    index: IndexShape | None


class EntriesRead(NamedTuple):
    """Attention of one rank: layers that read all tokens, those with a window, and layers with entries besides.

    flops_per_pair, query_bytes, kv_bytes_per_token: of layers that read all tokens, and of windows.
    """

    full_layers: int
    window_layers: int
    window_tokens: int
    flops_per_pair: float
    query_bytes: float
    kv_bytes_per_token: float
    entries: tuple[EntriesShape, ...]


def entries_read(model: ModelSpec, part: Shard, kv_dtype: DType) -> EntriesRead | None:
    """What ``model`` reads; None where it has neither compressed entries nor blocks."""
    if model.compressed_attention is not None:
        return _compressed(model, model.compressed_attention, part, kv_dtype)
    return None if model.block_sparse is None else _blocks(model, model.block_sparse, part, kv_dtype)


def computed_heads(heads: int) -> int:
    """Query heads of compressed attention that kernels compute for ``heads`` of a rank; the others are padding."""
    return max(heads, LEAST_HEADS)


def _compressed(model: ModelSpec, kept: CompressedAttentionSpec, part: Shard, kv_dtype: DType) -> EntriesRead:
    """Queries and outputs count with the window, which every layer has."""
    flops, query_bytes = 4.0 * computed_heads(part.heads) * model.head_dim, _query_bytes(model, part)
    kv_bytes, scored = entry_bytes(model, kept, kv_dtype), 2.0 * kept.index_heads * kept.index_head_dim
    entries = tuple(
        EntriesShape(
            kind.layers, kind.ratio, block_products(kind), flops, kv_bytes, 0.0,
            IndexShape(kind.topk, scored, index_entry_bytes(kept)) if kind.topk else None,
        )
        for kind in kept.entries
    )  # fmt: skip
    return EntriesRead(0, model.layers, kept.window_tokens, flops, query_bytes, kv_bytes, entries)


def _blocks(model: ModelSpec, blocks: BlockSparseSpec, part: Shard, kv_dtype: DType) -> EntriesRead:
    """Chosen tokens count as entries of one token each."""
    flops, query_bytes = 4.0 * part.heads * model.head_dim, _query_bytes(model, part)
    kv_bytes = 2 * part.kv_heads * model.head_dim * kv_element_bytes(kv_dtype)
    scored = 2.0 * local_index_heads(model, blocks, part) * blocks.index_head_dim
    index = IndexShape(blocks.topk_blocks * blocks.block_tokens, scored, index_key_bytes(blocks))
    products = frozenset({"qkv_index_proj", "o_proj"})
    entries = (EntriesShape(blocks.layers, 1, products, flops, kv_bytes, query_bytes, index),)
    return EntriesRead(model.layers - blocks.layers, 0, 0, flops, query_bytes, kv_bytes, entries)


def _query_bytes(model: ModelSpec, part: Shard) -> float:
    return 2 * part.heads * model.head_dim * QUERY_BYTES
