"""SGLang's windows and states: the restatement repeats what the engine decides, on fresh cases, where the engine is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.engines.environments import ENGINES, NoEngineError, record
from tests.reference.recorded import load_recording, recorded_law
from tests.reference.restatement import sglang_states, sglang_windows
from tests.reference.restatement.content import BlockContent
from tests.reference.restatement.recording import Recording, Request

TIME_TOLERANCE_S = 1.001e-9
ENGINE = ENGINES["sglang-0.5.23"]
CASES, SEED = 12, 300


def _replayed(document: dict[str, Any], feature: str) -> Recording:
    config = document["config"]
    requests = [
        Request(
            row["id"], row["arrival_s"], row["input_tokens"], row["output_tokens"],
            row.get("max_output_tokens", row["output_tokens"]),
            BlockContent(row["id"], row["block_ids"], config["block_ids_size"]), row.get("priority", 0),
            "max_output_tokens" not in row,
        )
        for row in document["requests"]
    ]  # fmt: skip
    if feature == "windows":
        windows = sglang_windows.WindowsConfig.from_recording(config, ENGINE.version)
        return sglang_windows.replay(windows, requests, recorded_law)
    states = sglang_states.StatesConfig.from_recording(config, ENGINE.version)
    return sglang_states.replay(states, requests, recorded_law)


def _assert_equal(document: dict[str, Any], feature: str, name: str) -> None:
    restated = _replayed(document, feature)
    for index, (expected, step) in enumerate(zip(document["steps"], restated.steps, strict=False)):
        where = f"{name}, step {index}"
        lost = [*expected.get("preempted", []), *expected.get("retracted", [])]
        assert [[entry.id, entry.computed, entry.new] for entry in step.batch] == expected["batch"], where
        assert (step.kind, list(step.pool), step.preempted) == (expected["kind"], expected["pool"], lost), where
        scheduled_s = expected.get("scheduled_s", expected["start_s"])
        times = (step.start_s, step.scheduled_s, step.ratio)
        assert times == pytest.approx((expected["start_s"], scheduled_s, expected["ratio"]), abs=TIME_TOLERANCE_S), (
            where
        )
    assert len(document["steps"]) == len(restated.steps), name
    assert restated.reused_tokens == document["reused_tokens"], name
    assert restated.first_token_s == pytest.approx(document["first_token_s"], abs=TIME_TOLERANCE_S), name
    assert restated.finish_s == pytest.approx(document["finish_s"], abs=TIME_TOLERANCE_S), name


@pytest.mark.slow
@pytest.mark.parametrize("feature", ["windows", "states"])
def test_fresh_recordings_are_reproduced(feature: str, tmp_path: Path) -> None:
    if not ENGINE.is_there():
        pytest.skip(f"NOT CHECKED: no {ENGINE.title}; run `make test-engines`, or set {ENGINE.variable} to its Python")
    try:
        record(ENGINE, tmp_path, "--random", str(CASES), "--seed", str(SEED), "--with", feature)
    except NoEngineError as error:
        pytest.skip(f"NOT CHECKED: {error}")
    recordings = sorted(tmp_path.glob("*.json.gz"))
    # The engine fails on some cases with windows by its own fault.
    assert len(recordings) >= (0.75 if feature == "windows" else 1) * CASES
    for path in recordings:
        _assert_equal(load_recording(path), feature, path.name)
