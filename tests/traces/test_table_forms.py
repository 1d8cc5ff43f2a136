"""Tables as people have them: separators, commas, blanks, order, columns of other names, containers."""

from __future__ import annotations

import datetime
import json

import pytest
from test_importers import read, refused

from hisearch.traces.importers import detect_format
from hisearch.traces.reading.columns import format_columns, propose_columns

MAPPED = {"arrival_s": "ts", "input_tokens": "prompt", "output_tokens": "answer"}
OWN = "arrival_s,input_tokens,output_tokens,session,tenant,think_s,id\n"


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_separators(write, separator):
    text = "ts,prompt,answer\n0.5,10,2\n1.5,11,3\n".replace(",", separator)
    trace = read(write("t.csv", text), columns=MAPPED)
    assert trace.arrival_s.tolist() == [0.0, 1.0]
    assert any("columns separated by" in note for note in trace.notes) == (separator != ",")


def test_what_spreadsheets_write(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text('\ufeffsep=;\nts;prompt;"answer";\n0,5;10;2;\n1,5;11;3;\n;;;\n', encoding="utf-8")
    trace = read(path, columns=MAPPED)
    assert trace.arrival_s.tolist() == [0.0, 1.0]
    assert trace.input_tokens.tolist() == [10, 11]
    path.write_bytes("ts,prompt\n0,1\n".encode("utf-16"))
    assert "found UTF-16: save it as UTF-8" in refused(path)


def test_cells_that_may_be_blank(write):
    trace = read(write("t.csv", OWN + "0,10,5,a,,,x\n1,10,5,,ann,,\n2,20,5,a,,3,y\n3,20,5,,ann,,z\n"))
    assert trace.previous.tolist() == [-1, -1, 0, -1]
    assert trace.tenant.tolist() == [0, 1, 0, 1]
    assert trace.request_ids == ["x", "1", "y", "z"]
    assert "input_tokens: missing" in refused(write("u.csv", OWN + "0,,5,a,,,x\n"))


def test_priorities_follow_their_requests(write):
    own = "arrival_s,input_tokens,output_tokens,priority\n"
    trace = read(write("t.csv", own + "2,10,5,7\n0,10,5,\n1,20,5,3\n"))
    assert trace.priority.tolist() == [0, 3, 7]
    mapped = read(write("u.csv", "ts,prompt,answer,rank\n0,10,2,4\n"), columns=MAPPED | {"priority": "rank"})
    assert mapped.priority.tolist() == [4]
    assert "priority" in refused(write("v.csv", own + "0,10,5,-1\n"))


@pytest.mark.parametrize("name", ["csv", "azure", "burstgpt", "mooncake", "bailian"])
def test_rows_out_of_order_are_sorted_and_counted(write, name):
    times = [5, 1, 3, 3, 9]
    tables = {
        "csv": ("arrival_s,input_tokens,output_tokens,session", "{t},{n},5,s"),
        "azure": ("TIMESTAMP,ContextTokens,GeneratedTokens", "2026-08-01 00:00:0{t},{n},5"),
        "burstgpt": ("Timestamp,Request tokens,Response tokens,Session ID,Elapsed time", "{t},{n},5,s,1"),
    }
    if name in tables:
        header, row = tables[name]
        path = write("t.csv", header + "\n" + "".join(row.format(t=t, n=10 + k) + "\n" for k, t in enumerate(times)))
    else:
        rows = [
            {"timestamp": t * (1000 if name == "mooncake" else 1), "input_length": 10 + k, "output_length": 5,
             "hash_ids": [7]}
            for k, t in enumerate(times)
        ]  # fmt: skip
        if name == "bailian":  # the first follows up the third, which came before it
            rows = [row | {"chat_id": k, "parent_chat_id": 2 if k == 0 else -1} for k, row in enumerate(rows)]
        path = write("t.jsonl", rows)
    trace = read(path)
    assert trace.arrival_s.tolist() == [0, 2, 2, 4, 8]
    assert trace.input_tokens.tolist() == [11, 12, 13, 10, 14]
    assert trace.request_ids == ["1", "2", "3", "0", "4"]
    assert "3 rows of 5 came out of order of time; they were sorted" in trace.notes
    if name in ("csv", "burstgpt"):
        assert trace.previous.tolist() == [-1, 0, 1, 2, 3]
    if name == "burstgpt":
        assert trace.think_s.tolist() == [0, 1, 0, 1, 3]
    if name == "bailian":
        assert trace.previous.tolist() == [-1, -1, -1, 1, -1]
    if name in ("mooncake", "bailian"):
        assert trace.shared_tokens.tolist() == [0, 11, 12, 10, 13]


def test_broken_rows_left_out_are_listed_by_line(write):
    text = "arrival_s,input_tokens,output_tokens\n" + "".join(f"{k},{k % 3},5\n" for k in range(24))
    trace = read(write("t.csv", text), skip_bad=8)
    assert trace.notes[-1] == (
        "8 broken rows left out: lines 2, 5, 8, 11, 14 and 3 more (input_tokens: expected at least 1, got 0)"
    )


@pytest.mark.parametrize(
    ("sample", "columns"),
    [
        ({"created_at": "2026-08-01T09:00:00Z", "n_input": 5, "n_output": 9, "text": "hi"},
         {"arrival_s": "created_at", "input_tokens": "n_input", "output_tokens": "n_output"}),
        ({"requestTime": 1785574800123, "usage.prompt_tokens": 5, "usage.completion_tokens": 9, "conversation_id": "c"},
         {"arrival_s": "requestTime", "input_tokens": "usage.prompt_tokens", "output_tokens": "usage.completion_tokens",
          "session": "conversation_id"}),
        ({"ts": 0, "prompt_len": 8, "completion_len": 3, "conv": "a"},
         {"arrival_s": "ts", "input_tokens": "prompt_len", "output_tokens": "completion_len", "session": "conv"}),
        ({"ts": 0.5, "prompt": "Tell me", "prompt_len": 8, "output_len": 3, "answer": "No"},
         {"arrival_s": "ts", "input_tokens": "prompt_len", "output_tokens": "output_len"}),
        ({"timestamp_ms": 7, "ISL": "10", "OSL": "20"},
         {"arrival_s": "timestamp_ms", "input_tokens": "ISL", "output_tokens": "OSL"}),
        ({"colour": "red", "time": "never"}, {}),
    ],
)  # fmt: skip
def test_proposals(sample, columns):
    assert propose_columns(sample) == columns


@pytest.mark.parametrize(
    "name",
    ["session", "sessionId", "conv", "conv_id", "conversation", "conversation_id", "conversationID", "chat", "chat_id",
     "thread", "thread_id", "dialogue", "dialog_id", "dialogue_id", "meta.conversation_uuid"],
)  # fmt: skip
def test_conversations_are_proposed_by_their_usual_names(name):
    assert propose_columns({"ts": 0, "isl": 8, "osl": 3, name: "a"})["session"] == name


def test_an_id_of_a_conversation_is_likelier_than_its_text():
    assert propose_columns({"conversation": "Hello", "thread": 7, "conversation_id": "c"}) == {
        "session": "conversation_id"
    }


def test_a_proposal_can_be_pasted():
    assert format_columns({"arrival_s": "ts"}) == "arrival_s=ts"
    assert format_columns({"arrival_s": "t, s", "id": "x"}) == "'\"arrival_s=t, s\",id=x'"


def test_json_lines_and_arrays_of_any_fields(write):
    rows = [{"t": k, "usage": {"in": 10 + k, "out": 2}, "user": {"id": "ann"}} for k in (0, 2, 1)]
    del rows[1]["user"]
    columns = {"arrival_s": "t", "input_tokens": "usage.in", "output_tokens": "usage.out", "tenant": "user.id"}
    array = write("a.json", json.dumps(rows, indent=1))
    for path in (write("t.jsonl", rows), array):
        trace = read(path, columns=columns)
        assert trace.input_tokens.tolist() == [10, 11, 12]
        assert trace.tenant.tolist() == [0, 0, 1]
        assert "users: no such column; the file has t, usage.in" in refused(path, columns=columns | {"tenant": "users"})
    assert "a.json:12: t: no such column (for arrival_s)" in refused(
        write("a.json", json.dumps([rows[0], {"usage": {"in": 1, "out": 1}}], indent=1)), columns=columns
    )
    assert "its fields (t, usage.in, usage.out, user.id); say which column is what" in refused(
        write("c.json", [rows[0]])
    )
    own = [{"arrival_s": k, "input_tokens": 9, "output_tokens": 1} for k in range(3)]
    assert detect_format(write("o.jsonl", own)) == "csv"
    for text in ("[", "[1 2]", '[{"a": 1}', "[,]", "[" * 100_000):
        assert "expected a" in refused(write("b.json", text))
    assert "no requests" in refused(write("b.json", "[]"), columns=columns)


def test_parquet_of_any_columns(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "t.parquet"
    start = datetime.datetime(2026, 8, 1, 9)
    stamps = [start + datetime.timedelta(milliseconds=206 * k) for k in (0, 2, 1)]
    columns = {"ts": pa.array(stamps, pa.timestamp("ns")), "prompt": [10, 12, 11], "answer": [1.0, 2.0, 3.0]}
    pq.write_table(pa.table(columns | {"chat": ["a", None, "a"]}), path)
    proposed = refused(path)
    assert "--columns arrival_s=ts,input_tokens=prompt,output_tokens=answer,session=chat; run again" in proposed
    trace = read(path, columns=MAPPED | {"session": "chat"})
    assert trace.arrival_s.tolist() == [0.0, 0.206, 0.412]
    assert trace.input_tokens.tolist() == [10, 11, 12]
    assert trace.previous.tolist() == [-1, 0, -1]
    assert "2026-08-01 09:00:00" in trace.notes[0]
    names = ["arrival_s", "input_tokens", "output_tokens"]
    pq.write_table(pa.table([[0.0, 1.0], [5, 6], [7, 8]], names=names), path)
    assert read(path).input_tokens.tolist() == [5, 6]


def test_a_mapping_for_another_format_says_how_it_is_read_as_a_table(write):
    path = write("t.csv", "TIMESTAMP,ContextTokens,GeneratedTokens,n\n2026-08-01,1,2,3\n")
    columns = {"arrival_s": "TIMESTAMP", "input_tokens": "n", "output_tokens": "GeneratedTokens"}
    assert "--format csv reads it as any table" in refused(path, columns=columns)
    assert read(path, columns=columns, format="csv").input_tokens.tolist() == [3]


def test_a_service_s_own_table_in_parquet(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "t.parquet"
    columns = {"Timestamp": [0, 5], "Request tokens": [9, 8], "Response tokens": [7, 6]}
    pq.write_table(pa.table(columns), path)
    assert detect_format(path) == "burstgpt"
    assert read(path).input_tokens.tolist() == [9, 8]


def test_failed_rows_of_a_table_are_left_out_and_counted(write):
    rows = "0,5,6,200\n1,5,6,500\n2,5,6,OK\n3,5,6,failed\n4,5,6,\n"
    trace = read(write("s.csv", "arrival_s,input_tokens,output_tokens,status\n" + rows))
    assert trace.arrival_s.tolist() == [0.0, 2.0, 4.0]
    assert any("2" in note and "failed" in note for note in trace.notes)


CANCELLED = "arrival_s,input_tokens,output_tokens,status,finish_reason,cancelled\n"


def test_cancelled_requests_of_a_table_are_kept_with_their_tokens_and_said(write):
    rows = (
        "0,5,6,200,stop,false\n1,5,3,200,stop,true\n2,5,4,499,,0\n3,5,2,,abort,no\n4,5,0,,,1\n"
        "5,5,9,Cancelled,,\n6,5,,500,,\n"
    )
    path = write("t.csv", CANCELLED + rows)
    trace = read(path)
    assert trace.output_tokens.tolist() == [6, 3, 4, 2, 9]
    kept = "4 cancelled requests kept, with the tokens generated until then (lines 3, 4, 5 and 7)"
    for notes in (trace.notes, trace.import_notes):
        assert any(kept in note and "spec.file.cancelled" in note for note in notes)
    left_out = "2 rows left out: cancelled before a first token (line 6); failed (line 8)"
    assert left_out in trace.notes
    others = read(path, cancelled="leave_out")
    assert others.output_tokens.tolist() == [6]
    assert "6 rows left out: cancelled (lines 3, 4, 5, 6 and 7); failed (line 8)" in others.notes


def test_a_column_that_is_mapped_says_nothing_of_cancelled_requests(write):
    path = write("t.csv", "arrival_s,input_tokens,output_tokens,aborted\n0,5,6,7\n1,5,6,7\n")
    mapped = {"arrival_s": "arrival_s", "input_tokens": "input_tokens", "output_tokens": "output_tokens"}
    assert not any("cancelled" in note for note in read(path, columns=mapped | {"tenant": "aborted"}).notes)
    assert any("2 cancelled requests kept" in note for note in read(path, columns=mapped).notes)
