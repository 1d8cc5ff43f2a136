"""Deployments moved from one engine to another keep what the other one has."""

from __future__ import annotations

from itertools import permutations
from typing import Any, get_args

import pytest

from hisearch.search.model.deployments import on_engine, parameters_of
from hisearch.specs.base import ENGINE_TITLES, EngineName
from hisearch.specs.deployments.deployment import DeploymentSpec
from hisearch.specs.models.pages import PAGE_TOKENS

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
    moved = on_engine(deployment, new).pool.engine
    assert (moved.name, moved.chunk_tokens, moved.page_size) == (new, 4096, PAGE_TOKENS[new])
    assert moved.capacity_policy == "guaranteed_no_evict"
    assert moved.eviction == "lru"
    assert ("eviction" in parameters_of(on_engine(deployment, new))) == (new == "sglang")
