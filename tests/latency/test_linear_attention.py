"""Hybrid models: layers of linear attention keep a state for each sequence in place of a KV cache."""

from __future__ import annotations

import numpy as np
import pytest

from hisearch.latency.device_memory.plan import plan_memory
from hisearch.latency.estimators.scaled import ScaledEstimator
from hisearch.latency.operators import attention_shape, sequence_operators, token_operators
from hisearch.latency.parameters import (
    kv_bytes_per_token_per_rank,
    matrices,
    parameter_count,
    state_bytes_per_sequence_per_rank,
)
from hisearch.latency.priced import PricedWorker
from hisearch.latency.sharding import InvalidParallelism, shard
from hisearch.latency.workers.scaled import ScaledWorker
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.machines.parallelism import Parallelism
from hisearch.specs.models.model import ModelSpec


@pytest.fixture(scope="module")
def hybrid() -> ModelSpec:
    spec: ModelSpec = Catalogue().get("Model", "qwen3.5-397b-a17b").spec
    return spec


def test_only_layers_with_a_cache_keep_tokens(hybrid: ModelSpec) -> None:
    assert kv_bytes_per_token_per_rank(hybrid, 1, "bf16") == 15 * 2 * 2 * 256 * 2
    assert attention_shape(hybrid, shard(hybrid, 2), "bf16").full_layers == 15


def test_the_state_of_a_sequence_is_split_by_heads(hybrid: ModelSpec) -> None:
    """With three tokens' inputs of its convolution: queries and keys of 16 heads, values of 64."""
    state, inputs = 64 * 128 * 128 * 4, 3 * (2 * 16 + 64) * 128 * 2
    assert state_bytes_per_sequence_per_rank(hybrid, 1) == 45 * (state + inputs)
    assert state_bytes_per_sequence_per_rank(hybrid, 8) == 45 * (state + inputs) / 8
    with pytest.raises(InvalidParallelism, match=r"linear_attention\.key_heads"):
        shard(hybrid, 32)


def test_states_are_read_and_written_by_sequence_and_never_by_context(hybrid: ModelSpec) -> None:
    (state,) = [op for op in sequence_operators(hybrid, shard(hybrid, 4), "bf16") if op.name == "linear_state"]
    moved = state.layers * state.bytes_moved(np.array([3.0]))
    assert moved[0] == 3 * 2 * 45 * 16 * 128 * 128 * 4


def test_every_layer_has_projections_of_its_own_kind(hybrid: ModelSpec) -> None:
    layers = {op.name: op.layers for op in token_operators(hybrid, shard(hybrid, 4), "bf16", "bf16")}
    assert (layers["qkv_proj"], layers["linear_in_proj"], layers["linear_attention"]) == (15, 45, 45)


@pytest.mark.parametrize(
    ("version", "inputs", "scalars"),
    [("0.5.9", (3072, 2048), (16, 16)), ("0.5.10", (5120,), (32,)), ("nightly-dev", (5120,), (32,))],
)
def test_inputs_of_linear_attention_are_made_by_as_many_products_as_in_the_engine_s_version(
    hybrid: ModelSpec, version: str, inputs: tuple[int, ...], scalars: tuple[int, ...]
) -> None:
    """On 4 ranks: queries, keys and values, gates; two scalars a head. SGLang 0.5.9 makes each by itself."""
    profile = Catalogue().get("LatencyProfile", "sglang-b200").spec
    profile = profile.model_copy(update={"laws": profile.laws.of_version(version)})
    accelerator = Catalogue().get("Accelerator", "b200").spec
    engine = EngineSpec(name="sglang", max_running_requests=64, chunk_tokens=8192)
    priced = PricedWorker(hybrid, accelerator, Parallelism(4), "fp8", "bf16", engine, 8192, 64, 10**6)
    products = ScaledEstimator("sglang-b200", profile).worker(priced).products()
    assert tuple(m.outputs for m in products if m.name == "linear_in_proj") == inputs
    assert tuple(m.outputs for m in products if m.name == "linear_scalar_proj") == scalars
    assert sum(m.elements for m in products) == sum(m.elements for m in matrices(hybrid, shard(hybrid, 4)))


def test_checkpoints_keep_the_scalars_wide_and_in_nvfp4_all_but_routed_experts(hybrid: ModelSpec) -> None:
    quantised = {
        dtype: {m.name for m in matrices(hybrid, shard(hybrid, 1)) if m.takes(dtype)} for dtype in ("fp8", "nvfp4")
    }
    assert quantised["nvfp4"] == {"experts_gate_up_proj", "experts_down_proj"}
    assert quantised["fp8"] - quantised["nvfp4"] == set(hybrid.kept_wide["nvfp4"])


def test_states_take_their_room_from_the_cache(hybrid: ModelSpec) -> None:
    accelerator = Catalogue().get("Accelerator", "b200").spec

    def plan(running: int) -> tuple[float, int]:
        engine = EngineSpec(name="sglang", version="0.5.9", max_running_requests=running)
        memory = plan_memory(
            hybrid, accelerator, tensor_parallel=8, weight_dtype="bf16", kv_dtype="bf16", engine=engine
        )
        return memory.window_kv_bytes, memory.kv_capacity_tokens

    few, many = plan(8), plan(128)
    assert many[0] - few[0] == 120 * state_bytes_per_sequence_per_rank(hybrid, 8)
    assert many[1] < few[1]


def test_without_linear_layers_nothing_changes() -> None:
    dense: ModelSpec = Catalogue().get("Model", "qwen3-8b").spec
    assert state_bytes_per_sequence_per_rank(dense, 1) == 0.0
    assert parameter_count(dense) == pytest.approx(8.19e9, rel=0.01)


@pytest.mark.parametrize(
    ("changes", "says"), [({"layers": 45}, "must leave a layer"), ({"sliding_window_tokens": 4096}, "are not known")]
)
def test_what_makes_no_hybrid_is_refused(hybrid: ModelSpec, changes: dict[str, int], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        ModelSpec.model_validate(hybrid.model_dump() | changes)


def test_fitted_laws_count_attention_in_its_own_layers_and_the_delta_rule_in_the_others(hybrid: ModelSpec) -> None:
    profile = Catalogue().get("LatencyProfile", "sglang-b200").spec
    accelerator = Catalogue().get("Accelerator", "b200").spec

    def worker(model: ModelSpec, split: Parallelism) -> ScaledWorker:
        engine = EngineSpec(name="sglang", max_running_requests=64, chunk_tokens=8192)
        priced = PricedWorker(model, accelerator, split, "bf16", "bf16", engine, 8192, 64, 10**6)
        return ScaledEstimator("sglang-b200", profile).worker(priced)

    full_attention = hybrid.model_copy(update={"linear_attention": None})
    mixed, plain = worker(hybrid, Parallelism(4)), worker(full_attention, Parallelism(4))
    new, context = np.array([64.0, 4096.0]), np.array([6.4e4, 5e5])
    np.testing.assert_allclose(mixed.decode_s(new[:1], context), plain.decode_s(new[:1], context) * 15 / 60)
    terms = profile.laws.linear_attention["bf16"]
    delta_rule = 45 * (terms.launch_s + new * terms.serial_token_s)
    cached = np.zeros_like(new)
    np.testing.assert_allclose(mixed.chunk_s(new, cached), plain.chunk_s(new, cached) * 15 / 60 + delta_rule)
    (op,) = [op for op in mixed.elementwise_ops() if op.name == "linear_attention"]
    np.testing.assert_allclose(mixed.elementwise_s(op, new), new * 16 * terms.head_token_s)
