"""Many steps at once cost what each does."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hisearch.latency.costs import StepCosts
from hisearch.latency.many_steps import Stacked
from hisearch.latency.step_cost import step_seconds
from tests.kernels.systems import LAW, rugged_costs

TABLES = st.integers(0, 20).map(rugged_costs) | st.just(LAW)
CHUNKS = st.tuples(st.integers(1, 40_000), st.integers(0, 200_000), st.integers(0, 600), st.integers(1, 200_000))


@given(TABLES, st.lists(st.lists(st.integers(1, 200_000), max_size=40), min_size=1, max_size=8))
def test_many_decode_steps_cost_what_each_does(costs: StepCosts, batches: list[list[int]]) -> None:
    sequences = np.array([len(batch) for batch in batches])
    context = np.array([sum(batch) for batch in batches])
    longest = np.array([max(batch, default=0) for batch in batches])
    expected = [step_seconds(costs, (), batch) if batch else 0.0 for batch in batches]
    np.testing.assert_allclose(Stacked([costs]).decode_steps(sequences, context, longest)[:, 0], expected, rtol=1e-9)


@given(TABLES, st.lists(CHUNKS, min_size=1, max_size=20))
def test_many_prompt_chunks_cost_what_each_does(costs: StepCosts, steps: list[tuple[int, int, int, int]]) -> None:
    expected = [step_seconds(costs, [(new, cached)], [reads] * n) for new, cached, n, reads in steps]
    np.testing.assert_allclose(Stacked([costs]).chunk_steps(*np.array(steps).T)[:, 0], expected, rtol=1e-9)
