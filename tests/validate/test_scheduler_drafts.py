"""Drafted tokens under vLLM: the kernels against their restatement, decisions and times; recordings of them."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hisearch.latency.costs import CompiledCosts
from hisearch.latency.step_cost import step_seconds
from hisearch.record.drafts import LAW
from hisearch.record.vllm_drafts import random_draft_case
from hisearch.record.workload import add_block_ids
from hisearch.simulate.engine import simulate
from hisearch.validate.recorded_trace import compiled_trace
from hisearch.validate.recording import RecordingError, read_recording
from hisearch.validate.replay import recorded_law, worker_plan
from hisearch.validate.scheduler import validate_recording
from tests.kernels.systems import compiled_costs, draft_costs, examples, rugged_costs
from tests.reference.restatement.content import BlockContent
from tests.reference.restatement.recording import Recording, Request
from tests.reference.restatement.vllm import StuckError, drive
from tests.reference.restatement.vllm_drafts import DraftCost, DraftsConfig, DraftsWorker

RELEASES = ("0.19.1", "0.33.0")


def write(path: Path, document: dict[str, Any]) -> Path:
    """The document as a file."""
    path.write_text(json.dumps(document))
    return path


def law(chunks: list[tuple[int, int]], decodes: list[int], sampling: int, drafted: int) -> float:
    """``LAW``."""
    del sampling
    return 0.005 + 2e-5 * (sum(new for new, _ in chunks) + len(decodes) + drafted)


def driven(
    settings: dict[str, Any], rows: list[dict[str, Any]], block: int, release: str, cost: DraftCost = law
) -> Recording:
    """What the restatement decides; skips what an engine cannot serve."""
    requests = [
        Request(
            row["id"], row["arrival_s"], row["input_tokens"], row["output_tokens"],
            row.get("max_output_tokens", row["output_tokens"]), BlockContent(row["id"], row["block_ids"], block),
            row.get("priority", 0), "max_output_tokens" not in row,
        )
        for row in rows
    ]  # fmt: skip
    places = {row["id"]: place for place, row in enumerate(rows)}
    try:
        return drive(DraftsWorker(DraftsConfig.from_recording(settings, release), cost, places), requests)
    except (StuckError, ValueError):
        assume(False)
        raise


def document(seed: int, release: str) -> dict[str, Any]:
    """A random case and what the restatement makes of it."""
    settings, rows, block = random_draft_case(random.Random(seed))
    add_block_ids(rows, block)
    rows.sort(key=lambda row: (row["arrival_s"], row["id"]))
    done = driven(settings, rows, block, release)
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


@pytest.mark.property
@examples(100)
@given(seed=st.integers(0, 2**30), release=st.sampled_from(RELEASES))
def test_kernels_decide_as_the_restatement(seed: int, release: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = write(tmp_path_factory.mktemp("drafts") / "case.json", document(seed, release))
    case = validate_recording(path)
    assert case.error is None
    assert case.ok, case.first_difference


@pytest.mark.property
@examples(40)
@given(seed=st.integers(0, 2**30), share=st.sampled_from([0.0, 0.05, 0.5]))
def test_steps_with_drafts_cost_what_the_plain_law_says(
    seed: int, share: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Verification, drafting, mixed steps and unequal contexts, over tables without any law in them."""
    settings, rows, block = random_draft_case(random.Random(seed))
    add_block_ids(rows, block)
    rows.sort(key=lambda row: (row["arrival_s"], row["id"]))
    costs = rugged_costs(seed % 50)
    costs = costs._replace(
        draft=draft_costs(rugged_costs(seed % 49 + 50), settings["speculation"]["draft_tokens"], share)
    )

    def cost(chunks: list[tuple[int, int]], decodes: list[int], sampling: int, drafted: int) -> float:
        return step_seconds(costs, chunks, decodes, sampling, drafted)

    done = driven(settings, rows, block, "0.33.0", cost)
    stated = {"engine": "vllm 0.33.0", "config": settings, "step_latency_s": LAW, "requests": rows}
    recording = read_recording(write(tmp_path_factory.mktemp("drafts") / "case.json", stated))
    priced: CompiledCosts = compiled_costs(costs)
    plan = replace(worker_plan(recording, recorded_law(recording)), costs=priced)
    served = simulate(plan, compiled_trace(recording)).requests
    for place, row in enumerate(rows):
        assert served.first_token_s[place] == done.first_token_s[row["id"]]
        assert served.finish_s[place] == done.finish_s[row["id"]]


def test_drafts_that_are_all_accepted_save_steps_and_ones_that_never_are_do_not(tmp_path: Path) -> None:
    """Closed form, one request of 1 + 24 tokens: 24 / 4 steps with three drafts accepted, 24 with none."""
    steps = {}
    for name, accepted in (("all", [1.0, 1.0, 1.0]), ("none", [0.0, 0.0, 0.0])):
        config = {
            "max_num_seqs": 4, "max_tokens": 64, "num_blocks": 20, "block_size": 16,
            "speculation": {"method": "eagle", "draft_tokens": 3, "accepted": accepted, "seed": 0},
        }  # fmt: skip
        rows = [{"id": "a", "arrival_s": 0.0, "input_tokens": 10, "output_tokens": 25, "block_ids": [0, 1]}]
        stated = {"engine": "vllm 0.33.0", "config": config, "step_latency_s": LAW, "requests": rows}
        recording = read_recording(write(tmp_path / f"{name}.json", stated))
        law_s = 0.005 + 2e-5 * 4
        finish_s = float(
            simulate(worker_plan(recording, recorded_law(recording)), compiled_trace(recording)).requests.finish_s[0]
        )
        steps[name] = (finish_s - (0.005 + 2e-5 * 10)) / law_s
    assert steps["all"] == pytest.approx(6)
    assert steps["none"] == pytest.approx(24)


def test_acceptance_must_be_given_for_each_draft(tmp_path: Path) -> None:
    config = {
        "max_num_seqs": 4, "max_tokens": 64, "num_blocks": 20, "block_size": 16,
        "speculation": {"method": "eagle", "draft_tokens": 3, "accepted": [0.5], "seed": 0},
    }  # fmt: skip
    rows = [{"id": "a", "arrival_s": 0.0, "input_tokens": 10, "output_tokens": 25, "block_ids": [0, 1]}]
    stated = {"engine": "vllm 0.33.0", "config": config, "step_latency_s": LAW, "requests": rows}
    with pytest.raises(RecordingError, match="accepted has 1 entries; expected draft_tokens, 3"):
        read_recording(write(tmp_path / "case.json", stated))
