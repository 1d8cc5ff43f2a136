"""DeepSeek's sparse attention: an indexer that scores every token, and MLA that reads the best of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from laws import LAWS, SHEET

from hisearch.latency.device_memory.plan import plan_memory
from hisearch.latency.devices.build import DevicesRefused, WorkerDevices
from hisearch.latency.devices.compose import compose
from hisearch.latency.estimator import build_estimator
from hisearch.latency.estimators.roofline import RooflineEstimator
from hisearch.latency.laws.sparse import Indexer, at_heads, indexer, sparse_decode_s, sparse_prefill_s
from hisearch.latency.parameters import kv_bytes_per_token_per_rank, parameter_count
from hisearch.latency.priced import PricedWorker
from hisearch.latency.sharding import shard
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.machines.devices import DevicesSpec
from hisearch.specs.machines.laws import SparsePhase, SparseTerms
from hisearch.specs.machines.parallelism import Parallelism
from hisearch.specs.models.model import ModelSpec

CATALOGUE = Catalogue()
V32: ModelSpec = CATALOGUE.get("Model", "deepseek-v3.2").spec
GLM: ModelSpec = CATALOGUE.get("Model", "glm-5").spec
V3: ModelSpec = CATALOGUE.get("Model", "deepseek-v3").spec
H200 = CATALOGUE.get("Accelerator", "h200").spec
TERMS = SparseTerms(
    source="round figures", launch_s=50e-6, heads=[8, 16, 128],
    prefill=SparsePhase(token_s=1e-7, score_flops=0.5, choose_s=1e-11, read_s=[2e-10, 3e-10, 8e-10]),
    decode=SparsePhase(token_s=2e-7, score_flops=0.4, choose_s=2e-11, read_s=[1e-10, 2e-10, 4e-10]),
    serial_score_s=3e-10, serial_read_s=4e-9, beyond_s=2e-5, dense_short=True,
)  # fmt: skip
READER = Indexer(heads=16, topk=64, index_heads=4, index_width=32)


def priced(model: ModelSpec, **settings: Any) -> PricedWorker:
    question: dict[str, Any] = {
        "accelerator": H200, "split": Parallelism(8), "weight_dtype": None, "kv_dtype": "bf16",
        "engine": EngineSpec(name="sglang"), "max_tokens": 8192, "max_sequences": 256, "max_context_tokens": 500_000,
    }  # fmt: skip
    return PricedWorker(model, **question | settings)


def test_the_indexer_adds_its_matrices() -> None:
    indexers = 61 * (1536 * 64 * 128 + 7168 * (128 + 64))
    assert parameter_count(V32) - parameter_count(V3) == indexers


@pytest.mark.parametrize(("dtype", "kept"), [("bf16", 2 * 576 + 132), ("fp8", 656 + 132)])
def test_a_token_keeps_its_latent_and_its_index_key(dtype: Any, kept: int) -> None:
    assert kv_bytes_per_token_per_rank(V32, 8, dtype) == 61 * kept
    assert kv_bytes_per_token_per_rank(V3, 8, dtype) == 61 * 576 * (2 if dtype == "bf16" else 1)


def test_layers_that_share_an_indexer_keep_no_key_and_no_matrices() -> None:
    assert GLM.sparse_attention is not None
    shared = GLM.model_copy(update={"sparse_attention": GLM.sparse_attention.model_copy(update={"index_layers": 21})})
    spared = 78 - 21
    assert kv_bytes_per_token_per_rank(GLM, 8, "fp8") - kv_bytes_per_token_per_rank(shared, 8, "fp8") == pytest.approx(
        spared * 132
    )
    assert parameter_count(GLM) - parameter_count(shared) == spared * (2048 * 32 * 128 + 6144 * (128 + 32))
    assert indexer(shared, shard(shared, 8)) == Indexer(8, 2048, 32, 128, 21 / 78)


def test_capacity_shrinks_by_the_index_keys() -> None:
    def capacity(model: ModelSpec) -> int:
        plan = plan_memory(
            model, H200, tensor_parallel=8, weight_dtype=None, kv_dtype="bf16", engine=EngineSpec(name="sglang")
        )
        return plan.kv_capacity_tokens

    assert capacity(V32) / capacity(V3) == pytest.approx(1152 / (1152 + 132), rel=0.02)


@given(batch=st.integers(1, 3), new=st.integers(1, 150), cached=st.integers(0, 150), share=st.sampled_from((1.0, 0.25)))
def test_prompts_are_the_sum_over_their_queries(batch: int, new: int, cached: int, share: float) -> None:
    reader = READER._replace(share=share)
    score = 2 * 4 * 32 / (1e15 * 0.5) + 1e-11
    expected = 0.0
    for query in range(cached + 1, cached + new + 1):
        expected += batch * (1e-7 + share * query * score + min(query, 64) * 3e-10)
    expected += share * 2e-5 * (cached + new > 64)
    seconds = sparse_prefill_s(TERMS, SHEET, reader, batch, np.array([float(new)]), np.array([float(cached)]))
    assert seconds[0] == pytest.approx(expected, rel=1e-9)


@given(sequences=st.integers(1, 500), mean=st.integers(1, 300), share=st.sampled_from((1.0, 0.25)))
def test_decodes_are_the_sum_over_sequences_and_what_one_of_them_takes(sequences: int, mean: int, share: float) -> None:
    reader = READER._replace(share=share)
    score = 2 * 4 * 32 / (1e15 * 0.4) + 2e-11
    each = 2e-7 + share * mean * score + min(mean, 64) * 2e-10
    alone = share * mean * 3e-10 + min(mean, 64) * 4e-9 + share * 2e-5 * (mean > 64)
    seconds = sparse_decode_s(TERMS, SHEET, reader, np.array([float(sequences)]), np.array([float(sequences * mean)]))
    assert seconds[0] == pytest.approx(sequences * each + alone, rel=1e-9)


def test_heads_between_and_beyond_those_measured() -> None:
    known, seconds = [8, 16, 128], [2.0, 3.0, 9.0]
    assert [at_heads(known, seconds, heads) for heads in (4, 8, 32, 128, 256)] == pytest.approx([2, 2, 5, 9, 18])


def test_the_roofline_reads_topk_tokens_and_scores_all() -> None:
    roofline = RooflineEstimator("roofline", CATALOGUE.get("LatencyProfile", "roofline").spec)
    sparse, full = (roofline.worker(priced(model)) for model in (V32, V3))
    unit = np.array([1.0])
    long, longer = (float(sparse.decode_s(unit * 64, unit * 64 * tokens)[0]) for tokens in (65536, 131072))
    share, tokens = roofline.profile.decode_attention, 61 * 64 * 65536
    scored_s = 2 * 64 * 128 / (H200.peak_flops["fp8"] * share.flops)
    keys_s = 132 / (H200.memory_bandwidth_bytes_per_s * share.bandwidth)
    assert longer - long == pytest.approx(tokens * max(scored_s, keys_s), rel=1e-6)
    assert long < float(full.decode_s(unit * 64, unit * 64 * 65536)[0])
    assert float(sparse.chunk_s(unit * 8192, unit * 65536)[0]) < float(full.chunk_s(unit * 8192, unit * 65536)[0])


@pytest.mark.parametrize("engine", ["sglang", "vllm", "trtllm"])
@pytest.mark.parametrize("model", [V32, GLM])
def test_shipped_laws_price_it(engine: Any, model: ModelSpec) -> None:
    profile = CATALOGUE.get("LatencyProfile", f"{engine}-h200").spec
    costs = build_estimator(f"{engine}-h200", profile).compile(priced(model, engine=EngineSpec(name=engine)))
    for table in (costs.seconds.token_s, costs.seconds.chunk_rate, costs.seconds.decode_s):
        assert np.isfinite(table).all()
        assert (table >= 0).all()
    assert (np.diff(costs.seconds.decode_s[1:], axis=1) >= -1e-12).all()


def test_short_prompts_are_ordinary_mla_where_the_engine_attends_so() -> None:
    profile = CATALOGUE.get("LatencyProfile", "sglang-h200").spec
    laws = profile.laws
    assert laws.sparse_attention["bf16"].dense_short
    changed = {"bf16": laws.sparse_attention["bf16"].model_copy(update={"dense_short": False})}
    other = profile.model_copy(update={"laws": laws.model_copy(update={"sparse_attention": changed})})
    dense, sparse = (build_estimator("p", p).worker(priced(V32, split=Parallelism(1))) for p in (profile, other))
    at = np.array([1024.0, 2048.0, 2049.0]), np.zeros(3)
    short, long = dense.chunk_s(*at), sparse.chunk_s(*at)
    assert (short[:2] != long[:2]).all()
    assert short[2] == long[2]


def test_a_profile_without_the_law_says_so() -> None:
    profile = CATALOGUE.get("LatencyProfile", "sglang-l40s").spec
    with pytest.raises(ValueError, match=r"sglang-l40s: no law of sparse attention, which deepseek-ai/DeepSeek-V3\.2"):
        build_estimator("sglang-l40s", profile).compile(priced(V32))
    assert LAWS.sparse_attention == {}


def test_attached_devices_refuse_it() -> None:
    with pytest.raises(DevicesRefused, match=r"DeepSeek-V3\.2 has sparse attention"):
        compose(
            WorkerDevices(DevicesSpec.model_construct(), {}, {}), V32, H200,
            CATALOGUE.get("LatencyProfile", "roofline").spec, Parallelism(8), None, "bf16",
        )  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mla": None, "attention": "gqa"}, "sparse_attention needs an mla section"),
        (
            {"sparse_attention": {"index_heads": 4, "index_head_dim": 8, "topk": 9, "index_layers": 62}},
            "exceeds layers",
        ),
    ],
)
def test_what_no_model_can_have(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModelSpec.model_validate(V32.model_dump() | change)


@pytest.mark.parametrize("profile", ["sglang-h200", "roofline"])
def test_pages_that_engines_do_not_have_are_warned_of(profile: str) -> None:
    spec = CATALOGUE.get("LatencyProfile", profile).spec

    def warned(model: ModelSpec, page: int | None) -> bool:
        engine = EngineSpec(name="sglang", page_tokens=page)
        warnings = build_estimator(profile, spec).compile(priced(model, engine=engine)).warnings
        return any("64-token pages for sparse attention" in text for text in warnings)

    assert [warned(V32, None), warned(V32, 64), warned(V3, None)] == [True, False, False]
