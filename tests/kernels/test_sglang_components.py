"""SGLang with a pool for windows or states: kernels against the restatement, on random cases, every step and time."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisearch.record.sglang.states import random_state_case
from hisearch.record.sglang.windows import random_window_case
from hisearch.record.workload import add_block_ids
from hisearch.validate.difference import first_difference
from hisearch.validate.recording import EngineRecording, RecordingError, read_recording
from hisearch.validate.replay import recorded_law, simulated_run
from tests.kernels.systems import examples
from tests.reference.restated import restated_run

LAW = "0.005 + 2e-5*Σnew + 1e-9*Σ new*(computed+(new+1)/2)"


CASES = {"windows": random_window_case, "states": random_state_case}


def drawn(kind: str, seed: int, folder: Path) -> EngineRecording:
    """Settings and requests of a random case, without an engine's decisions."""
    config, rows, block = CASES[kind](random.Random(seed), "0.5.23")
    # What the kernels do not have.
    if config.get("mamba_radix_cache_strategy") == "extra_buffer_lazy":
        config["mamba_radix_cache_strategy"] = "extra_buffer"
        config["max_mamba_cache_size"] += config["max_running_requests"]
    config.pop("mamba_max_states_per_path", None)
    add_block_ids(rows, block)
    document = {"engine": "sglang 0.5.23", "config": config, "step_latency_s": LAW, "requests": rows}
    path = folder / f"{seed}.json"
    path.write_text(json.dumps(document))
    return read_recording(path)


def compare(kind: str, seed: int, folder: Path) -> str:
    """``equal``, or why the case has no answer: the engine fails on it, and so do both."""
    recording = drawn(kind, seed, folder)
    law = recorded_law(recording)
    try:
        restated = restated_run(recording, law)
    except RecordingError as failure:
        return str(failure)
    run = simulated_run(recording, law)
    difference = first_difference(recording, restated, run)
    assert difference is None, f"seed {seed}: {difference.what}"
    assert run.finish_s == pytest.approx(restated.finish_s, abs=1e-9)
    assert run.reused_tokens is not None
    assert restated.reused_tokens is not None
    assert np.array_equal(restated.reused_tokens, run.reused_tokens)
    return "equal"


@pytest.mark.parametrize("kind", CASES)
@given(seed=st.integers(0, 1 << 30))
@examples(40)
def test_random_cases_are_restated(kind: str, seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    compare(kind, seed, tmp_path_factory.mktemp(kind))
