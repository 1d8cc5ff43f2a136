"""Whatever a file holds, reading it ends in a trace or a one-line ``TraceError``, within bounds."""

from __future__ import annotations

import gzip
import json
import resource
from contextlib import suppress
from pathlib import Path

import pytest
from benchmark_files import REQUESTS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_importers import MOONCAKE, WEKA, read, refused
from test_logs import LITELLM, USAGE, answered, vllm

from hisearch.traces.compiler import compile_trace
from hisearch.traces.reading import rows, text
from hisearch.traces.reading.errors import TraceError
from hisearch.traces.stats import trace_stats

CSV = "arrival_s,input_tokens,output_tokens,session,think_s\n"


@pytest.fixture
def bounded():
    """Two gigabytes beyond what the process has: what asks for more fails."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (2 << 30), limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, limits)


@pytest.mark.parametrize("content", [b"\0" * (1 << 27), b"\n" * (1 << 27)])
def test_archives_of_nothing(tmp_path, bounded, content):
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(gzip.compress(content, 9))
    message = refused(path)
    blank = "no requests: the first 1,000,000 lines are blank"
    assert "expected lines of at most 33,554,432 characters" in message or blank in message


@pytest.mark.parametrize("name", ["auto", "mooncake", "csv", "hisearch", "vllm"])
def test_a_line_without_an_end(tmp_path, bounded, name):
    path = tmp_path / "t.jsonl"
    path.write_bytes(b'{"timestamp": 0, "x": "' + b"a" * (text.MAX_LINE + 10))
    assert "t.jsonl:1: expected lines of at most 33,554,432 characters" in refused(path, format=name)


def test_a_quote_without_an_end(tmp_path, monkeypatch):
    path = tmp_path / "t.csv"
    path.write_text(CSV + '0,1,1,"a,\n' + "0,1,1,a,\n" * 40_000)
    monkeypatch.setattr(rows.csv, "field_size_limit", lambda *_: None)
    assert "t.csv:" in refused(path)


@pytest.mark.parametrize("brackets", ["[" * 100_000, '{"a":' * 100_000])
def test_values_nested_too_deeply(write, brackets):
    assert "nested too deeply" in refused(write("t.jsonl", brackets))
    assert "nested too deeply" in refused(write("t.jsonl", json.dumps(MOONCAKE[0]) + "\n" + brackets + "\n"))


@pytest.mark.parametrize("number", ["1e300", "1e999", "9" * 5000, "-1", "NaN", "Infinity", "1e15", "1_0", "true"])
@pytest.mark.parametrize("field", ["timestamp", "input_length", "output_length"])
def test_numbers_beyond_reason(write, number, field):
    row = json.dumps(MOONCAKE[2] | {field: 0}).replace(f'"{field}": 0', f'"{field}": {number}')
    message = refused(write("t.jsonl", json.dumps(MOONCAKE[0]) + "\n" + row + "\n"))
    assert "\n" not in message
    assert len(message) < 400


@pytest.mark.parametrize(
    "cells", ["1e300,1,1,,", "0,1e300,1,,", "0,1,1e18,,", "nan,1,1,,", "1,1,1,s,1e300", "1_0,1,1,,"]
)
def test_cells_beyond_reason(write, cells):
    assert "t.csv:3: " in refused(write("t.csv", f"{CSV}0,1,1,s,\n{cells}\n"))


def test_messages_are_one_line(write):
    assert "\n" not in refused(write("t.csv", 'a,"b\nc",d\n1,2,3\n'))
    assert "\n" not in refused(write("t.jsonl", [{"a\nb": 1}]))
    message = refused(write("t.jsonl", [MOONCAKE[0] | {"timestamp": "a\nb" * 1000}]))
    assert "\n" not in message
    assert len(message) < 300
    lone = [{"chat_id": "\ud800", "timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [1]}]
    assert "chat_id: expected text in Unicode" in refused(write("t.jsonl", lone))


def test_folders_and_other_archives(tmp_path):
    path = tmp_path / "t.zip"
    path.write_bytes(b"PK\x03\x04 and so on")
    assert "found a zip archive: unpack it first" in refused(path)
    path.chmod(0)
    if not path.stat().st_mode & 0o777 and not _reads(path):
        assert "Permission denied" in refused(path)


def _reads(path: Path) -> bool:
    try:
        path.read_bytes()
    except OSError:
        return False
    return True


def jsonl(*values: object) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)


HEADER = {"format": "hisearch-trace", "version": 1, "block_tokens": 4}
OWN = {"id": "a", "arrival_s": 0.0, "input_tokens": 6, "output_tokens": 3, "block_ids": [1, 2], "session": "s"}
LMCACHE = {"id": "s", "block_bytes": 64, "requests": [{"t": 0.0, "in_bytes": 130, "out_bytes": 30, "h": [[0, 2]]}]}
SIMULATED = {"arrival_time_ns": 5, "input_toks": 2, "output_toks": 2, "input_tok_ids": [5, 6]}
BAILIAN = {"chat_id": 1, "parent_chat_id": -1, "timestamp": 1, "input_length": 16, "output_length": 5, "hash_ids": [7]}
ENVOY = {"start_time": "2026-08-01T09:00:00Z", "duration": 5, "gen_ai.usage.input_tokens": 3,
         "gen_ai.usage.output_tokens": 7}  # fmt: skip
#: A small file of every format.
SEEDS = {
    "hisearch": jsonl(HEADER, OWN, OWN | {"id": "b", "previous": "a", "think_s": 1.5}),
    "mooncake": jsonl(*MOONCAKE),
    "bailian": jsonl(BAILIAN, BAILIAN | {"chat_id": 2, "parent_chat_id": 1}),
    "weka": jsonl(WEKA),
    "lmcache": jsonl(LMCACHE),
    "llmservingsim": jsonl(SIMULATED, {"arrival_time_ns": 9, "sub_requests": [SIMULATED]}),
    "litellm": jsonl(LITELLM, LITELLM),
    "openai": jsonl({"created": 1785574800, "usage": USAGE}, {"created": 1785574801, "usage": USAGE}),
    "envoy": jsonl(ENVOY, ENVOY | {"session.id": "s"}),
    "vllm": vllm("a", 1, "[1, 2]") + vllm("b", 2, "[1, 3]") + answered("a", "[3]") + answered("b", "[3, 4]"),
    "csv": CSV + "0,10,5,a,\n1.5,10,5,a,2\n",
    "azure": "TIMESTAMP,ContextTokens,GeneratedTokens\n2026-08-01 09:00:00.5,1,2\n2026-08-01 09:00:01,1,2\n",
    "burstgpt": "Timestamp,Session ID,Elapsed time,Request tokens,Response tokens\n0,7,4,10,20\n9,7,4,10,20\n",
    "sharegpt_lengths": "num_prefill_tokens,num_decode_tokens\n10,20\n35,5\n",
    "replay": jsonl({"arrival_s": 0, "input_tokens": 40, "output_tokens": 5, "block_ids": [0, 1, 2]}),
    "langsmith": jsonl({
        "id": "a", "run_type": "llm", "trace_id": "r", "start_time": "2026-08-01T09:00:00+00:00",
        "end_time": "2026-08-01T09:00:01+00:00", "prompt_tokens": 10, "completion_tokens": 5, "inputs": {},
        "outputs": {},
    }),
    "agentsociety": jsonl({"request_time": 1785574800.5, "consumption": 1.5, "input_tokens": 9, "output_tokens": 2}),
    "otel_genai": jsonl({
        "name": "s", "context": {"trace_id": "1", "span_id": "a"}, "parent_id": None,
        "start_time": "2026-08-01T09:00:00Z", "end_time": "2026-08-01T09:00:01Z",
        "attributes": {"gen_ai.usage.input_tokens": 9, "gen_ai.usage.output_tokens": 2},
    }),
    **REQUESTS,
}  # fmt: skip
ODD = st.sampled_from([
    "0", "-1", "1e300", "NaN", "null", "true", '"', "[", "]", "{", "}", ",", ";", ":", "\n", "\r", "\0", "|", "\t", " ",
    "é", "1785574800000",
    "2026-08-01 09:00:00+05:00", "9" * 30, "[]", "{}", '""', ".", "e", "\\u0000", '"\\ud800"', "-",
])  # fmt: skip


def test_every_format_has_a_seed(write):
    from hisearch.base.policies import TRACE_FORMATS

    # An observation is a measurement, and no trace.
    assert set(SEEDS) == set(TRACE_FORMATS) - {"observation"}
    for name, content in SEEDS.items():
        assert len(read(write("t", content), format=name)) >= 1


@st.composite
def mutated(draw) -> tuple[str, str]:
    """A format, and its file with a few pieces cut, doubled or replaced."""
    name = draw(st.sampled_from(sorted(SEEDS)))
    content = SEEDS[name]
    for _ in range(draw(st.integers(1, 5))):
        start = draw(st.integers(0, len(content)))
        end = min(len(content), start + draw(st.sampled_from([0, 1, 1, 2, 5, 20])))
        content = content[:start] + draw(ODD | st.just(content[start:end] * 2) | st.just("")) + content[end:]
    return name, content


@given(case=mutated(), auto=st.booleans(), skip_bad=st.sampled_from([0, 100]))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_mutated_files_are_read_or_refused(tmp_path, case, auto, skip_bad):
    name, content = case
    path = tmp_path / "t"
    path.write_text(content, encoding="utf-8", newline="")
    try:
        trace = read(path, format="auto" if auto else name, skip_bad=skip_bad)
    except TraceError as error:
        message = str(error)
        assert "\n" not in message
        assert len(message) < 2000
        return
    for note in (*trace.notes, *trace.warnings):
        assert note.isprintable()
    trace_stats(compile_trace(trace, "t"), capacities_tokens=[16])


@given(places=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=5))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_mutated_parquet_is_read_or_refused(tmp_path, places):
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "t.parquet"
    columns = {"arrival_s": [0.0, 1.5], "input_tokens": [1, 2], "output_tokens": [3, 4], "session": ["a", "a"]}
    pq.write_table(pa.table(columns), path)
    content = bytearray(path.read_bytes())
    for at, byte in places:
        content[4 + int(at * (len(content) - 5))] = byte
    path.write_bytes(content)
    with suppress(TraceError):
        read(path)
