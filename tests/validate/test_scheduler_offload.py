"""vLLM's own offloading connector, held against small recordings of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hisearch.validate.scheduler import validate_recording
from tests.validate.recordings import LAW, VLLM, Made


def _request(name: str, arrival_s: float, tokens: tuple[int, int], blocks: list[int]) -> dict[str, Any]:
    row = {"id": name, "arrival_s": arrival_s, "input_tokens": tokens[0], "output_tokens": tokens[1]}
    return row | {"max_output_tokens": tokens[1], "block_ids": blocks}


def test_a_step_waits_for_copies_of_its_own_pages_and_not_of_equal_ones(tmp_path: Path) -> None:
    """Without a prefix cache ``a`` and ``b`` have pages of their own for the same prompt; ``a``'s are being copied.

    ``b`` cannot be stored (three blocks, room for two) and its pages are given to ``c``. As vLLM 0.33.0 recorded it.
    """
    offload = {"capacity_tokens": 8, "to_host": [0.05, 1e-7], "to_device": [0.05, 1e-7], "eviction": "lru"}
    requests = [
        _request("a", 0.0, (8, 1), [0, 1]),
        _request("b", 0.0, (14, 2), [0, 1, 2, 3]),
        _request("c", 0.008, (12, 2), [7, 8, 9]),
    ]
    steps = [
        {"start_s": 0.0, "batch": [["a", 0, 8], ["b", 0, 14]], "preempted": []},
        {"start_s": 0.005440141, "batch": [["b", 14, 1]], "preempted": []},
        {"start_s": 0.010460156, "batch": [["c", 0, 12]], "preempted": []},
        {"start_s": 0.015700234, "batch": [["c", 12, 1]], "preempted": []},
    ]
    recording = {
        "engine": "vllm 0.33.0",
        "config": VLLM | {"prefix": False, "offload": offload | {"block_size_factor": 1, "store_threshold": 0}},
        "step_latency_s": LAW,
        "requests": requests,
        "steps": steps,
        "first_token_s": {"a": 0.005440141, "b": 0.005440141, "c": 0.015700234},
        "finish_s": {"a": 0.005440141, "b": 0.010460156, "c": 0.020720247},
        "stored_tokens": 8,
        "loaded_tokens": 0,
    }
    case = validate_recording(Made(recording).write(tmp_path / "equal.json"))
    assert case.ok, case.first_difference


def test_a_copy_under_way_at_the_end_of_a_recording_counts(tmp_path: Path) -> None:
    """Of vLLM 0.19.1, which begins it with the second step and ends with the request."""
    laws = {"to_host": [0.002, 2e-5], "to_device": [0.002, 2e-5], "eviction": "lru"}
    recording = {
        "engine": "vllm 0.19.1",
        "config": {
            "max_num_seqs": 64, "max_tokens": 1024, "num_blocks": 76, "block_size": 32, "prefix": False,
            "offload": laws | {"capacity_tokens": 979, "block_size_factor": 1, "store_threshold": 0},
        },
        "step_latency_s": LAW,
        "requests": [
            {"id": "a", "arrival_s": 3.058013, "input_tokens": 229, "output_tokens": 2, "block_ids": [*range(7)]}
        ],
        "steps": [
            {"start_s": 3.058013, "batch": [["a", 0, 229]], "preempted": []},
            {"start_s": 3.067619335, "batch": [["a", 229, 1]], "preempted": []},
        ],
        "first_token_s": {"a": 3.067619335},
        "finish_s": {"a": 3.072639565},
        "stored_tokens": 224,
        "loaded_tokens": 0,
    }  # fmt: skip
    case = validate_recording(Made(recording).write(tmp_path / "copying.json"))
    assert case.ok, case
