"""A probe of another load stops as soon as its verdict is certain, and the verdict is that of the whole run."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hisearch.score.evaluate import evaluate
from hisearch.simulate.engine import EngineStuck, GiveUp
from hisearch.specs.studies.slo import SloSpec
from tests.kernels.systems import System, examples, systems, vllm_engines


@pytest.mark.slow
@examples(60)
@given(
    system=systems(vllm_engines(), repeats=True),
    bound_s=st.sampled_from([0.05, 0.3, 2.0]),
    percentile=st.sampled_from([50, 90]),
)
def test_a_run_given_up_would_have_missed_the_term(system: System, bound_s: float, percentile: int) -> None:
    slo = SloSpec.model_validate(
        {"terms": [{"metric": "ttft_s", "percentile": percentile, "at_most_s": bound_s}], "max_rejected_fraction": 0.99}
    )
    allowed = int(np.ceil(len(system.trace) * (1 - percentile / 100))) + 1
    try:
        full = system.simulate()
    except EngineStuck:  # requests that preempt each other for ever
        assume(False)
    cut = system.simulate(give_up=GiveUp(bound_s, allowed))
    assert evaluate(cut, slo).feasible == evaluate(full, slo).feasible
    late = int((full.requests.ttft_s > bound_s).sum())
    assert cut.horizon_reached == (late > allowed)
    if cut.horizon_reached:
        assert cut.makespan_s <= full.makespan_s


def test_nothing_is_given_up_by_default() -> None:
    assert GiveUp().ttft_s == pytest.approx(np.inf)
