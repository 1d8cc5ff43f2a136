"""Drafted tokens as a setting: acceptance by position, the models' curves, and what is refused by key."""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from hisearch.specs.deployments.deployment import DeploymentSpec, EngineSpec, PoolSpec
from hisearch.specs.deployments.speculation import SpeculationSpec, acceptance_note, check_speculation_of
from hisearch.specs.documents.catalogue import Catalogue, shipped_root
from hisearch.specs.documents.resolve import load_deployment, load_study
from hisearch.specs.errors import KeyedError, SpecError
from hisearch.specs.models.acceptance import AcceptanceCurveSpec
from hisearch.specs.studies.search_space import ExecutionSpace

CATALOGUE = Catalogue()
SGLANG, TRTLLM = {"name": "sglang"}, {"name": "trtllm"}
TWO = {"method": "mtp", "draft_tokens": 2}
SHIPPED = shipped_root() / "studies/deployments/qwen3-32b-h100-tp2.yaml"
MEASURED = Path(os.environ.get("HISEARCH_SHARED", "../shared")) / "validation/speculation/acceptance.csv"


def curve(*means: float) -> AcceptanceCurveSpec:
    return AcceptanceCurveSpec.model_validate(
        {"tokens_per_step": list(means), "workload": "prompts", "source": "test", "as_of": "2026-01-01"}
    )


def test_a_curve_rises_by_the_probability_that_all_drafts_up_to_there_are_accepted() -> None:
    assert curve(1.8, 2.4, 2.8).accepted_by_position == pytest.approx((0.8, 0.6, 0.4))


def test_a_curve_that_falls_or_rises_anew_accepts_no_more_than_before() -> None:
    assert curve(1.5, 2.2, 2.1, 2.5).accepted_by_position == pytest.approx((0.5, 0.5, 0.0, 0.0))


@given(st.lists(st.floats(1.0, 2.0), min_size=1, max_size=8))
def test_probabilities_never_rise(means: list[float]) -> None:
    accepted = curve(*means).accepted_by_position
    assert list(accepted) == sorted(accepted, reverse=True)
    assert all(0.0 <= chance <= 1.0 for chance in accepted)


def test_a_step_yields_no_more_than_its_drafts_and_one() -> None:
    with pytest.raises(ValidationError, match=r"tokens_per_step.1: 3.2 exceeds 3: 2 drafted tokens"):
        curve(1.9, 3.2)


def test_stated_acceptance_is_multiplied_up() -> None:
    drafts = SpeculationSpec(method="mtp", draft_tokens=3, acceptance=[0.9, 0.5, 1.0, 0.2])
    model = CATALOGUE.get("Model", "qwen3-32b").spec
    assert drafts.accepted_by_position(model) == pytest.approx((0.9, 0.45, 0.45))
    assert drafts.tokens_per_step(model) == pytest.approx(2.8)
    assert acceptance_note(drafts, model) == (
        "3 drafted tokens (mtp): 2.80 tokens a step by the acceptance that is stated"
    )


@pytest.mark.parametrize(
    ("model", "measured", "method"),
    [("qwen3.5-397b-a17b", "qwen3.5-397b-a17b-nvfp4", "mtp"), ("kimi-k2.5", "kimi-k2.5-nvfp4", "eagle3")],
)
def test_shipped_curves_are_as_measured(model: str, measured: str, method: Any) -> None:
    if not MEASURED.is_file():
        pytest.skip(f"{MEASURED} is absent")
    with MEASURED.open() as file:
        rows = [row for row in csv.DictReader(file) if (row["model"], row["thinking"]) == (measured, "thinking_on")]
    means = CATALOGUE.get("Model", model).spec.speculation[method].tokens_per_step
    assert means == [float(row["mean_tokens_per_step"]) for row in rows]


def test_acceptance_comes_from_the_models_curve_and_says_on_which_text() -> None:
    model, drafts = CATALOGUE.get("Model", "qwen3.5-397b-a17b").spec, SpeculationSpec(method="mtp", draft_tokens=2)
    assert drafts.accepted_by_position(model) == pytest.approx((0.93, 0.8))
    assert "as measured on SPEED-Bench's coding prompts, not on your text" in acceptance_note(drafts, model)


def test_neither_stated_nor_measured_says_what_to_state() -> None:
    engine = "engine: {name: vllm, speculation: {method: eagle3, draft_tokens: 2}}"
    with pytest.raises(SpecError) as caught:
        load_deployment(SHIPPED, [f"spec.pools.0={{accelerator: h100-sxm, tensor_parallel: 2, {engine}}}"])
    assert caught.value.key == "spec.pools.0.engine.speculation.acceptance"
    assert "acceptance: [0.8, 0.8] say: of Qwen/Qwen3-32B no curve of eagle3 is known" in caught.value.message


def test_beyond_the_curve() -> None:
    model = CATALOGUE.get("Model", "deepseek-v3").spec
    with pytest.raises(KeyedError, match=r"draft_tokens: the curve of .*DeepSeek-V3 ends at 1 drafted tokens"):
        check_speculation_of(SpeculationSpec(method="mtp", draft_tokens=2), model)


def test_models_with_windows_are_refused() -> None:
    drafts = SpeculationSpec(method="eagle3", draft_tokens=1, acceptance=[0.7])
    with pytest.raises(KeyedError, match="method: drafted tokens are not simulated with sliding windows"):
        check_speculation_of(drafts, CATALOGUE.get("Model", "gpt-oss-120b").spec)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"draft_tokens": 17}, "less than or equal to 16"),
        ({"draft_tokens": 3, "acceptance": [0.9, 0.8]}, "acceptance: states 2 positions of 3 draft_tokens"),
        ({"acceptance": [0.0]}, "greater than 0"),
        ({"method": "draft_model"}, "'mtp', 'eagle', 'eagle3' or 'ngram'"),
        ({"draft_weights": "a/b"}, "draft_weights: mtp has no weights of its own"),
    ],
)
def test_settings_that_are_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        SpeculationSpec.model_validate({"method": "mtp", "draft_tokens": 1} | settings)


@pytest.mark.parametrize(
    ("engine", "pool", "problem"),
    [
        (
            TRTLLM | {"speculation": {"method": "eagle", "draft_tokens": 1}},
            {},
            "engine.speculation.method: TensorRT-LLM has no eagle; known: mtp, eagle3, ngram",
        ),
        (TRTLLM | {"capacity_policy": "max_utilization"}, {}, "engine.capacity_policy: .* take guaranteed_no_evict or"),
        (
            TRTLLM | {"chunk_tokens": 2, "max_running_requests": 1, "page_tokens": 2, "speculation": TWO},
            {},
            "engine.chunk_tokens: 2 is no step: a decode computes 3 tokens",
        ),
        (TRTLLM, {"pipeline_parallel": 2}, "drafted tokens are not simulated with pipeline_parallel 2"),
        (TRTLLM, {"tiers": [{"medium": "ddr5", "gib": 64}]}, "are not simulated with cache tiers of unified workers"),
        (SGLANG | {"version": "0.5.9"}, {}, r"engine.version: .* by the rules of SGLang 0\.5\.23, not of 0\.5\.9"),
        (SGLANG | {"mixed_chunk": True}, {}, "drafted tokens are not simulated with mixed_chunk"),
        (SGLANG | {"schedule": "priority"}, {}, "drafted tokens are not simulated with priorities that preempt"),
        (SGLANG, {"attention_data_parallel": 2, "expert_parallel": 2}, "attention_data_parallel 2 in unified workers"),
        (SGLANG, {"tiers": [{"medium": "ddr5", "gib": 64}]}, "are not simulated with cache tiers of unified workers"),
        ({}, {"pipeline_parallel": 2}, "drafted tokens are not simulated with pipeline_parallel 2"),
        ({}, {"tiers": [{"medium": "ddr5", "gib": 64}]}, "drafted tokens are not simulated with cache tiers"),
        ({}, {"agents": {}}, "drafted tokens are not simulated with agents' objects"),
        ({}, {"devices": {"attached": {"pim": {"device": "hbm2-pim"}}}}, "are not simulated with attached devices"),
    ],
)
def test_pools_in_which_drafts_are_not_simulated(engine: dict[str, Any], pool: dict[str, Any], problem: str) -> None:
    drafts = {"method": "mtp", "draft_tokens": 1}
    with pytest.raises(ValidationError, match=problem):
        PoolSpec.model_validate(
            {"accelerator": "h200", "engine": {"name": "vllm", "speculation": drafts} | engine} | pool
        )


@pytest.mark.parametrize(
    ("name", "problem"),
    [("vllm", "vLLM has no asynchronous scheduling"), ("trtllm", "TensorRT-LLM has no overlap scheduler")],
)
def test_n_grams_turn_overlap_off(name: Any, problem: str) -> None:
    drafts = {"method": "ngram", "draft_tokens": 2, "acceptance": [0.5, 0.5]}
    engine = EngineSpec.model_validate({"name": name, "speculation": drafts})
    assert not engine.overlap
    assert not EngineSpec(name=name, speculation=engine.speculation).overlap
    with pytest.raises(ValidationError, match=rf"engine.overlap: {problem} with ngram; write overlap: false"):
        PoolSpec(accelerator="h200", engine=EngineSpec(name=name, overlap=True, speculation=engine.speculation))


def test_spaces(project: Path) -> None:
    def spaced(speculation: str) -> Any:
        execution = f"{{accelerators: [h200], engines: [vllm], speculation: {speculation}}}"
        return load_study("studies/mine.yaml", [f"spec.space={{execution: {execution}, cache: {{tiers: []}}}}"])

    drafts = "{method: eagle3, draft_tokens: 1, acceptance: [0.8]}"
    assert len(spaced(f"[null, {drafts}]").space.spec.execution.speculation) == 2
    with pytest.raises(SpecError) as caught:
        spaced("[null, {method: mtp, draft_tokens: 1}]")
    assert caught.value.key == "spec.space.execution.speculation.1.acceptance"
    drafting = SpeculationSpec(method="mtp", draft_tokens=1)
    eagle = SpeculationSpec(method="eagle", draft_tokens=1, acceptance=[0.8])
    with pytest.raises(ValidationError, match=r"speculation\.1\.method: no engine of the space has eagle"):
        ExecutionSpace(accelerators=["h200"], engines=["trtllm"], speculation=[None, eagle])
    everywhere = ExecutionSpace(accelerators=["h200"], engines=["vllm", "trtllm"], speculation=[None, drafting, eagle])
    assert everywhere.speculations("vllm") == [None, drafting, eagle]
    assert everywhere.speculations("trtllm") == [None, drafting]
    for version, tried in (("", [drafting]), ("0.5.23", [drafting]), ("0.5.9", [None])):
        space = ExecutionSpace(
            accelerators=["h200"], engines=["sglang"], speculation=[drafting], versions={"sglang": version}
        )
        assert space.speculations("sglang") == tried


def test_sglang_overlaps_with_n_grams() -> None:
    drafts = {"method": "ngram", "draft_tokens": 2, "acceptance": [0.5, 0.5]}
    assert EngineSpec.model_validate({"name": "sglang", "speculation": drafts}).overlap


def test_linear_attention_is_refused_under_sglang_alone() -> None:
    drafts = SpeculationSpec(method="mtp", draft_tokens=1, acceptance=[0.8])
    model = CATALOGUE.get("Model", "qwen3.5-397b-a17b").spec
    check_speculation_of(drafts, model, ["vllm"])
    with pytest.raises(KeyedError, match="not simulated under SGLang with linear attention"):
        check_speculation_of(drafts, model, ["vllm", "sglang"])


def disaggregated(prefill: dict[str, Any] | None, decode: dict[str, Any] | None, engine: str = "vllm") -> Any:
    pools = [
        {"name": role, "role": role, "accelerator": "h200", "engine": {"name": engine, "speculation": drafts}}
        for role, drafts in (("prefill", prefill), ("decode", decode))
    ]
    return DeploymentSpec.model_validate({"model": "deepseek-v3", "pools": pools, "transfer": {"fabric": "ib-ndr-400"}})


MTP, NGRAM = {"method": "mtp", "draft_tokens": 1}, {"method": "ngram", "draft_tokens": 2, "acceptance": [0.5, 0.5]}


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_both_sides_of_a_transfer_have_the_same_head(engine: str) -> None:
    """The KV that a head drafts from comes with the model's; n-grams come from the text."""
    for prefill, decode in ((MTP, MTP), (MTP, MTP | {"draft_tokens": 3}), (None, NGRAM), (NGRAM, NGRAM)):
        assert disaggregated(prefill, decode, engine).pools[1].engine.speculation is not None
    for prefill, decode in ((None, MTP), (MTP, None), (NGRAM, MTP), (MTP, MTP | {"method": "eagle3"})):
        with pytest.raises(ValidationError, match=r"pools.1.engine.speculation: pool prefill drafts otherwise"):
            disaggregated(prefill, decode, engine)
