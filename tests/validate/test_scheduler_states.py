"""``validate scheduler`` on recordings of models with linear attention, made by the restatement."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisearch.record.vllm_random import random_state_case
from hisearch.simulate.engine import simulate
from hisearch.validate.recorded_trace import compiled_trace
from hisearch.validate.recording import RecordingError, read_recording
from hisearch.validate.replay import recorded_law, worker_plan
from hisearch.validate.scheduler import validate_recording
from tests.kernels.systems import examples
from tests.reference.restatement.vllm import StuckError
from tests.reference.restatement.vllm_states import StatesConfig
from tests.validate.group_recordings import RELEASES, Drawn, document, driven, restated_config
from tests.validate.group_recordings import drawn as drawn_of

pytestmark = pytest.mark.slow


def drawn(seed: int, release: str = "0.33.0") -> Drawn:
    """A random case with states, as ``record vllm --with states`` draws it under ``release``."""
    settings, rows, block = drawn_of(random_state_case, seed)
    if release == "0.19.1":
        settings["mamba_prefill_checkpoints"] = False
        settings["prefix_cache_retention_interval"] = None
        if settings["long_prefill_token_threshold"]:
            settings["long_prefill_token_threshold"] = max(settings["long_prefill_token_threshold"], block)
    return settings, rows, block


@pytest.mark.property
@examples(150)
@given(seed=st.integers(0, 10**6), release=st.sampled_from(RELEASES))
def test_every_step_is_simulated(tmp_path_factory: pytest.TempPathFactory, seed: int, release: str) -> None:
    path = tmp_path_factory.mktemp("states") / "case.json"
    path.write_text(json.dumps(document(*drawn(seed, release), release)))
    case = validate_recording(path)
    assert case.first_difference is None
    assert case.ok


@pytest.mark.property
@examples(60)
@given(seed=st.integers(0, 10**6), release=st.sampled_from(RELEASES), full=st.integers(1, 3), states=st.integers(1, 5))
def test_any_number_of_groups_equals_the_restatement(
    tmp_path_factory: pytest.TempPathFactory, seed: int, release: str, full: int, states: int
) -> None:
    settings, rows, block = drawn(seed, release)
    settings["num_blocks"] *= full + states
    config = replace(restated_config(settings, release), windows=(0,) * full, states=states)
    path = tmp_path_factory.mktemp("groups") / "case.json"
    made = document(settings, rows, block, release, config)
    path.write_text(json.dumps(made))
    recording = read_recording(path)
    plan = worker_plan(recording, recorded_law(recording))
    assert plan.groups is not None
    groups = replace(plan.groups, full=full, states=states)
    result = simulate(replace(plan, groups=groups), compiled_trace(recording))
    for name in ("first_token_s", "finish_s"):
        times = [made[name][row.id] for row in recording.requests]
        np.testing.assert_allclose(getattr(result.requests, name), times, atol=2e-9)
    assert int(result.requests.preemptions.sum()) == sum(len(step["preempted"]) for step in made["steps"])


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("seed", [3, 8, 12, 16])
def test_blocks_are_conserved(seed: int, release: str) -> None:
    """Once all requests have ended the pool is free, and look-ups find no block twice."""
    worker, done = driven(*drawn(seed, release), release)
    assert done.finish_s
    assert len(worker.pool.free) == worker.pool.usable_blocks
    worker.pool.check()


def alone(release: str, input_tokens: int, **settings: Any) -> list[int]:
    """Tokens of the chunks of a prompt that is served alone, in blocks of 8 and steps of 64."""
    given = {"num_blocks": 64, "block_size": 8, "max_num_seqs": 1, "max_tokens": 64, "mamba_groups": 3} | settings
    blocks = list(range(input_tokens // 8))
    row = {"id": "r", "arrival_s": 0.0, "input_tokens": input_tokens, "output_tokens": 1, "block_ids": blocks}
    _, done = driven(given, [row], 8, release)
    return [entry.new for step in done.steps for entry in step.batch]


def test_chunks_end_where_states_do() -> None:
    """A prompt of whole blocks keeps the state at its end before 0.32, and the one a block before since."""
    assert alone("0.19.1", 100) == [64, 32, 4]
    assert alone("0.19.1", 96) == [64, 32]
    assert alone("0.33.0", 96) == [64, 24, 8]
    # Where kernels export it, no chunk has to end there.
    assert alone("0.33.0", 100, mamba_prefill_checkpoints=True) == [64, 36]
    # Without prefix caching only the budget cuts.
    assert alone("0.33.0", 100, prefix=False) == [64, 36]
    # A block that no step holds is filled by several.
    assert alone("0.31.0", 20, block_size=16, max_tokens=6) == [6, 6, 4, 4]


def test_without_prefix_caching_states_take_a_block_a_group() -> None:
    """A pool of a request's pages and as many blocks as groups serves it; one block less does not."""
    settings = {"block_size": 8, "max_num_seqs": 1, "max_tokens": 16, "mamba_groups": 3, "prefix": False}
    row = {"id": "r", "arrival_s": 0.0, "input_tokens": 8, "output_tokens": 33, "block_ids": [1]}
    _, done = driven(settings | {"num_blocks": 1 + 5 + 3}, [row], 8, "0.33.0")
    assert sum(entry.new for step in done.steps for entry in step.batch) == 40
    with pytest.raises(ValueError, match="more than the pool"):
        driven(settings | {"num_blocks": 5 + 3}, [row], 8, "0.33.0")


def test_a_state_of_the_same_pass_is_waited_for() -> None:
    """Two equal prompts at once: the second is admitted a step later, and finds what the first computed."""
    settings = {"num_blocks": 64, "block_size": 8, "max_num_seqs": 4, "max_tokens": 256, "mamba_groups": 1}
    rows = [
        {"id": name, "arrival_s": 0.0, "input_tokens": 33, "output_tokens": 2, "block_ids": [1, 2, 3, 4]}
        for name in ("a", "b")
    ]
    _, done = driven(settings, rows, 8, "0.19.1")
    assert [(entry.id, entry.computed, entry.new) for entry in done.steps[0].batch] == [("a", 0, 32)]
    assert ("b", 32, 1) in [(entry.id, entry.computed, entry.new) for entry in done.steps[1].batch]


def test_settings_that_no_engine_has_are_refused(tmp_path: Path) -> None:
    made = document(*drawn(8), "0.33.0")
    path = tmp_path / "case.json"
    for more, said in (
        ({"hybrid_window": 64}, "mamba_groups beside"),
        ({"offload": {"connector": "offload"}}, "offload"),
        ({"prefix": True, "chunked_prefill": False}, "needs chunked_prefill"),
    ):
        path.write_text(json.dumps(made | {"config": made["config"] | more}))
        with pytest.raises(RecordingError, match=said):
            read_recording(path)


def test_cases_come_across_every_rule() -> None:
    seen = Counter[str]()
    for seed in range(40):
        settings, rows, block = drawn(seed)
        try:
            worker, done = driven(settings, rows, block, "0.33.0")
        except (StuckError, ValueError):
            continue
        assert isinstance(worker.config, StatesConfig)
        seen["prefix" if settings["prefix"] else "none"] += 1
        seen["checkpoints"] += worker.config.checkpoints and settings["prefix"]
        seen["preempted"] += any(step.preempted for step in done.steps)
        seen["hits"] += bool(np.any(list(done.reused_tokens.values())))
    assert min(seen[what] for what in ("prefix", "none", "checkpoints", "preempted", "hits")) >= 5
