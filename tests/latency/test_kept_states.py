"""What it costs to keep a state of linear attention after drafted tokens are checked."""

from __future__ import annotations

import numpy as np
import pytest

from hisearch.latency.costs import DraftCosts
from hisearch.latency.drafting.kept_states import COPIED, INDEXED_PER_S, kept_state_s, with_kept_states
from hisearch.latency.drafting.mean_steps import with_speculation
from hisearch.latency.estimator import build_estimator
from hisearch.latency.priced import PricedWorker
from hisearch.latency.sharding import Parallelism
from hisearch.latency.step_cost import decode_step_seconds
from hisearch.specs.deployments.engine import EngineSpec
from hisearch.specs.documents.catalogue import Catalogue

CATALOGUE = Catalogue()
B200 = CATALOGUE.get("Accelerator", "b200").spec
QWEN = CATALOGUE.get("Model", "qwen3.5-397b-a17b").spec
LLAMA = CATALOGUE.get("Model", "llama-3.1-8b").spec
SMS = 148


def engine(name: str, version: str = "") -> EngineSpec:
    return EngineSpec.model_validate({"name": name, "version": version})


def test_before_0_5_10_sglang_moves_each_element_twice_by_pytorchs_indexing() -> None:
    """45 layers of 64 heads of 128 x 128 elements on four ranks, and the inputs of their convolution."""
    states = 45 * 16 * 128 * 128
    seconds = kept_state_s(QWEN, Parallelism(4), B200, engine("sglang", "0.5.9"), SMS)
    assert seconds == pytest.approx(2 * states / (SMS * INDEXED_PER_S), rel=0.02)
    assert seconds > 2 * states / (SMS * INDEXED_PER_S)


@pytest.mark.parametrize("release", [("sglang", "0.5.10"), ("sglang", ""), ("trtllm", "1.2.0")])
def test_a_kernel_copies_at_most_of_the_bandwidth(release: tuple[str, str]) -> None:
    seconds = kept_state_s(QWEN, Parallelism(4), B200, engine(*release), None)
    moved = 2 * 45 * 16 * 128 * 128 * 4 / B200.memory_bandwidth_bytes_per_s
    assert seconds == pytest.approx(moved / COPIED, rel=0.02)


def test_nothing_is_copied_without_states_and_under_vllm() -> None:
    assert kept_state_s(LLAMA, Parallelism(4), B200, engine("sglang", "0.5.9"), SMS) == 0
    assert kept_state_s(QWEN, Parallelism(4), B200, engine("vllm"), SMS) == 0


def test_a_law_of_indexing_needs_multiprocessors() -> None:
    with pytest.raises(ValueError, match="multiprocessors are not known"):
        kept_state_s(QWEN, Parallelism(4), B200, engine("sglang", "0.5.9"), None)


@pytest.mark.parametrize("head", [False, True])
def test_each_sequence_of_a_checking_step_waits_once(head: bool) -> None:
    worker = PricedWorker(LLAMA, B200, Parallelism(1), None, "bf16", engine("sglang"), 512, 64, 100_000)
    estimator = build_estimator("roofline", CATALOGUE.get("LatencyProfile", "roofline").spec)
    costs = estimator.compile(worker).seconds._replace(skew_s=None, mixed_decode_s=None, floor=None)
    if head:
        costs = costs._replace(draft=DraftCosts(3, 1 / 32, costs.token_s / 32, costs.sequence_s))

    class Drafts:
        draft_tokens, tokens_per_step = 3, 2.8

    assert with_kept_states(costs, 0.0) is costs
    for sequences in (1, 8, 64):
        before, after = (
            decode_step_seconds(with_speculation(of, Drafts()), sequences, 1024 * sequences)
            for of in (costs, with_kept_states(costs, 2e-4))
        )
        assert (after - before) * Drafts.tokens_per_step == pytest.approx(2e-4 * sequences, rel=1e-6)
    assert np.array_equal(with_kept_states(costs, 2e-4).decode_s[0], costs.decode_s[0])
