"""``validate scheduler`` on recordings of models with sliding windows, made by the restatement."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hisearch.record.vllm_random import random_window_case
from hisearch.simulate.engine import EngineStuck, simulate
from hisearch.validate.recorded_trace import compiled_trace
from hisearch.validate.recording import RecordingError, read_recording
from hisearch.validate.replay import recorded_law, simulated_run, worker_plan
from hisearch.validate.scheduler import validate_recording
from tests.kernels.systems import examples
from tests.reference.restatement.vllm import StuckError
from tests.reference.restatement.vllm_groups import GroupsConfig
from tests.validate.group_recordings import RELEASES, Drawn, document, driven
from tests.validate.group_recordings import drawn as drawn_of
from tests.validate.recordings import LAW

pytestmark = pytest.mark.slow


def drawn(seed: int) -> Drawn:
    """A random case with windows."""
    return drawn_of(random_window_case, seed)


@pytest.mark.property
@examples(150)
@given(seed=st.integers(0, 10**6), release=st.sampled_from(RELEASES))
def test_every_step_is_simulated(tmp_path_factory: pytest.TempPathFactory, seed: int, release: str) -> None:
    path = tmp_path_factory.mktemp("windows") / "case.json"
    path.write_text(json.dumps(document(*drawn(seed), release)))
    case = validate_recording(path)
    assert case.first_difference is None
    assert case.ok


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("seed", [3, 8, 12])
def test_blocks_are_conserved(seed: int, release: str) -> None:
    """Once all requests have ended the pool is free, and look-ups find no block twice."""
    worker, done = driven(*drawn(seed), release)
    assert done.finish_s
    assert len(worker.pool.free) == worker.pool.usable_blocks


def test_a_window_frees_what_left_it() -> None:
    """Alone and with a window of two blocks, a long answer is served from few blocks; full attention needs all."""
    settings = {"num_blocks": 12, "block_size": 8, "max_num_seqs": 1, "max_tokens": 16, "sliding_window": 16}
    row = {"id": "r", "arrival_s": 0.0, "input_tokens": 8, "output_tokens": 400, "block_ids": [1]}
    _, done = driven(settings, [row], 8, "0.33.0")
    assert sum(entry.new for step in done.steps for entry in step.batch) == 8 + 400 - 1
    with pytest.raises(ValueError, match="more than the pool"):
        driven({**settings, "sliding_window": 0, "hybrid_window": 16}, [row], 8, "0.33.0")


def test_a_queue_whose_first_never_fits_is_said(tmp_path: Path) -> None:
    """Two blocks of each group: the window's part of a prompt fits in the check by its end, not by its chunks."""
    settings = {
        "num_blocks": 8, "block_size": 8, "max_num_seqs": 1, "max_tokens": 256, "hybrid_window": 200,
        "scheduler_reserve_full_isl": False,
    }  # fmt: skip
    row = {"id": "r", "arrival_s": 0.0, "input_tokens": 40, "output_tokens": 2, "block_ids": [1, 2, 3, 4, 5]}
    with pytest.raises(StuckError):
        driven(settings, [row], 8, "0.33.0")
    made = {"engine": "vllm 0.33.0", "config": settings, "step_latency_s": LAW, "requests": [row]}
    path = tmp_path / "case.json"
    path.write_text(json.dumps(made | {"steps": [], "first_token_s": {"r": 1.0}, "finish_s": {"r": 1.0}}))
    recording = read_recording(path)
    with pytest.raises((RecordingError, EngineStuck), match=r"serve|token"):
        simulated_run(recording, recorded_law(recording))


def test_both_kinds_and_offloading_are_refused(tmp_path: Path) -> None:
    made = document(*drawn(8), "0.33.0")
    path = tmp_path / "case.json"
    for more, said in (
        ({"sliding_window": 64, "hybrid_window": 64}, "the only group"),
        ({"offload": {"connector": "offload"}}, "offload"),
    ):
        path.write_text(json.dumps(made | {"config": made["config"] | more}))
        with pytest.raises(RecordingError, match=said):
            read_recording(path)


def test_cases_have_both_kinds_and_preempt() -> None:
    """What the random cases are to come across."""
    seen = Counter()
    for seed in range(40):
        settings, rows, block = drawn(seed)
        seen["hybrid" if "hybrid_window" in settings else "alone"] += 1
        try:
            _, done = driven(settings, rows, block, "0.33.0")
        except (StuckError, ValueError):
            continue
        seen["preempted"] += any(step.preempted for step in done.steps)
        seen["hits"] += bool(np.any(list(done.reused_tokens.values())))
    assert min(seen[what] for what in ("hybrid", "alone", "preempted", "hits")) >= 5


@pytest.mark.property
@examples(100)
@given(
    seed=st.integers(0, 10**6), release=st.sampled_from(RELEASES), full=st.integers(0, 2), windowed=st.integers(1, 4)
)
def test_any_number_of_groups_equals_the_restatement(
    tmp_path_factory: pytest.TempPathFactory, seed: int, release: str, full: int, windowed: int
) -> None:
    """As models have it whose kinds of layers are not as many: Gemma 3 has one full group and six with a window."""
    settings, rows, block = drawn(seed)
    window = settings.get("hybrid_window") or settings["sliding_window"]
    settings = settings | {"num_blocks": 1 + settings["num_blocks"] * (full + windowed)}
    config = replace(GroupsConfig.from_recording(settings, release), windows=(0,) * full + (window,) * windowed)
    try:
        _, done = driven(settings, rows, block, release, config)
    except (StuckError, ValueError):
        assume(False)
    path = tmp_path_factory.mktemp("groups") / "case.json"
    stated = {"engine": f"vllm {release}", "config": settings, "step_latency_s": LAW, "requests": rows}
    times = {"first_token_s": done.first_token_s, "finish_s": done.finish_s}
    path.write_text(json.dumps(stated | {"steps": []} | times))
    recording = read_recording(path)
    plan = worker_plan(recording, recorded_law(recording))
    assert plan.groups is not None
    groups = replace(plan.groups, full=full, windowed=windowed)
    result = simulate(replace(plan, groups=groups), compiled_trace(recording))
    names = [row.id for row in recording.requests]
    np.testing.assert_allclose(result.requests.first_token_s, [done.first_token_s[name] for name in names], atol=2e-9)
    np.testing.assert_allclose(result.requests.finish_s, [done.finish_s[name] for name in names], atol=2e-9)
    assert int(result.requests.preemptions.sum()) == sum(len(step.preempted) for step in done.steps)
