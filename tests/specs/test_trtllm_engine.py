"""What a TensorRT-LLM engine takes, and what only it takes."""

from __future__ import annotations

from typing import Any

import pytest

from hisearch.specs.base import EngineName
from hisearch.specs.deployments.deployment import EngineSpec, PoolSpec
from hisearch.specs.studies.search_space import ExecutionSpace


def test_defaults() -> None:
    engine = EngineSpec(name="trtllm")
    assert (engine.page_size, engine.capacity_policy, engine.overlap) == (32, "guaranteed_no_evict", True)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"page_tokens": 1}, "page_tokens 1: TensorRT-LLM needs a power of two greater than 1"),
        ({"page_tokens": 24}, "page_tokens 24: TensorRT-LLM needs a power of two"),
        ({"chunk_tokens": 16, "max_running_requests": 8}, "chunk_tokens 16 is less than one page of 32 tokens"),
        ({"chunk_tokens": 128}, "TensorRT-LLM needs one token of the budget for each running request"),
        ({"eviction": "lfu"}, "TensorRT-LLM evicts by lru alone"),
        ({"schedule": "lpm"}, "trtllm has no schedule lpm; known: fcfs, priority"),
        ({"schedule": "priority", "version": "1.3.0rc8"}, "no schedule priority: it came with 1.3.0rc11"),
        ({"name": "vllm", "capacity_policy": "max_utilization"}, "vLLM has no capacity_policy"),
        ({"name": "sglang", "batch_wait_timeout_ms": 5.0}, "SGLang has no batch_wait_timeout_ms"),
        ({"batch_wait_timeout_ms": -1.0}, "greater than or equal to 0"),
    ],
)
def test_what_is_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        EngineSpec.model_validate({"name": "trtllm"} | settings)


@pytest.mark.parametrize(
    ("pool", "problem"),
    [
        ({"role": "decode"}, "is not simulated in decode workers"),
        ({"attention_data_parallel": 2}, "is not simulated with attention_data_parallel 2"),
        ({"pipeline_parallel": 2}, "is not simulated with pipeline_parallel 2"),
    ],
)
def test_where_passes_do_not_wait_for_requests(pool: dict[str, Any], problem: str) -> None:
    engine = {"name": "trtllm", "batch_wait_timeout_ms": 5.0}
    with pytest.raises(ValueError, match=problem):
        PoolSpec.model_validate({"accelerator": "b200", "engine": engine} | pool)
    drafting = engine | {
        "speculation": {"method": "ngram", "draft_tokens": 2, "acceptance": [0.5, 0.2]},
        "overlap": False,
    }
    with pytest.raises(ValueError, match="is not simulated with drafted tokens"):
        PoolSpec.model_validate({"accelerator": "b200", "engine": drafting})
    PoolSpec.model_validate({"accelerator": "b200", "engine": engine, "role": "prefill"})


@pytest.mark.parametrize("key", ["attention_data_parallel", "pipeline_parallel"])
def test_priorities_are_refused_with_several_schedulers(key: str) -> None:
    engine = {"name": "trtllm", "schedule": "priority"}
    with pytest.raises(ValueError, match="TensorRT-LLM's priority is simulated without"):
        PoolSpec.model_validate({"accelerator": "b200", "engine": engine, key: 2})
    PoolSpec.model_validate({"accelerator": "b200", "engine": engine, "tensor_parallel": 2})


def test_kv_formats() -> None:
    with pytest.raises(ValueError, match="trtllm has no KV cache format fp4; known: bf16, fp16, fp8"):
        PoolSpec(accelerator="b200", engine=EngineSpec(name="trtllm"), kv_dtype="fp4")


@pytest.mark.parametrize(
    ("name", "version", "overlaps"),
    [
        ("vllm", "0.10.0", False), ("vllm", "0.14.0", True), ("vllm", "", True),
        ("trtllm", "0.17.0", False), ("trtllm", "1.0.0rc3", True), ("sglang", "0.4.0", True),
    ],
)  # fmt: skip
def test_batches_are_formed_ahead_from_the_release_that_does_so_by_default(
    name: EngineName, version: str, overlaps: bool
) -> None:
    assert EngineSpec(name=name, version=version).overlap == overlaps
    assert EngineSpec(name=name, version=version, overlap=True).overlap


def test_a_space_tries_priorities_where_the_release_has_them() -> None:
    stated = {"accelerators": ["b200"], "engines": ["vllm", "trtllm"], "schedules": ["fcfs", "priority"]}
    space = ExecutionSpace.model_validate(stated)
    assert space.schedules_of("trtllm") == ["fcfs", "priority"]
    older = ExecutionSpace.model_validate(stated | {"versions": {"trtllm": "1.1.0"}})
    assert older.schedules_of("trtllm") == ["fcfs"]
    assert older.schedules_of("vllm") == ["fcfs", "priority"]
