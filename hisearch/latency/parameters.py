"""A model's weight matrices and KV entries, per rank: counts and bytes.

One list of matrices serves the parameter count, the memory plan and the operators' FLOPs: they cannot disagree.
Biases and the norms of queries and keys are left out (below 0.01 % of the parameters of every model in the catalogue).
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import get_args

from hisearch.latency.matrices import block_sparse, compressed
from hisearch.latency.matrices.heads import LayerHeads, full_heads, window_heads
from hisearch.latency.matrices.matrix import (
    WIDE_DTYPES,
    Matrix,
    element_bytes,
    kv_element_bytes,
    wide_dtype,
    with_formats,
)
from hisearch.latency.matrices.recurrent import projections
from hisearch.latency.sharding import (
    Parallelism,
    Shard,
    cached_layers,
    dense_layers,
    expert_hidden,
    index_layers,
    linear_layers,
    moe_layers,
    shard,
    window_layers,
)
from hisearch.specs.base import DTYPE_BYTES, DType
from hisearch.specs.models.draft_head import DraftHeadSpec
from hisearch.specs.models.model import MlaSpec, ModelSpec

__all__ = ["WIDE_DTYPES", "Matrix", "element_bytes", "kv_element_bytes", "matrices", "wide_dtype"]

#: Bytes of a scale of an indexer's fp8 key, and elements that share it (SGLang's and vLLM's caches of index keys: 132
#: bytes for a width of 128).
INDEX_SCALE_BYTES, INDEX_SCALE_ELEMENTS = 4.0, 128


def matrices(model: ModelSpec, part: Shard) -> list[Matrix]:
    """The matrices of attention and FFN that one rank holds."""
    ffn = with_formats(model, [*_dense_ffn(model, part), *_moe_ffn(model, part)])
    return [*_joining(model), *attention_matrices(model, part), *ffn]


def _joining(model: ModelSpec) -> list[Matrix]:
    """The projection ahead of a head that drafts."""
    if not isinstance(model, DraftHeadSpec):
        return []
    return [Matrix("joining_proj", model.joined * model.hidden_size, model.hidden_size, 1, quantised=False)]


def parameter_count(model: ModelSpec) -> int:
    """Parameters of the whole model."""
    tables = 1 if model.tie_word_embeddings else 2
    matrix_elements = sum(matrix.elements for matrix in matrices(model, shard(model, 1))) - _copied_elements(model)
    return matrix_elements + _norm_elements(model) + tables * model.vocab_size * model.hidden_size


def active_parameter_count(model: ModelSpec) -> int:
    """Parameters a token passes through, embedding table excluded, LM head included."""
    used = sum(m.elements * m.experts_per_token // m.experts for m in matrices(model, shard(model, 1)))
    used -= _copied_elements(model)
    return used + _norm_elements(model) + model.vocab_size * model.hidden_size


def weight_bytes_per_rank(model: ModelSpec, split: int | Parallelism, weight_dtype: DType) -> float:
    """Bytes of weights each rank holds. Embedding, LM head, router and norms stay wide when the rest is quantised.

    ``split``: a number of tensor-parallel ranks, or a ``Parallelism``. Pipeline stages count their mean share of the
    layers, and the first or last stage's table.

    Raises:
        InvalidParallelism: the model cannot be split so.
    """
    part = shard(model, split)
    stages = part.parallelism.pipeline
    wide = DTYPE_BYTES[wide_dtype(weight_dtype)]
    total = sum(m.elements * m.element_bytes(weight_dtype) for m in matrices(model, part))
    head = lm_head(model, part)
    tables = wide * head.elements
    if not model.tie_word_embeddings and stages == 1:
        tables += head.elements * head.element_bytes(weight_dtype)
    return (total + wide * _norm_elements(model)) / stages + tables


def redundant_expert_bytes_per_rank(
    model: ModelSpec, split: int | Parallelism, weight_dtype: DType, redundant: int
) -> float:
    """Bytes of redundant expert copies on each rank, ``redundant`` per layer over all ranks."""
    part = shard(model, split)
    routed = [m for m in matrices(model, part) if m.routed]
    if not routed:
        return 0.0
    copies = redundant / part.parallelism.expert / part.experts
    kept = sum(m.elements * m.element_bytes(weight_dtype) for m in routed)
    return copies * kept / part.parallelism.pipeline


def layer_kv_bytes_per_token(model: ModelSpec, part: Shard, kv_dtype: DType) -> float:
    """Bytes one layer with full attention keeps per token on one rank.

    MLA's latent serves all heads, so every rank holds all of it. Sparse attention keeps the indexer's keys too. Of
    layers that keep different bytes, a mean.
    """
    if model.compressed_attention is not None:
        return compressed.entries_bytes_per_token(model, model.compressed_attention, kv_dtype) / model.layers
    if model.mla is not None:
        return latent_bytes_per_token(model.mla, kv_dtype, sparse=model.sparse_attention is not None) + _index_bytes(
            model
        )
    return full_heads(model, part).kv_elements * kv_element_bytes(kv_dtype) + block_sparse.mean_index_bytes(model)


def window_layer_kv_bytes_per_token(model: ModelSpec, part: Shard, kv_dtype: DType) -> float:
    """Bytes one layer with a sliding window keeps per token inside it on one rank."""
    if model.window_heads is None:
        return layer_kv_bytes_per_token(model, part, kv_dtype)
    return window_heads(model, part).kv_elements * kv_element_bytes(kv_dtype)


def latent_bytes_per_token(mla: MlaSpec, kv_dtype: DType, *, sparse: bool) -> float:
    """Bytes of a token's latent in one layer.

    Sparse-attention kernels with a quantised latent keep its rotary part in 16 bits, and a scale for each 128 elements
    of the rest (vLLM's ``fp8_ds_mla``: 656 bytes). FlashInfer's on a B200 takes 576: the model does not distinguish it.
    """
    rotary = DTYPE_BYTES["bf16"] if sparse and kv_dtype not in WIDE_DTYPES else kv_element_bytes(kv_dtype)
    scales = 0.0
    if sparse and kv_dtype not in WIDE_DTYPES:
        scales = INDEX_SCALE_BYTES * mla.kv_lora_rank / INDEX_SCALE_ELEMENTS
    return mla.kv_lora_rank * kv_element_bytes(kv_dtype) + scales + mla.qk_rope_head_dim * rotary


def kv_bytes_per_token_per_rank(model: ModelSpec, split: int | Parallelism, kv_dtype: DType) -> float:
    """Bytes of KV a cached token takes on each rank, in all layers that keep every token (sliding windows do not).

    ``split``: a number of tensor-parallel ranks, or a ``Parallelism``; a token lies in one of its attention groups. Of
    ranks that share a sequence's KV (``decode_context``) each holds an equal part of its tokens.

    A model with a window in every layer counts as keeping every token, as engines do with a single KV group.

    Raises:
        InvalidParallelism: the model cannot be split so.
    """
    part = shard(model, split)
    if (windowed := window_layers(model)) == model.layers and windowed:
        return windowed / part.parallelism.pipeline * window_layer_kv_bytes_per_token(model, part, kv_dtype)
    layers = (cached_layers(model) - _dropping_layers(model)) / part.parallelism.pipeline
    return layers * layer_kv_bytes_per_token(model, part, kv_dtype) / part.parallelism.decode_context


def window_kv_bytes_per_token_per_rank(model: ModelSpec, split: int | Parallelism, kv_dtype: DType) -> float:
    """Bytes of KV a token inside the sliding window takes on each rank, in the layers that drop tokens outside."""
    part = shard(model, split)
    if model.compressed_attention is not None:
        kept = compressed.window_bytes_per_token(model, model.compressed_attention, kv_dtype)
        return kept / part.parallelism.pipeline
    layer_bytes = window_layer_kv_bytes_per_token(model, part, kv_dtype)
    return _dropping_layers(model) / part.parallelism.pipeline * layer_bytes


def state_bytes_per_sequence_per_rank(model: ModelSpec, split: int | Parallelism) -> float:
    """Bytes of the linear-attention states of one sequence on each rank; 0 without such layers."""
    part = shard(model, split)
    return linear_layers(model) * layer_state_bytes(model, part) / part.parallelism.pipeline


def layer_state_bytes(model: ModelSpec, part: Shard) -> float:
    """Bytes of a sequence's state in one layer of linear attention on one rank, with the inputs of its convolution.

    These are of the tokens under the convolution but the newest, in 16 bits (vLLM's ``MambaStateShapeCalculator.
    gated_delta_net_state_shape``). 0 without such layers.
    """
    linear = model.linear_attention
    if linear is None:
        return 0.0
    keys, values = part.linear_key_heads * linear.key_head_dim, part.linear_value_heads * linear.value_head_dim
    inputs = (linear.conv_kernel - 1) * (2 * keys + values) * DTYPE_BYTES["bf16"]
    return values * linear.key_head_dim * DTYPE_BYTES[linear.state_dtype] + inputs


def _index_bytes(model: ModelSpec) -> float:
    """Bytes of an index key, an fp8 vector on every rank; a mean over layers, since some may lack an indexer."""
    sparse = model.sparse_attention
    if sparse is None:
        return 0.0
    key = sparse.index_head_dim * (1.0 + INDEX_SCALE_BYTES / INDEX_SCALE_ELEMENTS)
    return key * index_layers(model) / model.layers


def _dropping_layers(model: ModelSpec) -> int:
    windowed = window_layers(model)
    return windowed if windowed < model.layers else 0


def _norm_elements(model: ModelSpec) -> int:
    return (model.norm_count + 1) * model.hidden_size


def _copied_elements(model: ModelSpec) -> int:
    """Elements that engines load twice: projections to keys that are values too (``values_are_keys``)."""
    if not model.values_are_keys:
        return 0
    full = model.layers - window_layers(model)
    return full * model.hidden_size * model.kv_heads * model.head_dim


def attention_matrices(model: ModelSpec, part: Shard) -> list[Matrix]:
    """The matrices of attention, or of what mixes tokens in its place, that one rank holds."""
    if model.compressed_attention is not None:
        listed = compressed.compressed_matrices(model, model.compressed_attention, part)
    else:
        listed = _grouped(model, part) if model.mla is None else _mla(model, model.mla, part)
    return with_formats(model, [*listed, *_linear_attention(model, part)])


def _grouped(model: ModelSpec, part: Shard) -> list[Matrix]:
    layers, windowed = cached_layers(model), 0 if model.window_heads is None else window_layers(model)
    full = _projections(model, "", full_heads(model, part), layers - windowed)
    if (blocks := model.block_sparse) is not None:
        query, *others = full
        outputs = query.outputs + block_sparse.index_outputs(model, blocks, part)
        dense = [replace(query, layers=query.layers - blocks.layers)] if query.layers > blocks.layers else []
        full = [*dense, Matrix("qkv_index_proj", query.inputs, outputs, blocks.layers), *others]
    return [
        *full,
        *_projections(model, "window_", window_heads(model, part), windowed),
    ]


def _projections(model: ModelSpec, prefix: str, heads: LayerHeads, layers: int) -> list[Matrix]:
    """Projections to queries, keys and values, and back, in ``layers`` layers; none for none."""
    if not layers:
        return []
    hidden, quantised = model.hidden_size, not model.attention_stays_wide
    queries = (2 if model.attention_output_gate else 1) * heads.heads * heads.key_dim
    projections = [
        Matrix(f"{prefix}qkv_proj", hidden, queries + heads.kv_elements, layers, quantised=quantised),
        Matrix(f"{prefix}o_proj", heads.heads * heads.value_dim, hidden, layers, quantised=quantised),
    ]
    if model.attention_head_gate:
        projections.append(Matrix(f"{prefix}head_gate_proj", hidden, heads.heads, layers, quantised=False))
    return projections


def _linear_attention(model: ModelSpec, part: Shard) -> list[Matrix]:
    """Projections of the layers with a recurrent state."""
    linear = model.linear_attention
    if linear is None:
        return []
    return [
        Matrix(name, inputs, outputs, linear.layers, quantised=quantised)
        for name, inputs, outputs, quantised in projections(linear, part, model.hidden_size)
    ]


def _mla(model: ModelSpec, mla: MlaSpec, part: Shard) -> list[Matrix]:
    """Down-projections are replicated on every rank, up-projections are split by head.

    All engines fuse the down-projections of queries and keys.
    """
    hidden, layers, values = model.hidden_size, cached_layers(model), part.heads * mla.v_head_dim
    query = part.heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
    kept = mla.kv_lora_rank + mla.qk_rope_head_dim
    gates = [Matrix("attention_gate_proj", hidden, values, layers)] if model.attention_output_gate else []
    if mla.q_lora_rank:
        down = [
            Matrix("qkv_down_proj", hidden, mla.q_lora_rank + kept, layers),
            Matrix("q_up_proj", mla.q_lora_rank, query, layers),
        ]
    else:
        down = [Matrix("q_proj", hidden, query, layers), Matrix("kv_down_proj", hidden, kept, layers)]
    return [
        *down,
        *_indexer(model, mla),
        Matrix("kv_up_proj", mla.kv_lora_rank, part.heads * (mla.qk_nope_head_dim + mla.v_head_dim), layers),
        *gates,
        Matrix("o_proj", values, hidden, layers),
    ]


def _indexer(model: ModelSpec, mla: MlaSpec) -> list[Matrix]:
    """Index queries from the queries' latent, one index key and the heads' weights; replicated on every rank."""
    sparse = model.sparse_attention
    if sparse is None:
        return []
    hidden, layers = model.hidden_size, index_layers(model)
    return [
        Matrix("index_q_proj", mla.q_lora_rank, sparse.index_heads * sparse.index_head_dim, layers),
        Matrix("index_k_proj", hidden, sparse.index_head_dim, layers),
        Matrix("index_weights_proj", hidden, sparse.index_heads, layers, quantised=False),
    ]


def _dense_ffn(model: ModelSpec, part: Shard) -> list[Matrix]:
    layers = dense_layers(model)
    if not layers:
        return []
    groups = part.parallelism.ffn_groups
    return [
        Matrix("gate_up_proj", model.hidden_size, _up_factor(model) * part.intermediate, layers, token_groups=groups),
        Matrix("down_proj", part.intermediate, model.hidden_size, layers, token_groups=groups),
    ]


def _moe_ffn(model: ModelSpec, part: Shard) -> list[Matrix]:
    moe, layers, hidden = model.moe, moe_layers(model), model.hidden_size
    if moe is None or not layers:
        return []
    up, counts, inner = _up_factor(model), (part.experts, moe.experts_per_token), expert_hidden(model)
    groups, ranks = part.parallelism.attention_data, part.parallelism.expert
    routed = functools.partial(Matrix, expert_ranks=ranks, token_groups=groups, routed=True)
    layer_matrices = [
        Matrix("router", hidden, moe.experts, layers, quantised=False, single=moe.router_dtype == "fp32"),
        routed("experts_gate_up_proj", inner, up * part.expert_intermediate, layers, *counts),
        routed("experts_down_proj", part.expert_intermediate, inner, layers, *counts),
    ]
    if moe.latent_size:
        # Whole on every rank, for its own tokens.
        layer_matrices += [
            Matrix("latent_down_proj", hidden, inner, layers),
            Matrix("latent_up_proj", inner, hidden, layers),
        ]
    if part.shared_intermediate:
        together = part.parallelism.ffn_groups
        layer_matrices += [
            Matrix("shared_gate_up_proj", hidden, up * part.shared_intermediate, layers, token_groups=together),
            Matrix("shared_down_proj", part.shared_intermediate, hidden, layers, token_groups=together),
        ]
    return layer_matrices


def lm_head(model: ModelSpec, part: Shard) -> Matrix:
    """The LM head, split over the vocabulary; it stays wide but in checkpoints that state another format for it."""
    head = Matrix("lm_head", model.hidden_size, part.vocab, layers=1, quantised=False)
    others = {
        dtype: other
        for dtype, formats in model.other_formats.items()
        for other, names in formats.items()
        if head.name in names
    }
    if not others:
        return head
    wide: frozenset[DType] = frozenset(dtype for dtype in get_args(DType) if dtype not in others)
    return replace(head, quantised=True, wide_in=wide, others=tuple(others.items()))


def _up_factor(model: ModelSpec) -> int:
    return 2 if model.gated_ffn else 1
