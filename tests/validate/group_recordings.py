"""Recordings of models with several groups of KV blocks, made by the restatements."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from hypothesis import assume

from hisearch.record.workload import Row, add_block_ids
from tests.reference.recorded import recorded_law
from tests.reference.restatement.content import BlockContent
from tests.reference.restatement.recording import Recording, Request
from tests.reference.restatement.vllm import StuckError, drive
from tests.reference.restatement.vllm_groups import GroupsConfig, GroupsWorker
from tests.reference.restatement.vllm_states import StatesConfig, StatesWorker
from tests.validate.recordings import LAW

RELEASES = ("0.19.1", "0.33.0")

#: Settings, requests in order of arrival, and tokens of a block.
Drawn = tuple[dict[str, Any], list[Row], int]


def drawn(random_case: Callable[[random.Random], Drawn], seed: int) -> Drawn:
    """A random case."""
    settings, rows, block = random_case(random.Random(seed))
    add_block_ids(rows, block)
    rows.sort(key=lambda row: (row["arrival_s"], row["id"]))
    return settings, rows, block


def restated_config(settings: dict[str, Any], release: str) -> GroupsConfig:
    """The restatement's settings, of either kind of groups."""
    kind = StatesConfig if settings.get("mamba_groups") else GroupsConfig
    return kind.from_recording(settings, release)


def driven(
    settings: dict[str, Any], rows: list[Row], block: int, release: str, config: GroupsConfig | None = None
) -> tuple[GroupsWorker, Recording]:
    """The restated worker, and what it decided; ``config``: in place of the settings' own."""
    requests = [
        Request(
            row["id"], row["arrival_s"], row["input_tokens"], row["output_tokens"],
            row.get("max_output_tokens", row["output_tokens"]), BlockContent(row["id"], row["block_ids"], block),
            row.get("priority", 0), "max_output_tokens" not in row,
        )
        for row in rows
    ]  # fmt: skip
    config = config or restated_config(settings, release)
    if isinstance(config, StatesConfig):
        worker: GroupsWorker = StatesWorker(config, recorded_law)
    else:
        worker = GroupsWorker(config, recorded_law)
    return worker, drive(worker, requests)


def document(
    settings: dict[str, Any], rows: list[Row], block: int, release: str, config: GroupsConfig | None = None
) -> dict[str, Any]:
    """A case and what the restatement makes of it; skips those that an engine cannot serve."""
    try:
        _, done = driven(settings, rows, block, release, config)
    except (StuckError, ValueError):
        assume(False)
    steps = [
        {
            "start_s": step.start_s,
            "scheduled_s": step.scheduled_s,
            "batch": [[entry.id, entry.computed, entry.new] for entry in step.batch],
            "preempted": step.preempted,
        }
        for step in done.steps
    ]
    stated = {"engine": f"vllm {release}", "config": settings, "step_latency_s": LAW, "requests": rows, "steps": steps}
    return stated | {"first_token_s": done.first_token_s, "finish_s": done.finish_s}
