"""Work of operators, independent of the device.

Notation (per layer and rank; arrays of a common shape)
    rows, inputs, outputs   a product [rows, inputs] x [inputs, outputs]; ``groups`` such products in parallel
    units                   tokens, or sequences of the LM head

Attention is two products for each KV head of a sequence: queries with keys, and weights with values. A step's decodes
count as n equal sequences of c / n tokens; a chunk's queries all see the mean number of keys.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.latency.operators import (
    ACTIVATION_BYTES,
    AttentionShape,
    Operator,
    active_experts,
    attention_pairs,
    windowed_pairs,
)
from hisearch.latency.parameters import Matrix
from hisearch.latency.sharding import Shard
from hisearch.specs.base import DType
from hisearch.specs.models.model import ModelSpec

#: What is asked of a stage, an operator or a collective.
Measure = Literal["seconds", "joules"]

WorkKind = Literal["product", "elementwise", "prefill_attention", "decode_attention"]


#: Name of the softmax of scores that another device made.
SOFTMAX = "softmax"

#: FLOPs of a score in a softmax: maximum, difference, exponential, sum, quotient.
_SOFTMAX_FLOPS = 5.0


class Work(NamedTuple):
    """One operator of one layer.

    kind: which law applies. name: of the operator in measured tables.
    dtype: operand format.
    flops, moved_bytes: of weights or KV, and activations.
    rows, inputs, outputs, groups: of its products; 0 for other operators.
    units, context: its coordinates in a table: tokens or sequences, and the context that attention reads in all.
    """

    kind: WorkKind
    name: str
    dtype: DType
    flops: F8
    moved_bytes: F8
    rows: F8
    inputs: F8
    outputs: F8
    groups: F8
    units: F8
    context: F8


class Load(NamedTuple):
    """Loads of a step (see the module's notation), arrays of a common shape."""

    tokens: F8
    prompt: F8
    before: F8
    sequences: F8
    context: F8

    def part(self, jobs: F8 | float) -> Load:
        """The mean of ``jobs`` equal parts of the load; a prompt token sees as many tokens as in the undivided load."""
        before = self.before + self.prompt * (1.0 - 1.0 / jobs) / 2.0
        return Load(self.tokens / jobs, self.prompt / jobs, before, self.sequences / jobs, self.context / jobs)


class AttentionHeads(NamedTuple):
    """Heads of one rank: KV heads, queries that share one, and the width of a head (MLA's latent counts as one)."""

    kv_heads: int
    queries: float
    width: float


def attention_heads(model: ModelSpec, part: Shard) -> AttentionHeads:
    """Heads of a rank of ``model`` as decode attention sees them."""
    if model.mla is not None:
        return AttentionHeads(1, float(part.heads), float(model.mla.kv_lora_rank + model.mla.qk_rope_head_dim))
    return AttentionHeads(part.kv_heads, part.heads / part.kv_heads, float(model.head_dim))


def operator_work(op: Operator, matrix: Matrix | None, units: F8) -> Work:
    """An operator on ``units`` (at least 1); ``matrix``: that of a product."""
    flops, moved = op.flops(units), op.bytes_moved(units)
    if matrix is None:
        zero = np.zeros_like(units)
        return Work("elementwise", op.name, op.dtype, flops, moved, zero, zero, zero, zero, units, zero)
    tokens = units * op.token_groups
    groups = np.maximum(active_experts(op.experts, op.experts_per_token, tokens) / op.expert_ranks, 1e-9)
    rows = tokens * op.experts_per_token / op.expert_ranks / groups
    full = np.ones_like(units)
    return Work(
        "product", op.name, op.dtype, flops, moved, rows, full * matrix.inputs, full * matrix.outputs, groups, units,
        np.zeros_like(units),
    )  # fmt: skip


def prefill_work(
    shape: AttentionShape, heads: AttentionHeads, dtype: DType, new: F8, cached: F8, window: float | None = None
) -> Work:
    """One chunk of ``new`` tokens (at least 1) behind ``cached`` ones; ``window``: tokens that a query sees."""
    if window is None:
        pairs, seen = attention_pairs(new, cached), cached
    else:
        pairs, seen = windowed_pairs(new, cached, window), np.minimum(cached, max(window - 1.0, 0.0))
    flops = pairs * shape.prefill_flops_per_pair + seen * shape.decompress_flops
    moved = (seen + new) * shape.kv_bytes_per_token + new * shape.prefill_query_bytes + seen * shape.decompress_bytes
    keys = pairs / new
    full = np.ones_like(flops)
    return Work(
        "prefill_attention", "prefill_attention", dtype, flops, moved, full * new * heads.queries, full * heads.width,
        keys, full * 2.0 * heads.kv_heads, full * new, full * cached,
    )  # fmt: skip


def decode_work(shape: AttentionShape, heads: AttentionHeads, dtype: DType, sequences: F8, context: F8) -> Work:
    """``sequences`` decodes that read ``context`` tokens in all."""
    flops = context * shape.decode_flops_per_pair
    moved = context * shape.kv_bytes_per_token + sequences * shape.decode_query_bytes
    full = np.ones_like(flops)
    keys = np.where(sequences > 0, context / np.maximum(sequences, 1e-9), 0.0)
    return Work(
        "decode_attention", "decode_attention", dtype, flops, moved, full * heads.queries, full * heads.width, keys,
        full * 2.0 * heads.kv_heads * sequences, full * sequences, full * context,
    )  # fmt: skip


def softmax_work(scores: F8) -> Work:
    """Softmax of so many scores, read and written once."""
    zero = np.zeros_like(scores)
    return Work(
        "elementwise", SOFTMAX, "fp32", scores * _SOFTMAX_FLOPS, scores * 2.0 * ACTIVATION_BYTES, zero, zero, zero,
        zero, scores, zero,
    )  # fmt: skip
