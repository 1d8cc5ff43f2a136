"""The references reproduce what the engines themselves decided, to the last step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.reference.recorded import load_recording, recorded_law, recorded_requests, shared_directory
from tests.reference.restatement import sglang, vllm
from tests.reference.restatement.recording import Recording
from tests.reference.restatement.sglang_state import SglangConfig

TIME_TOLERANCE_S = 1.001e-9

VLLM_CASES = [
    "async", "long_prefill", "no_chunk", "plain", "prefix", "prefix_pressure", "pressure", "priority", "small_budget",
]  # fmt: skip
SGLANG_CASES = [
    "fifo", "lfu", "lpm", "mixed_chunk", "no_chunk", "no_radix", "overlap", "plain", "prefix", "prefix_page64",
    "prefix_pressure", "pressure", "pressure_default", "retract_many", "small_chunk",
]  # fmt: skip


def _case(engine: str, name: str) -> Path:
    shared = shared_directory()
    if shared is None:
        pytest.skip("no shared validation data (set HISEARCH_SHARED)")
    path = shared / "validation" / f"{engine}_scheduler" / f"{name}.json.gz"
    if not path.is_file():
        pytest.skip(f"no recording {path.name} of {engine} in the shared validation data")
    return path


def _assert_equal_times(recorded: dict[str, float], simulated: dict[Any, float]) -> None:
    assert recorded.keys() == simulated.keys()
    assert max(abs(recorded[key] - simulated[key]) for key in recorded) <= TIME_TOLERANCE_S


def _assert_equal_steps(recorded: list[dict[str, Any]], simulated: Recording, preempted_key: str) -> None:
    assert len(recorded) == len(simulated.steps)
    for index, (expected, step) in enumerate(zip(recorded, simulated.steps, strict=True)):
        where = f"step {index}"
        assert [[entry.id, entry.computed, entry.new] for entry in step.batch] == expected["batch"], where
        assert step.preempted == expected.get(preempted_key, []), where
        assert abs(step.start_s - expected["start_s"]) <= TIME_TOLERANCE_S, where
        assert abs(step.scheduled_s - expected.get("scheduled_s", expected["start_s"])) <= TIME_TOLERANCE_S, where


@pytest.mark.parametrize("name", VLLM_CASES)
def test_vllm_recording_is_reproduced(name: str) -> None:
    document = load_recording(_case("vllm", name))
    config = vllm.VllmConfig.from_recording(document["config"], "0.19.1")
    simulated = vllm.replay(config, recorded_requests(document, config.block_size), recorded_law)
    _assert_equal_steps(document["steps"], simulated, "preempted")
    _assert_equal_times(document["first_token_s"], simulated.first_token_s)
    _assert_equal_times(document["finish_s"], simulated.finish_s)


@pytest.mark.slow
@pytest.mark.parametrize("name", SGLANG_CASES)
def test_sglang_recording_is_reproduced(name: str) -> None:
    document = load_recording(_case("sglang", name))
    config = SglangConfig.from_recording(document["config"])
    requests = recorded_requests(document, document["config"]["block_ids_size"])
    simulated = sglang.replay(config, requests, recorded_law)
    _assert_equal_steps(document["steps"], simulated, "retracted")
    for index, (expected, step) in enumerate(zip(document["steps"], simulated.steps, strict=True)):
        assert (step.kind, list(step.pool)) == (expected["kind"], expected["pool"]), f"step {index}"
        assert step.ratio == pytest.approx(expected["ratio"], abs=TIME_TOLERANCE_S), f"step {index}"
    assert simulated.reused_tokens == document["reused_tokens"]
    _assert_equal_times(document["first_token_s"], simulated.first_token_s)
    _assert_equal_times(document["finish_s"], simulated.finish_s)
