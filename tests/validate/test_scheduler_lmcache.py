"""``validate scheduler`` on recordings with LMCache's connector, made by the slow reference."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from hisearch.base.engine_rules import MODELLED
from hisearch.record.vllm_random import random_lmcache_case
from hisearch.record.workload import add_block_ids
from hisearch.specs.deployments.engine_rules import rules_of
from hisearch.validate.recording import RecordingError, read_recording
from hisearch.validate.scheduler import validate_recording
from tests.reference.lmcache import LmcacheConfig, LmcacheTier, LmcacheWorker
from tests.reference.recorded import recorded_law
from tests.reference.restatement.content import BlockContent
from tests.reference.restatement.recording import Request
from tests.reference.restatement.transfers import CopyLaw
from tests.reference.restatement.vllm import VllmConfig, drive
from tests.validate.recordings import LAW


class _Worker(LmcacheWorker):
    """Takes every request: none of a random case is too long, whatever its declared limit."""

    def rejection(self, request: Request) -> str | None:
        return None


def document(seed: int, release: str = "0.33.0") -> dict[str, Any]:
    """A random case and what the reference makes of it."""
    settings, rows, block = random_lmcache_case(random.Random(seed))
    add_block_ids(rows, block)
    rows.sort(key=lambda row: (row["arrival_s"], row["id"]))
    requests = [
        Request(
            row["id"], row["arrival_s"], row["input_tokens"], row["output_tokens"],
            row.get("max_output_tokens", row["output_tokens"]), BlockContent(row["id"], row["block_ids"], block),
            row.get("priority", 0), "max_output_tokens" not in row,
        )
        for row in rows
    ]  # fmt: skip
    offload = settings["offload"]
    tiers = (LmcacheTier(offload["capacity_tokens"], eviction=offload["eviction"]),)
    lmcache = LmcacheConfig(
        CopyLaw(*offload["to_host"]), CopyLaw(*offload["to_device"]), tiers, offload["chunk_tokens"],
        offload["save_decode"],
    )  # fmt: skip
    bare = {key: value for key, value in settings.items() if key not in ("offload", "max_model_len")}
    worker = _Worker(VllmConfig(**bare, rules=rules_of("vllm", release)), lmcache, recorded_law)
    done = drive(worker, requests)
    steps = [
        {
            "start_s": step.start_s,
            "scheduled_s": step.scheduled_s,
            "batch": [[entry.id, entry.computed, entry.new] for entry in step.batch],
            "preempted": step.preempted,
        }
        for step in done.steps
    ]
    copied = {"stored_tokens": worker.to_host.tokens, "loaded_tokens": worker.to_device.tokens}
    times = {"first_token_s": done.first_token_s, "finish_s": done.finish_s}
    stated = {"engine": f"vllm {release}", "config": settings, "step_latency_s": LAW, "requests": rows, "steps": steps}
    return stated | times | copied


@pytest.mark.parametrize("release", MODELLED["vllm"])
@pytest.mark.parametrize("seed", [2, 8, 16, 33, 45, 1051, 1068])
def test_every_step_is_simulated(seed: int, release: str, tmp_path: Path) -> None:
    path = tmp_path / "case.json"
    path.write_text(json.dumps(document(seed, release)))
    case = validate_recording(path)
    assert case.first_difference is None
    assert (case.ok, case.copied_equal) == (True, True)
    made = document(seed, release)
    path.write_text(json.dumps(made | {"loaded_tokens": made["loaded_tokens"] + 1}))
    assert validate_recording(path).copied_equal is False


def test_settings_of_another_connector_are_refused(tmp_path: Path) -> None:
    made = document(45)
    made["config"]["offload"]["store_threshold"] = 2
    path = tmp_path / "case.json"
    path.write_text(json.dumps(made))
    with pytest.raises(RecordingError, match="store_threshold: this setting is not simulated"):
        read_recording(path)
