"""The Chrome trace: form of its events, and what they say of the simulation."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hisearch.report.figures import timeline
from hisearch.report.figures.phases import PHASES
from hisearch.report.figures.timeline import TimelineTooLarge, Window, write_timeline
from hisearch.simulate import Result
from hisearch.simulate.results.gaps import LogMissing
from hisearch.simulate.results.series import worker_series
from tests.simulate.logged import LoggedStep, logged_result
from tests.simulate.test_engine import system
from tests.simulate.test_series import BY_HAND

#: Keys that every event of a phase has, by the format.
REQUIRED = {
    "M": {"name", "ph", "pid", "tid", "args"},
    "X": {"name", "cat", "ph", "pid", "tid", "ts", "dur", "args"},
    "C": {"name", "ph", "pid", "ts", "args"},
    "b": {"name", "cat", "ph", "id", "pid", "tid", "ts"},
    "e": {"name", "cat", "ph", "id", "pid", "tid", "ts"},
}

Event = dict[str, Any]


@pytest.fixture(scope="module")
def crowded() -> Result:
    result = system(capacity_tokens=420).simulate(log=True)
    assert result.workers.preemptions.sum() > 0
    return result


def events(result: Result, folder: Path, **options: Any) -> list[Event]:
    path = folder / "t.json"
    count = write_timeline(result, path, **options)
    document = json.loads(path.read_text())
    assert document["displayTimeUnit"] == "ms"
    trace_events: list[Event] = document["traceEvents"]
    assert len(trace_events) == count
    return trace_events


def of_kind(trace_events: list[Event], kind: str, name: str | None = None) -> list[Event]:
    return [event for event in trace_events if event["ph"] == kind and name in (None, event["name"])]


def slices(trace_events: list[Event]) -> dict[int, list[tuple[str, float, float, int]]]:
    """By request: its slices as (name, start, end, depth), in order of start. Every one that opens is closed."""
    open_slices: dict[int, list[tuple[str, float]]] = defaultdict(list)
    closed: dict[int, list[tuple[str, float, float, int]]] = defaultdict(list)
    for event in trace_events:
        if event["ph"] == "b":
            open_slices[event["id"]].append((event["name"], event["ts"]))
        elif event["ph"] == "e":
            name, start = open_slices[event["id"]].pop()
            assert name == event["name"]
            assert start <= event["ts"]
            closed[event["id"]].append((name, start, event["ts"], len(open_slices[event["id"]])))
    assert not any(open_slices.values())
    return {request: sorted(rows, key=lambda row: (row[1], row[3])) for request, rows in closed.items()}


def test_events_have_the_form_of_the_format(crowded: Result, tmp_path: Path) -> None:
    trace_events = events(crowded, tmp_path)
    assert {event["ph"] for event in trace_events} == set(REQUIRED)
    for event in trace_events:
        assert set(event) >= REQUIRED[event["ph"]]
        assert event["pid"] in (1, 2)
        if event["ph"] != "M":
            assert event["ts"] >= 0
        if event["ph"] == "C":
            assert all(isinstance(value, int) and value >= 0 for value in event["args"].values())


def test_workers_are_named_processes(crowded: Result, tmp_path: Path) -> None:
    named = of_kind(events(crowded, tmp_path), "M", "process_name")
    assert [(event["pid"], event["args"]["name"]) for event in named] == [(1, "worker 0"), (2, "worker 1")]


def test_every_step_is_there_and_none_overlaps(crowded: Result, tmp_path: Path) -> None:
    log = crowded.log
    assert log is not None
    steps = of_kind(events(crowded, tmp_path), "X")
    assert len(steps) == len(log)
    for w in range(2):
        mine = [event for event in steps if event["pid"] == w + 1]
        assert {event["tid"] for event in mine} == {1}
        ends = [round(1000 * event["ts"]) + round(1000 * event["dur"]) for event in mine]
        assert all(end <= round(1000 * event["ts"]) for end, event in zip(ends, mine[1:], strict=False))
        for name in ("prefill_tokens", "decode_tokens"):
            assert sum(event["args"][name] for event in mine) == getattr(crowded.workers, name)[w]
        assert sum(len(event["args"]["preempted"]) for event in mine) == crowded.workers.preemptions[w]
        total_us = sum(event["dur"] for event in mine)
        assert total_us == pytest.approx(1e6 * crowded.workers.busy_s[w], abs=0.001 * len(mine))


def test_phases_fill_each_request_s_slice(crowded: Result, tmp_path: Path) -> None:
    table = crowded.requests
    by_request = slices(events(crowded, tmp_path))
    assert set(by_request) == set(np.flatnonzero(table.worker >= 0).tolist())
    for r, (outer, *phases) in by_request.items():
        assert (outer[0], outer[3]) == ("request", 0)
        np.testing.assert_allclose(outer[1:3], 1e6 * np.array([table.arrival_s[r], table.finish_s[r]]), atol=1e-3)
        assert {depth for *_, depth in phases} == {1}
        assert [phases[0][1], *(end for _, _, end, _ in phases)] == [outer[1], *(p[1] for p in phases[1:]), outer[2]]
        names = [name for name, *_ in phases]
        assert names.count("preempted") == table.preemptions[r]
        assert set(names) <= set(PHASES)
        assert all(after == "prefill" for name, after in pairwise(names) if name == "preempted")
        waited = phases[0] if names[0] == "queued" else None
        assert (waited[2] if waited else outer[1]) == pytest.approx(1e6 * table.scheduled_s[r], abs=1e-3)
        if "decode" in names and not table.preemptions[r]:
            assert phases[names.index("decode")][1] == pytest.approx(1e6 * table.first_token_s[r], abs=1e-3)


def test_by_hand(tmp_path: Path) -> None:
    trace_events = events(BY_HAND, tmp_path, request_ids=["a", 'b"</script>'])
    assert slices(trace_events)[1] == [
        ("request", 0.5e6, 4.5e6, 0),
        ("queued", 0.5e6, 1e6, 1),
        ("prefill", 1e6, 2e6, 1),
        ("decode", 2e6, 2.5e6, 1),
        ("preempted", 2.5e6, 3e6, 1),
        ("prefill", 3e6, 4e6, 1),
        ("decode", 4e6, 4.5e6, 1),
    ]
    assert of_kind(trace_events, "b", "request")[1]["args"]["request"] == 'b"</script>'
    assert of_kind(trace_events, "X")[3]["args"]["preempted"] == ['b"</script>']
    counted = [(event["ts"], event["args"]) for event in of_kind(trace_events, "C", "requests")]
    assert counted == [
        (0.0, {"running": 1, "waiting": 0}),
        (0.5e6, {"running": 1, "waiting": 1}),
        (1e6, {"running": 2, "waiting": 0}),
        (2.5e6, {"running": 1, "waiting": 1}),
        (3e6, {"running": 1, "waiting": 0}),
        (4.5e6, {"running": 0, "waiting": 0}),
    ]
    batches = [(event["ts"], event["args"]["prefill"], event["args"]["decode"]) for event in
               of_kind(trace_events, "C", "batch tokens")]  # fmt: skip
    assert batches == [(0.0, 4, 0), (1e6, 3, 1), (2e6, 0, 2), (2.5e6, 0, 1), (3e6, 5, 0), (4e6, 0, 1), (4.5e6, 0, 0)]
    used = [(event["ts"], event["args"]["used"]) for event in of_kind(trace_events, "C", "KV tokens")]
    assert used == [(0.0, 1000), (4.5e6, 0)]


def test_counters_agree_with_the_series(crowded: Result, tmp_path: Path) -> None:
    trace_events, frame = events(crowded, tmp_path), worker_series(crowded)
    for w in range(2):
        mine = frame[frame["worker"] == w]
        for counter, time, columns in (
            ("requests", "time_s", {"running": "running", "waiting": "waiting"}),
            ("batch tokens", "start_s", {"prefill": "prefill_tokens", "decode": "decode_tokens"}),
            ("KV tokens", "time_s", {"used": "kv_tokens_used"}),
        ):
            counted = [event for event in of_kind(trace_events, "C", counter) if event["pid"] == w + 1]
            times = np.array([event["ts"] for event in counted])
            assert (np.diff(times) > 0).all()
            # Two batches may be formed at the same time: the counter shows the second one.
            rows = mine.drop_duplicates(time, keep="last")
            at = np.searchsorted(times, np.rint(1e9 * rows[time]) / 1000, side="right") - 1
            for name, column in columns.items():
                values = np.array([event["args"][name] for event in counted])
                assert values[-1] == 0
                np.testing.assert_array_equal(values[at], rows[column])


def test_a_window_shows_what_overlaps_it_whole(tmp_path: Path) -> None:
    trace_events = events(BY_HAND, tmp_path, window=Window(3.2, 3.9))
    assert [(event["ts"], event["dur"]) for event in of_kind(trace_events, "X")] == [(3e6, 1e6)]
    assert set(slices(trace_events)) == {1}
    assert len(slices(trace_events)[1]) == 7
    assert [event["ts"] for event in of_kind(trace_events, "C")] == [3.2e6] * 3
    assert of_kind(trace_events, "C", "batch tokens")[0]["args"] == {"prefill": 5, "decode": 0}


def test_a_window_must_have_a_length() -> None:
    with pytest.raises(ValueError, match="from 2 s to 1 s shows nothing"):
        Window(2.0, 1.0)


def test_what_a_horizon_leaves_open_ends_with_the_log(tmp_path: Path) -> None:
    small_system = system(capacity_tokens=4000)
    result = small_system.simulate(log=True, horizon_s=float(np.nanmedian(small_system.simulate().requests.finish_s)))
    trace_events = events(result, tmp_path)
    outcomes = {event["args"]["outcome"] for event in of_kind(trace_events, "b", "request")}
    assert outcomes == {"finished", "in_flight"}
    last = max(event["ts"] for event in trace_events if event["ph"] == "e")
    open_still = [k for k, (outer, *_) in slices(trace_events).items() if outer[2] == last]
    assert len(open_still) >= (result.requests.outcome == 0).sum() > 0


def test_equal_results_give_equal_files(crowded: Result, tmp_path: Path) -> None:
    first, again, packed = tmp_path / "a.json", tmp_path / "b.json", tmp_path / "c.json.gz"
    for path in (first, again, packed):
        write_timeline(crowded, path)
    assert first.read_bytes() == again.read_bytes() == gzip.decompress(packed.read_bytes())
    renamed = tmp_path / "d.part"
    write_timeline(crowded, renamed, packed=True)
    assert renamed.read_bytes() == packed.read_bytes()


def test_too_many_events_are_refused(crowded: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "MAX_EVENTS", 400)
    with pytest.raises(TimelineTooLarge, match="more than the 400 that a viewer opens"):
        write_timeline(crowded, tmp_path / "t.json")
    assert not list(tmp_path.iterdir())
    assert len(events(crowded, tmp_path, window=Window(0.0, 0.05))) <= 400


def test_a_simulation_without_requests_has_an_empty_timeline(tmp_path: Path) -> None:
    result = system().simulate(log=True, horizon_s=0.0)
    assert {event["ph"] for event in events(result, tmp_path)} == {"M"}


def test_a_preempted_request_that_finishes_without_being_resumed(tmp_path: Path) -> None:
    """vLLM: its last token was in flight."""
    steps = [
        LoggedStep(0.0, 0.0, 1.0, [(0, 0, 3), (1, 0, 3)]),
        LoggedStep(0.0, 1.0, 2.0, [(0, 3, 1), (1, 3, 1)]),
        LoggedStep(1.0, 2.0, 3.0, [(1, 4, 1)], lost=[0]),
    ]
    result = logged_result(steps, [3, 3], [2, 3], scheduled_s=[0.0, 0.0], first_token_s=[1.0, 1.0], finish_s=[2.0, 3.0])
    assert slices(events(result, tmp_path))[0][1:] == [("prefill", 0.0, 1e6, 1), ("preempted", 1e6, 2e6, 1)]


def test_a_timeline_needs_the_log(tmp_path: Path) -> None:
    with pytest.raises(LogMissing, match="simulate with log=True"):
        write_timeline(system().simulate(), tmp_path / "t.json")
