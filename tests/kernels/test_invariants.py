"""The state of a run, checked wherever it stops, with and without a host tier; TensorRT-LLM's: test_trtllm_state."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kernels.invariants import check, check_at_rest, host_tokens_held, run_until
from tests.kernels.systems import System, crowded, examples, sglang_engines, systems, vllm_engines

_ENGINES = {"vllm": vllm_engines(), "sglang": sglang_engines()}


@pytest.mark.parametrize("host", [False, True], ids=["hbm", "host_tier"])
@pytest.mark.parametrize("name", _ENGINES)
def test_state_is_consistent_wherever_a_run_stops(name: str, host: bool) -> None:
    @examples(80)
    @given(system=systems(_ENGINES[name], repeats=True, host=host), stop=st.floats(0.0, 1.0))
    def check_stops(system: System, stop: float) -> None:
        finished = run_until(system)
        check_at_rest(finished)
        for w in range(system.workers if host else 0):
            assert host_tokens_held(finished, w) <= system.plan.host_capacity_tokens
        check(run_until(system, stop * float(max(finished.workers["event_s"]))))

    check_stops()


@pytest.mark.parametrize("name", _ENGINES)
def test_state_is_consistent_while_memory_is_short(name: str) -> None:
    @examples(40)
    @given(system=crowded(name), stop=st.floats(0.0, 1.0))
    def check_stops(system: System, stop: float) -> None:
        finished = run_until(system)
        check_at_rest(finished)
        check(run_until(system, stop * float(max(finished.workers["event_s"]))))

    check_stops()
