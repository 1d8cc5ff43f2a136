"""The restatement against recordings of SGLang's own scheduler with HiCache's host and storage tiers: every step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hisearch.validate.recording import read_recording
from hisearch.validate.replay import recorded_law as law_of
from hisearch.validate.replay import recorded_run, restated_run
from hisearch.validate.restatement import sglang
from hisearch.validate.restatement.recording import Recording, Step
from hisearch.validate.restatement.sglang_state import SglangConfig
from tests.reference.recorded import load_recording, recorded_law, recorded_requests, shared_directory

HOST_CASES = ["hicache_selective", "hicache_write_back", "hicache_write_through"]
STORAGE_CASES = ["storage_best_effort", "storage_slow_copies", "storage_timeout", "storage_wait_complete"]
CASES = [*HOST_CASES, *STORAGE_CASES]
#: Recorded times are rounded to 1e-9 s.
TOLERANCE_S = 1.001e-9


def recorded_path(name: str) -> Path:
    shared = shared_directory()
    path = None if shared is None else shared / "validation" / "sglang_scheduler" / f"{name}.json.gz"
    if path is None or not path.is_file():
        pytest.skip(f"no recording {name} of SGLang: set HISEARCH_SHARED to the folder with the validation data")
    return path


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
    simulated = restated(document, SglangConfig.from_recording(document["config"]))
    assert_equal_steps(simulated, document)
    assert simulated.first_token_s == pytest.approx(document["first_token_s"], rel=0, abs=TOLERANCE_S)
    assert simulated.finish_s == pytest.approx(document["finish_s"], rel=0, abs=TOLERANCE_S)
    assert simulated.reused_tokens == document["reused_tokens"]


@pytest.mark.parametrize("name", STORAGE_CASES)
def test_every_prefetch_from_storage_is_reproduced(name: str) -> None:
    document = load_recording(recorded_path(name))
    log = restated(document, SglangConfig.from_recording(document["config"])).storage_log
    assert [list(entry[1:]) for entry in log] == [entry[1:] for entry in document["storage_log"]]
    times = [entry[0] for entry in document["storage_log"]]
    assert [entry[0] for entry in log] == pytest.approx(times, rel=0, abs=TOLERANCE_S)


@pytest.mark.parametrize("name", CASES)
def test_replayed_recording_equals_what_was_recorded(name: str) -> None:
    recording = read_recording(recorded_path(name))
    recorded, run = recorded_run(recording), restated_run(recording, law_of(recording))
    assert [step.batch for step in run.steps] == [step.batch for step in recorded.steps]
    assert run.finish_s == pytest.approx(recorded.finish_s, rel=0, abs=TOLERANCE_S)


def test_lru_does_not_reproduce_hits_counted_by_the_host_tier() -> None:
    """The comparison tells policies apart: the recording's is lfu."""
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
