"""Times: what a column of them is taken for, what is refused, and what is said of it."""

from __future__ import annotations

import datetime
import itertools

import numpy as np
import pytest
from test_importers import read, refused

from hisearch.traces.load import load_trace_file
from hisearch.traces.reading.times import PER_SECOND, parse_date, unit_named
from hisearch.traces.stats import fano_factor

START_S = 1_785_574_800  # 2026-08-01 09:00:00 UTC
GAPS_MS = [0, 206, 413, 620, 1500]
MAPPED = {"arrival_s": "ts", "input_tokens": "prompt", "output_tokens": "answer"}


def table(times, header="ts,prompt,answer") -> str:
    return f"{header}\n" + "".join(f"{time},{10 + k},5\n" for k, time in enumerate(times))


@pytest.mark.parametrize(("unit", "title"), [("s", "seconds"), ("ms", "milli"), ("us", "micro"), ("ns", "nano")])
def test_numbers_since_1970_tell_their_unit(write, unit, title):
    per = PER_SECOND[unit]
    times = [START_S * per + gap * per // 1000 for gap in GAPS_MS] if unit != "s" else range(START_S, START_S + 5)
    trace = read(write("t.csv", table(times)), columns=MAPPED)
    expected = [gap / 1e3 for gap in GAPS_MS] if unit != "s" else [0, 1, 2, 3, 4]
    np.testing.assert_allclose(trace.arrival_s, expected, atol=1e-6)
    assert f"times: ts holds {title}" in trace.notes[0]
    assert "since 1970, by their size" in trace.notes[0]
    assert "2026-08-01 09:00:00 to 2026-08-01 09:00:0" in trace.notes[0]


def test_milliseconds_since_1970_keep_the_rate_of_the_service(write):
    times = (START_S * 1000 + 206 * k for k in range(5000))
    trace = read(write("t.csv", table(times)), columns=MAPPED)
    assert trace.arrival_s[-1] == pytest.approx(4999 * 0.206)
    assert "5,000 requests in 17 min 10 s, 4.85 requests/s" in trace.notes[0]


@pytest.mark.parametrize(
    "text",
    [
        "2026-08-01T09:00:01Z", "2026-08-01 09:00:01", "2026-08-01T11:00:01+02:00", "2026-08-01 09:00:01,000",
        "2026-08-01T09:00:01.000000000Z", "2026/08/01 09:00:01", "2026-08-01 09:00:01 UTC",
        "2026-08-01 09:00:01.0 +0000 UTC", "01/Aug/2026:09:00:01 +0000", "[01/Aug/2026:11:00:01 +0200]",
        "Sat, 01 Aug 2026 09:00:01 GMT",
    ],
)  # fmt: skip
def test_dates(text):
    moment = parse_date(text)
    moment = moment.replace(tzinfo=datetime.UTC) if moment.tzinfo is None else moment
    assert moment.timestamp() == START_S + 1


@pytest.mark.parametrize("text", ["yesterday", "08/01/2026 09:00", "01/Foo/2026:09:00:00 +0000", "", "12:30"])
def test_no_dates(text):
    assert parse_date(text) is None


@pytest.mark.parametrize(
    ("column", "unit"),
    [("start_ms", "ms"), ("startTimeMs", "ms"), ("arrival_time_ns", "ns"), ("t_us", "us"), ("arrival_s", "s"),
     ("ts", None), ("status", None), ("items", None), ("ms", None), ("created_secs", "s"), ("timestampNanos", "ns")],
)  # fmt: skip
def test_units_in_names(column, unit):
    assert unit_named(column) == unit


def test_numbers_from_a_start_are_seconds_unless_their_unit_is_said(write):
    path = write("t.csv", table(GAPS_MS))
    assert read(path, columns=MAPPED).arrival_s.tolist() == GAPS_MS
    seconds = [gap / 1e3 for gap in GAPS_MS]
    stated = {"arrival_ms": "ts", "input_tokens": "prompt", "output_tokens": "answer"}
    assert read(path, columns=stated).arrival_s.tolist() == seconds
    assert read(path, columns=MAPPED, time_unit="ms").arrival_s.tolist() == seconds
    named = write("u.csv", table(GAPS_MS, "start_ms,prompt,answer"))
    trace = read(named, columns=MAPPED | {"arrival_s": "start_ms"})
    assert trace.arrival_s.tolist() == seconds
    assert "milliseconds from a start, as the column's name says" in trace.notes[0]
    assert "contradicts" in refused(path, columns=stated, time_unit="us")
    assert "expected one of arrival_s, arrival_ms" in refused(path, columns=stated | {"arrival_s": "ts"})


def test_our_own_names_take_no_other_unit_in_silence(write):
    path = write("t.csv", table([START_S * 1000 + gap for gap in GAPS_MS], "arrival_s,input_tokens,output_tokens"))
    message = refused(path)
    assert "t.csv:2: arrival_s: expected seconds, as the column says, got 1785574800000" in message
    assert "milliseconds since 1970 by its size (2026-08-01)" in message
    assert "--columns arrival_ms=arrival_s, or --time-unit ms" in message
    assert read(path, time_unit="ms").arrival_s.tolist() == [gap / 1e3 for gap in GAPS_MS]
    rows = [{"format": "hisearch-trace", "version": 1}, {"arrival_s": 1.7e12, "input_tokens": 1, "output_tokens": 1}]
    message = refused(write("t.jsonl", rows))
    assert "t.jsonl:2: arrival_s: expected seconds from the trace's start, got 1700000000000" in message
    assert "subtract the first and divide by 1,000" in message
    assert "time_unit does not apply" in refused(write("t.jsonl", rows), time_unit="ms")


@pytest.mark.parametrize(
    ("times", "line", "message"),
    [
        ([START_S, START_S * 1000 + 500], 3, "expected seconds since 1970, as in the rows before, got 1785574800500"),
        ([START_S * 1000, START_S + 1], 3, "expected milliseconds since 1970, as in the rows before"),
        ([0, 206, START_S], 4, "expected seconds from a start, as in the rows before"),
        ([START_S, "2026-08-01 09:00:01"], 3, "expected seconds since 1970, as in the rows before, got a date"),
        (["2026-08-01 09:00:01", START_S], 3, "expected dates, as in the rows before"),
        (["2026-08-01 09:00:01", "2026-08-01 09:00:01Z"], 3, "expected a date without a zone"),
        ([0, 1e300], 3, "expected a time within ten years of the start"),
        ([0, 5e9], 3, "--columns arrival_ms=ts (or _us, _ns)"),
        ([0, -1], 3, "expected at least 0, got -1"),
        ([0, "nan"], 3, "expected a finite number"),
        (["0001-01-01", "2026-08-01"], 2, "expected a date of the years 1971 to 2099"),
    ],
)
def test_times_of_another_kind_are_refused_by_line(write, times, line, message):
    refusal = refused(write("t.csv", table(times)), columns=MAPPED)
    assert f"t.csv:{line}: ts: " in refusal
    assert message in refusal


def test_what_can_hardly_be_is_refused_where_the_unit_is_a_guess(write):
    slow = write("slow.csv", table(206 * k for k in range(1500)))
    message = refused(slow, columns=MAPPED)
    assert "read as seconds from a start: 1,500 requests in 3 d 13 h, 0.00485 requests/s" in message
    assert "milliseconds would be 4.85 requests/s: say --columns arrival_ms=ts, or --time-unit ms" in message
    assert "if seconds is right, say --time-unit s" in message
    assert "hardly a service's rate" in read(slow, columns=MAPPED, time_unit="s").warnings[0]
    assert "hardly a service's rate" in refused(write("f.csv", table(k / 1e6 for k in range(1500))), columns=MAPPED)
    few = read(write("few.csv", table(206 * k for k in range(150))), columns=MAPPED)
    assert "ts holds whole numbers, read as seconds" in few.warnings[0]
    long = write("long.csv", table(["1990-01-01", "2026-01-01"]))
    assert "expected times within ten years" in refused(long, columns=MAPPED)
    at_once = read(write("o.csv", table(itertools.repeat(0, 1500))), columns=MAPPED)
    assert at_once.warnings == ()


def test_every_file_says_what_it_was_taken_for(write):
    rows = [{"timestamp": k * 700, "input_length": 9, "output_length": 5, "hash_ids": [1]} for k in range(3)]
    path = write("m.jsonl", rows)
    note = "times: timestamp holds milliseconds; 3 requests in 1.4 s, 1.43 requests/s"
    assert read(path).notes == (note,)
    compiled = load_trace_file(path)
    assert compiled.notes == load_trace_file(path).notes == (note,)  # the second comes from the cache
    assert compiled.warnings[0] == note


def test_windows_of_a_long_trace_are_counted_not_kept():
    rng = np.random.default_rng(0)
    times = np.sort(rng.random(500) * 1000)
    counts = np.bincount((times - times[0]).astype(int) // 10)[: int((times[-1] - times[0]) // 10)]
    assert fano_factor(times, 10.0) == pytest.approx(counts.var() / counts.mean())
    assert fano_factor(np.array([0.0, 1.0, 1e18]), 10.0) == pytest.approx(2.0)
