"""Block-sparse attention (MiniMax-M3) on one rank: its indexer's matrix, and its keys.

    of a sparse layer   h x (heads + 1) w    index queries, split as KV heads are, and one key for all, on every rank
    key                 w elements in 16 bits

Source: vLLM 0.33.0, ``models/minimax_m3/nvidia/model.py``, ``common/indexer.py``; SGLang 0.5.23,
``model_executor/pool_configurator.py``. Both can keep keys in fp8 instead, where they are told so, or where fp8
attention runs.
"""

from __future__ import annotations

from hisearch.latency.sharding import Shard
from hisearch.specs.base import DTYPE_BYTES
from hisearch.specs.models.model import ModelSpec
from hisearch.specs.models.sparse_kinds import BlockSparseSpec


def local_index_heads(model: ModelSpec, blocks: BlockSparseSpec, part: Shard) -> int:
    """Index heads of a rank: one for each of its KV heads, where there are as many."""
    return max(1, blocks.index_heads * part.kv_heads // model.kv_heads)


def index_outputs(model: ModelSpec, blocks: BlockSparseSpec, part: Shard) -> int:
    """Outputs of the indexer's projections, which engines multiply together with the queries, keys and values."""
    return (local_index_heads(model, blocks, part) + 1) * blocks.index_head_dim


def index_key_bytes(blocks: BlockSparseSpec) -> float:
    """Bytes of a token's index key in one layer."""
    return blocks.index_head_dim * DTYPE_BYTES["bf16"]


def mean_index_bytes(model: ModelSpec) -> float:
    """Bytes of a token's index key as a mean over all layers; 0 without an indexer."""
    blocks = model.block_sparse
    return 0.0 if blocks is None else index_key_bytes(blocks) * blocks.layers / model.layers
