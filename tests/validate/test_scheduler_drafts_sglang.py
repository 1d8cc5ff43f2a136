"""Drafted tokens under SGLang: the kernels against their restatement, decisions and times; closed forms."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hisearch.latency.step_cost import step_seconds
from hisearch.record.drafts import LAW
from hisearch.record.sglang.drafts import random_draft_case
from hisearch.record.workload import add_block_ids
from hisearch.simulate.engine import simulate
from hisearch.validate.recorded_trace import compiled_trace
from hisearch.validate.recording import RecordingError, read_recording
from hisearch.validate.replay import recorded_law, worker_plan
from hisearch.validate.scheduler import validate_recording
from tests.kernels.systems import compiled_costs, draft_costs, examples, rugged_costs
from tests.reference.restatement.content import BlockContent
from tests.reference.restatement.recording import Recording, Request
from tests.reference.restatement.sglang import drive
from tests.reference.restatement.sglang_cache import OutOfMemoryError
from tests.reference.restatement.sglang_drafts import DraftCost, DraftsConfig, DraftsWorker

RELEASE = "0.5.23"


def write(path: Path, document: dict[str, Any]) -> Path:
    """The document as a file."""
    path.write_text(json.dumps(document))
    return path


def law(chunks: list[tuple[int, int]], decodes: list[int], sampling: int, drafted: int) -> float:
    """``LAW``."""
    del sampling
    return 0.005 + 2e-5 * (sum(new for new, _ in chunks) + len(decodes) + drafted)


def random_rows(seed: int) -> tuple[dict[str, Any], list[dict[str, Any]], int]:
    """A random case, as a recording holds it."""
    settings, rows, block = random_draft_case(random.Random(seed), RELEASE)
    add_block_ids(rows, block)
    rows.sort(key=lambda row: (row["arrival_s"], row["id"]))
    return settings, rows, block


def driven(settings: dict[str, Any], rows: list[dict[str, Any]], block: int, cost: DraftCost = law) -> Recording:
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
    worker = DraftsWorker(DraftsConfig.from_recording(settings, RELEASE), cost, places)
    assume(not any(map(worker.rejection, requests)))
    try:
        return drive(worker, requests)
    except (RuntimeError, OutOfMemoryError):
        assume(False)
        raise


def document(seed: int) -> dict[str, Any]:
    """A random case and what the restatement makes of it."""
    settings, rows, block = random_rows(seed)
    done = driven(settings, rows, block)
    steps = [
        {
            "start_s": step.start_s,
            "scheduled_s": step.scheduled_s,
            "kind": step.kind,
            "batch": [[entry.id, entry.computed, entry.new] for entry in step.batch],
            "retracted": step.preempted,
            "pool": list(step.pool),
        }
        for step in done.steps
    ]
    stated = {"engine": f"sglang {RELEASE}", "config": settings, "step_latency_s": LAW, "requests": rows}
    return stated | {"steps": steps, "first_token_s": done.first_token_s, "finish_s": done.finish_s}


@pytest.mark.property
@examples(100)
@given(seed=st.integers(0, 2**30))
def test_kernels_decide_as_the_restatement(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = write(tmp_path_factory.mktemp("drafts") / "case.json", document(seed))
    case = validate_recording(path)
    assert case.error is None
    assert case.ok, case.first_difference


@pytest.mark.property
@examples(40)
@given(seed=st.integers(0, 2**30), share=st.sampled_from([0.0, 0.05, 0.5]))
def test_steps_with_drafts_cost_what_the_plain_law_says(
    seed: int, share: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Verification, drafting and unequal contexts, over tables without any law in them."""
    settings, rows, block = random_rows(seed)
    costs = rugged_costs(seed % 50)
    costs = costs._replace(
        draft=draft_costs(rugged_costs(seed % 49 + 50), settings["speculation"]["draft_tokens"], share)
    )

    def cost(chunks: list[tuple[int, int]], decodes: list[int], sampling: int, drafted: int) -> float:
        return step_seconds(costs, chunks, decodes, sampling, drafted)

    done = driven(settings, rows, block, cost)
    stated = {"engine": f"sglang {RELEASE}", "config": settings, "step_latency_s": LAW, "requests": rows}
    recording = read_recording(write(tmp_path_factory.mktemp("drafts") / "case.json", stated))
    plan = replace(worker_plan(recording, recorded_law(recording)), costs=compiled_costs(costs))
    served = simulate(plan, compiled_trace(recording)).requests
    for place, row in enumerate(rows):
        assert served.first_token_s[place] == done.first_token_s[row["id"]]
        assert served.finish_s[place] == done.finish_s[row["id"]]


def _case(**speculation: Any) -> dict[str, Any]:
    """One request of 10 + 25 tokens, without overlap."""
    config = {
        "max_running_requests": 4, "max_total_tokens": 400, "page_size": 16, "block_ids_size": 16,
        "chunked_prefill_size": 2048, "max_prefill_tokens": 2048, "disable_overlap_schedule": True,
        "speculation": {"method": "eagle", "draft_tokens": 3, "accepted": [1.0, 1.0, 1.0], "seed": 0} | speculation,
    }  # fmt: skip
    rows = [{"id": "a", "arrival_s": 0.0, "input_tokens": 10, "output_tokens": 25, "block_ids": [0, 1]}]
    return {"engine": f"sglang {RELEASE}", "config": config, "step_latency_s": LAW, "requests": rows}


@pytest.mark.parametrize(("accepted", "steps"), [(1.0, 6), (0.0, 24)])
def test_drafts_that_are_all_accepted_save_steps_and_ones_that_never_are_do_not(
    accepted: float, steps: int, tmp_path: Path
) -> None:
    """Closed form: 24 / 4 steps with three drafts accepted, 24 with none."""
    recording = read_recording(write(tmp_path / "case.json", _case(accepted=[accepted] * 3)))
    served = simulate(worker_plan(recording, recorded_law(recording)), compiled_trace(recording)).requests
    assert (served.finish_s[0] - (0.005 + 2e-5 * 10)) / (0.005 + 2e-5 * 4) == pytest.approx(steps)


def test_a_pool_needs_room_for_two_steps_of_drafts_behind_a_request(tmp_path: Path) -> None:
    """The last step finds 33 of its 35 tokens computed, and needs 8 more: 41."""
    for tokens, served in ((41, True), (40, False)):
        case = _case()
        case["config"] |= {"max_total_tokens": tokens, "page_size": 1}
        recording = read_recording(write(tmp_path / f"{tokens}.json", case))
        result = simulate(worker_plan(recording, recorded_law(recording)), compiled_trace(recording))
        assert bool(result.requests.finished[0]) is served


@pytest.mark.parametrize("setting", ["enable_mixed_chunk", "enable_priority_scheduling"])
def test_what_is_not_simulated_beside_drafts_is_refused(setting: str, tmp_path: Path) -> None:
    case = _case()
    case["config"][setting] = True
    with pytest.raises(RecordingError, match=f"speculation beside {setting} is not simulated"):
        read_recording(write(tmp_path / "case.json", case))


def test_a_release_of_other_rules_is_refused(tmp_path: Path) -> None:
    recording = read_recording(write(tmp_path / "case.json", _case() | {"engine": "sglang 0.5.9"}))
    with pytest.raises(RecordingError, match=r"simulated by the rules of 0\.5\.23; this is 0\.5\.9"):
        worker_plan(recording, recorded_law(recording))
