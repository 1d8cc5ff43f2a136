"""Deployments moved from one engine to another keep what the other one has."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any, get_args

import pytest

from hisearch.latency.sharding import InvalidParallelism
from hisearch.search.model.deployments import deployment_of, on_engine, parameters_of
from hisearch.search.records.pool_dimensions import pool_dimensions
from hisearch.search.refine.local_search import changed
from hisearch.simulate.plans.refusals import check_formats, check_split
from hisearch.specs.base import ENGINE_TITLES, DType, EngineName
from hisearch.specs.deployments.deployment import DeploymentSpec, EngineSpec, PoolSpec
from hisearch.specs.deployments.routing import RouterSpec
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.models.pages import PAGE_TOKENS
from hisearch.specs.studies.search_space import ExecutionSpace, SearchSpaceSpec
from tests.search.fakes import make_problem

ENGINES: tuple[EngineName, ...] = get_args(EngineName)
OWN: dict[str, dict[str, Any]] = {
    "vllm": {"page_tokens": 64},
    "sglang": {"eviction": "lfu", "swa_full_tokens_ratio": 0.2},
    "trtllm": {"capacity_policy": "max_utilization", "page_tokens": 64},
}


def test_every_engine_has_a_title_and_a_page_size() -> None:
    assert set(ENGINE_TITLES) == set(PAGE_TOKENS) == set(ENGINES)


@pytest.mark.parametrize(("old", "new"), list(permutations(ENGINES, 2)))
def test_settings_that_the_other_engine_lacks_are_dropped(old: EngineName, new: EngineName) -> None:
    pool = {"accelerator": "h100-sxm", "engine": {"name": old, "chunk_tokens": 4096} | OWN[old]}
    deployment = DeploymentSpec.model_validate({"model": "qwen3-32b", "pools": [pool]})
    moved = on_engine(deployment, new, version="9.9").pool.engine
    assert moved.version == "9.9"
    assert (moved.name, moved.chunk_tokens, moved.page_size) == (new, 4096, PAGE_TOKENS[new])
    assert moved.capacity_policy == "guaranteed_no_evict"
    assert moved.eviction == "lru"
    assert moved.swa_full_tokens_ratio == 0.8
    assert ("eviction" in parameters_of(on_engine(deployment, new))) == (new == "sglang")
    assert ("capacity_policy" in parameters_of(on_engine(deployment, new))) == (new == "trtllm")


def test_a_space_has_its_engines_releases_and_policies() -> None:
    space = ExecutionSpace(
        accelerators=["h200"],
        engines=["vllm", "trtllm"],
        chunk_tokens=[2048],
        max_running_requests=[64, 256],
        capacity_policies=["guaranteed_no_evict", "max_utilization"],
        versions={"vllm": "0.10.0"},
    )
    engines = [EngineSpec(**choice) for name in space.engines for choice in space.engine_settings(name, False)]
    assert [(e.name, e.version, e.max_running_requests, e.capacity_policy) for e in engines] == [
        ("vllm", "0.10.0", 64, "guaranteed_no_evict"),
        ("vllm", "0.10.0", 256, "guaranteed_no_evict"),
        ("trtllm", "", 64, "guaranteed_no_evict"),
        ("trtllm", "", 64, "max_utilization"),
        ("trtllm", "", 256, "guaranteed_no_evict"),
        ("trtllm", "", 256, "max_utilization"),
    ]
    dimensions = pool_dimensions(SearchSpaceSpec(execution=space))
    assert dimensions["capacity_policy"] == ("guaranteed_no_evict", "max_utilization")
    plain = space.model_copy(update={"engines": ["vllm"]})
    assert "capacity_policy" not in pool_dimensions(SearchSpaceSpec(execution=plain))


def test_sizes_of_the_window_pool_are_tried_where_there_is_one() -> None:
    execution = {"accelerators": ["fast"], "engines": ["vllm", "sglang"], "swa_full_tokens_ratios": [0.1, 0.8]}
    execution |= {"chunk_tokens": [2048], "max_running_requests": [64]}
    space = ExecutionSpace.model_validate(execution)
    assert [c["swa_full_tokens_ratio"] for c in space.engine_settings("sglang", True)] == [0.1, 0.8]
    assert len(space.engine_settings("sglang", False)) == len(space.engine_settings("vllm", False)) == 1
    assert pool_dimensions(SearchSpaceSpec(execution=space))["window_pool"] == (0.1,)
    problem = make_problem()
    problem = replace(problem, space=problem.space.model_copy(update={"execution": space}))
    for has_pool in (True, False):
        asked = replace(problem, window_pool_engines=frozenset({"sglang"} if has_pool else ()))
        pool = PoolSpec(accelerator="fast", engine=EngineSpec(name="sglang"))
        near = changed(asked, deployment_of(problem.model, problem.profile, pool, 1, RouterSpec()))
        ratios = {other.pool.engine.swa_full_tokens_ratio for other in near}
        assert ratios == ({0.1, 0.8} if has_pool else {0.8})
    small = PoolSpec(accelerator="fast", engine=EngineSpec(name="sglang", swa_full_tokens_ratio=0.1))
    assert parameters_of(deployment_of(problem.model, problem.profile, small, 1, RouterSpec()))["window_pool"] == 0.1


def test_the_other_policy_is_a_neighbour_of_tensorrt_llm_alone() -> None:
    problem = make_problem()
    policies = {"capacity_policies": ["guaranteed_no_evict", "max_utilization"]}
    execution = problem.space.execution.model_copy(update=policies)
    problem = replace(problem, space=problem.space.model_copy(update={"execution": execution}))
    for name in ("trtllm", "vllm"):
        pool = PoolSpec(accelerator="fast", engine=EngineSpec(name=name))
        near = changed(problem, deployment_of(problem.model, problem.profile, pool, 1, RouterSpec()))
        assert any(other.pool.engine.capacity_policy == "max_utilization" for other in near) == (name == "trtllm")


def test_compiled_engines_have_no_attention_groups() -> None:
    model = Catalogue().get("Model", "mixtral-8x7b").spec
    for version in ("1.0.0", ""):
        engine = EngineSpec(name="trtllm", version=version)
        check_split(PoolSpec(accelerator="h200", engine=engine, attention_data_parallel=2), model)
    engine = EngineSpec(name="trtllm", version="0.21.0")
    with pytest.raises(InvalidParallelism, match="is not simulated with compiled engines of TensorRT-LLM 0"):
        check_split(PoolSpec(accelerator="h200", engine=engine, attention_data_parallel=2), model)


@pytest.mark.parametrize(
    ("engine", "accelerator", "dtype", "runs"),
    [
        ("trtllm", "h100-sxm", "nvfp4", False),
        ("trtllm", "l40s", "nvfp4", False),
        ("trtllm", "a100-80gb", "fp8", False),
        ("trtllm", "b200", "nvfp4", True),
        ("trtllm", "rtx-pro-6000", "nvfp4", True),
        ("trtllm", "h100-sxm", "fp8", True),
        ("trtllm", "l40s", "fp8", True),
        ("trtllm", "a100-80gb", "int4", True),
        ("vllm", "h100-sxm", "nvfp4", True),
        ("vllm", "a100-80gb", "fp8", True),
    ],
)
def test_weights_without_kernels_are_refused(engine: EngineName, accelerator: str, dtype: DType, runs: bool) -> None:
    """TensorRT-LLM's hardware support matrix; vLLM unpacks what the accelerator cannot multiply."""
    catalogue = Catalogue()
    model, spec = catalogue.get("Model", "mixtral-8x7b").spec, catalogue.get("Accelerator", accelerator).spec
    pool = PoolSpec(accelerator=accelerator, engine=EngineSpec(name=engine), weight_dtype=dtype)
    if runs:
        check_formats(pool, model, spec)
        return
    with pytest.raises(InvalidParallelism, match=f"no kernels that multiply {dtype} weights on {accelerator}") as error:
        check_formats(pool, model, spec)
    assert error.value.key == "weight_dtype"


def test_checkpoints_without_scales_of_activations_are_unpacked_everywhere() -> None:
    catalogue = Catalogue()
    model = catalogue.get("Model", "nemotron-3.5-lightning-30b-a3b").spec
    assert (model.weight_dtype, model.weight_only) == ("nvfp4", ["nvfp4"])
    pool = PoolSpec(accelerator="h200", engine=EngineSpec(name="trtllm"))
    check_formats(pool, model, catalogue.get("Accelerator", "h200").spec)
