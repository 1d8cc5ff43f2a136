"""SGLang's load-back, layer by layer, against the rule by which its recordings price it.

The recorded rule: a step that loads back ends when both it and the copy have ended. The pipeline: layer i computes once
it has been copied and layer i - 1 has computed. docs/simulator.md has the closed form and the bound that these tests
are of.

Notation: b when the copy begins, C seconds of it, s when the step starts, S seconds of it, L layers alike.
"""

from __future__ import annotations

import pytest
from hypothesis import Phase, assume, find, given, settings
from hypothesis import strategies as st

from tests.reference.restatement.sglang_state import SglangConfig
from tests.reference_validation.test_hicache_laws import WORKERS, _requests, _run

SECONDS = st.floats(0.0, 10.0)


def pipeline_end_s(b: float, copy_s: float, s: float, step_s: float, layers: int) -> float:
    """Layer by layer."""
    end = s
    for layer in range(1, layers + 1):
        copied = b + layer * copy_s / layers
        end = max(end, copied) + step_s / layers
    return end


@given(b=SECONDS, copy_s=SECONDS, waits=SECONDS, step_s=SECONDS, layers=st.integers(1, 96))
@settings(max_examples=500, deadline=None, derandomize=True)
def test_the_pipeline_is_the_recorded_rule_up_to_one_layer(
    b: float, copy_s: float, waits: float, step_s: float, layers: int
) -> None:
    """For a copy that begins no later than its step."""
    s = b + waits
    end = pipeline_end_s(b, copy_s, s, step_s, layers)
    closed = max(s + step_s, b + copy_s / layers + step_s, b + copy_s + step_s / layers)
    assert end == pytest.approx(closed)
    recorded = max(s + step_s, b + copy_s)
    assert -1e-9 <= end - recorded <= max(copy_s, step_s) / layers + 1e-9


@given(seed=st.integers(0, 1000), config=WORKERS)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_a_load_back_begins_no_later_than_its_step(seed: int, config: SglangConfig) -> None:
    """The one before it is over when the step that waited for it ends, and this step starts no earlier."""
    recording = _run(config, _requests(seed, config))
    assume(recording is not None)
    assert recording is not None
    assert config.hicache is not None
    law = config.hicache.to_device
    for step in recording.steps:
        if step.load_back is not None:
            tokens, end_s = step.load_back
            assert end_s - (law.base_s + law.per_token_s * tokens) <= step.start_s + 1e-9


def test_random_workers_do_load_back() -> None:
    """Else the test above would say little."""

    def loads(example: tuple[int, SglangConfig]) -> bool:
        recording = _run(example[1], _requests(*example))
        return recording is not None and any(step.load_back is not None for step in recording.steps)

    search = settings(max_examples=150, deadline=None, derandomize=True, phases=[Phase.generate])
    find(st.tuples(st.integers(0, 1000), WORKERS), loads, settings=search)
