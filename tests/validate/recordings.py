"""Small recordings, made by the restatements of the engines' rules."""

from __future__ import annotations

import copy
import gzip
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hisearch.validate.recording import read_recording
from hisearch.validate.step_law import parse_step_law
from tests.reference.restated import restated_run

LAW = "0.005 + 2e-5*sum(new) + 1e-9*sum(new*(computed+(new+1)/2)), over the requests of the step's batch"
BLOCK = 4

VLLM: dict[str, Any] = {"max_num_seqs": 8, "max_tokens": 64, "num_blocks": 60, "block_size": BLOCK}
SGLANG: dict[str, Any] = {
    "page_size": BLOCK, "chunked_prefill_size": 64, "max_prefill_tokens": 256, "max_running_requests": 8,
    "max_total_tokens": 400, "disable_overlap_schedule": True, "block_ids_size": BLOCK,
}  # fmt: skip

HICACHE: dict[str, Any] = {
    "hicache_ratio": 2.0, "hicache_write_policy": "write_through",
    "d2h_base_s": 1e-4, "d2h_per_token_s": 4e-6, "h2d_base_s": 1e-4, "h2d_per_token_s": 4e-6,
}  # fmt: skip
STORAGE: dict[str, Any] = {
    "query_s": 0.002, "read_base_s": 1e-4, "read_per_token_s": 4e-6, "write_base_s": 1e-4, "write_per_token_s": 4e-6,
}  # fmt: skip

#: Settings under which requests wait, lose their KV and find prefixes.
CASES: dict[str, dict[str, Any]] = {
    "vllm": VLLM,
    "vllm_async": VLLM | {"async_scheduling": True},
    "vllm_priority": VLLM | {"policy": "priority", "long_prefill_token_threshold": 24},
    "vllm_context": VLLM | {"block_size": BLOCK // 2, "decode_context_parallel_size": 4, "num_blocks": 30},
    "vllm_no_prefix": VLLM | {"prefix": False, "scheduler_reserve_full_isl": False, "max_model_len": 500},
    "sglang": SGLANG | {"schedule_conservativeness": 0.1},
    "sglang_context": SGLANG | {"page_size": 2, "dcp_size": 4, "max_total_tokens": 320},
    "sglang_overlap": SGLANG | {"disable_overlap_schedule": False},
    "sglang_host": SGLANG | {"max_total_tokens": 200, "hicache": HICACHE},
    "sglang_storage": SGLANG
    | {"max_total_tokens": 200, "hicache": HICACHE | {"prefetch_threshold": 8, "storage": STORAGE}},
    "sglang_no_radix": SGLANG | {"disable_radix_cache": True, "enable_mixed_chunk": True},
}


@dataclass(frozen=True)
class Made:
    """A recording that can be tampered with before it is written."""

    document: dict[str, Any]

    def write(self, path: Path) -> Path:
        """As ``.json.gz`` or ``.json``, by the path's ending."""
        data = json.dumps(self.document).encode()
        path.write_bytes(gzip.compress(data, 1) if path.suffix == ".gz" else data)
        return path

    def copy(self) -> Made:
        """One of its own."""
        return Made(copy.deepcopy(self.document))


def requests(count: int = 24, seed: int = 1) -> list[dict[str, Any]]:
    """Three prompts' beginnings shared among all, some arrivals at the same time, in no order of time."""
    rng = random.Random(seed)
    rows = []
    arrival = 0.0
    for index in range(count):
        arrival += rng.choice([0.0, 0.004, 0.03])
        inputs, outputs = rng.randint(10, 90), rng.randint(1, 40)
        group, shared = rng.randrange(3), rng.randint(0, 12)
        blocks = (inputs + outputs) // BLOCK
        ids = [group * 100 + k if k < shared else 1000 * (index + 1) + k for k in range(blocks)]
        row = {"id": f"r{index:03}", "arrival_s": arrival, "input_tokens": inputs, "output_tokens": outputs}
        rows.append(row | {"block_ids": ids, "priority": rng.randint(-1, 2)})
    rng.shuffle(rows)
    return rows


def make(config: dict[str, Any], folder: Path, rows: list[dict[str, Any]] | None = None) -> Made:
    """Record what the restated rules decide."""
    document = {"config": config, "step_latency_s": LAW, "requests": rows or requests()}
    recording = read_recording(Made(document).write(folder / "asked.json"))
    run = restated_run(recording, parse_step_law(LAW))
    names = [row.id for row in recording.requests]
    lost = "preempted" if recording.engine == "vllm" else "retracted"
    ahead = config.get("async_scheduling", False) or not config.get("disable_overlap_schedule", True)
    steps = []
    for step in run.steps:
        row: dict[str, Any] = {"start_s": step.start_s}
        row |= {"scheduled_s": step.scheduled_s} if ahead else {}
        row |= {"kind": step.kind, "pool": list(step.pool or ())} if recording.engine == "sglang" else {}
        row["batch"] = [[names[index], computed, tokens] for index, computed, tokens in step.batch]
        gone = [names[index] for index in step.lost]
        row[lost] = sorted(gone) if lost == "preempted" else gone
        steps.append(row)
    document["steps"] = steps
    document["first_token_s"] = dict(zip(names, run.first_token_s.tolist(), strict=True))
    document["finish_s"] = dict(zip(names, run.finish_s.tolist(), strict=True))
    if recording.engine == "sglang":
        assert run.reused_tokens is not None
        document["reused_tokens"] = dict(zip(names, run.reused_tokens.tolist(), strict=True))
    return Made(document)
