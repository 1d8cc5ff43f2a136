"""The plain-Python step cost: notation, interpolation, extrapolation, the recorded law, and the kernels' same bits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hisearch.kernels.engine import cost as kernel_cost
from hisearch.latency.costs import StepCosts
from hisearch.latency.knots import knots_up_to, tokens_knot
from hisearch.latency.step_cost import bilinear, decode_step_seconds, dense_lookup, knot_cell, law_costs, step_seconds

chunks = st.lists(st.tuples(st.integers(1, 20_000), st.integers(0, 200_000)), max_size=6)
decodes = st.lists(st.integers(1, 200_000), max_size=40)


def random_costs(seed: int) -> StepCosts:
    rng = np.random.default_rng(seed)
    tokens, contexts = len(knots_up_to(4096)), len(knots_up_to(100_000))
    return StepCosts(
        host_s=float(rng.random()),
        host_per_sequence_s=float(rng.random()),
        token_s=rng.random(4097),
        sequence_s=rng.random(65),
        chunk_rate=rng.random((tokens, contexts)),
        decode_s=rng.random((len(knots_up_to(64)), contexts)),
    )


COSTS = random_costs(0)


@given(st.integers(0, 10**7))
def test_cell_holds_the_value(value):
    length = len(knots_up_to(10**7))
    i = knot_cell(value, length)
    assert tokens_knot(i) <= value
    assert value < tokens_knot(i + 1) or i == length - 2


@given(st.integers(0, 4095), st.integers(0, 99_999))
def test_bilinear_reproduces_bilinear_functions(x, y):
    kx, ky = knots_up_to(4096).astype(float), knots_up_to(100_000).astype(float)
    table = 3.0 + 2.0 * kx[:, None] + 0.5 * ky[None, :] + 0.25 * kx[:, None] * ky[None, :]
    expected = 3.0 + 2.0 * x + 0.5 * y + 0.25 * x * y
    assert bilinear(table, x, y, extrapolate=True) == pytest.approx(expected)


def test_beyond_the_table():
    table = np.array([[1.0, 2.0], [3.0, 5.0]])
    assert bilinear(table, 9, 9, extrapolate=False) == 5.0
    assert bilinear(table, 0, 3, extrapolate=True) == 4.0
    assert dense_lookup(np.array([0.0, 1.0, 3.0]), 5) == 9.0


def test_terms_of_the_notation():
    unit = np.ones((2, 2))
    costs = StepCosts(10.0, 1.0, np.array([0.0, 0.1]), np.array([0.0, 0.01]), unit * 1e-3, np.zeros((3, 2)))
    # 2 chunks and 1 decode: 3 sequences, 5 + 1 + 1 tokens, one sampling; pairs 5 * (10 + 3) + 1 * (0 + 1).
    expected = 10.0 + 3.0 + 0.7 + 0.01 + (65.0 + 1.0) * 1e-3
    assert step_seconds(costs, [(5, 10), (1, 0)], [100], sampling=1) == pytest.approx(expected)


@given(chunks, decodes)
def test_recorded_law_is_exact(batch, contexts):
    costs = law_costs(0.005, 2e-5, 1e-9)
    tokens = sum(new for new, _ in batch) + len(contexts)
    pairs = sum(new * (cached + (new + 1) / 2) for new, cached in batch) + sum(contexts)
    expected = 0.005 + 2e-5 * tokens + 1e-9 * pairs
    assert step_seconds(costs, batch, contexts) == pytest.approx(expected, rel=1e-12)


@given(decodes)
def test_a_decode_step_needs_only_totals(contexts):
    assert decode_step_seconds(COSTS, len(contexts), sum(contexts)) == step_seconds(COSTS, [], contexts)


@settings(deadline=None)
@given(chunks, decodes, st.integers(0, 3))
def test_kernels_give_the_same_bits(batch, contexts, unfinished):
    sequences = len(batch) + len(contexts)
    sampling = sequences - min(unfinished, len(batch))
    tokens = sum(new for new, _ in batch) + len(contexts)
    total = COSTS.host_s + COSTS.host_per_sequence_s * sequences
    total += kernel_cost.dense(COSTS.token_s, tokens)
    total += kernel_cost.dense(COSTS.sequence_s, sampling)
    for new, cached in batch:
        total += kernel_cost.chunk_seconds(COSTS, new, cached, tokens - len(contexts))
    if contexts:
        total += kernel_cost.decode_seconds(COSTS.decode_s, len(contexts), sum(contexts))
    assert step_seconds(COSTS, batch, contexts, sampling) == total
