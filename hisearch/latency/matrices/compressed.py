"""Compressed attention (DeepSeek-V4) on one rank: its matrices, and what its caches keep.

Notation
    h, d      hidden size; width of the vector that is key and value of a token or of an entry (``head_dim``)
    r         tokens of an entry
    o         projections that make an entry: 2 with an indexer, whose entries overlap (2 r tokens); else 1

    of a layer      h x (q + d)         latents of queries, and the key; on every rank
                    q x heads d         queries
                    heads d / g x g p   each of g groups of heads to a width of p
                    g p x h             the output
    with entries    h x 2 o d           what is added up to an entry, and its weights, in 16 bits; on every rank
    with an indexer q x heads w, h x heads, h x 2 o w: queries, their weights, entries of width w; on every rank
    streams s > 1   (2 + s) s x s h     of attention and of the FFN, in 32 bits: how streams are mixed; on every rank

    entry           (d - rotary) fp8 + rotary in 16 bits + a scale for each 64 elements, padded to 8 bytes
    page            entries of 256 tokens, padded to a multiple of 576 bytes; not an indexer's

Sources: vLLM 0.33.0, ``models/deepseek_v4`` (``attention.py``, ``compressor.py``, ``nvidia/model.py``) and
``v1/kv_cache_interface.py: _apply_alignment_padding``; SGLang 0.5.23, ``kernels/ops/attention/dsv4/kv_layout.py``,
``mem_cache/deepseek_v4_memory_pool.py``, ``model_executor/pool_configurator.py``.
"""

from __future__ import annotations

import math

from hisearch.latency.matrices.matrix import WIDE_DTYPES, Matrix
from hisearch.latency.sharding import Shard
from hisearch.specs.base import DTYPE_BYTES, DType
from hisearch.specs.models.model import ModelSpec
from hisearch.specs.models.sparse_kinds import CompressedAttentionSpec, EntriesSpec

#: Tokens of a page, for the entries of all layers.
PAGE_TOKENS = 256
#: Bytes of which pages of quantised entries are multiples, and pages of entries in 16 bits.
NARROW_ALIGNMENT, WIDE_ALIGNMENT = 576, 512
#: Elements that share a scale of a byte, and bytes to which an entry's scales are padded.
SCALE_ELEMENTS, SCALES_ALIGNMENT = 64, 8
#: Bytes of a scale of an index entry, and elements that share it.
INDEX_SCALE_BYTES, INDEX_SCALE_ELEMENTS = 4.0, 128
#: Bytes of an element of what is still to be compressed, and its kinds: the vectors and their weights.
STATE_BYTES, STATE_KINDS = 4.0, 2


def projections(kind: EntriesSpec) -> int:
    """Projections that make an entry."""
    return 2 if kind.topk else 1


def compressed_matrices(model: ModelSpec, compressed: CompressedAttentionSpec, part: Shard) -> list[Matrix]:
    """The matrices of attention that one rank holds.

    The groups' projections are one matrix: each takes its own heads, ``heads d / g`` inputs.
    """
    hidden, layers, width = model.hidden_size, model.layers, model.head_dim
    latent, tensor = compressed.q_lora_rank, part.parallelism.tensor
    outputs = compressed.output_groups // tensor * compressed.output_rank
    listed = [
        Matrix("qkv_down_proj", hidden, latent + width, layers),
        Matrix("q_up_proj", latent, part.heads * width, layers),
        Matrix("o_down_proj", model.attention_heads * width // compressed.output_groups, outputs, layers),
        Matrix("o_up_proj", outputs, hidden, layers),
    ]
    for kind in compressed.entries:
        made = STATE_KINDS * projections(kind)
        listed.append(Matrix(f"compress_{kind.ratio}_proj", hidden, made * width, kind.layers, quantised=False))
        if kind.topk:
            listed += _indexer(hidden, compressed, kind, made)
    return [*listed, *_mixing(model)]


def _indexer(hidden: int, compressed: CompressedAttentionSpec, kind: EntriesSpec, made: int) -> list[Matrix]:
    heads, width = compressed.index_heads, compressed.index_head_dim
    return [
        Matrix("index_q_proj", compressed.q_lora_rank, heads * width, kind.layers),
        Matrix("index_weights_proj", hidden, heads, kind.layers, quantised=False),
        Matrix("index_compress_proj", hidden, made * width, kind.layers, quantised=False),
    ]


def block_products(kind: EntriesSpec) -> frozenset[str]:
    """Names of the matrices of a layer's attention with entries of ``kind``."""
    index = {"index_q_proj", "index_weights_proj", "index_compress_proj"} if kind.topk else set()
    return frozenset({"qkv_down_proj", "q_up_proj", "o_down_proj", "o_up_proj", f"compress_{kind.ratio}_proj"} | index)


def _mixing(model: ModelSpec) -> list[Matrix]:
    streams = model.residual_streams
    if streams == 1:
        return []
    inputs, sites = streams * model.hidden_size, 2 * model.layers
    mixed = (2 + streams) * streams
    return [Matrix("streams_proj", inputs, mixed, sites, quantised=False, single=True, tensor_cores=True)]


def entry_bytes(model: ModelSpec, compressed: CompressedAttentionSpec, kv_dtype: DType) -> float:
    """Bytes of a token in the window, or of an entry, without padding of its page."""
    width = model.head_dim
    if kv_dtype in WIDE_DTYPES:
        return width * DTYPE_BYTES[kv_dtype]
    narrow = width - compressed.rotary_dim
    scales = -(-narrow // (SCALE_ELEMENTS * SCALES_ALIGNMENT)) * SCALES_ALIGNMENT
    return narrow * DTYPE_BYTES["fp8"] + compressed.rotary_dim * DTYPE_BYTES["bf16"] + scales


def index_entry_bytes(compressed: CompressedAttentionSpec) -> float:
    """Bytes of an indexer's entry."""
    return compressed.index_head_dim * (1.0 + INDEX_SCALE_BYTES / INDEX_SCALE_ELEMENTS)


def page_bytes(
    model: ModelSpec, compressed: CompressedAttentionSpec, tokens: int, ratio: int, kv_dtype: DType
) -> float:
    """Bytes of a page of ``tokens`` tokens in one layer, with an entry for each ``ratio`` of them."""
    return padded(tokens // ratio * entry_bytes(model, compressed, kv_dtype), kv_dtype)


def entries_bytes_per_token(model: ModelSpec, compressed: CompressedAttentionSpec, kv_dtype: DType) -> float:
    """Bytes of a token's share of all entries, in all layers; every rank holds all of them."""
    total = 0.0
    for kind in compressed.entries:
        total += kind.layers * page_bytes(model, compressed, PAGE_TOKENS, kind.ratio, kv_dtype) / PAGE_TOKENS
        if kind.topk:
            total += kind.layers * index_entry_bytes(compressed) / kind.ratio
    return total


def window_bytes_per_token(model: ModelSpec, compressed: CompressedAttentionSpec, kv_dtype: DType) -> float:
    """Bytes of a token in the windows of all layers, with its share of padding."""
    return model.layers * page_bytes(model, compressed, PAGE_TOKENS, 1, kv_dtype) / PAGE_TOKENS


def state_bytes_per_token(model: ModelSpec, compressed: CompressedAttentionSpec, kind: EntriesSpec) -> float:
    """Bytes of a token that is not yet compressed, in all layers with entries of ``kind``, indexers included."""
    width = model.head_dim + (compressed.index_head_dim if kind.topk else 0)
    return kind.layers * STATE_KINDS * projections(kind) * width * STATE_BYTES


def padded(taken_bytes: float, kv_dtype: DType) -> float:
    """Bytes of a page that takes ``taken_bytes``, beside entries in ``kv_dtype``."""
    alignment = WIDE_ALIGNMENT if kv_dtype in WIDE_DTYPES else NARROW_ALIGNMENT
    return math.ceil(taken_bytes / alignment) * alignment
