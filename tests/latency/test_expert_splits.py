"""The same work whatever the split: routed experts are priced once, as experts, however many a rank holds."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from laws import LAWS

from hisearch.latency.devices.fitted import FittedLaw
from hisearch.latency.estimators.roofline import RooflineEstimator
from hisearch.latency.estimators.scaled import ScaledEstimator
from hisearch.latency.operators import token_operators
from hisearch.latency.parameters import matrices, redundant_expert_bytes_per_rank
from hisearch.latency.priced import PricedWorker
from hisearch.latency.sharding import Parallelism, shard
from hisearch.latency.workers.scaled import ScaledWorker
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.machines.profile import LatencyProfileSpec
from hisearch.specs.models.model import ModelSpec

CATALOGUE = Catalogue()
BASE: ModelSpec = CATALOGUE.get("Model", "qwen3-30b-a3b").spec
H100 = CATALOGUE.get("Accelerator", "h100-sxm").spec
ROOFLINE: LatencyProfileSpec = CATALOGUE.get("LatencyProfile", "roofline").spec
PROFILE = ROOFLINE.model_copy(update={"estimator": "scaled", "laws": LAWS})
TOKENS = np.array([1.0, 7.0, 300.0, 4096.0])


@st.composite
def split_moes(draw: st.DrawFn) -> tuple[ModelSpec, list[Parallelism]]:
    """A model with a power of two of experts, and every split of them over eight ranks."""
    experts = 2 ** draw(st.integers(3, 6))
    assert BASE.moe is not None
    moe = BASE.moe.model_copy(
        update={"experts": experts, "experts_per_token": draw(st.integers(1, 2)), "shared_experts": 0}
    )
    model = BASE.model_copy(update={"moe": moe, "kv_heads": 8})
    return model, [Parallelism(8, expert=2**sets) for sets in range(4)]


def scaled(model: ModelSpec, split: Parallelism, profile: LatencyProfileSpec = PROFILE) -> ScaledWorker:
    priced = PricedWorker(model, H100, split, None, "bf16", EngineSpec(name="vllm"), 4096, 256, 500_000)
    return ScaledEstimator("mine", profile).worker(priced)


@given(split_moes())
def test_everything_but_routed_experts_costs_the_same(case: tuple[ModelSpec, list[Parallelism]]) -> None:
    model, splits = case
    workers = [scaled(model, split) for split in splits]
    other_s = [worker.token_s(TOKENS) - worker.routed_s(TOKENS) for worker in workers]
    # What activations of the experts are summed to a rank is the same too: tokens are spread evenly.
    for seconds in other_s[1:]:
        np.testing.assert_allclose(seconds, other_s[0], rtol=1e-9)


@given(split_moes())
def test_experts_without_a_law_are_the_roofline_of_all_routed_products(
    case: tuple[ModelSpec, list[Parallelism]],
) -> None:
    model, splits = case
    without = PROFILE.model_copy(update={"laws": LAWS.model_copy(update={"moe": {}})})
    for split in splits:
        worker = scaled(model, split, without)
        routed = [op for op in worker.roofline.token_ops if op.name.startswith("experts_")]
        assert [op for op in worker.roofline.token_ops if op.routed] == routed
        assert len(routed) == 2
        assert (worker.routed_s(TOKENS) > 0).all()
        priced = PricedWorker(model, H100, split, None, "bf16", EngineSpec(name="vllm"), 4096, 256, 500_000)
        roofline = RooflineEstimator("roofline", ROOFLINE).worker(priced)
        assert (roofline.routed_s(TOKENS) > 0).all()


@given(split_moes())
def test_arithmetic_and_weights_of_all_ranks_add_up_to_the_same(case: tuple[ModelSpec, list[Parallelism]]) -> None:
    model, splits = case
    flops, elements, copies = [], [], []
    for split in splits:
        rank_shard = shard(model, split)
        ops = [op for op in token_operators(model, rank_shard, "bf16", "bf16") if op.routed]
        flops.append(8 * sum(op.layers * op.flops_per_unit for op in ops))
        elements.append(8 * sum(m.elements for m in matrices(model, rank_shard) if m.routed))
        copies.append(redundant_expert_bytes_per_rank(model, split, "bf16", 8))
    np.testing.assert_allclose(flops, flops[0])
    assert len(set(elements)) == 1
    np.testing.assert_allclose(copies, copies[0])


@given(split_moes())
def test_a_device_prices_an_expert_per_rank_as_experts(case: tuple[ModelSpec, list[Parallelism]]) -> None:
    """Where the fitted law covers all experts, neither of their products is also priced as a dense one."""
    model, splits = case
    for split in splits:
        worker = scaled(model, split)
        law = FittedLaw(worker, None)  # type: ignore[arg-type]
        dense = [name for name, matrix in law._matrices.items() if not matrix.routed]
        assert not [name for name in dense if name.startswith("experts_")]
