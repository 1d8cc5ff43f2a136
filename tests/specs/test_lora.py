"""Section ``lora`` of a pool and what workloads say of adapters: refusals, flags, servers' own words, generators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from hisearch.export.engines.flags import engine_flags
from hisearch.export.engines.launch import Launch
from hisearch.observe.lora import lora_of
from hisearch.specs.deployments.lora import LoraSpec
from hisearch.specs.deployments.pool import PoolSpec
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.workloads.workload import GeneratorSpec
from hisearch.traces.generate import generate_trace
from hisearch.traces.trace import Trace


def pool(engine: str = "vllm", lora: dict[str, Any] | None = None, version: str = "", **settings: Any) -> PoolSpec:
    return PoolSpec.model_validate(
        {
            "accelerator": "h100-sxm", "engine": {"name": engine, "version": version},
            "lora": {"max_loras": 4} | (lora or {}), **settings,
        }
    )  # fmt: skip


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"engine": "trtllm"}, "for the engines sglang and vllm, not trtllm"),
        ({"lora": {"rank": 1024}}, "vLLM accepts ranks up to 512"),
        ({"lora": {"max_cpu_loras": 2}}, "must be at least max_loras, 4"),
        ({"lora": {"eviction": "fifo"}}, "vLLM has none"),
        ({"lora": {"overlap_loading": True}}, "vLLM has none"),
        ({"lora": {"dtype": "fp8"}}, "bf16"),
        ({"lora": {"dtype": "int4"}}, "bf16"),
        ({"engine": "sglang", "lora": {"max_cpu_loras": 8}}, "--max-loaded-loras is not simulated"),
        ({"engine": "sglang", "version": "0.5.9", "lora": {"drain_wait_s": 1.0}}, "SGLang 0.5.9 has none"),
        ({"pipeline_parallel": 2}, "not simulated together with lora"),
        ({"tiers": [{"medium": "ddr5", "gib": 64}]}, "not simulated together with lora"),
        ({"agents": {"adapters": {"rank": 16}, "slots": 4}}, "not simulated together with lora"),
    ],
)
def test_what_an_engine_lacks_or_is_not_simulated_is_refused(stated: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        pool(**stated)


def flags(of: PoolSpec) -> dict[str, list[str]]:
    catalogue = Catalogue()
    model, accelerator = catalogue.get("Model", "llama-3.1-8b").spec, catalogue.get("Accelerator", "h100-sxm").spec
    return {flag: values for flag, *values in engine_flags(Launch(of, model, accelerator, 100_000))}


def test_flags_of_both_servers() -> None:
    said = flags(pool(lora={"rank": 24, "max_cpu_loras": 32, "targets": ["q", "v", "o"]}))
    assert (said["--max-loras"], said["--max-lora-rank"], said["--max-cpu-loras"]) == (["4"], ["32"], ["32"])
    assert said["--lora-target-modules"] == ["qkv_proj", "o_proj"]
    said = flags(pool("sglang", {"rank": 24, "eviction": "fifo", "overlap_loading": True}))
    assert (said["--max-loras-per-batch"], said["--max-lora-rank"]) == (["4"], ["24"])
    assert (said["--lora-eviction-policy"], said["--enable-lora-overlap-loading"]) == (["fifo"], [])
    assert said["--max-loaded-loras"] == ["8"]
    assert "--lora-drain-wait-threshold" not in said
    assert "--max-loaded-loras" not in flags(pool("sglang"))


def test_what_servers_say_of_themselves_is_a_section() -> None:
    assert lora_of("vllm", {"enable_lora": False, "max_loras": 1}) is None
    read = lora_of("vllm", {"enable_lora": True, "max_loras": 4, "max_lora_rank": 32, "max_cpu_loras": None})
    assert read == {"max_loras": 4, "rank": 32}
    read = lora_of(
        "sglang",
        {
            "enable_lora": True, "max_loras_per_batch": 8, "max_lora_rank": 16, "lora_eviction_policy": "fifo",
            "lora_drain_wait_threshold": 0.0, "enable_lora_overlap_loading": False,
            "lora_target_modules": ["q_proj", "v_proj"],
        },
    )  # fmt: skip
    assert read == {"max_loras": 8, "rank": 16, "eviction": "fifo", "targets": ["q", "v"]}
    assert LoraSpec.model_validate(read).targets == ["q", "v"]


def generated(**adapters: Any) -> Trace:
    lengths = {"distribution": "lognormal", "mean_log": 4.0, "sigma_log": 0.3}
    spec = {
        "requests": 4000, "arrivals": {"rate_rps": 10}, "first_input": lengths, "output": lengths, "adapters": adapters,
    }  # fmt: skip
    return generate_trace(GeneratorSpec.model_validate(spec), seed=1)


def test_generated_sessions_ask_for_adapters_by_a_zipf_law() -> None:
    adapters = generated(count=8, zipf=1.0, base_share=0.25, ranks=[8, 16]).adapters
    assert adapters is not None
    number = np.bincount(adapters.adapter + 1, minlength=9) / len(adapters.adapter)
    assert number[0] == pytest.approx(0.25, abs=0.03)
    weights = np.sort(1 / np.arange(1, 9))[::-1]
    assert np.sort(number[1:])[::-1] == pytest.approx(0.75 * weights / weights.sum(), abs=0.03)
    assert set(adapters.rank.tolist()) == {8, 16}
    even = generated(count=4, zipf=0.0, base_share=0.0).adapters
    assert even is not None
    assert np.bincount(even.adapter, minlength=4) / 4000 == pytest.approx(0.25, abs=0.03)
