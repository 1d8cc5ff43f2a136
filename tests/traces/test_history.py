"""Conversations whose tokens alone are known: what their prompts are taken to share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from hisearch.cli.main import app
from hisearch.specs.workloads.workload import TraceFileSpec
from hisearch.traces.history import with_history
from hisearch.traces.importers import read_trace
from hisearch.traces.load import load_trace_file
from hisearch.traces.models import RequestModels
from hisearch.traces.reading.errors import TraceError
from hisearch.traces.stats import trace_stats
from hisearch.traces.trace import make_trace

#: Three turns, the last one shorter than what went before; a request by itself.
TABLE = """ts,chat,prompt,answer
0,c1,100,20
10,c1,150,30
11,c2,500,10
20,c1,90,10
30,c1,105,5
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    (tmp_path / "own.csv").write_text(TABLE)
    return tmp_path / "own.csv"


COLUMNS = {"arrival_s": "ts", "input_tokens": "prompt", "output_tokens": "answer", "session": "chat"}


def test_turns_that_are_long_enough_begin_with_the_turn_before_them(table: Path) -> None:
    trace = read_trace(table, TraceFileSpec(path=str(table), columns=COLUMNS, history=True))
    assert trace.shared_tokens.tolist() == [0, 120, 0, 0, 100]
    assert trace.shares_with.tolist() == [-1, 0, -1, -1, 3]
    assert any("2 of 3 follow-ups" in text for text in trace.warnings)


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 20), st.integers(0, 3)), min_size=2, max_size=40))
def test_what_is_shared_is_the_turn_before_or_nothing(rows: list[tuple[int, int, int]]) -> None:
    last: dict[int, int] = {}
    previous = []
    for k, (_, _, session) in enumerate(rows):
        previous.append(last.get(session, -1))
        last[session] = k
    inputs, outputs = [row[0] for row in rows], [row[1] for row in rows]
    models = RequestModels(("a", "b"), np.array([k % 2 for k in range(len(rows))], np.int32))
    trace = make_trace(
        arrival_s=range(len(rows)), input_tokens=inputs, output_tokens=outputs, previous=previous, models=models
    )
    if max(previous) < 0:
        with pytest.raises(ValueError, match="no request follows another"):
            with_history(trace)
        return
    made = with_history(trace)
    for k, before in enumerate(previous):
        whole = before >= 0 and (k - before) % 2 == 0 and inputs[k] >= inputs[before] + outputs[before]
        assert made.shares_with[k] == (before if whole else -1)
        assert made.shared_tokens[k] == (inputs[before] + outputs[before] if whole else 0)


def test_an_imported_history_is_found_in_the_written_file_and_hits(table: Path, tmp_path: Path) -> None:
    columns = ",".join(f"{ours}={theirs}" for ours, theirs in COLUMNS.items())
    plain, whole = tmp_path / "plain.jsonl", tmp_path / "whole.jsonl"
    for out, more in ((plain, []), (whole, ["--history"])):
        ran = CliRunner().invoke(app, ["trace", "import", str(table), "-o", str(out), "--columns", columns, *more])
        assert ran.exit_code == 0, ran.output
    assert trace_stats(load_trace_file(plain)).ideal_hit_rate == 0.0
    statistics = trace_stats(load_trace_file(whole))
    assert statistics.ideal_hit_tokens == 100 + 90  # of earlier prompts; answers are not counted there
    cautions = load_trace_file(plain).cautions
    assert any("67 % of the 3 follow-ups are long enough to hold the turn before them" in text for text in cautions)
    with pytest.raises(TraceError, match="history: the trace says itself what its prompts share"):
        read_trace(whole, TraceFileSpec(path=str(whole), history=True))


def test_few_turns_that_are_long_enough_are_called_few(table: Path) -> None:
    table.write_text(TABLE.replace("20,c1,90,10", "20,c1,90,200"))
    cautions = load_trace_file(table, columns=COLUMNS).cautions
    assert any("only 33 % of the 3 follow-ups are long enough" in text and "--history" in text for text in cautions)
    table.write_text(TABLE.replace("10,c1,150,30", "10,c1,15,300").replace("20,c1,90,10", "20,c1,90,200"))
    cautions = load_trace_file(table, columns=COLUMNS).cautions
    assert not any("--history" in text for text in cautions)


def test_without_conversations_there_is_no_history(table: Path) -> None:
    columns = {ours: theirs for ours, theirs in COLUMNS.items() if ours != "session"}
    with pytest.raises(TraceError, match="no request follows another: name the conversations"):
        read_trace(table, TraceFileSpec(path=str(table), columns=columns, history=True))
