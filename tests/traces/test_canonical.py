"""hisearch's own file format: what is read and refused, and lossless writing."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_importers import read, refused
from test_tree import traces

from hisearch.traces.reading.canonical import write_trace
from hisearch.traces.reading.errors import TraceError
from hisearch.traces.trace import make_trace

HEADER = {"format": "hisearch-trace", "version": 1, "block_tokens": 4}
ROW = {"id": "a", "arrival_s": 0.0, "input_tokens": 6, "output_tokens": 3}


def assert_equal(actual, expected):
    for column in dataclasses.fields(actual)[:14]:
        np.testing.assert_array_equal(getattr(actual, column.name), getattr(expected, column.name), err_msg=column.name)


@given(trace=traces(), ending=st.sampled_from([".jsonl", ".jsonl.gz", ".parquet"]))
@settings(max_examples=40, deadline=None)
def test_round_trip(trace, ending, tmp_path_factory):
    path = tmp_path_factory.mktemp("t") / f"trace{ending}"
    write_trace(trace, path)
    assert_equal(read(path), trace)
    first = path.read_bytes()
    write_trace(trace, path)
    assert path.read_bytes() == first


def test_all_fields(write):
    rows = [
        HEADER | {"open_loop": True},
        ROW | {"session": "s", "tenant": "ann", "priority": 2, "max_output_tokens": 9},
        ROW | {"id": "b", "arrival_s": 2.5, "previous": "a", "think_s": 1.5, "session": "s", "tenant": "bob",
               "shares_with": "a", "shared_tokens": 9, "input_tokens": 12},
    ]  # fmt: skip
    trace = read(write("t.jsonl", rows))
    assert trace.open_loop
    assert trace.request_ids == ["a", "b"]
    assert trace.max_output_tokens.tolist() == [9, 3]
    assert trace.previous.tolist() == [-1, 0]
    assert trace.think_s.tolist() == [0.0, 1.5]
    assert trace.session.tolist() == [0, 0]
    assert trace.tenant.tolist() == [0, 1]
    assert trace.priority.tolist() == [2, 0]
    assert trace.shared_tokens.tolist() == [0, 9]


def test_block_and_token_ids(write):
    blocks = [
        HEADER,
        ROW | {"block_ids": [1, 2]},
        ROW | {"id": "b", "block_ids": [1, 2, 3], "known_tokens": 9},
        ROW | {"id": "c", "block_ids": [1]},
    ]
    trace = read(write("t.jsonl", blocks))
    assert trace.shared_tokens.tolist() == [0, 6, 4]
    tokens = [
        HEADER,
        ROW | {"token_ids": [1, 2, 3, 4, 5, 6], "output_token_ids": [7, 8, 9]},
        ROW | {"id": "b", "input_tokens": 8, "token_ids": [1, 2, 3, 4, 5, 6, 7, 0]},
    ]
    assert read(write("u.jsonl", tokens)).shared_tokens.tolist() == [0, 7]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"speed": 1}, "speed: unknown field"),
        ({"id": "a"}, "id: 'a' was used before"),
        ({"previous": "z"}, "previous: expected the id of an earlier request, got 'z'"),
        ({"think_s": 1.0}, "think_s: expected previous beside it"),
        ({"arrival_s": None}, "arrival_s: missing"),
        ({"arrival_s": -1.0}, "arrival_s: expected at least 0"),
        ({"max_output_tokens": 2}, "max_output_tokens: expected at least 3"),
        ({"shares_with": "a", "shared_tokens": 10}, "shared_tokens: expected a whole number up to 9, got 10"),
        ({"shares_with": "a"}, "shared_tokens: missing"),
        ({"block_ids": [1, 2], "known_tokens": 4}, "block_ids: expected 1 ids for 4 tokens, got 2"),
        ({"token_ids": [1]}, "token_ids: expected 6 token ids, got 1"),
        ({"token_ids": [1] * 6, "block_ids": [1, 2]}, "token_ids: expected one of shares_with, block_ids, token_ids"),
        ({"session": "s"}, "session: expected in all rows, or in none"),
        ({"priority": -1}, "priority: expected at least 0"),
    ],
)
def test_refused_rows(write, row, message):
    path = write("t.jsonl", [HEADER, ROW, ROW | {"id": "b"} | row])
    assert f"t.jsonl:3: {message}" in refused(path)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"version": 2}, "version: expected 1"),
        ({"open_loop": "yes"}, "open_loop: expected true or false"),
        ({"block_token": 16}, "block_token: unknown key of the header; known: format, version, block_tokens"),
        ({"format": "other"}, "format: expected 'hisearch-trace' in the file's header"),
    ],
)
def test_refused_headers(write, header, message):
    assert f"t.jsonl:1: {message}" in refused(write("t.jsonl", [HEADER | header, ROW]), format="hisearch")


def test_parquet_without_our_header_and_broken_parquet(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"input_tokens": [1]}), path)
    assert "expected 'hisearch-trace' in the file's header" in refused(path, format="hisearch")
    assert "no column looks like arrival_s or output_tokens" in refused(path)
    path.write_bytes(b"PAR1 and no more")
    assert "not a readable parquet file" in refused(path)


def test_writing_needs_a_known_ending_and_distinct_ids(tmp_path):
    trace = make_trace(arrival_s=[0.0, 1.0], input_tokens=[1, 1], output_tokens=[1, 1], request_ids=["a", "a"])
    with pytest.raises(TraceError, match=r"expected a name ending in \.jsonl"):
        write_trace(dataclasses.replace(trace, request_ids=["a", "b"]), tmp_path / "t.csv")
    with pytest.raises(TraceError, match="two requests have the id"):
        write_trace(trace, tmp_path / "t.jsonl")
