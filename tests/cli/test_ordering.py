"""Traces in order of time: the same requests, the same content."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hisearch.traces.changes.ordering import in_arrival_order
from hisearch.traces.compiler import compile_trace
from hisearch.traces.trace import Trace, make_trace
from tests.traces.trace_reference import common_prefix, sequences_of


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Small traces whose requests stand in any order of time."""
    count = draw(st.integers(1, 10))
    length = st.integers(1, 6)
    inputs, outputs = [draw(st.lists(length, min_size=count, max_size=count)) for _ in range(2)]
    previous, shares_with, shared = [], [], []
    for i in range(count):
        previous.append(draw(st.integers(-1, i - 1)))
        shares_with.append(draw(st.integers(-1, i - 1)))
        other = shares_with[-1]
        longest = min(inputs[i] + outputs[i], inputs[other] + outputs[other]) if other >= 0 else 0
        shared.append(draw(st.integers(0, longest)))
    times = st.integers(0, 5).map(float)
    return make_trace(
        arrival_s=draw(st.lists(times, min_size=count, max_size=count)),
        input_tokens=inputs,
        output_tokens=outputs,
        previous=previous,
        think_s=[1.0 if before >= 0 else 0.0 for before in previous],
        shares_with=shares_with,
        shared_tokens=shared,
        open_loop=draw(st.booleans()),
    )


@given(trace=traces())
@settings(max_examples=150, deadline=None)
def test_nothing_but_the_order_changes(trace: Trace) -> None:
    ordered = in_arrival_order(trace)
    where = [trace.request_ids.index(name) for name in ordered.request_ids]
    assert sorted(where) == list(range(len(trace)))
    for column in ("arrival_s", "input_tokens", "output_tokens", "think_s", "session", "max_output_tokens"):
        np.testing.assert_array_equal(getattr(ordered, column), getattr(trace, column)[where], err_msg=column)
    for new, old in enumerate(where):
        before = int(ordered.previous[new])
        assert (where[before] if before >= 0 else -1) == trace.previous[old]
    first, second = sequences_of(trace), sequences_of(ordered)
    for a in range(len(where)):
        for b in range(len(where)):
            assert common_prefix(second[a], second[b]) == common_prefix(first[where[a]], first[where[b]])


@given(trace=traces())
@settings(max_examples=100, deadline=None)
def test_first_turns_are_in_order_of_time_and_the_trace_compiles_the_same(trace: Trace) -> None:
    ordered = in_arrival_order(trace)
    first_turns = ordered.arrival_s[ordered.previous < 0]
    assert (np.diff(first_turns) >= 0).all()
    assert in_arrival_order(ordered) is ordered
    if not trace.open_loop:
        assert compile_trace(ordered, "x").digest == compile_trace(trace, "x").digest


def test_an_order_that_was_not_recorded_is_refused() -> None:
    trace = make_trace(
        arrival_s=[0.0, np.nan], input_tokens=[1, 1], output_tokens=[1, 1], previous=[-1, 0], think_s=[0.0, np.nan]
    )
    with pytest.raises(ValueError, match="think times"):
        in_arrival_order(trace)
