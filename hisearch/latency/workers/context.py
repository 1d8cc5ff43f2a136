"""Decode context parallelism: ranks of an attention group share a sequence's KV, each with a part of its tokens.

Notation (per layer; r ranks share, H heads of all of them, k elements of a query, v of its partial output)
    query(n)    = all-gather of 2 H k n bytes: every rank attends with all heads to its part of the tokens
    combine(n)  = all-gather of 4 r H n bytes, log-sum-exps of all parts, reduce-scatter of 2 H v n bytes, and a pass
                  over the partial outputs                                              vLLM (``ag_rs``)
                = one exchange of (2 v + 4) H n bytes, and that pass                    SGLang (``a2a``)
    decode_s    = that of H heads and c / r tokens + query(n) + combine(n)              n decodes that read c tokens
    chunk_s     = that of one rank by itself
                + all-gather of the KV bytes of its cached tokens                       MLA
                + query(new) + combine(new), where anything is cached                   heads that share KV (GQA)
    sparse MLA: scores c / r tokens, all-gathers r * topk candidates of 8 bytes a query, and reads topk / r of H heads;
                prompts beyond topk tokens likewise

An exchange of equal shares takes what a reduce-scatter takes: each rank sends (r - 1) / r of its bytes, once. Queries
count 16 bits; some kernels take them in 8 from an fp8 cache. Merging a GQA prompt's two attentions is not counted.

Source: vLLM 0.33.0, ``model_executor/layers/attention/mla_attention.py``, ``v1/attention/ops/dcp.py``,
``v1/attention/backends/flash_attn.py: _forward_with_dcp``, ``model_executor/layers/sparse_attn_indexer.py``;
SGLang 0.5.23, ``srt/layers/dcp``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.latency.laws.collectives import Collectives
from hisearch.latency.operators import ACTIVATION_BYTES
from hisearch.latency.sharding import Shard, cached_layers, index_layers
from hisearch.specs.base import EngineName
from hisearch.specs.models.model import ModelSpec

#: Bytes of a log-sum-exp, and of a candidate of an index: its score and its position.
LSE_BYTES = 4.0
CANDIDATE_BYTES = 8.0


@dataclass(frozen=True)
class ContextExchange:
    """What ranks that share KV send each other; methods take arrays and return seconds of all layers.

    kv_bytes_per_token: of a layer, on a rank that holds all of them.
    pass_s: seconds of an elementwise kernel that moves so many bytes.
    """

    model: ModelSpec
    part: Shard
    engine: EngineName
    collectives: Collectives
    kv_bytes_per_token: float
    pass_s: Callable[[F8], F8]

    @property
    def ranks(self) -> int:
        """Ranks that share a sequence's KV."""
        return self.part.parallelism.decode_context

    def queries_s(self, queries: F8) -> F8:
        """``queries`` attend to all ranks' tokens, each rank's partial outputs are merged."""
        heads, (key, value) = self.ranks * self.part.heads, self._widths()
        together = self.collectives
        gathered_s = together.all_gather_s(ACTIVATION_BYTES * heads * key * queries, self.ranks)
        outputs = ACTIVATION_BYTES * heads * value * queries
        lse = LSE_BYTES * heads * queries
        if self.engine == "vllm":
            merged_s = together.all_gather_s(self.ranks * lse, self.ranks)
            merged_s = merged_s + together.reduce_scatter_s(outputs, self.ranks)
        else:
            merged_s = together.reduce_scatter_s(outputs + lse, self.ranks)
        layer_s = gathered_s + merged_s + self.pass_s(2.0 * outputs)
        return np.asarray(cached_layers(self.model) * layer_s + self._candidates_s(queries))

    def cached_s(self, new: F8, cached: F8) -> F8:
        """A chunk of ``new`` tokens needs ``cached`` ones, of which each rank has a part."""
        if self.model.sparse_attention is not None:
            return np.where(self.is_dense(new, cached), self._kv_s(cached), self.queries_s(new))
        return self._kv_s(cached) if self.model.mla is not None else np.where(cached > 0.0, self.queries_s(new), 0.0)

    def is_dense(self, new: F8, cached: F8) -> np.ndarray:
        """Which prompts sparse attention runs as dense ones."""
        assert self.model.sparse_attention is not None
        return np.asarray(cached + new <= self.model.sparse_attention.topk)

    def _kv_s(self, cached: F8) -> F8:
        gathered_s = self.collectives.all_gather_s(self.kv_bytes_per_token * cached, self.ranks)
        return np.where(cached > 0.0, cached_layers(self.model) * gathered_s, 0.0)

    def _candidates_s(self, queries: F8) -> F8:
        sparse = self.model.sparse_attention
        if sparse is None:
            return np.zeros_like(queries)
        candidates = CANDIDATE_BYTES * self.ranks * sparse.topk * queries
        return index_layers(self.model) * self.collectives.all_gather_s(candidates, self.ranks)

    def _widths(self) -> tuple[float, float]:
        """Elements of a head's query and of its partial output."""
        if (mla := self.model.mla) is not None:
            return mla.kv_lora_rank + mla.qk_rope_head_dim, mla.kv_lora_rank
        return self.model.head_dim, self.model.head_dim
