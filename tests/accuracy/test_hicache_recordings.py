"""Recordings of SGLang's own scheduler with HiCache's host and storage tiers, to the last step and the last fetch.

The restatement and the kernels are each held against them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hisearch.kernels.layout import hicache as hl
from hisearch.simulate import Result, WorkerPlan, simulate
from hisearch.traces.compiled import CompiledTrace
from hisearch.validate.recorded_trace import compiled_trace
from hisearch.validate.recording import EngineRecording, read_recording
from hisearch.validate.replay import recorded_law as law_of
from hisearch.validate.replay import recorded_run, worker_plan
from tests.accuracy import test_sglang_recordings as without_tiers
from tests.reference.recorded import load_recording, recorded_law, recorded_requests, shared_directory
from tests.reference.restated import restated_run
from tests.reference.restatement import sglang
from tests.reference.restatement.recording import Recording, Step
from tests.reference.restatement.sglang_state import SglangConfig

HOST_CASES = ["hicache_selective", "hicache_write_back", "hicache_write_through"]
STORAGE_CASES = ["storage_best_effort", "storage_slow_copies", "storage_timeout", "storage_wait_complete"]
CASES = [*HOST_CASES, *STORAGE_CASES]
#: Recorded times are rounded to 1e-9 s.
TOLERANCE_S = 1.001e-9
EVENTS = {"revoked": hl.REVOKED, "reading": hl.READING, "read": hl.READ}


def recorded_path(name: str) -> Path:
    shared = shared_directory()
    path = None if shared is None else shared / "validation" / "sglang_scheduler" / f"{name}.json.gz"
    if path is None or not path.is_file():
        pytest.skip(f"no recording {name} of SGLang: set HISEARCH_SHARED to the folder with the validation data")
    return path


def read_recorded(path: Path) -> EngineRecording:
    """A recording of the first round, whose clock skipped passes of an idle scheduler."""
    return replace(read_recording(path), jumps=True)


def config_of(document: dict[str, Any]) -> SglangConfig:
    return replace(SglangConfig.from_recording(document["config"]), jumps=True)


def restated(document: dict[str, Any], config: SglangConfig) -> Recording:
    return sglang.replay(config, recorded_requests(document, document["config"]["block_ids_size"]), recorded_law)


def assert_equal_step(step: Step, recorded: dict[str, Any], where: str) -> None:
    assert [[entry.id, entry.computed, entry.new] for entry in step.batch] == recorded["batch"], where
    assert (step.kind, list(step.pool)) == (recorded["kind"], recorded["pool"]), where
    assert step.preempted == recorded.get("retracted", []), where
    assert step.ratio == pytest.approx(recorded["ratio"], rel=0, abs=TOLERANCE_S), where
    assert step.start_s == pytest.approx(recorded["start_s"], rel=0, abs=TOLERANCE_S), where
    load_back = recorded.get("load_back")
    assert (step.load_back is None) == (load_back is None), where
    if step.load_back and load_back:
        assert step.load_back[0] == load_back[0], where
        assert step.load_back[1] == pytest.approx(load_back[1], rel=0, abs=TOLERANCE_S), where


def assert_equal_steps(simulated: Recording, document: dict[str, Any]) -> None:
    for index, (step, recorded) in enumerate(zip(simulated.steps, document["steps"], strict=False)):
        assert_equal_step(step, recorded, f"step {index}")
    assert len(simulated.steps) == len(document["steps"])


@pytest.mark.parametrize("name", CASES)
def test_every_step_of_the_engine_is_reproduced(name: str) -> None:
    document = load_recording(recorded_path(name))
    simulated = restated(document, config_of(document))
    assert_equal_steps(simulated, document)
    assert simulated.first_token_s == pytest.approx(document["first_token_s"], rel=0, abs=TOLERANCE_S)
    assert simulated.finish_s == pytest.approx(document["finish_s"], rel=0, abs=TOLERANCE_S)
    assert simulated.reused_tokens == document["reused_tokens"]


@pytest.mark.parametrize("name", STORAGE_CASES)
def test_every_prefetch_from_storage_is_reproduced(name: str) -> None:
    document = load_recording(recorded_path(name))
    log = restated(document, config_of(document)).storage_log
    assert [list(entry[1:]) for entry in log] == [entry[1:] for entry in document["storage_log"]]
    times = [entry[0] for entry in document["storage_log"]]
    assert [entry[0] for entry in log] == pytest.approx(times, rel=0, abs=TOLERANCE_S)


@pytest.mark.parametrize("name", CASES)
def test_replayed_recording_equals_what_was_recorded(name: str) -> None:
    recording = read_recorded(recorded_path(name))
    recorded, run = recorded_run(recording), restated_run(recording, law_of(recording))
    assert [step.batch for step in run.steps] == [step.batch for step in recorded.steps]
    assert run.finish_s == pytest.approx(recorded.finish_s, rel=0, abs=TOLERANCE_S)


def test_lru_does_not_reproduce_hits_counted_by_the_host_tier() -> None:
    """The comparison distinguishes policies: the recording's is lfu."""
    document = load_recording(recorded_path("hicache_selective"))
    config = replace(SglangConfig.from_recording(document["config"]), radix_eviction_policy="lru")
    with pytest.raises(AssertionError, match="step"):
        assert_equal_steps(restated(document, config), document)


def test_another_prefetch_policy_does_not_reproduce_timeout() -> None:
    document = load_recording(recorded_path("storage_timeout"))
    config = SglangConfig.from_recording(document["config"])
    assert config.hicache
    assert config.hicache.storage
    storage = replace(config.hicache.storage, prefetch_policy="wait_complete")
    config = replace(config, hicache=replace(config.hicache, storage=storage))
    with pytest.raises(AssertionError, match="step"):
        assert_equal_steps(restated(document, config), document)


# ---- the kernels -----------------------------------------------------------------------------------------------------


def kernel_plan(path: Path) -> tuple[WorkerPlan, CompiledTrace]:
    recording = read_recorded(path)
    return worker_plan(recording, law_of(recording)), compiled_trace(recording)


def assert_equal_load_backs(document: dict[str, Any], result: Result) -> None:
    """A step with a load-back ends with the later of the two, the step by the recordings' law and the load-back."""
    assert result.log is not None
    for k, recorded in enumerate(document["steps"]):
        chunks = [(new, computed) for _, computed, new in recorded["batch"]]
        end_s = recorded["start_s"] + recorded_law(chunks, [], 0)
        if "load_back" in recorded:
            end_s = max(end_s, recorded["load_back"][1])
        assert result.log.steps["end_s"][k] == pytest.approx(end_s, rel=0, abs=2 * TOLERANCE_S), f"step {k}"
    loaded = sum(recorded["load_back"][0] for recorded in document["steps"] if "load_back" in recorded)
    # What was retracted and loaded back again counts once.
    assert 0 < result.workers.host_hit_tokens.sum() <= loaded


def fetches(result: Result, trace: CompiledTrace) -> list[list[Any]]:
    assert result.log is not None
    rows = result.log.fetches
    return [[trace.request_ids[row["request"]], int(row["event"]), int(row["tokens"])] for row in rows]


@pytest.mark.parametrize("name", CASES)
def test_kernels_reproduce_every_step_of_the_engine(name: str) -> None:
    path = recorded_path(name)
    document = load_recording(path)
    worker, trace = kernel_plan(path)
    result = simulate(worker, trace, log=True)
    without_tiers.assert_equal_steps(document, trace, result)
    assert_equal_load_backs(document, result)
    table = result.requests
    for key in ("first_token_s", "finish_s"):
        recorded = [document[key][request] for request in trace.request_ids]
        np.testing.assert_allclose(getattr(table, key), recorded, rtol=0, atol=TOLERANCE_S)
    reused = table.hit_tokens + table.host_hit_tokens + table.storage_hit_tokens
    assert reused.tolist() == [document["reused_tokens"][request] for request in trace.request_ids]
    assert bool(table.storage_hit_tokens.any()) == (name in STORAGE_CASES)


@pytest.mark.parametrize("name", STORAGE_CASES)
def test_kernels_reproduce_every_prefetch_from_storage(name: str) -> None:
    path = recorded_path(name)
    document = load_recording(path)
    worker, trace = kernel_plan(path)
    result = simulate(worker, trace, log=True)
    assert fetches(result, trace) == [
        [request, EVENTS[event], tokens] for _, request, event, tokens in document["storage_log"]
    ]
    assert result.log is not None
    times = [entry[0] for entry in document["storage_log"]]
    assert result.log.fetches["at_s"] == pytest.approx(times, rel=0, abs=TOLERANCE_S)


@pytest.mark.parametrize("name", CASES)
def test_kernels_without_a_log_come_to_the_same(name: str) -> None:
    worker, trace = kernel_plan(recorded_path(name))
    logged, unlogged = simulate(worker, trace, log=True), simulate(worker, trace)
    for column in logged.requests.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(unlogged.requests, column), getattr(logged.requests, column))


def test_kernels_do_not_reproduce_timeout_by_another_prefetch_policy() -> None:
    path = recorded_path("storage_timeout")
    worker, trace = kernel_plan(path)
    assert worker.movement is not None
    other = replace(worker, movement=replace(worker.movement, prefetch="wait_complete"))
    with pytest.raises(AssertionError, match="step"):
        without_tiers.assert_equal_steps(load_recording(path), trace, simulate(other, trace, log=True))
