"""Costs of a head's passes: against the model's own layers, by hand, and where a head stands for no single layer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hisearch.latency.costs import CompiledCosts
from hisearch.latency.drafting.drafter import head_model, with_drafter
from hisearch.latency.estimator import build_estimator
from hisearch.latency.parameters import matrices
from hisearch.latency.priced import PricedWorker
from hisearch.latency.sharding import Parallelism, shard
from hisearch.specs.base import DType
from hisearch.specs.deployments.engine import EngineSpec
from hisearch.specs.deployments.speculation import SpeculationSpec
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.machines.profile import LatencyProfileSpec
from hisearch.specs.models.model import ModelSpec

CATALOGUE = Catalogue()
EIGHT = Parallelism(8)
B200 = CATALOGUE.get("Accelerator", "b200").spec


def model_of(name: str) -> ModelSpec:
    spec: ModelSpec = CATALOGUE.get("Model", name).spec
    return spec


def drafts(method, tokens: int = 2, **settings) -> SpeculationSpec:
    return SpeculationSpec(method=method, draft_tokens=tokens, acceptance=[0.7] * tokens, **settings)


def priced(
    name: str, speculation: SpeculationSpec, dtype: DType, split: Parallelism = EIGHT, engine: str = "vllm"
) -> CompiledCosts:
    """Costs of a worker of B200 that drafts, by the profile that ships."""
    profile = f"{engine}-b200"
    estimator = build_estimator(profile, CATALOGUE.get("LatencyProfile", profile).spec)
    settings = EngineSpec.model_validate({"name": engine, "top_p": False})
    worker = PricedWorker(model_of(name), B200, split, dtype, "fp8", settings, 2048, 64, 500_000)

    def price(*, model: ModelSpec, weight_dtype: DType) -> CompiledCosts:
        return estimator.compile(replace(worker, model=model, weight_dtype=weight_dtype))

    drafting = settings.model_copy(update={"speculation": speculation})
    return with_drafter(estimator.compile(worker), worker.model, dtype, drafting, price)


@pytest.mark.parametrize("name", ["deepseek-r1", "glm-5.2"])
def test_a_head_in_the_models_format_costs_about_a_layer_of_it(name: str) -> None:
    """Its projection of two vectors is what a layer has not; the first layers of these models are dense."""
    costs = priced(name, drafts("mtp"), "fp8")
    draft, share = costs.seconds.draft, 1 / model_of(name).layers
    assert draft is not None
    assert draft.share == share
    ratio = draft.token_s[1:513] / (share * costs.seconds.token_s[1:513])
    assert 0.9 < ratio.min() < ratio.max() < 1.9


def test_a_head_that_stays_in_16_bits_takes_longer_than_a_layer_in_four() -> None:
    """Experts have 3.6 times the bytes, with scales; R1's attention in NVFP4 is mostly in 16 bits as it is."""
    draft = priced("deepseek-r1", drafts("mtp"), "nvfp4").seconds.draft
    whole = priced("deepseek-r1", drafts("mtp"), "fp8").seconds.draft
    costs = priced("deepseek-r1", drafts("mtp"), "nvfp4")
    assert draft is not None
    assert whole is not None
    many = slice(64, 513)
    assert (draft.token_s[many] > 1.1 * whole.token_s[many]).all()
    assert (draft.token_s[many] > 1.4 * costs.seconds.token_s[many] / 61).all()


@pytest.mark.parametrize(("method", "vectors", "rows"), [("eagle", 2, 163_840), ("eagle3", 3, 32_000)])
def test_an_eagle_head_is_dense_whatever_its_model(method, vectors: int, rows: int) -> None:
    head = head_model(model_of("kimi-k2.5"), method)
    assert head is not None
    assert (head.moe, head.layers, head.vocab_size) == (None, 1, rows)
    names = {matrix.name: matrix for matrix in matrices(head, shard(head, 8))}
    joining = names["joining_proj"]
    assert (joining.inputs, joining.outputs, joining.layers) == (vectors * 7168, 7168, 1)
    assert names["gate_up_proj"].outputs == 2 * model_of("kimi-k2.5").intermediate_size / 8


def test_a_model_itself_has_no_joining_projection() -> None:
    for name in ("deepseek-r1", "llama-3.1-8b", "qwen3.5-397b-a17b"):
        model = model_of(name)
        assert "joining_proj" not in {matrix.name for matrix in matrices(model, shard(model, 8))}


def test_layers_with_a_state_are_not_in_a_head() -> None:
    """Its LM head and its samples cost no states, which the model's own do."""
    costs = priced("qwen3.5-397b-a17b", drafts("mtp", 3), "fp8", Parallelism(4), "sglang")
    draft = costs.seconds.draft
    assert draft is not None
    assert (draft.sequence_s[1:] < costs.seconds.sequence_s[1:]).all()


def test_attention_groups_share_a_heads_experts() -> None:
    split = Parallelism(1, attention_data=8, expert=8)
    costs = priced("deepseek-r1", drafts("mtp", 1), "fp8", split)
    draft = costs.seconds.draft
    assert costs.lockstep is not None
    assert draft is not None
    assert draft.own_s is not None
    assert draft.shared_s is not None
    assert draft.own_s[64] + draft.shared_s[64] == pytest.approx(draft.token_s[64], rel=0.05)
    assert 0.5 < draft.shared_s[64] * 61 / costs.lockstep.shared_s[64] < 2.0


def test_n_grams_cost_nothing_on_the_device() -> None:
    costs = priced("deepseek-r1", drafts("ngram"), "fp8")
    assert costs.seconds.draft is None


def test_a_profile_of_whole_models_takes_a_head_for_a_share_of_its_model() -> None:
    """A law of DeepSeek-R1's logged steps is not one of its head, whose Hugging Face name is the model's."""
    model, split = model_of("deepseek-r1"), Parallelism(8)
    law = {
        "model": model.huggingface_id, "accelerator": "b200", "engine": "vllm", "tensor_parallel": 8,
        "memory_bandwidth_bytes_per_s": B200.memory_bandwidth_bytes_per_s, "weight_dtype": "fp8", "kv_dtype": "fp8",
        "step_s": 0.01, "per_sequence_s": 1e-5, "tokens": [0, 512], "token_s": [0.0, 0.01], "prompt_s": 0.0,
        "pair_s": 0.0, "cached_token_s": 0.0, "context_token_s": 0.0, "skew_token_s": 0.0,
        "ranges": {"tokens": 512, "sequences": 8, "context_tokens": 10_000, "cached_tokens": 0},
        "errors": {"decode": {"steps": 100, "median": 0.05, "p90": 0.1, "mean": 0.05}},
    }  # fmt: skip
    fields = CATALOGUE.get("LatencyProfile", "roofline").spec.model_dump()
    spec = LatencyProfileSpec.model_validate(fields | {"estimator": "regression", "regressions": [law]})
    estimator = build_estimator("logged", spec)
    settings = EngineSpec(name="vllm", top_p=False)
    worker = PricedWorker(model, B200, split, "fp8", "fp8", settings, 512, 8, 10_000)
    plain = estimator.compile(worker)
    drafting = settings.model_copy(update={"speculation": drafts("mtp")})

    def price(*, model: ModelSpec, weight_dtype: DType) -> CompiledCosts:
        return estimator.compile(replace(worker, model=model, weight_dtype=weight_dtype))

    costs = with_drafter(plain, model, "fp8", drafting, price)
    assert costs.seconds.draft is not None
    np.testing.assert_allclose(costs.seconds.draft.token_s, plain.seconds.token_s / model.layers, rtol=1e-12)
    assert "profile logged knows whole models alone" in costs.warnings[-1]


def test_a_head_of_no_single_layer_costs_its_share() -> None:
    """Of compressed attention; and of one for which an estimator has no figures, with a warning."""
    assert head_model(model_of("deepseek-v4-flash"), "mtp") is None
    profile = CATALOGUE.get("LatencyProfile", "vllm-b200").spec
    settings = EngineSpec(name="vllm", top_p=False)
    worker = PricedWorker(model_of("deepseek-r1"), B200, Parallelism(8), "fp8", "fp8", settings, 512, 8, 10_000)
    plain = build_estimator("vllm-b200", profile).compile(worker)

    def refuse(*, model: ModelSpec, weight_dtype: DType) -> CompiledCosts:
        raise ValueError(f"no table of {model.layers} layer in {weight_dtype}")

    drafting = settings.model_copy(update={"speculation": drafts("mtp")})
    costs = with_drafter(plain, worker.model, "fp8", drafting, refuse)
    draft = costs.seconds.draft
    assert draft is not None
    np.testing.assert_allclose(draft.token_s, plain.seconds.token_s / 61, rtol=1e-12)
    assert costs.warnings[-1] == "drafting layers are priced as 1.6% of the model's: no table of 1 layer in fp8"
