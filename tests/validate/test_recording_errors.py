"""Recordings that cannot be used are refused in one line, by file and key."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hisearch.validate.recording import RecordingError, read_recording
from hisearch.validate.scheduler import validate_recording
from tests.validate.recordings import HICACHE, Made

STATES = {"max_mamba_cache_size": 40, "mamba_track_interval": 64}
WINDOWS = {"sliding_window_size": 31, "swa_max_total_num_tokens": 200}


def _config(**changes: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        document["config"] = document["config"] | changes

    return change


def _drop(*keys: str) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        at = document
        for key in keys[:-1]:
            at = at[key]
        del at[keys[-1]]

    return change


def _put(value: Any, *keys: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        at: Any = document
        for key in keys[:-1]:
            at = at[key]
        at[keys[-1]] = value

    return change


@pytest.mark.parametrize(
    ("name", "change", "expected"),
    [
        ("vllm", _config(enable_lora=True), "config.enable_lora: this setting is not simulated"),
        ("vllm", _config(policy="sjf"), "config.policy: cannot be replayed: text 'sjf'; known: 'fcfs' or 'priority'"),
        ("vllm", _config(max_tokens=4), "config: max_tokens 4 is less than max_num_seqs 8"),
        ("vllm", _config(max_num_seqs="8"), "config.max_num_seqs: input should be a valid integer, got text '8'"),
        ("vllm", _config(max_model_len=60), "config.max_model_len: request r"),
        ("vllm", _drop("config", "block_size"), "config.block_size: required, and missing"),
        ("vllm", _drop("config", "num_blocks"), "config: expected either num_blocks (vLLM) or max_total_tokens"),
        ("vllm", _drop("step_latency_s"), "step_latency_s: required, and missing"),
        ("vllm", _put("0.1*sum(exp(new))", "step_latency_s"), "step_latency_s: cannot read the law"),
        ("vllm", _drop("steps"), "steps: required, and missing"),
        ("vllm", _drop("finish_s"), "finish_s: required beside steps, and missing"),
        ("vllm", _drop("finish_s", "r004"), "finish_s: request r004 is missing"),
        ("vllm", _put(1.0, "first_token_s", "r999"), "first_token_s: 'r999' is none of the requests"),
        ("vllm", _put(-1, "requests", 0, "arrival_s"), "requests.0.arrival_s: input should be greater than"),
        ("vllm", _put(float("nan"), "requests", 0, "arrival_s"), "requests.0.arrival_s: input should be a finite"),
        ("vllm", _put(True, "requests", 0, "id"), "requests.0.id: "),
        ("vllm", _put(7, "requests", 0, "id"), "requests: expected ids that are all text or all numbers"),
        ("vllm", _put(list(range(99)), "requests", 0, "block_ids"), "requests: r"),
        ("vllm", _put([], "requests"), "requests: "),
        ("vllm", _put([["r001", 0]], "steps", 5, "batch"), "steps.5.batch.0.2: required, and missing"),
        ("vllm", _put([["nobody", 0, 1]], "steps", 5, "batch"), "steps.5.batch: 'nobody' is none of the requests"),
        ("vllm", _put([["r001", 0, 1]] * 2, "steps", 5, "batch"), "steps.5.batch: names a request twice"),
        ("sglang", _config(hicache={"hicache_ratio": 2.0}), "config: hicache.hicache_write_policy: required"),
        ("sglang", _config(hicache=HICACHE | {"hicache_ratio": -1}), "config: hicache.hicache_ratio: expected"),
        ("sglang", _config(hicache=HICACHE | {"storage": {}}), "config: hicache.storage.query_s: required"),
        ("sglang", _config(hicache=HICACHE | {"prefetch": 1}), "config: hicache.prefetch: not simulated"),
        ("sglang", _config(radix_eviction_policy="belady"), "config.radix_eviction_policy: cannot be replayed"),
        ("sglang", _drop("config", "disable_overlap_schedule"), "config.disable_overlap_schedule: required"),
        ("sglang", _config(sliding_window_size=7), "config: sliding_window_size and swa_max_total"),
        ("sglang", _config(swa_max_total_num_tokens=700), "config: sliding_window_size and swa_max_total"),
        ("sglang", _config(**WINDOWS, hicache=HICACHE), "config: sliding_window_size beside hicache is not simulated"),
        ("sglang", _config(**WINDOWS | {"swa_max_total_num_tokens": 10**6}), "config: swa_max_total_num_tokens is 10"),
        ("sglang", _config(mamba_track_interval=64), "config: mamba_track_interval is given without max_mamba_cache"),
        ("sglang", _config(**STATES, **WINDOWS), "config: max_mamba_cache_size beside sliding_window_size is not sim"),
        ("sglang", _config(**STATES | {"max_mamba_cache_size": 31}), "config: max_running_requests is 8; with max_mam"),
        ("sglang", _config(**STATES, mamba_radix_cache_strategy="no_buffer"), "config: mamba_radix_cache_strategy no_"),
        ("sglang", _config(**STATES | {"mamba_track_interval": 9}), "config: mamba_track_interval is 9; expected"),
        ("sglang", _config(**STATES, mamba_chunk_size=7), "config: mamba_chunk_size is 7; expected a divisor"),
        ("sglang", _config(**STATES, mamba_max_states_per_path=0), "config: mamba_max_states_per_path is 0"),
        ("sglang", _config(**STATES), "config.max_mamba_cache_size: pools of states are simulated by the rules of"),
        ("sglang", _config(**WINDOWS | {"sliding_window_size": 700}), "config: swa_max_total_num_tokens is "),
        ("sglang", _config(**WINDOWS), "config.sliding_window_size: pools for windows are simulated by the rules"),
    ],
)  # fmt: skip
def test_bad_recordings_are_refused_by_file_and_key(
    recordings: Callable[[str], Made],
    name: str,
    change: Callable[[dict[str, Any]], None],
    expected: str,
    tmp_path: Path,
) -> None:
    made = recordings(name)
    change(made.document)
    path = made.write(tmp_path / "bad.json.gz")
    with pytest.raises(RecordingError) as raised:
        validate_recording(path)
    assert str(raised.value).startswith(f"{path}: {expected}")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "no such file"),
        (b"", "expected JSON: "),
        (b"{", "expected JSON: "),
        (b"\x1f\x8bnothing", "broken gzip archive: "),
        (b"\xff\xfe{}", "expected JSON: "),
        (b"[1]", "input should be an object, got a list"),
        (b'{"config": {}}', "requests: required, and missing"),
    ],
)
def test_files_that_are_no_recordings(content: bytes | None, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RecordingError) as raised:
        read_recording(path)
    assert str(raised.value).startswith(f"{path}: {expected}")
    assert "\n" not in str(raised.value)
