"""``validate scheduler`` on small recordings that the restatements make, and on tampered ones."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hisearch.validate.difference import equal_steps, first_difference
from hisearch.validate.recording import read_recording
from hisearch.validate.replay import recorded_law, simulated_run
from hisearch.validate.scheduler import SchedulerCase, validate_recording, validate_recordings
from hisearch.validate.step_law import parse_step_law
from tests.reference.restated import restated_run, without_cache
from tests.reference.restatement.content import BlockContent
from tests.reference.restatement.recording import Request
from tests.reference.restatement.vllm import VllmConfig, VllmWorker
from tests.validate.recordings import CASES, LAW, SGLANG, VLLM, Made, make, requests


def _validate(made: Made, folder: Path, **options: Any) -> SchedulerCase:
    return validate_recording(made.write(folder / "case.json.gz"), **options)


@pytest.mark.parametrize("name", CASES)
def test_equal_recording_has_no_difference(recordings: Callable[[str], Made], name: str, tmp_path: Path) -> None:
    made = recordings(name)
    case = _validate(made, tmp_path)
    assert case.first_difference is None
    assert case.ok
    assert case.steps == case.simulated_steps == case.equal_steps == len(made.document["steps"])
    assert case.requests == len(made.document["requests"])
    assert case.first_token_max_error_s is not None
    assert case.first_token_max_error_s < 1e-9
    assert case.finish_max_error_s is not None
    assert case.finish_max_error_s < 1e-9
    assert case.reused_equal is (True if name.startswith("sglang") else None)
    lost = sum(len(step.get("preempted", [])) + len(step.get("retracted", [])) for step in made.document["steps"])
    assert case.preempted == case.simulated_preempted == lost


def test_cases_are_not_idle(recordings: Callable[[str], Made]) -> None:
    """What the test above compares has preemptions and prefix hits in it."""
    document = recordings("vllm").document
    assert sum(len(step["preempted"]) for step in document["steps"]) > 5
    first = {}
    for step in document["steps"]:
        for name, computed, _ in step["batch"]:
            first.setdefault(name, computed)
    assert sum(computed > 0 for computed in first.values()) > 3


def _more_tokens(step: dict[str, Any]) -> None:
    step["batch"][0][2] += 1


def _more_computed(step: dict[str, Any]) -> None:
    step["batch"][-1][1] += 4


def _other_order(step: dict[str, Any]) -> None:
    step["batch"].reverse()


def _shorter_batch(step: dict[str, Any]) -> None:
    step["batch"].pop()


def _lost(step: dict[str, Any]) -> None:
    step["preempted"] = [step["batch"][0][0]]


def _later(step: dict[str, Any]) -> None:
    step["start_s"] += 2e-6


def _formed_later(step: dict[str, Any]) -> None:
    step["scheduled_s"] += 2e-6


@pytest.mark.parametrize(
    ("name", "tamper", "differs", "words"),
    [
        ("vllm", _more_tokens, ["batch"], "from the engine"),
        ("vllm", _more_computed, ["batch"], "the engine has computed"),
        ("vllm", _other_order, ["batch"], "another order, from place 1 on"),
        ("vllm", _shorter_batch, ["batch"], "the simulation goes on with"),
        ("vllm", _lost, ["lost"], "the engine preempts"),
        ("vllm", _later, ["start_s"], "0.000002000 s earlier"),
        ("vllm_async", _formed_later, ["scheduled_s"], "the simulated step is formed"),
    ],
)
def test_first_difference_is_at_the_tampered_step(
    recordings: Callable[[str], Made],
    name: str,
    tamper: Callable[[dict[str, Any]], None],
    differs: list[str],
    words: str,
    tmp_path: Path,
) -> None:
    made = recordings(name)
    steps = made.document["steps"]
    # A step of decodes without a preemption, and one behind it, which must not be the one that is reported.
    calm = [k for k, step in enumerate(steps) if k > 40 and _decodes(step) and len(step["batch"]) > 2]
    at, behind = calm[0], calm[-1]
    original = json.loads(json.dumps(steps[at]))
    tamper(steps[at])
    _later(steps[behind])
    case = _validate(made, tmp_path)
    assert not case.ok
    assert case.equal_steps == len(steps) - 2
    difference = case.first_difference
    assert difference is not None
    assert difference.step == at
    assert difference.differs == differs
    assert words in difference.what
    assert difference.engine is not None
    assert difference.simulated is not None
    assert difference.engine["batch"] == steps[at]["batch"]
    assert difference.simulated["batch"] == original["batch"]
    assert difference.simulated["start_s"] == pytest.approx(original["start_s"], abs=1e-12)


def _decodes(step: dict[str, Any]) -> bool:
    return not step["preempted"] and all(tokens == 1 for _, _, tokens in step["batch"])


def test_missing_and_extra_steps_are_differences(recordings: Callable[[str], Made], tmp_path: Path) -> None:
    made = recordings("vllm")
    steps = made.document["steps"]
    count = len(steps)
    last = steps.pop()
    short = _validate(made, tmp_path)
    steps += [last, {"start_s": 99.0, "batch": [["r000", 3, 1]], "preempted": []}]
    long = _validate(made, tmp_path)
    for case, at, differs in ((short, count - 1, ["extra"]), (long, count, ["missing"])):
        assert not case.ok
        assert (case.equal_steps, case.simulated_steps) == (at, count)
        assert case.first_difference is not None
        assert (case.first_difference.step, case.first_difference.differs) == (at, differs)
    assert short.first_difference is not None
    assert short.first_difference.engine is None
    assert long.first_difference is not None
    assert long.first_difference.simulated is None


def test_a_wrong_token_time_is_a_difference_without_a_step(recordings: Callable[[str], Made], tmp_path: Path) -> None:
    made = recordings("vllm")
    made.document["first_token_s"]["r007"] += 0.25
    made.document["finish_s"]["r003"] += 0.5
    case = _validate(made, tmp_path)
    assert case.equal_steps == case.steps
    assert case.first_difference is None
    assert case.first_token_max_error_s == pytest.approx(0.25)
    assert case.finish_max_error_s == pytest.approx(0.5)
    assert not case.ok


def test_another_pool_shows_an_admission_in_words(recordings: Callable[[str], Made], tmp_path: Path) -> None:
    made = recordings("vllm")
    made.document["config"] = VLLM | {"num_blocks": 40}
    case = _validate(made, tmp_path)
    assert case.first_difference is not None
    assert "the simulation leaves it waiting" in case.first_difference.what
    assert case.finish_max_error_s is not None
    assert case.finish_max_error_s > 0.005


def test_a_request_that_is_never_served_has_no_error(recordings: Callable[[str], Made], tmp_path: Path) -> None:
    made = recordings("vllm")
    made.document["config"] = VLLM | {"num_blocks": 20}
    case = _validate(made, tmp_path)
    assert (case.first_token_max_error_s, case.finish_max_error_s, case.ok) == (None, None, False)


@pytest.mark.parametrize("name", ["vllm", "vllm_async", "vllm_priority"])
def test_state_is_that_of_the_engine(recordings: Callable[[str], Made], name: str, tmp_path: Path) -> None:
    """Queues and progress before the differing step, against the restated engine itself, driven there."""
    made = recordings(name)
    steps = made.document["steps"]
    at = next(k for k, step in enumerate(steps) if k > 60 and step["preempted"])
    steps[at]["batch"].reverse()
    for entry in steps[at]["batch"]:
        entry[2] += 1
    case = _validate(made, tmp_path)
    assert case.first_difference is not None
    assert case.first_difference.step == at
    state = case.first_difference.state
    worker, clock_s = _driven(made, tmp_path, at)
    assert state["clock_s"] == pytest.approx(clock_s, abs=1e-12)
    live = {request.request.id: request for request in (*worker.running, *worker.waiting)}
    assert set(state["running"]) == {request.request.id for request in worker.running}
    assert set(state["waiting"]) == {request.request.id for request in worker.waiting}
    assert set(state["requests"]) >= {entry[0] for entry in steps[at]["batch"]}
    for request_id, request_state in state["requests"].items():
        request = live[request_id]
        assert request_state["known"] == request.known
        assert request_state["in_flight"] == request.in_flight
        assert request_state["computed"] == request.computed
        assert request_state["preemptions"] == request.preemptions
    json.dumps(dataclasses.asdict(case))


def _driven(made: Made, folder: Path, steps: int) -> tuple[VllmWorker, float]:
    """The restated engine right before it forms its step of that number, and the clock."""
    recording = read_recording(made.write(folder / "driven.json"))
    law = parse_step_law(LAW)

    def cost(chunks: list[tuple[int, int]], decodes: list[int], sampling: int) -> float:
        return law.seconds([*chunks, *((1, context) for context in decodes)])

    worker = VllmWorker(VllmConfig.from_recording(recording.settings.model_dump(), recording.version), cost)
    pending = [
        Request(
            row.id, row.arrival_s, row.input_tokens, row.output_tokens, row.output_tokens,
            BlockContent(row.id, row.block_ids, recording.block_tokens), row.priority,
        )
        for row in recording.requests
    ]  # fmt: skip
    now, formed = 0.0, 0
    while True:
        if not worker.has_work:
            now = max(now, pending[0].arrival_s)
        while pending and pending[0].arrival_s <= now:
            worker.receive(pending.pop(0))
        if formed == steps:
            return worker, now
        step = worker.form(now)
        formed += step is not None
        if step is None or len(worker.outstanding) == worker.most_outstanding:
            now = worker.outstanding[0].step.end_s
            worker.process()


@pytest.mark.parametrize("name", CASES)
def test_alone_needs_no_steps_and_hits_nothing(recordings: Callable[[str], Made], name: str, tmp_path: Path) -> None:
    made = recordings(name)
    for key in ("steps", "first_token_s", "finish_s", "step_latency_s", "reused_tokens"):
        made.document.pop(key, None)
    if name.startswith("sglang") and name != "sglang_context":
        made.document["config"]["hicache"] = {"hicache_ratio": 2.0}
    recording, law = _alone(made, tmp_path, 0.01)
    run, restated = simulated_run(recording, law), restated_run(recording, law)
    assert first_difference(recording, restated, run) is None
    assert equal_steps(restated, run) == len(run.steps) == len(restated.steps)
    assert run.reused_tokens is not None
    assert not run.reused_tokens.any()
    assert {round(step.end_s - step.start_s, 9) for step in run.steps} == {0.01}


def _alone(made: Made, folder: Path, step_s: float) -> tuple[Any, Any]:
    return without_cache(read_recording(made.write(folder / "alone.json"))), parse_step_law(str(step_s))


def test_alone_separates_schedulers(recordings: Callable[[str], Made], tmp_path: Path) -> None:
    recording, law = _alone(recordings("vllm"), tmp_path, 0.02)
    settings = recording.settings.model_copy(update={"max_num_seqs": 3})
    other = dataclasses.replace(recording, settings=settings)
    difference = first_difference(recording, restated_run(recording, law), simulated_run(other, law))
    assert difference is not None
    assert "the simulation leaves it waiting" in difference.what


def test_integer_ids_and_ties_follow_their_order(tmp_path: Path) -> None:
    rows = requests()
    for row in rows:
        row["id"] = int(row["id"][1:])
        row["arrival_s"] = 0.0
    made = make(VLLM, tmp_path, rows)
    assert made.document["steps"][0]["batch"][0][0] == 0
    assert _validate(made, tmp_path).ok


def test_unknown_keys_of_requests_are_reported(recordings: Callable[[str], Made], tmp_path: Path) -> None:
    made = recordings("vllm")
    made.document["requests"][3]["session"] = 7
    case = _validate(made, tmp_path)
    assert case.ignored == ("session",)
    assert case.ok


def test_one_bad_file_ends_nothing(recordings: Callable[[str], Made], tmp_path: Path) -> None:
    good = recordings("vllm").write(tmp_path / "good.json.gz")
    tiers = recordings("sglang")
    tiers.document["config"]["hicache"] = {}
    paths = [tmp_path / "absent.json", tmp_path, tiers.write(tmp_path / "tiers.json"), good]
    cases = list(validate_recordings(paths))
    assert [case.file for case in cases] == list(map(str, paths))
    assert [case.ok for case in cases] == [False, False, False, True]
    assert ["absent.json: no such file" in (cases[0].error or ""), cases[3].error] == [True, None]
    assert "expected a file, found a folder" in (cases[1].error or "")
    assert "config: hicache.hicache_ratio: required, and missing" in (cases[2].error or "")
    assert (cases[2].steps, cases[2].equal_steps, cases[2].first_difference) == (None, 0, None)


def test_law_of_the_recording_is_read(recordings: Callable[[str], Made], tmp_path: Path) -> None:
    """Twice as slow a law: same first step, other times from the second on."""
    made = recordings("vllm")
    made.document["step_latency_s"] = "0.010 + 4e-5*sum(new) + 2e-9*sum(new*(computed+(new+1)/2))"
    assert recorded_law(read_recording(made.write(tmp_path / "law.json"))) == (0.010, 4e-5, 2e-9)
    case = _validate(made, tmp_path)
    assert case.first_difference is not None
    assert case.first_difference.step == 1


def test_sglang_settings_reach_the_simulation(tmp_path: Path) -> None:
    """Prompts are cut at the chunk, or not at all where it is -1."""
    for size, largest in ((16, 16), (-1, 40)):
        config = SGLANG | {"chunked_prefill_size": size, "disable_overlap_schedule": True}
        rows = [{"id": "a", "arrival_s": 0.0, "input_tokens": 40, "output_tokens": 2, "block_ids": list(range(10))}]
        made = make(config, tmp_path, rows)
        assert max(tokens for step in made.document["steps"] for _, _, tokens in step["batch"]) == largest
        assert _validate(made, tmp_path).ok
