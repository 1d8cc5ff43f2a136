"""Step costs in the kernels: bit for bit those of the plain-Python ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisearch.kernels.engine import cost
from hisearch.kernels.layout import sim as la
from hisearch.latency.costs import StepCosts
from hisearch.latency.knots import knots_up_to, tokens_knot
from hisearch.latency.step_cost import decode_step_seconds, knot_cell, step_seconds
from hisearch.simulate.arrays.costs import kernel_costs
from tests.kernels.systems import LAW, examples, rugged_costs

TABLES = st.integers(0, 20).map(rugged_costs) | st.just(LAW)
TOKENS = st.integers(0, 100) | st.integers(0, 100_000)


def test_knots_are_those_of_the_tables() -> None:
    assert [cost.knot(i) for i in range(200)] == [tokens_knot(i) for i in range(200)]
    assert [cost.knot(i) for i in range(17)] == [*range(16), 16]
    assert [cost.knot(i) for i in range(16, 26)] == [16, 18, 20, 22, 24, 26, 28, 30, 32, 36]


@pytest.mark.parametrize("length", [2, 3, 17, 90])
def test_cell_of_a_value_is_found_without_a_search(length: int) -> None:
    values = [*range(3000), *(tokens_knot(i) + step for i in range(2, 250) for step in (-1, 0, 1))]
    for value in values:
        cell = cost.cell(value, length - 1)
        assert cell == knot_cell(value, length)
        assert cost.knot(cell) <= value
        assert cell == length - 2 or value < cost.knot(cell + 1)


def test_dense_tables_go_on_with_their_last_slope() -> None:
    table = np.array([0.0, 1.0, 3.0])
    assert [cost.dense(table, x) for x in range(6)] == [0.0, 1.0, 3.0, 5.0, 7.0, 9.0]


def test_chunk_rates_stay_flat_beyond_their_table() -> None:
    law = StepCosts(0.0, 0.0, np.zeros(2), np.zeros(2), np.array([[1.0, 1.0], [3.0, 5.0]]), np.zeros((2, 2)))
    costs = kernel_costs(law)
    assert cost.chunk_seconds(costs, 1, 1, 1) == 1 * (1 + 1.0) * 5.0
    assert cost.chunk_seconds(costs, 7, 900, 7) == 7 * (900 + 4.0) * 5.0
    assert cost.chunk_seconds(costs, 1, 0, 1) == 1 * 1.0 * 3.0


def test_a_chunk_has_the_rate_of_the_mixed_step() -> None:
    rates = np.arange(1.0, 41.0)[:20, None] * np.ones(2)
    costs = kernel_costs(StepCosts(0.0, 0.0, np.zeros(2), np.zeros(2), rates, np.zeros((2, 2))))
    assert cost.chunk_seconds(costs, 3, 0, 3) == 3 * 2.0 * 4.0
    assert cost.chunk_seconds(costs, 3, 0, 15) == 3 * 2.0 * 16.0


def _requests(chunks: list[tuple[int, int, bool]], late: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Requests of a batch in mixed order: prompt chunks (new, cached, complete), and listed decodes by context."""
    rows = [(new, cached, la.PROMPT_ENDS if complete else la.PROMPT_GOES_ON) for new, cached, complete in chunks]
    for k, context in enumerate(late):
        rows.insert(2 * k, (1, context - 1, la.LISTED_DECODE))
    requests = np.zeros(len(rows) + 3, la.REQUEST)
    batch = np.arange(len(rows), dtype=np.int32)[::-1] + 3
    for r, (new, cached, kind) in zip(batch, rows, strict=True):
        requests[r]["chunk"], requests[r]["computed"], requests[r]["chunk_kind"] = new, cached, kind
    return requests.view(np.recarray), np.ascontiguousarray(batch)


@examples(300)
@given(
    tables=TABLES,
    chunks=st.lists(st.tuples(st.integers(1, 3000), TOKENS, st.booleans()), max_size=6),
    late=st.lists(st.integers(1, 5000), max_size=3),
    decodes=st.lists(st.integers(1, 5000), max_size=20),
)
def test_batch_costs_the_same_bits(
    tables: StepCosts, chunks: list[tuple[int, int, bool]], late: list[int], decodes: list[int]
) -> None:
    requests, batch = _requests(chunks, late)
    squares = sum(length * length for length in decodes)
    shape = (len(decodes), sum(decodes), max(decodes, default=0), squares)
    mine = max(cost.batch_cost(kernel_costs(tables), requests, batch, len(batch), *shape))
    sampling = len(late) + len(decodes) + sum(complete for _, _, complete in chunks)
    theirs = step_seconds(tables, [(new, cached) for new, cached, _ in chunks], [*late, *decodes], sampling)
    assert mine == theirs


@examples(200)
@given(
    tables=TABLES,
    start=st.floats(0.0, 1e6),
    sequences=st.integers(1, 40),
    context=st.integers(1, 30_000),
    longest=st.integers(1, 9_000),
    limit=st.integers(1, 400),
    share=st.floats(0.0, 1.5),
)
def test_fast_forward_equals_stepping(
    tables: StepCosts, start: float, sequences: int, context: int, longest: int, limit: int, share: float
) -> None:
    contexts = _contexts(sequences, context, longest)
    ends = [start]
    for step in range(limit):
        ends.append(ends[-1] + step_seconds(tables, [], [length + step for length in contexts]))
    costs = kernel_costs(tables)
    batch = (sequences, sum(contexts), max(contexts) * sequences - sum(contexts))
    assert cost.fast_forward(costs, start, np.inf, limit, *batch) == (limit, ends[-1])
    until = start + share * (ends[-1] - start)
    steps = next((k for k in range(1, limit + 1) if ends[k] >= until), limit)
    assert cost.fast_forward(costs, start, until, limit, *batch) == (steps, ends[steps])


def _contexts(sequences: int, context: int, longest: int) -> list[int]:
    """Contexts of about ``context`` tokens in all, the last of them ``longest`` tokens longer than the others."""
    return [1 + context // sequences] * (sequences - 1) + [1 + context // sequences + longest]


@examples(100)
@given(tables=TABLES, sequences=st.integers(1, 40), context=st.integers(1, 30_000))
def test_token_wise_and_attention_make_a_decode_step(tables: StepCosts, sequences: int, context: int) -> None:
    costs = kernel_costs(tables)
    even = cost.token_wise(costs, sequences, sequences, sequences)
    assert even + cost.decode_seconds(tables.decode_s, sequences, context) == decode_step_seconds(
        tables, sequences, context
    )
    assert cost.decode_step_seconds(costs, sequences, context, 0) == decode_step_seconds(tables, sequences, context)


def test_knots_cover_what_tables_are_asked_for() -> None:
    for limit in (1, 2, 15, 16, 17, 1000):
        knots = knots_up_to(limit)
        assert knots[-1] >= limit
        assert cost.cell(limit, len(knots) - 1) == len(knots) - 2
