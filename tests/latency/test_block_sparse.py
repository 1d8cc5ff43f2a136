"""Block-sparse attention (MiniMax-M3): sizes by hand and by the engines' formulas, and prices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hisearch.latency.estimators.scaled import ScaledEstimator
from hisearch.latency.matrices.block_sparse import local_index_heads
from hisearch.latency.parameters import (
    active_parameter_count,
    kv_bytes_per_token_per_rank,
    matrices,
    parameter_count,
    weight_bytes_per_rank,
)
from hisearch.latency.priced import PricedWorker
from hisearch.latency.sharding import Parallelism, shard
from hisearch.latency.workers.roofline import attained_worker
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.models.model import ModelSpec
from hisearch.specs.models.pages import entries_warnings, kept_page_tokens

CATALOGUE = Catalogue()
M3: ModelSpec = CATALOGUE.get("Model", "minimax-m3").spec
H200 = CATALOGUE.get("Accelerator", "h200").spec
ROOFLINE = CATALOGUE.get("LatencyProfile", "roofline").spec
assert M3.block_sparse is not None
assert M3.towers is not None


def priced(**settings: Any) -> PricedWorker:
    question: dict[str, Any] = {
        "accelerator": H200, "split": Parallelism(8), "weight_dtype": None, "kv_dtype": "bf16",
        "engine": EngineSpec(name="vllm", page_tokens=128), "max_tokens": 8192, "max_sequences": 256,
        "max_context_tokens": 500_000,
    }  # fmt: skip
    return PricedWorker(M3, **question | settings)


def test_parameters_are_the_published_ones() -> None:
    """428 billion with the tower, 23 billion of them active; the publisher does not count the LM head among these."""
    assert parameter_count(M3) + M3.towers.parameters == pytest.approx(428e9, rel=0.01)
    assert active_parameter_count(M3) - 200064 * 6144 == pytest.approx(23e9, rel=0.03)


def test_weights_of_the_nvfp4_checkpoint_by_hand() -> None:
    experts, attention = 57 * 128 * 3 * 6144 * 3072, 60 * (6144 * 72 * 128 + 8192 * 6144) + 57 * 6144 * 5 * 128
    fp8 = attention + 3 * 3 * 6144 * 12288 + 57 * 3 * 6144 * 3072
    wide = 2 * (121 * 6144 + 2 * 200064 * 6144) + 4 * 57 * 6144 * 128
    assert weight_bytes_per_rank(M3, 1, "nvfp4") == pytest.approx(experts * (0.5 + 1 / 16) + fp8 + wide, rel=1e-9)


@pytest.mark.parametrize(("ranks", "heads"), [(1, 4), (2, 2), (4, 1), (8, 1)])
def test_index_queries_are_split_as_kv_heads_and_the_key_is_not(ranks: int, heads: int) -> None:
    part = shard(M3, ranks)
    assert local_index_heads(M3, M3.block_sparse, part) == heads
    products = {matrix.name: matrix for matrix in matrices(M3, part)}
    dense, sparse = products["qkv_proj"], products["qkv_index_proj"]
    assert (dense.layers, sparse.layers) == (3, 57)
    assert sparse.outputs - dense.outputs == (heads + 1) * 128


@pytest.mark.parametrize(("kv_dtype", "element"), [("bf16", 2), ("fp8", 1)])
def test_a_token_keeps_keys_values_and_index_keys(kv_dtype: Any, element: int) -> None:
    """SGLang's ``cell_size``: 2 x heads x width in all layers, and a key of 128 elements in 57 (0.5.23)."""
    for ranks in (1, 2, 4, 8):
        heads = max(4 // ranks, 1)
        kept = 60 * 2 * heads * 128 * element + 57 * 128 * 2
        assert kv_bytes_per_token_per_rank(M3, ranks, kv_dtype) == pytest.approx(kept)


def test_a_decode_scores_all_and_reads_sixteen_blocks() -> None:
    """By hand: a request of 100,000 tokens, 8 query heads and 1 KV head of a rank."""
    worker = attained_worker(ROOFLINE, priced())
    rate = worker.rates.decode_attention
    peak, query = rate.peak_flops["bf16"] * rate.flops_share, 2 * 8 * 128 * 2.0

    def read(tokens: float) -> float:
        return max(tokens * 4 * 8 * 128 / peak, (tokens * 2 * 128 * 2 + query) / rate.bytes_per_s)

    scored = max(1e5 * 2 * 128 / (rate.peak_flops["fp8"] * rate.flops_share), 1e5 * 256 / rate.bytes_per_s)
    by_hand = 3 * read(1e5) + 57 * (read(2048) + scored)
    assert worker.decode_s(np.array([1.0]), np.array([1e5])) == pytest.approx(by_hand)


def test_fitted_laws_price_it_with_dense_layers_by_their_own() -> None:
    profile = CATALOGUE.get("LatencyProfile", "vllm-h200").spec
    worker = ScaledEstimator("vllm-h200", profile).worker(priced())
    assert worker.entries is not None
    assert worker.entries.error.median < 0.1
    decodes = worker.decode_s(np.full(4, 8.0), 8.0 * np.array([1e3, 1e4, 1e5, 5e5]))
    assert np.all(np.diff(decodes) > 0)
    full = ScaledEstimator("vllm-h200", profile).worker(_dense(priced()))
    assert decodes[-1] < full.decode_s(np.array([8.0]), np.array([8.0 * 5e5]))[0]


def _dense(question: PricedWorker) -> PricedWorker:
    fields = {name: getattr(question, name) for name in question.__dataclass_fields__}
    return PricedWorker(**fields | {"model": M3.model_copy(update={"block_sparse": None})})


def test_a_law_that_is_far_off_says_so() -> None:
    profile = CATALOGUE.get("LatencyProfile", "trtllm-h200").spec
    question = priced(engine=EngineSpec(name="trtllm", page_tokens=128))
    warnings = ScaledEstimator("trtllm-h200", profile).compile(question).warnings
    assert any(text.startswith("the law of sparse attention is off by") for text in warnings)


def test_pages_are_sparse_blocks_and_index_keys_of_16_bits_are_said() -> None:
    assert kept_page_tokens(M3) == 128
    assert any("16 bits" in text for text in entries_warnings("sglang", "fp8", M3))
    assert entries_warnings("sglang", "bf16", M3) == ()


def test_other_attention_beside_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="block_sparse needs attention gqa"):
        ModelSpec.model_validate(M3.model_dump() | {"sliding_window_tokens": 128})
    blocks = M3.block_sparse.model_dump() | {"layers": 61}
    with pytest.raises(ValueError, match="exceeds layers 60"):
        ModelSpec.model_validate(M3.model_dump() | {"block_sparse": blocks})
