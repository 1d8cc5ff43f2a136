"""Every format read from small hand-written files, and what is refused."""

from __future__ import annotations

import gzip
import math

import numpy as np
import pytest

from hisearch.specs.workloads.workload import TraceFileSpec
from hisearch.traces.compiler import compile_trace
from hisearch.traces.importers import detect_format, read_trace
from hisearch.traces.reading.errors import TraceError
from hisearch.traces.stats import ideal_hit_tokens

MOONCAKE = [
    {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]},
    {"timestamp": 1500, "input_length": 1100, "output_length": 7, "hash_ids": [1, 2, 3]},
    {"timestamp": 1500, "input_length": 500, "output_length": 9, "hash_ids": [4]},
]


def read(path, **options):
    seed = options.pop("seed", 0)
    return read_trace(path, TraceFileSpec(path=str(path), **options), seed=seed)


def refused(path, **options) -> str:
    with pytest.raises(TraceError) as caught:
        read(path, **options)
    assert caught.value.path == path
    return str(caught.value)


def test_mooncake(write):
    path = write("t.jsonl", MOONCAKE)
    assert detect_format(path) == "mooncake"
    trace = read(path)
    assert trace.arrival_s.tolist() == [0.0, 1.5, 1.5]
    assert trace.input_tokens.tolist() == [600, 1100, 500]
    assert trace.output_tokens.tolist() == [5, 7, 9]
    assert trace.max_output_tokens.tolist() == [5, 7, 9]
    assert trace.previous.tolist() == [-1, -1, -1]
    # The second prompt goes on through the first one's partial last block: they share the 600 tokens of the shorter.
    assert trace.shares_with.tolist() == [-1, 0, -1]
    assert trace.shared_tokens.tolist() == [0, 600, 0]
    assert trace.warnings == ()


def test_mooncake_arrivals_are_spread_over_their_quantum(write):
    rows = [MOONCAKE[2] | {"timestamp": t} for t in [0] * 40 + [2999] * 40 + [6001] * 20]
    path = write("t.jsonl", rows)
    trace = read(path)
    assert "quantised to 3 s" in trace.warnings[0]
    assert (np.floor(trace.arrival_s / 3) == np.repeat([0, 1, 2], [40, 40, 20])).all()
    assert (np.diff(trace.arrival_s) > 0).all()
    assert 0.1 < (trace.arrival_s[:40] / 3).mean() < 0.9
    np.testing.assert_array_equal(read(path).arrival_s, trace.arrival_s)
    np.testing.assert_array_equal(read(path, spread_arrivals_s=3.0).arrival_s, trace.arrival_s)
    assert (read(path, seed=1).arrival_s != trace.arrival_s).any()
    as_recorded = read(path, spread_arrivals_s=0.0)
    assert sorted(set(as_recorded.arrival_s.tolist())) == [0.0, 2.999, 6.001]


def test_bailian(write):
    rows = [
        {"chat_id": 10, "parent_chat_id": -1, "timestamp": 61.0, "input_length": 40, "output_length": 5, "type": "text",
         "turn": 1, "hash_ids": [1, 2, 3]},
        {"chat_id": 11, "parent_chat_id": 99, "timestamp": 62.5, "input_length": 16, "output_length": 5, "type": "file",
         "turn": 2, "hash_ids": [7]},
        {"chat_id": 12, "parent_chat_id": 10, "timestamp": 71.0, "input_length": 60, "output_length": 5, "type": "text",
         "turn": 2, "hash_ids": [1, 2, 8, 9]},
    ]  # fmt: skip
    path = write("t.jsonl", rows)
    assert detect_format(path) == "bailian"
    trace = read(path)
    assert trace.arrival_s.tolist() == [0.0, 1.5, 10.0]
    assert trace.previous.tolist() == [-1, -1, 0]
    assert trace.session[0] == trace.session[2] != trace.session[1]
    assert trace.tenant.tolist() == [0, 1, 0]
    assert trace.shared_tokens.tolist() == [0, 0, 32]
    assert math.isnan(trace.think_s[2])
    assert trace.open_loop
    assert "1 requests follow up a chat that the file does not hold" in trace.warnings[0]
    closed = compile_trace(trace, "t", "closed_loop")
    assert closed.arrays.previous.tolist() == [-1, -1, 0]
    assert closed.arrays.think_s.tolist() == [0.0, 0.0, 10.0]
    assert "hash_ids" in refused(write("u.jsonl", [rows[0] | {"hash_ids": [1]}]))
    assert refused(write("u.jsonl", [rows[0], rows[0]])).endswith("u.jsonl:2: chat_id: 10 was used before")


def test_azure(write):
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
    )
    path = write("t.csv", text)
    assert detect_format(path) == "azure"
    trace = read(path)
    np.testing.assert_allclose(trace.arrival_s, [0.0, 4.314579], atol=2e-6)
    assert trace.input_tokens.tolist() == [374, 396]
    zoned = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.5+00:00,1,2\n2024-05-10 00:00:01+00:00,1,2\n"
    assert read(write("u.csv", zoned)).arrival_s.tolist() == [0.0, 0.5]
    message = refused(write("v.csv", text + "yesterday,1,1\n"))
    assert message.endswith("v.csv:4: TIMESTAMP: expected seconds or a date and time, got 'yesterday'")


def test_burstgpt(write):
    old = (
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n"
    )
    path = write("t.csv", old + "45,GPT-4,1087,230,1317,API log\n")
    assert detect_format(path) == "burstgpt"
    trace = read(path)
    assert trace.arrival_s.tolist() == [0.0, 40.0]
    assert trace.tenant.tolist() == [0, 1]
    assert trace.previous.tolist() == [-1, -1]
    new = (
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "0,7,4,ChatGPT,10,20,30,Conversation log\n1,,2,ChatGPT,10,20,30,API log\n"
        "10,7,4,ChatGPT,40,20,60,Conversation log\n"
    )
    trace = read(write("u.csv", new))
    assert trace.previous.tolist() == [-1, -1, 0]
    assert trace.think_s.tolist() == [0.0, 0.0, 6.0]
    assert trace.open_loop
    assert trace.shared_tokens.tolist() == [0, 0, 0]
    failed = write("v.csv", old + "50,ChatGPT,472,0,472,Conversation log\n")
    assert refused(failed).endswith("v.csv:3: Response tokens: expected at least 1, got 0")


def test_sharegpt_lengths(write):
    path = write("t.csv", "num_prefill_tokens,num_decode_tokens\n10,20\n35,5\n39,5\n50,6\n")
    assert detect_format(path) == "sharegpt_lengths"
    trace = read(path)
    assert trace.previous.tolist() == [-1, 0, -1, 2]  # 39 is shorter than 35 + 5
    assert trace.shared_tokens.tolist() == [0, 30, 0, 44]
    assert trace.session.tolist() == [0, 0, 2, 2]
    assert trace.think_s.tolist() == [0.0] * 4
    assert any("think times are not recorded" in warning for warning in trace.warnings)
    thinking = read(path, think={"p50_s": 10.0, "p90_s": 20.0}, arrivals={"rate_rps": 1.0})
    assert (thinking.think_s[[1, 3]] > 0).all()
    assert thinking.arrival_s[0] > 0
    assert thinking.arrival_s[2] > thinking.arrival_s[0]
    assert not any("think" in warning for warning in thinking.warnings)
    users = read(path, arrivals={"process": "closed_loop", "users": 1})
    assert users.previous.tolist() == [-1, 0, 1, 2]


WEKA = {
    "id": "trace_1", "block_size": 64, "requests": [
        {"t": 0.0, "in": 150, "out": 9, "keep": 0, "new": [[1, 2]], "api_time": 2.0, "think_time": 0.0},
        {"t": 10.0, "in": 260, "out": 8, "keep": 2, "new": [[3, 2]], "api_time": 3.0, "think_time": 7.5},
        {"t": 14.0, "type": "subagent", "requests": [
            {"t": 1.0, "in": 70, "out": 3, "keep": 0, "new": [[20, 1]], "api_time": 1.0},
            {"t": 4.0, "in": 130, "out": 3, "keep": 1, "new": [[21, 1]], "api_time": 1.0},
        ]},
        {"t": 30.0, "in": 200, "out": 0, "keep": 1, "new": [[9, 2]]},
        {"t": 40.0, "in": 300, "out": 7, "keep": 3, "new": [[30, 1]], "think_time": 1.0},
        {"t": 50.0, "in": 270, "out": 7, "keep": 1, "new": [[2, 3]]},
    ],
}  # fmt: skip


def test_weka(write):
    path = write("t.jsonl", [WEKA, WEKA | {"id": "trace_2"}])
    assert detect_format(path) == "weka"
    trace = read(path)
    assert len(trace) == 12
    assert trace.request_ids[0] == "trace_1/0"
    assert trace.session.tolist() == [0] * 6 + [6] * 6
    # main, main, subagent (two calls, behind the main call before them), main without the one that was cut off
    assert trace.previous.tolist()[:6] == [-1, 0, 1, 2, 1, 4]
    np.testing.assert_allclose(trace.think_s[:6], [0.0, 7.5, 15.0 - 13.0, 19.0 - 15.0 - 1.0 - 1.0 + 0.0, 1.0, 10.0])
    assert trace.arrival_s[:6].tolist() == [0.0, 10.0, 15.0, 18.0, 40.0, 50.0]
    # The call after the one that was cut off keeps 3 of its blocks, of which an earlier call had the first alone; the
    # last goes back to blocks of the second.
    assert trace.shares_with.tolist()[:6] == [-1, 0, -1, 2, 0, 1]
    assert trace.shared_tokens.tolist()[:6] == [0, 128, 0, 64, 64, 256]
    assert not trace.open_loop
    assert any("2 requests without output were left out" in warning for warning in trace.warnings)
    assert any("all start at 0 s" in warning for warning in trace.warnings)
    started = read(path, arrivals={"rate_rps": 0.01})
    assert started.arrival_s[6] > started.arrival_s[0] > 0
    np.testing.assert_allclose(started.arrival_s[1] - started.arrival_s[0], 10.0)


def test_weka_broken_session_is_left_out_whole(write):
    broken = WEKA | {"requests": [WEKA["requests"][0], WEKA["requests"][1] | {"keep": 5}]}
    path = write("t.jsonl", [broken, WEKA])
    assert "t.jsonl:1: requests.keep: expected at most the 2 blocks" in refused(path)
    trace = read(path, skip_bad=1)
    assert len(trace) == 6
    assert trace.skipped_rows == 1
    short = WEKA | {"requests": [WEKA["requests"][0] | {"new": [[1, 1]]}]}
    assert "requests.new: keep and new should make up 2 blocks" in refused(write("u.jsonl", [short]))


def test_lmcache(write):
    row = {
        "id": "s", "block_bytes": 64, "requests": [
            {"t": 0.0, "in_bytes": 130, "out_bytes": 30, "h": [[0, 2]]},
            {"t": 2.0, "in_bytes": 0, "out_bytes": 30, "h": []},
            {"t": 5.0, "in_bytes": 200, "out_bytes": 33, "h": [[0, 2], [7, 1]]},
        ],
    }  # fmt: skip
    other = {"id": "u", "block_bytes": 64, "requests": [{"t": 0.0, "in_bytes": 70, "out_bytes": 4, "h": [[0, 1]]}]}
    path = write("t.jsonl", [row, other])
    assert detect_format(path) == "lmcache"
    trace = read(path)
    assert trace.input_tokens.tolist() == [33, 50, 18]
    assert trace.output_tokens.tolist() == [8, 9, 1]
    assert trace.previous.tolist() == [-1, 0, -1]
    assert trace.think_s.tolist() == [0.0, 5.0, 0.0]
    assert trace.shared_tokens.tolist() == [0, 32, 16]
    assert any("1 requests without prompt or output text" in warning for warning in trace.warnings)
    assert "requests.h: expected 2 blocks for 130 bytes" in refused(
        write("u.jsonl", [row | {"requests": [row["requests"][0] | {"h": [[0, 3]]}]}])
    )


def test_llmservingsim(write):
    rows = [
        {"input_toks": 3, "output_toks": 2, "arrival_time_ns": 2_000_000_000, "input_tok_ids": [5, 6, 7],
         "output_tok_ids": [8, 9]},
        {"session_id": "s", "arrival_time_ns": 1_000_000_000, "sub_requests": [
            {"input_toks": 2, "output_toks": 2, "tool_duration_ns": 500_000_000, "input_tok_ids": [5, 6],
             "output_tok_ids": [7, 8]},
            {"input_toks": 5, "output_toks": 1, "tool_duration_ns": 0, "input_tok_ids": [5, 6, 7, 8, 1]},
        ]},
        {"input_toks": 4, "output_toks": 2, "arrival_time_ns": 3_000_000_000},
    ]  # fmt: skip
    path = write("t.jsonl", rows)
    assert detect_format(path) == "llmservingsim"
    trace = read(path)
    assert trace.input_tokens.tolist() == [2, 5, 3, 4]  # sorted by arrival, as the format allows
    assert trace.arrival_s[[0, 2, 3]].tolist() == [1.0, 2.0, 3.0]
    assert math.isnan(trace.arrival_s[1])
    assert trace.previous.tolist() == [-1, 0, -1, -1]
    assert trace.think_s.tolist() == [0.0, 0.5, 0.0, 0.0]
    # The follow-up holds the first prompt and output; the flat request shares 5 6 7 8 with them, through its output.
    assert trace.shared_tokens.tolist() == [0, 4, 4, 0]
    assert ideal_hit_tokens(compile_trace(trace, "t"), include_outputs=True).sum() == 4 + 3
    wrong = write("u.jsonl", [rows[0] | {"input_tok_ids": [5]}])
    assert refused(wrong).endswith("u.jsonl:1: input_tok_ids: expected 3 token ids, got 1")


def test_csv_by_columns(write):
    path = write("t.csv", "when,prompt,answer,user,chat\n0.5,10,2,ann,a\n1.5,11,3,bob,b\n4.0,20,2,ann,a\n")
    columns = {"arrival_s": "when", "input_tokens": "prompt", "output_tokens": "answer", "tenant": "user"}
    assert detect_format(path, has_columns=True) == "csv"
    trace = read(path, columns=columns)
    assert trace.arrival_s.tolist() == [0.0, 1.0, 3.5]
    assert trace.tenant.tolist() == [0, 1, 0]
    assert trace.previous.tolist() == [-1, -1, -1]
    chats = read(path, columns=columns | {"session": "chat"})
    assert chats.previous.tolist() == [-1, -1, 0]
    assert chats.open_loop
    assert "t.csv:2: prompts: no such column" in refused(path, columns=columns | {"input_tokens": "prompts"})
    assert "columns: expected fields among" in refused(path, columns=columns | {"speed": "when"})
    unmapped = refused(path, columns={"input_tokens": "prompt"})
    assert "columns: arrival_s has no column; give --columns arrival_s=" in unmapped
    assert "spec.file.arrivals" in unmapped


def test_a_table_of_unknown_columns_says_where_to_map_them(write):
    proposed = refused(write("t.csv", "ts,prompt,answer\n0,10,5\n"))
    assert "t.csv:1: format not recognised by its columns (answer, prompt, ts)" in proposed
    assert "--columns arrival_s=ts,input_tokens=prompt,output_tokens=answer; run again with that" in proposed
    dated = refused(write("t.csv", "when;prompt;answer\n2026-11-20T09:00:00Z;10;5\n"))
    assert "--columns arrival_s=when,input_tokens=prompt,output_tokens=answer; run again with that" in dated
    two_dates = refused(write("t.csv", "begun,done,prompt,answer\n2026-11-20,2026-11-21,10,5\n"))
    assert "no column looks like arrival_s" in two_dates
    message = refused(write("t.csv", "a,b,c\n0,10,5\n"))
    assert "--columns arrival_s=COLUMN,input_tokens=COLUMN,output_tokens=COLUMN" in message
    assert "spec.file.columns" in message
    assert message.endswith("or name its format (--format, or spec.file.format in a Workload)")


def test_gzip_by_content_whatever_the_name(tmp_path, write):
    plain = write("t.jsonl", MOONCAKE)
    packed = tmp_path / "packed.jsonl"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read(packed).arrival_s.tolist() == read(plain).arrival_s.tolist()
    broken = tmp_path / "broken.jsonl.gz"
    broken.write_bytes(gzip.compress(plain.read_bytes())[:-12])
    assert "broken gzip archive" in refused(broken)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input_length": 0}, "input_length: expected at least 1, got 0"),
        ({"output_length": 0}, "output_length: expected at least 1, got 0"),
        ({"output_length": 2.5}, "output_length: expected a whole number"),
        ({"output_length": True}, "output_length: expected a finite number, got True"),
        ({"output_length": None}, "output_length: missing"),
        ({"timestamp": -3000}, "timestamp: expected at least 0, got -3000"),
        ({"timestamp": float("nan")}, "timestamp: expected a finite number, got nan"),
        ({"timestamp": float("inf")}, "timestamp: expected a finite number, got inf"),
        ({"timestamp": "soon"}, "timestamp: expected a number, got 'soon'"),
        ({"hash_ids": [1, 2, 3]}, "hash_ids: expected 1 ids, one per 512 tokens of 500, got 3"),
        ({"hash_ids": "1 2"}, "hash_ids: expected a list of whole numbers, got '1 2'"),
        ({"hash_ids": [2**70]}, "hash_ids: expected whole numbers of at most 64 bits"),
    ],
)
def test_broken_rows_are_refused_by_line_and_field(write, change, message):
    path = write("t.jsonl", [*MOONCAKE[:2], MOONCAKE[2] | change])
    assert refused(path).endswith(f"t.jsonl:3: {message}") or f"t.jsonl:3: {message}" in refused(path)
    tolerant = read(path, skip_bad=1)
    assert tolerant.skipped_rows == 1
    assert len(tolerant) == 2


def test_more_broken_rows_than_allowed(write):
    lines = "".join(f"{row}\n" for row in ['{"timestamp": 0, "input_length": 1', "[]", "{}"])
    path = write("t.jsonl", '{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": []}\n' + lines)
    assert "t.jsonl:2: expected a JSON object" in refused(path)
    assert "t.jsonl:4: input_length: missing (and 2 broken rows before it, as many as allowed)" in refused(
        path, skip_bad=2
    )
    assert read(path, skip_bad=3).skipped_rows == 3


def test_unreadable_files(tmp_path, write):
    assert "no such file" in refused(tmp_path / "absent.jsonl")
    assert "expected a file, found a folder" in refused(tmp_path)
    assert "the file is empty" in refused(write("empty.jsonl", "\n \n"))
    assert "no requests in the file" in refused(write("header.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n"))
    assert "no requests in the file" in refused(write("bad.jsonl", [{}]), format="mooncake", skip_bad=1)
    assert "--format, or spec.file.format" in refused(write("odd.jsonl", [{"speed": 3}]))
    assert "expected a JSON object" in refused(write("odd.jsonl", "{oops\n"))
    latin = tmp_path / "latin.csv"
    latin.write_bytes("número,tokens\n".encode("latin-1"))
    assert "expected UTF-8 text" in refused(latin)
    assert "expected 3 columns, got 2" in refused(write("short.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n1,2\n"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": {"arrival_s": "timestamp"}}, "columns are for format csv"),
        ({"arrivals": {"rate_rps": 1.0}}, "format mooncake records its arrivals"),
        ({"think": {"p50_s": 1.0, "p90_s": 2.0}}, "think does not apply"),
    ],
)
def test_options_that_do_not_fit_the_format(write, options, message):
    assert message in refused(write("t.jsonl", MOONCAKE), **options)


def test_declared_limit(write):
    trace = read(write("t.jsonl", MOONCAKE), max_output_tokens=8)
    assert trace.max_output_tokens.tolist() == [8, 8, 9]


def test_csv_with_our_own_names_needs_no_mapping(tmp_path):
    path = tmp_path / "own.csv"
    path.write_text("arrival_s,input_tokens,output_tokens,session,note\n0,10,3,a,x\n1.5,20,4,a,y\n", encoding="utf-8")
    assert detect_format(path) == "csv"
    trace = read(path)
    assert trace.arrival_s.tolist() == [0.0, 1.5]
    assert trace.previous.tolist() == [-1, 0]
    # Where something is mapped, what is not mapped is not taken by its name, but for the needed ones.
    assert read(path, columns={"tenant": "note"}).previous.tolist() == [-1, -1]
    assert "when: no such column (for arrival_s)" in refused(path, columns={"arrival_s": "when"})


@pytest.mark.parametrize("options", [{}, {"columns": {"arrival_s": "arrival_s"}}])
def test_a_column_that_is_named_twice_is_refused(tmp_path, options):
    path = tmp_path / "own.csv"
    path.write_text("arrival_s,input_tokens,input_tokens,output_tokens\n0,10,20,3\n", encoding="utf-8")
    assert "own.csv:1: input_tokens: the header names this column twice" in refused(path, **options)


@pytest.mark.parametrize(("unit", "warned"), [(1.0, False), (0.5, True), (1e-3, True)])
def test_mooncake_times_that_cannot_be_milliseconds_are_warned_of(write, unit, warned):
    path = write("t.jsonl", [{**row, "timestamp": row["timestamp"] // 1500 * unit + 1} for row in MOONCAKE])
    assert any("timestamps are milliseconds" in note for note in read(path).warnings) is warned


def test_mooncake_times_in_whole_seconds_are_warned_of(write):
    rows = [{"timestamp": k // 4, "input_length": 100, "output_length": 5, "hash_ids": [k]} for k in range(3000)]
    assert "3,000 requests came within 0.749 s" in " ".join(read(write("t.jsonl", rows)).warnings)
