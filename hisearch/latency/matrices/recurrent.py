"""Layers with a recurrent state: their projections on one rank, and the work of their kernels by token.

Notation
    h       hidden size
    K, V    widths of queries or keys, and of values, of all heads of a rank
    H, G    heads of values and of keys on a rank; k, v: their widths
    C       tokens of a chunk of the parallel form

    kind            inputs of a token                               FLOPs of a token's chunk
    gated_delta     h x (2 K + 2 V), h x 2 H                        H (6 k v + 4 C (k + v))
    kda             h x (2 K + 2 V), h x (H + k), k x K             H (6 k v + 3 C k + C C)
    mamba2          h x (2 K + 2 V + H)                             G 2 C k + H (2 C v + 4 k v)

KDA's decay has a gate for each channel, of a latent as wide as a head that is on every rank. With ``gate_rank`` its
output gates have a latent too: h x r on every rank and r x V in place of a V of the first product.

Sources: Yang et al., "Gated Delta Networks" (arXiv 2412.06464), section 3.3; Kimi Team, "Kimi Linear" (arXiv
2510.26692), section 6; Dao and Gu, "Transformers are SSMs" (arXiv 2405.21060), section 6. Matrices: vLLM 0.33.0,
``model_executor/layers/mamba/gdn/kimi_gdn_linear_attn.py``, ``mamba_mixer2.py``, ``models/kimi_k3/nvidia/kda.py``.
"""

from __future__ import annotations

from typing import NamedTuple

from hisearch.latency.sharding import Shard
from hisearch.specs.models.model import LinearAttentionSpec, MatrixName


class Projection(NamedTuple):
    """A matrix of a layer on one rank; ``quantised``: it takes the format of the checkpoint."""

    name: MatrixName
    inputs: int
    outputs: int
    quantised: bool = True


def projections(linear: LinearAttentionSpec, part: Shard, hidden: int) -> list[Projection]:
    """Matrices of a layer with a state, in the order of the module's table, and the one behind its kernels.

    Narrow ones stay in 16 bits.
    """
    keys, values = key_width(linear, part), value_width(linear, part)
    heads, behind = part.linear_value_heads, Projection("linear_out_proj", values, hidden)
    if linear.kind == "mamba2":
        return [Projection("linear_in_proj", hidden, 2 * keys + 2 * values + heads), behind]
    if linear.kind == "gated_delta":
        return [
            Projection("linear_in_proj", hidden, 2 * keys + 2 * values),
            Projection("linear_scalar_proj", hidden, 2 * heads, quantised=False),
            behind,
        ]
    rank = linear.gate_rank
    gates = [Projection("linear_gate_proj", rank, values, quantised=False)] if rank else []
    return [
        Projection("linear_in_proj", hidden, 2 * keys + (1 if rank else 2) * values),
        Projection("linear_scalar_proj", hidden, heads + linear.key_head_dim + rank, quantised=False),
        Projection("linear_decay_proj", linear.key_head_dim, keys, quantised=False),
        *gates,
        behind,
    ]


def key_width(linear: LinearAttentionSpec, part: Shard) -> int:
    """Elements of a token's queries, or of its keys, on a rank."""
    return part.linear_key_heads * linear.key_head_dim


def value_width(linear: LinearAttentionSpec, part: Shard) -> int:
    """Elements of a token's values on a rank."""
    return part.linear_value_heads * linear.value_head_dim


def chunk_flops(linear: LinearAttentionSpec, part: Shard) -> float:
    """FLOPs of a token in the parallel form on a rank (the module's law)."""
    key, value, heads, chunk = linear.key_head_dim, linear.value_head_dim, part.linear_value_heads, linear.chunk_tokens
    if linear.kind == "mamba2":
        return part.linear_key_heads * 2.0 * chunk * key + heads * (2.0 * chunk * value + 4.0 * key * value)
    if linear.kind == "kda":
        return heads * (6.0 * key * value + 3.0 * chunk * key + float(chunk * chunk))
    return heads * (6.0 * key * value + 4.0 * chunk * (key + value))


def mixed_width(linear: LinearAttentionSpec, part: Shard) -> int:
    """Elements of a token that the kernels read: queries, keys, values and output gates; of KDA its decay too."""
    width = 2 * key_width(linear, part) + 2 * value_width(linear, part)
    return width + key_width(linear, part) if linear.kind == "kda" else width
