"""Uneven experts: closed forms of the busiest rank, and what they do to step costs and memory."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from hisearch.latency.costs import CompiledCosts
from hisearch.latency.device_memory.plan import plan_memory
from hisearch.latency.estimator import compile_costs
from hisearch.latency.expert_load import busiest_rank_factor, expert_shares, rank_shares
from hisearch.latency.sharding import Parallelism
from hisearch.specs.deployments.deployment import EngineSpec, PoolSpec
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.models.experts import ExpertsSpec

CATALOGUE = Catalogue()
MODEL = CATALOGUE.get("Model", "deepseek-v3").spec
H200 = CATALOGUE.get("Accelerator", "h200").spec


def factor(spec: ExpertsSpec, tokens: float, experts: int = 64, ranks: int = 8) -> float:
    return float(busiest_rank_factor(spec, experts, 4, ranks, np.array([tokens]))[0])


def test_one_token_of_one_expert_is_all_of_one_rank() -> None:
    assert busiest_rank_factor(ExpertsSpec(distribution="routed"), 8, 1, 8, np.array([1.0]))[0] == 8.0


def test_even_routing_comes_closer_to_the_mean_the_more_tokens_there_are() -> None:
    spec = ExpertsSpec(distribution="routed")
    factors = [factor(spec, x) for x in (1, 8, 64, 512, 65536)]
    assert factors == sorted(factors, reverse=True)
    assert factors[-1] == pytest.approx(1.0, abs=0.02)


def test_many_tokens_show_the_shares() -> None:
    """A histogram whose first rank has half of everything: twice eight eighths' half, 4."""
    spec = ExpertsSpec(distribution="histogram", shares=[7.0] * 8 + [1.0] * 56)
    assert rank_shares(spec, 64, 8)[0] == pytest.approx(0.5)
    assert factor(spec, 100_000.0) == pytest.approx(4.0, rel=0.01)


def test_zipf_of_exponent_zero_is_even() -> None:
    np.testing.assert_allclose(expert_shares(ExpertsSpec(distribution="zipf", zipf_exponent=0.0), 16), 1 / 16)


def test_copies_take_load_off_the_busiest_rank() -> None:
    plain = ExpertsSpec(distribution="zipf", zipf_exponent=1.0)
    copied = plain.model_copy(update={"redundant": 16})
    assert rank_shares(copied, 64, 8).sum() == pytest.approx(1.0)
    assert rank_shares(copied, 64, 8).max() < 0.7 * rank_shares(plain, 64, 8).max()


def compiled(experts: ExpertsSpec, split: Parallelism, profile: str = "roofline") -> CompiledCosts:
    engine = EngineSpec(name="sglang", chunk_tokens=1024, max_running_requests=128, experts=experts)
    return compile_costs(
        profile, CATALOGUE.get("LatencyProfile", profile).spec, MODEL, H200, tensor_parallel=split.tensor,
        parallelism=split, weight_dtype=None, kv_dtype="bf16", engine=engine, max_tokens=1024, max_sequences=128,
        max_context_tokens=100_000,
    )  # fmt: skip


def test_balanced_experts_change_nothing() -> None:
    split = Parallelism(8, expert=8)
    plain, copied = compiled(ExpertsSpec(), split), compiled(ExpertsSpec(redundant=8), split)
    np.testing.assert_array_equal(plain.seconds.token_s, copied.seconds.token_s)


@pytest.mark.parametrize("split", [Parallelism(8, expert=8), Parallelism(1, attention_data=8, expert=8)])
def test_skewed_experts_lengthen_steps_and_lockstep_steps(split: Parallelism) -> None:
    plain = compiled(ExpertsSpec(), split)
    skewed = compiled(ExpertsSpec(distribution="zipf", zipf_exponent=1.0), split)
    assert (skewed.seconds.token_s[1:] > plain.seconds.token_s[1:]).all()
    assert (skewed.seconds.token_s[1:] < 8 * plain.seconds.token_s[1:]).all()
    if plain.lockstep is not None and skewed.lockstep is not None:
        np.testing.assert_array_equal(plain.lockstep.own_s, skewed.lockstep.own_s)
        np.testing.assert_allclose(
            skewed.lockstep.shared_s - plain.lockstep.shared_s, skewed.seconds.token_s - plain.seconds.token_s
        )


def test_a_lockstep_step_of_equal_groups_is_a_step() -> None:
    costs = compiled(ExpertsSpec(), Parallelism(1, attention_data=8, expert=8))
    assert costs.lockstep is not None
    assert (costs.lockstep.own_s[1:] > 0).all()
    assert (costs.lockstep.shared_s[1:] > 0).all()
    np.testing.assert_allclose(costs.lockstep.own_s + costs.lockstep.shared_s, costs.seconds.token_s)


def test_copies_take_memory() -> None:
    split = Parallelism(8, expert=8)
    weights_bytes = [
        plan_memory(
            MODEL, H200, tensor_parallel=8, parallelism=split, weight_dtype=None, kv_dtype="bf16",
            engine=EngineSpec(name="sglang", chunk_tokens=1024, experts=ExpertsSpec(redundant=copies)),
        ).weights_bytes
        for copies in (0, 8)
    ]  # fmt: skip
    moe = MODEL.moe
    assert moe is not None
    layers = MODEL.layers - moe.leading_dense_layers
    expert_bytes = 3 * MODEL.hidden_size * moe.expert_intermediate_size * layers
    assert weights_bytes[1] - weights_bytes[0] == pytest.approx(expert_bytes, rel=0.01)


def test_bad_settings_are_refused_by_key() -> None:
    with pytest.raises(ValidationError, match="shares: histogram needs"):
        ExpertsSpec(distribution="histogram")
    with pytest.raises(ValidationError, match="shares: of no effect"):
        ExpertsSpec(shares=[1.0])
    with pytest.raises(ValidationError, match=r"engine\.experts\.redundant: 3 copies"):
        PoolSpec.model_validate(
            {
                "accelerator": "h200",
                "tensor_parallel": 8,
                "expert_parallel": 8,
                "engine": {"name": "sglang", "experts": {"redundant": 3}},
            }
        )
    with pytest.raises(ValueError, match="3 entries; the model has 64 experts"):
        expert_shares(ExpertsSpec(distribution="histogram", shares=[1.0, 2.0, 3.0]), 64)
