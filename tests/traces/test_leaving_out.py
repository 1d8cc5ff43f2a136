"""Requests that are too long, left out of a trace: what the others share stays, against token sequences compared."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisearch.traces.changes.leaving_out import without_long
from hisearch.traces.trace import Trace, make_trace

SEQUENCES = st.lists(st.lists(st.integers(0, 1), min_size=2, max_size=9), min_size=1, max_size=14)


def common(a: list[int], b: list[int]) -> int:
    """Equal leading tokens."""
    return next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def trace_of(sequences: list[list[int]], previous: list[int]) -> Trace:
    """A trace of sequences: all but the last token of each is its prompt."""
    shares_with, shared = [], []
    for number, sequence in enumerate(sequences):
        tokens, other = max(((common(sequence, sequences[k]), -k) for k in range(number)), default=(0, 1))
        shares_with.append(-other if tokens else -1)
        shared.append(tokens)
    count = len(sequences)
    return make_trace(
        arrival_s=np.arange(count, dtype=float),
        input_tokens=[len(sequence) - 1 for sequence in sequences],
        output_tokens=np.ones(count),
        previous=previous,
        shares_with=shares_with,
        shared_tokens=shared,
    )


@given(SEQUENCES, st.integers(2, 9), st.data())
def test_what_is_left_shares_what_its_tokens_have_in_common(
    sequences: list[list[int]], most: int, data: st.DataObject
) -> None:
    previous = [data.draw(st.integers(-1, number - 1)) if number else -1 for number in range(len(sequences))]
    out: list[bool] = []
    for sequence, before in zip(sequences, previous, strict=True):
        out.append(len(sequence) > most or (before >= 0 and out[before]))
    trace = trace_of(sequences, previous)
    if all(out):
        with pytest.raises(ValueError, match="every request has more than"):
            without_long(trace, most)
        return
    left = without_long(trace, most)
    kept = [number for number, gone in enumerate(out) if not gone]
    assert left.request_ids == [str(number) for number in kept]
    assert left.previous.tolist() == [kept.index(previous[k]) if previous[k] >= 0 else -1 for k in kept]
    for place, number in enumerate(kept):
        best = max((common(sequences[number], sequences[other]) for other in kept[:place]), default=0)
        assert left.shared_tokens[place] == best
        if best:
            assert common(sequences[number], sequences[kept[left.shares_with[place]]]) >= best


def test_a_trace_within_the_window_stays_as_it_is() -> None:
    trace = trace_of([[1, 2, 3], [1, 2]], [-1, -1])
    assert without_long(trace, 3) is trace
    assert "left out 1 request of more than 2 tokens" in without_long(trace, 2).warnings[-1]
    follow = trace_of([[1, 2, 3], [1, 2], [4, 5]], [-1, 0, -1])
    assert without_long(follow, 2).warnings[-1] == "left out 1 request of more than 2 tokens, and 1 turn after them"
