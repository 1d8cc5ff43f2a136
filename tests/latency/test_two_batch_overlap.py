"""Two halves of a step that take turns: the closed form, its bounds, what is refused, and a published gain."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hisearch.latency.costs import LockstepCosts
from hisearch.latency.estimators.scaled import ScaledEstimator
from hisearch.latency.laws.collectives import Collectives
from hisearch.latency.priced import AcrossHosts, PricedWorker
from hisearch.latency.sharding import Parallelism
from hisearch.latency.step_cost import step_seconds
from hisearch.latency.workers.overlap import with_overlap
from hisearch.specs.deployments.deployment import EngineSpec, PoolSpec
from hisearch.specs.documents.catalogue import Catalogue

CATALOGUE = Catalogue()
DEEPSEEK = CATALOGUE.get("Model", "deepseek-v3").spec
SHARE = 58 / 61
SENT = {"exchange": "all_to_all", "two_batch_overlap": True}


def halves(own_s: float, routed_s: float, link_bytes_per_s: float, multiprocessors: int = 100) -> tuple[Any, Any, Any]:
    """(saved_s, seconds of the experts' all-to-all, own seconds), by tokens, of a worker with linear laws."""
    split, law = Parallelism(1, 8, 8, all_to_all=True), Collectives(None, link_bytes_per_s, 0.0)
    tokens = np.arange(65.0)
    plain = LockstepCosts(own_s * tokens, np.zeros(65))
    made = with_overlap(plain, DEEPSEEK, split, lambda units: routed_s * units, law, multiprocessors)
    assert made.by_kind_s is not None
    assert not made.by_kind_s[2].any()
    return made.by_kind_s[:2], law.tokens_shared_s(split, DEEPSEEK, tokens), plain.own_s


def test_what_is_hidden_by_hand() -> None:
    """Half of a half's all-to-all hides behind its own part, half behind its experts; prompts compute 1.25 times as
    slowly on 80 of 100 multiprocessors."""
    saved_s, sent_s, own_s = halves(1e-3, 2e-3, 1e10)
    for kind, slower in enumerate((1.0, 1.25)):
        part_s = sent_s[64] / 4.0
        after = 2.0 * max(slower * SHARE * own_s[32], part_s) + 2.0 * max(slower * 2e-3 * 32, part_s)
        assert saved_s[kind, 64] == pytest.approx(after - SHARE * own_s[64] - 2e-3 * 64 - sent_s[64])
    assert saved_s[:, :2].tolist() == [[0.0, 0.0], [0.0, 0.0]]


@settings(deadline=None)
@given(st.floats(1e-6, 1e-2), st.floats(1e-6, 1e-2), st.floats(1e8, 1e13))
def test_bounds_of_the_form(own_s: float, routed_s: float, link: float) -> None:
    """With linear laws halves lose nothing: a step is no longer than before, and no shorter than its longer part."""
    saved_s, sent_s, own = halves(own_s, routed_s, link)
    computed = SHARE * own + routed_s * np.arange(65.0)
    after = computed + sent_s + saved_s[0]
    assert (after[2:] <= (computed + sent_s)[2:] * (1 + 1e-9)).all()
    assert (after[2:] >= np.maximum(computed, sent_s)[2:] * (1 - 1e-9)).all()
    assert (saved_s[1] >= saved_s[0] - 1e-12).all()


def gain(groups: int, tokens: int, *, prompts: bool) -> float:
    """Throughput of two halves over that of one batch: DeepSeek-V3 on H100 of hosts of 8, 400 Gb/s a rank."""
    profile = CATALOGUE.get("LatencyProfile", "sglang-h100-sxm").spec
    engine = EngineSpec(name="sglang", chunk_tokens=8192, max_running_requests=256, experts=SENT)
    link = CATALOGUE.get("Fabric", "ib-ndr-400").spec.link
    priced = PricedWorker(
        DEEPSEEK, CATALOGUE.get("Accelerator", "h100-sxm").spec, Parallelism(1, groups, groups, all_to_all=True), None,
        "bf16", engine, 8192, 256, 600_000, AcrossHosts(8, link.bandwidth_bytes_per_s, 1e-5),
    )  # fmt: skip
    costs = ScaledEstimator("sglang-h100-sxm", profile).compile(priced)
    assert costs.lockstep is not None
    assert costs.lockstep.by_kind_s is not None
    chunks, decodes = ([(2048, 0)] * (tokens // 2048), []) if prompts else ([], [2000] * tokens)
    one_batch_s = step_seconds(costs.seconds, chunks, decodes)
    return float(one_batch_s / (one_batch_s + costs.lockstep.by_kind_s[int(prompts), tokens])) - 1.0


def test_the_published_gains() -> None:
    """LMSYS (2025-05-05, 96 H100): 27 to 35 % of prompts on 32 GPUs; on 72, decodes lose 27 % at 32 each, where they
    gain 25.5 % at 256. Docs state how far off the law is."""
    assert gain(32, 8192, prompts=True) == pytest.approx(0.31, abs=0.09)
    assert gain(72, 32, prompts=False) == pytest.approx(-0.27, abs=0.2)
    assert gain(72, 256, prompts=False) == pytest.approx(0.255, abs=0.11)


def pool(**settings: Any) -> PoolSpec:
    given = {"accelerator": "h200", "attention_data_parallel": 8, "expert_parallel": 8}
    engine = {"name": "sglang", "experts": SENT} | settings.pop("engine", {})
    return PoolSpec(**(given | {"engine": engine} | settings))


def test_a_pool_sends_tokens_to_their_experts() -> None:
    assert pool().parallelism.all_to_all
    assert not pool(engine={"experts": {}}).parallelism.all_to_all


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"engine": {"name": "vllm"}}, "all_to_all is simulated under SGLang, not vLLM"),
        ({"tensor_parallel": 2}, "needs attention groups of one rank"),
        ({"expert_parallel": 4}, "needs attention groups of one rank"),
        ({"engine": {"experts": {"two_batch_overlap": True}}}, "only an all-to-all is overlapped"),
        ({"engine": {"mixed_chunk": True}}, "not simulated with mixed_chunk"),
    ],
)
def test_what_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pool(**settings)
