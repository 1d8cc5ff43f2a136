"""A model's operators under tensor parallelism, as FLOPs and bytes of one rank.

Notation
    x      units of an operator: tokens of the step (token-wise operators) or sequences that sample (LM head, sampling)
    h      hidden size; all widths below are one rank's
    E, k   experts of a layer, experts a token is routed to

    flops(x) = 2 * k * inputs * outputs * x                 one multiply and one add per weight and token
    bytes(x) = matrix bytes * active(x) + (inputs + outputs) * 2 * k * x    weights once, activations in and out
    active(x) = E * (1 - (1 - k / E) ** x)                  expected distinct experts of x tokens; 1 if dense

``active`` assumes even and independent choices of experts, which real routers do not quite make. At small batches it
overestimates weight traffic.

Attention is counted per (query, visible key) pair (``new * (cached + (new + 1) / 2)`` pairs of a causal chunk):
4 * head_dim FLOPs per head for GQA. In prefill MLA runs as multi-head attention, after decompressing the latent of
cached tokens. In decode it runs in latent space ("absorbed"), where one latent serves all heads.
Source of the MLA shapes: DeepSeek-V2 (arXiv 2405.04434), section 2.1 and appendix C.

Sparse attention scores every pair with the indexer's heads, 2 * index_head_dim FLOPs each, and reads the ``topk`` best
tokens of each query in latent space, in prefill too. Source: DeepSeek-V3.2-Exp's report (github
deepseek-ai/DeepSeek-V3.2-Exp), section 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.latency.matrices.compressed import state_bytes_per_token
from hisearch.latency.matrices.entries import EntriesShape, IndexShape, entries_read
from hisearch.latency.matrices.heads import LayerHeads, full_heads, window_heads
from hisearch.latency.matrices.recurrent import chunk_flops, mixed_width, value_width
from hisearch.latency.parameters import (
    Matrix,
    latent_bytes_per_token,
    layer_kv_bytes_per_token,
    lm_head,
    matrices,
    wide_dtype,
    window_layer_kv_bytes_per_token,
)
from hisearch.latency.sharding import (
    Shard,
    cached_layers,
    dense_layers,
    expert_hidden,
    index_layers,
    moe_layers,
    window_layers,
)
from hisearch.specs.base import DTYPE_BYTES, DType
from hisearch.specs.models.model import ModelSpec

#: Bytes of an activation between operators: 16 bits, whatever the weights' format.
ACTIVATION_BYTES = 2.0

#: Bytes of a token's two sums of squares, of queries and of keys, which ranks add up (``qk_norm_per_layer``).
NORM_SUMS_BYTES = 8.0

#: Bytes of 16-bit logits that a soft cap reads and writes, per vocabulary entry: divide, tanh, multiply (``forward`` of
#: vLLM's ``LogitsProcessor``).
SOFTCAP_BYTES_PER_LOGIT = 12.0

#: Bytes of float32 logits that sampling reads and writes, per vocabulary entry: convert, scale, softmax, draw.
SAMPLING_BYTES_PER_LOGIT = 16.0


@dataclass(frozen=True)
class Operator:
    """One operator of ``layers`` layers; figures are per layer and rank.

    ``flops_per_unit`` and ``bytes_per_unit`` count one unit in each of ``token_groups`` attention groups. The layer's
    ``experts`` lie on ``expert_ranks`` sets of ranks. ``routed``: tokens choose among them.
    """

    name: str
    family: Literal["gemm", "elementwise"]
    dtype: DType
    layers: int
    flops_per_unit: float
    bytes_per_unit: float
    weight_bytes: float = 0.0
    experts: int = 1
    experts_per_token: int = 1
    expert_ranks: int = 1
    token_groups: int = 1
    routed: bool = False

    def flops(self, units: F8) -> F8:
        """FLOPs for each entry of ``units``."""
        return self.flops_per_unit * units

    def bytes_moved(self, units: F8) -> F8:
        """Bytes read and written for each entry of ``units``."""
        moved = self.bytes_per_unit * units
        if self.weight_bytes:
            tokens = units * self.token_groups
            moved += (
                self.weight_bytes / self.expert_ranks * active_experts(self.experts, self.experts_per_token, tokens)
            )
        return moved


@dataclass(frozen=True)
class AttentionShape:
    """Attention of one layer and rank.

    Pairs are (query, key) pairs; a query's bytes are its own vector in and its output out.
    decompress_*: per *cached* token of a prefill chunk, to rebuild keys and values from a latent (MLA; else 0).
    window_reads: times that a decode reads its KV in layers with a window.
    index: of sparse attention; its pairs are those that are read.
    within: of layers with a window whose heads are others; see ``windowed``.
    entries: layers with compressed entries, or with blocks of tokens.
    """

    full_layers: int
    window_layers: int
    window_tokens: int
    kv_bytes_per_token: float
    prefill_flops_per_pair: float
    prefill_query_bytes: float
    decompress_flops: float
    decompress_bytes: float
    decode_flops_per_pair: float
    decode_query_bytes: float
    index: IndexShape | None = None
    window_reads: float = 1.0
    within: AttentionShape | None = None
    entries: tuple[EntriesShape, ...] = ()

    @property
    def windowed(self) -> AttentionShape:
        """Attention of a layer with a window."""
        return self if self.within is None else self.within


def active_experts(experts: int, experts_per_token: int, tokens: F8) -> F8:
    """Expected number of distinct experts that ``tokens`` tokens use, for each entry."""
    if experts == experts_per_token:
        return np.minimum(tokens, 1.0) * experts
    return np.asarray(experts * -np.expm1(tokens * np.log1p(-experts_per_token / experts)))


def sets_reached(sets: float, experts_per_token: int) -> float:
    """Expected number of ``sets`` of ranks with any of a token's experts; choices are even and independent."""
    return sets * (1.0 - (1.0 - 1.0 / sets) ** experts_per_token)


def attention_pairs(new: F8, cached: F8) -> F8:
    """(query, key) pairs of a causal chunk: ``new * (cached + (new + 1) / 2)``."""
    return np.asarray(new * (cached + (new + 1.0) / 2.0))


def windowed_pairs(new: F8, cached: F8, window: float) -> F8:
    """Pairs where query i of the chunk (i = 1 …) sees ``min(cached + i, window)`` keys, itself included."""
    growing = np.clip(window - cached, 0.0, new)
    return np.asarray(growing * (cached + (growing + 1.0) / 2.0) + (new - growing) * window)


def token_operators(
    model: ModelSpec, part: Shard, weight_dtype: DType, compute_dtype: DType, others: Mapping[DType, DType] = {}
) -> list[Operator]:
    """Operators whose cost depends only on the step's tokens, without attention and collectives.

    Args:
        model: architecture.
        part: one rank's widths.
        weight_dtype: format in which weights are stored and read.
        compute_dtype: operand format whose peak the quantised matrices run at.
        others: likewise, of the other quantised formats that a checkpoint has.
    """
    gemms = [_gemm(matrix, weight_dtype, compute_dtype, others) for matrix in matrices(model, part)]
    return [*gemms, *_elementwise(model, part, weight_dtype)]


def sequence_operators(
    model: ModelSpec, part: Shard, weight_dtype: DType, others: Mapping[DType, DType] = {}
) -> list[Operator]:
    """LM head (split over ranks) and sampling (each rank over the whole vocabulary), by sequences that sample.

    ``others``: see ``token_operators``; with the format of the weights, for an LM head that has it.
    """
    wide = wide_dtype(weight_dtype)
    sampling = Operator("sampling", "elementwise", wide, 1, 0.0, SAMPLING_BYTES_PER_LOGIT * model.vocab_size)
    head = _gemm(lm_head(model, part), weight_dtype, others.get(weight_dtype, wide), others)
    operators = [head, sampling, *_linear_states(model, part, wide)]
    if model.logit_softcap:
        operators.append(
            Operator("logit_softcap", "elementwise", wide, 1, 0.0, SOFTCAP_BYTES_PER_LOGIT * model.vocab_size)
        )
    return operators


def _linear_states(model: ModelSpec, part: Shard, dtype: DType) -> list[Operator]:
    """Linear attention reads and writes every sequence's state once per step, whatever the context."""
    linear = model.linear_attention
    if linear is None:
        return []
    state = value_width(linear, part) * linear.key_head_dim
    moved = 2.0 * state * DTYPE_BYTES[linear.state_dtype]
    return [Operator("linear_state", "elementwise", dtype, linear.layers, 0.0, moved)]


def attention_shape(model: ModelSpec, part: Shard, kv_dtype: DType, *, rereads_windows: bool = False) -> AttentionShape:
    """Attention of ``model`` on one rank; ``rereads_windows``: see ``PricedWorker``."""
    if (read := entries_read(model, part, kv_dtype)) is not None:
        return AttentionShape(
            full_layers=read.full_layers,
            window_layers=read.window_layers,
            window_tokens=read.window_tokens,
            kv_bytes_per_token=read.kv_bytes_per_token,
            prefill_flops_per_pair=read.flops_per_pair,
            prefill_query_bytes=read.query_bytes,
            decompress_flops=0.0,
            decompress_bytes=0.0,
            decode_flops_per_pair=read.flops_per_pair,
            decode_query_bytes=read.query_bytes,
            entries=read.entries,
        )
    windowed = window_layers(model)
    heads, kv_bytes, index = part.heads, layer_kv_bytes_per_token(model, part, kv_dtype), None
    within = window_heads(model, part)
    if model.mla is None:
        prefill = decode = _heads_cost(full_heads(model, part))
        decompress = (0.0, 0.0)
    else:
        mla = model.mla
        key, latent = mla.qk_nope_head_dim + mla.qk_rope_head_dim, mla.kv_lora_rank
        prefill = (2.0 * heads * (key + mla.v_head_dim), heads * (key + mla.v_head_dim) * ACTIVATION_BYTES)
        decode_width = 2 * latent + mla.qk_rope_head_dim
        decode = (2.0 * heads * decode_width, heads * decode_width * ACTIVATION_BYTES)
        rebuilt = heads * (mla.qk_nope_head_dim + mla.v_head_dim)
        decompress = (2.0 * latent * rebuilt, 2 * rebuilt * ACTIVATION_BYTES)
        if (sparse := model.sparse_attention) is not None:
            prefill, decompress = decode, (0.0, 0.0)
            with_index, kv_bytes = kv_bytes, latent_bytes_per_token(mla, kv_dtype, sparse=True)
            scored = 2.0 * sparse.index_heads * sparse.index_head_dim * index_layers(model) / model.layers
            index = IndexShape(sparse.topk, scored, with_index - kv_bytes)
    shape = AttentionShape(
        full_layers=cached_layers(model) - windowed,
        window_layers=windowed,
        window_tokens=model.sliding_window_tokens,
        kv_bytes_per_token=kv_bytes,
        prefill_flops_per_pair=prefill[0],
        prefill_query_bytes=prefill[1],
        decompress_flops=decompress[0],
        decompress_bytes=decompress[1],
        decode_flops_per_pair=decode[0],
        decode_query_bytes=decode[1],
        index=index,
        window_reads=within.heads / within.kv_heads if rereads_windows else 1.0,
    )
    if model.window_heads is None:
        return shape
    flops, query_bytes = _heads_cost(within)
    in_windows = replace(
        shape,
        kv_bytes_per_token=window_layer_kv_bytes_per_token(model, part, kv_dtype),
        prefill_flops_per_pair=flops,
        prefill_query_bytes=query_bytes,
        decode_flops_per_pair=flops,
        decode_query_bytes=query_bytes,
    )
    return replace(shape, within=in_windows)


def _heads_cost(heads: LayerHeads) -> tuple[float, float]:
    """FLOPs of a pair, and bytes of a query and its output, of softmax attention."""
    return 2.0 * heads.query_elements, heads.query_elements * ACTIVATION_BYTES


def _gemm(matrix: Matrix, weight_dtype: DType, compute_dtype: DType, others: Mapping[DType, DType] = {}) -> Operator:
    stored = matrix.format(weight_dtype)
    operands = compute_dtype if stored == weight_dtype else others.get(stored, "bf16")
    uses = matrix.experts_per_token * matrix.token_groups / matrix.expert_ranks
    return Operator(
        name=matrix.name,
        family="gemm",
        dtype=operands if matrix.takes(weight_dtype) else _wide_operands(matrix, weight_dtype),
        layers=matrix.layers,
        flops_per_unit=2.0 * uses * matrix.inputs * matrix.outputs,
        bytes_per_unit=uses * (matrix.inputs + matrix.outputs) * ACTIVATION_BYTES,
        weight_bytes=matrix.inputs * matrix.outputs * matrix.element_bytes(weight_dtype),
        experts=matrix.experts * matrix.expert_ranks,
        experts_per_token=matrix.experts_per_token,
        expert_ranks=matrix.expert_ranks,
        token_groups=matrix.token_groups,
        routed=matrix.routed,
    )


def _wide_operands(matrix: Matrix, weight_dtype: DType) -> DType:
    return "bf16" if matrix.tensor_cores else matrix.wide(weight_dtype)


def _elementwise(model: ModelSpec, part: Shard, weight_dtype: DType) -> list[Operator]:
    """Memory-bound operators: norms with residual (both streams in and out), rotary and KV write, activation."""
    dtype, separate = wide_dtype(weight_dtype), window_layers(model) if model.window_heads is not None else 0
    if model.compressed_attention is not None:
        rotated = (part.heads + 1) * model.head_dim
    elif model.mla is None:
        rotated = _rotated(model, full_heads(model, part))
    else:
        rotated = part.heads * model.mla.qk_rope_head_dim * model.rotary_embedding
        rotated += model.mla.kv_lora_rank + model.mla.qk_rope_head_dim
    widths: list[tuple[str, int, float]] = [
        ("embedding", 1, 2 * model.hidden_size),
        *_residuals(model),
        ("rotary_kv_write", cached_layers(model) - separate, 2 * rotated),
    ]
    if separate:
        widths.append(("window_rotary_kv_write", separate, 2 * _rotated(model, window_heads(model, part))))
    if model.mla is not None and model.attention_output_gate:
        widths.append(("attention_gate", cached_layers(model), 3 * part.heads * model.mla.v_head_dim))
    if model.residual_block_layers:
        widths.append(("residual_blocks", 1, residual_blocks_read(model) * model.hidden_size))
    split = part.parallelism
    if dense_layers(model):
        widths.append(("activation", dense_layers(model), 3 * part.intermediate * split.ffn_groups))
    if model.moe is not None and moe_layers(model):
        uses = model.moe.experts_per_token * split.attention_data / split.expert
        shared = part.shared_intermediate * split.ffn_groups
        widths.append(("expert_activation", moe_layers(model), 3 * (uses * part.expert_intermediate + shared)))
        widths.append(("expert_gather", moe_layers(model), 2 * uses * expert_hidden(model)))
        if model.moe.latent_norm:
            widths.append(("latent_norm", moe_layers(model), 2 * model.moe.latent_size))
        # A single operator is part of what tables of experts measure.
        if (single := model.moe.choice_operators - 1) > 0:
            widths.append(("expert_choice", single * moe_layers(model), 2 * model.moe.experts))
    operators = [Operator(name, "elementwise", dtype, layers, 0.0, n * ACTIVATION_BYTES) for name, layers, n in widths]
    return [*operators, *_linear_mixing(model, part, dtype), *_compression(model, dtype)]


def _residuals(model: ModelSpec) -> list[tuple[str, int, float]]:
    """Norms with the residual; with several streams: mixing them into an input, which is normalised, and writing back.

    What mixes them reads them once more (``streams_proj``).
    """
    streams, hidden = model.residual_streams, model.hidden_size
    if streams == 1:
        return [("norms", model.norm_count, 4 * hidden)]
    return [
        ("streams_in", 2 * model.layers, (streams + 1) * hidden),
        ("streams_out", 2 * model.layers, (2 * streams + 1) * hidden),
    ]


def _compression(model: ModelSpec, dtype: DType) -> list[Operator]:
    """What makes an entry is written to its state and read again: vectors and weights, in 32 bits."""
    kept = model.compressed_attention
    if kept is None:
        return []
    return [
        Operator(
            f"compress_{kind.ratio}", "elementwise", dtype, kind.layers, 0.0,
            2.0 * state_bytes_per_token(model, kept, kind) / kind.layers,
        )
        for kind in kept.entries
    ]  # fmt: skip


def _rotated(model: ModelSpec, heads: LayerHeads) -> int:
    """Elements of a token's queries, where they are rotated, and of its keys and values."""
    return heads.heads * heads.key_dim * model.rotary_embedding + heads.kv_elements


def residual_blocks(model: ModelSpec) -> int:
    """Blocks of attention residuals that a token carries to the end of the model; 0 without them."""
    return -(-model.layers // model.residual_block_layers) if model.residual_block_layers else 0


def residual_blocks_read(model: ModelSpec) -> int:
    """Vectors of former blocks that a token's pass reads besides its residual stream, in all layers and at the end.

    Each mixer attends to the blocks before its layer, each FFN to its own as well. Source: vLLM 0.33.0,
    ``models/kimi_k3/nvidia/model.py: KimiDecoderLayer``.
    """
    size = model.residual_block_layers
    if not size:
        return 0
    before = sum(-(-layer // size) + layer // size + 1 for layer in range(model.layers))
    return before + residual_blocks(model)


def _linear_mixing(model: ModelSpec, part: Shard, dtype: DType) -> list[Operator]:
    """Convolution, gating and the chunks of layers with a recurrent state, by tokens (``matrices.recurrent``)."""
    linear = model.linear_attention
    if linear is None:
        return []
    flops, moved = chunk_flops(linear, part), 2 * mixed_width(linear, part) * ACTIVATION_BYTES
    return [
        Operator("linear_convolution", "elementwise", dtype, linear.layers, 0.0, moved),
        Operator("linear_attention", "elementwise", dtype, linear.layers, flops, moved),
    ]
