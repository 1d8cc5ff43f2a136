"""Deployments moved from one engine to another keep what the other one has."""

from __future__ import annotations

from itertools import permutations
from typing import Any, get_args

import pytest

from hisearch.search.model.deployments import on_engine, parameters_of
from hisearch.search.records.pool_dimensions import pool_dimensions
from hisearch.specs.base import ENGINE_TITLES, EngineName
from hisearch.specs.deployments.deployment import DeploymentSpec, EngineSpec
from hisearch.specs.models.pages import PAGE_TOKENS
from hisearch.specs.studies.search_space import ExecutionSpace, SearchSpaceSpec

ENGINES: tuple[EngineName, ...] = get_args(EngineName)
OWN: dict[str, dict[str, Any]] = {
    "vllm": {"page_tokens": 64},
    "sglang": {"eviction": "lfu"},
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
    engines = [EngineSpec(**choice) for name in space.engines for choice in space.engine_settings(name)]
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
