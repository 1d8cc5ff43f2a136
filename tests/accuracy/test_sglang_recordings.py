"""The kernel against recordings of SGLang's own scheduler: every step, to its last entry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hisearch.kernels.layout import sim as la
from hisearch.latency.costs import CompiledCosts
from hisearch.latency.step_cost import law_costs
from hisearch.simulate import Result, WorkerPlan, simulate
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.traces.compiled import CompiledTrace
from hisearch.validate.recorded_trace import compiled_trace
from hisearch.validate.recording import read_recording
from tests.reference.recorded import load_recording, shared_directory

#: The recordings without host tier.
CASES = [
    "fifo", "lfu", "lpm", "mixed_chunk", "no_chunk", "no_radix", "overlap", "plain", "prefix", "prefix_page64",
    "prefix_pressure", "pressure", "pressure_default", "retract_many", "small_chunk",
]  # fmt: skip
KINDS = {"prefill": la.PREFILL_STEP, "decode": la.DECODE_STEP, "mixed": la.MIXED_STEP}
#: Recorded times are rounded to 1e-9 s.
TOLERANCE_S = 1.001e-9
TOTALS = ("first_token_s", "finish_s", "hit_tokens", "preemptions")


def recorded_path(name: str) -> Path:
    shared = shared_directory()
    path = None if shared is None else shared / "validation" / "sglang_scheduler" / f"{name}.json.gz"
    if path is None or not path.is_file():
        pytest.skip(f"no recording {name} of SGLang: set HISEARCH_SHARED to the folder with the validation data")
    return path


def compiled(path: Path) -> CompiledTrace:
    return compiled_trace(read_recording(path))


def plan(config: dict[str, Any]) -> WorkerPlan:
    """The recorded engine, with the latency law of the recordings; outputs are pinned."""
    chunk, page = config["chunked_prefill_size"], config["page_size"]
    engine = EngineSpec(
        name="sglang",
        version="0.5.9",
        max_running_requests=config["max_running_requests"],
        chunk_tokens=chunk if chunk > 0 else 8192,
        chunked_prefill=chunk > 0,
        page_tokens=page,
        max_prefill_tokens=config["max_prefill_tokens"],
        schedule=config["schedule_policy"],
        schedule_conservativeness=config["schedule_conservativeness"],
        eviction=config["radix_eviction_policy"],
        prefix_caching=not config["disable_radix_cache"],
        mixed_chunk=config["enable_mixed_chunk"],
        overlap=not config["disable_overlap_schedule"],
    )
    law = law_costs(0.005, 2e-5, 1e-9)
    costs = CompiledCosts(law, law, 0.0, "law of the recordings", "measured", 0.0)
    capacity = config["max_total_tokens"] // page * page
    return WorkerPlan(engine, costs, None, capacity, ignore_eos=True)  # type: ignore[arg-type]  # memory plays no part


def assert_equal_steps(document: dict[str, Any], trace: CompiledTrace, result: Result) -> None:
    log, names = result.log, trace.request_ids
    assert log is not None
    assert len(log) == len(document["steps"])
    for k, recorded in enumerate(document["steps"]):
        step, where = log.steps[k], f"step {k}"
        batch = [[names[e["request"]], int(e["computed"]), int(e["tokens"])] for e in log.batch(k)]
        assert batch == recorded["batch"], where
        assert step["kind"] == KINDS[recorded["kind"]], where
        assert [names[r] for r in log.lost_in(k)] == recorded.get("retracted", []), where
        assert abs(step["start_s"] - recorded["start_s"]) <= TOLERANCE_S, where
        assert abs(step["scheduled_s"] - recorded.get("scheduled_s", recorded["start_s"])) <= TOLERANCE_S, where
        assert [step["free_tokens"], step["evictable_tokens"]] == recorded["pool"], where
        assert abs(step["ratio"] - recorded["ratio"]) <= TOLERANCE_S, where


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_step_of_the_engine_is_reproduced(name: str) -> None:
    path = recorded_path(name)
    document, trace = load_recording(path), compiled(path)
    worker = plan(document["config"])
    result = simulate(worker, trace, log=True)
    assert_equal_steps(document, trace, result)
    for key in ("first_token_s", "finish_s"):
        recorded = [document[key][name] for name in trace.request_ids]
        np.testing.assert_allclose(getattr(result.requests, key), recorded, rtol=0, atol=TOLERANCE_S)
    assert result.requests.hit_tokens.tolist() == [document["reused_tokens"][name] for name in trace.request_ids]
    unlogged = simulate(worker, trace)
    for key in TOTALS:
        np.testing.assert_array_equal(getattr(unlogged.requests, key), getattr(result.requests, key))


def test_lru_does_not_reproduce_fifo() -> None:
    """The comparison distinguishes policies."""
    path = recorded_path("fifo")
    document, trace = load_recording(path), compiled(path)
    worker = plan({**document["config"], "radix_eviction_policy": "lru"})
    with pytest.raises(AssertionError, match="step"):
        assert_equal_steps(document, trace, simulate(worker, trace, log=True))
