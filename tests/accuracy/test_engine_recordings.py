"""The kernels against recordings of the engines' own schedulers: every token time equal.

A recording is in the kernels' domain when its configuration asks for nothing beyond it (first come first served,
synchronous, …); the others are skipped, each with the setting that keeps it out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hisearch.latency.costs import CompiledCosts
from hisearch.latency.step_cost import law_costs
from hisearch.simulate import WorkerPlan, simulate
from hisearch.specs.deployment import EngineSpec
from hisearch.traces.compiled import CompiledTrace
from hisearch.traces.load import load_trace_file
from tests.reference.recording import load_recording, shared_directory

#: Settings of each engine that must have one value for the kernels to apply, and that value.
VLLM_DOMAIN = {
    "policy": "fcfs", "chunked_prefill": True, "async_scheduling": False, "long_prefill_token_threshold": 0,
    "scheduler_reserve_full_isl": True,
}  # fmt: skip
SGLANG_DOMAIN = {
    "schedule_policy": "fcfs", "disable_radix_cache": False, "enable_mixed_chunk": False,
    "disable_overlap_schedule": True, "hicache": None,
}  # fmt: skip


def recordings() -> list[Any]:
    shared = shared_directory()
    if shared is None:
        return [pytest.param(None, marks=pytest.mark.skip(reason="shared validation data is absent"))]
    return sorted((shared / "validation").glob("*_scheduler/*.json.gz"))


def outside_domain(config: dict[str, Any]) -> str:
    """The first setting that the kernels do not cover, or ""."""
    domain = VLLM_DOMAIN if "num_blocks" in config else SGLANG_DOMAIN
    for setting, value in domain.items():
        if config.get(setting, value) != value:
            return "hicache" if setting == "hicache" else f"{setting} {config[setting]}"
    if config.get("radix_eviction_policy", "lru") not in ("lru", "lfu"):
        return f"radix_eviction_policy {config['radix_eviction_policy']}"
    return ""


def compiled(document: dict[str, Any], folder: Path) -> CompiledTrace:
    """The recording's requests as a trace, through our own file form."""
    config = document["config"]
    block = config.get("block_size") or config["block_ids_size"]
    header = {"format": "hisearch-trace", "version": 1, "block_tokens": block, "open_loop": True}
    lines = [json.dumps(header)]
    for row in sorted(document["requests"], key=lambda row: (row["arrival_s"], row["id"])):
        fields = {key: row[key] for key in ("id", "arrival_s", "input_tokens", "output_tokens", "block_ids")}
        lines.append(json.dumps(fields | {"known_tokens": block * len(row["block_ids"])}))
    path = folder / "recording.jsonl"
    path.write_text("\n".join(lines))
    return load_trace_file(path)


def plan(config: dict[str, Any]) -> WorkerPlan:
    """The recorded engine, with the latency law of the recordings."""
    if "num_blocks" in config:
        engine = EngineSpec(
            name="vllm",
            max_running_requests=config["max_num_seqs"],
            chunk_tokens=config["max_tokens"],
            page_tokens=config["block_size"],
            prefix_caching=config.get("prefix", True),
            overlap=False,
        )
        capacity = (config["num_blocks"] - 1) * config["block_size"]
    else:
        chunk = config["chunked_prefill_size"]
        engine = EngineSpec(
            name="sglang",
            max_running_requests=config["max_running_requests"],
            chunk_tokens=chunk if chunk > 0 else 10**9,
            page_tokens=config["page_size"],
            max_prefill_tokens=config["max_prefill_tokens"],
            schedule_conservativeness=config["schedule_conservativeness"],
            eviction=config["radix_eviction_policy"],
            overlap=False,
        )
        capacity = config["max_total_tokens"] // config["page_size"] * config["page_size"]
    law = law_costs(0.005, 2e-5, 1e-9)
    costs = CompiledCosts(law, law, 0.0, "law of the recordings", "measured", 0.0)
    return WorkerPlan(engine, costs, None, capacity)  # type: ignore[arg-type]  # memory plays no part here


@pytest.mark.parametrize("path", recordings(), ids=lambda path: f"{path.parent.name}/{path.name}" if path else "absent")
def test_every_token_time_of_the_engine_is_reproduced(path: Path, tmp_path: Path) -> None:
    document = load_recording(path)
    reason = outside_domain(document["config"])
    if reason:
        pytest.skip(f"not simulated yet: {reason}")
    trace = compiled(document, tmp_path)
    result = simulate(plan(document["config"]), trace)
    requests = result.requests
    for measured, simulated in (
        (document["first_token_s"], requests.first_token_s),
        (document["finish_s"], requests.finish_s),
    ):
        np.testing.assert_allclose(simulated, [measured[name] for name in trace.request_ids], rtol=0, atol=1e-9)
    assert int(result.workers.steps.sum()) == len(document["steps"])
    lost = sum(len(step.get("preempted", [])) + len(step.get("retracted", [])) for step in document["steps"])
    assert int(requests.preemptions.sum()) == lost
    if "reused_tokens" in document:
        assert requests.hit_tokens.tolist() == [document["reused_tokens"][name] for name in trace.request_ids]
