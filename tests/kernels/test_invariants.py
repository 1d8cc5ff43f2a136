"""The state of a run, checked wherever it stops, SGLang's with a host tier too; TensorRT-LLM's: test_trtllm_state.

Requests of vLLM's connectors hold pages while they load and after they have finished, which is not checked here.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisearch.kernels.layout import sim as la
from tests.kernels import tier_invariants
from tests.kernels.invariants import check, check_at_rest, run_until
from tests.kernels.systems import System, crowded, examples, sglang_engines, systems, vllm_engines
from tests.kernels.tier_systems import TieredSystem, chains, limited_stores, tiered

_ENGINES = {"vllm": vllm_engines(), "sglang": sglang_engines(version=None)}


@pytest.mark.parametrize(("name", "host"), [("vllm", False), ("sglang", False), ("sglang", True)])
def test_state_is_consistent_wherever_a_run_stops(name: str, host: bool) -> None:
    @examples(80)
    @given(system=systems(_ENGINES[name], repeats=True, host=host), stop=st.floats(0.0, 1.0))
    def check_stops(system: System, stop: float) -> None:
        finished = run_until(system)
        halfway = run_until(system, stop * float(max(finished.workers["event_s"])))
        if finished.config.hicache:
            tier_invariants.check_at_rest(finished)
            tier_invariants.check(halfway)
            return
        check_at_rest(finished)
        check(halfway)

    check_stops()


@examples(200)
@given(
    system=tiered(st.none() | limited_stores(), most_workers=4, mixed=False),
    stop=st.floats(0.0, 1.0),
)
def test_tiers_are_consistent_wherever_a_run_stops(system: TieredSystem, stop: float) -> None:
    finished = run_until(system)
    tier_invariants.check_at_rest(finished)
    tier_invariants.check(run_until(system, stop * float(max(finished.workers["event_s"]))))


@examples(60)
@given(system=tiered(limited_stores(), most_workers=4, mixed=False, versions=("0.5.23",)))
def test_fetches_end_where_pages_are_evicted_behind_their_queries(system: TieredSystem) -> None:
    """From 0.5.20 on a query's hits are read some passes later, by when other workers may have had them evicted."""
    assert set(run_until(system).requests["outcome"].tolist()) <= {la.FINISHED, la.TOO_LARGE}


@examples(200)
@given(system=chains(most_workers=4, mixed=False), stop=st.floats(0.0, 1.0))
def test_chains_of_stores_are_consistent_wherever_a_run_stops(system: TieredSystem, stop: float) -> None:
    finished = run_until(system)
    tier_invariants.check_at_rest(finished)
    tier_invariants.check(run_until(system, stop * float(max(finished.workers["event_s"]))))


@pytest.mark.parametrize("name", _ENGINES)
def test_state_is_consistent_while_memory_is_short(name: str) -> None:
    @examples(40)
    @given(system=crowded(name), stop=st.floats(0.0, 1.0))
    def check_stops(system: System, stop: float) -> None:
        finished = run_until(system)
        check_at_rest(finished)
        check(run_until(system, stop * float(max(finished.workers["event_s"]))))

    check_stops()
