"""A simulation as a Chrome trace, to be opened in Perfetto (ui.perfetto.dev) or chrome://tracing.

Format: the JSON object form of Google's "Trace Event Format" (events M, X, C, b and e). Times are microseconds since
the trace's start, to the nanosecond. Each worker is a process (its number + 1) with

    thread "steps"      a complete event (X) for each step, on the device: kind, tokens, requests, losses
    counters (C)        ``requests`` (running, waiting), ``batch tokens`` (prefill, decode) and ``KV tokens`` (used),
                        as defined in ``simulate.results.series``
    async slices (b, e) a slice ``request`` per request from its arrival to its finish, with its phases inside it

Phases: ``queued`` until the first admission; ``prefill`` until the end of the step that makes the next token;
``decode`` until the finish, or the loss of the KV; ``preempted`` until the request is resumed, with ``prefill`` again.
Requests that were rejected, or had not arrived, are on no worker and in no slice. Phases cut by a horizon end with
the log.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from hisearch.base.dtypes import F8, I8
from hisearch.report.figures.phases import PHASES, Phases, request_phases
from hisearch.simulate.results.gaps import step_log
from hisearch.simulate.results.residence import residences
from hisearch.simulate.results.result import Result
from hisearch.simulate.results.series import (
    Occupancy,
    end_of_log_s,
    kv_tokens_used,
    occupancies,
    step_kinds,
    step_tokens,
)
from hisearch.simulate.results.tables import Outcome

#: Most events of a file, about 130 bytes each: more are refused. Viewers take a few hundred megabytes.
MAX_EVENTS = 1_000_000

#: Thread of the steps within a worker's process.
_STEPS_THREAD = 1


class TimelineTooLarge(ValueError):  # noqa: N818
    """More events than a viewer can open."""


@dataclass(frozen=True)
class Window:
    """The time shown, seconds: steps, requests and phases that overlap ``from_s`` to ``to_s``.

    They are shown whole, also where they cross an edge. Counters begin with their value at ``from_s``.

    Raises:
        ValueError: the window is empty.
    """

    from_s: float = 0.0
    to_s: float = math.inf

    def __post_init__(self) -> None:
        if not self.from_s < self.to_s:
            raise ValueError(f"a timeline from {self.from_s:g} s to {self.to_s:g} s shows nothing")

    def overlaps(self, start_s: F8, end_s: F8) -> np.ndarray:
        """Which spans overlap the window; ends may lie on its edges."""
        return np.asarray((end_s >= self.from_s) & (start_s <= self.to_s))


@dataclass(frozen=True)
class _Counter:
    """A counter of one worker. at_s: (K,) ascending times; values: name -> (K,) in force from each of them on."""

    name: str
    worker: int
    at_s: F8
    values: dict[str, I8]


def write_timeline(
    result: Result,
    path: Path,
    *,
    request_ids: Sequence[str] | None = None,
    window: Window = Window(),
    packed: bool | None = None,
) -> int:
    """Write the timeline of a simulation; equal results give equal bytes.

    Args:
        result: with a log.
        path: of the file; written in place.
        request_ids: (N,) names of the requests; their numbers where None.
        window: the time shown.
        packed: whether to gzip; by the name's ending ``.gz`` where None.

    Returns:
        The number of events.

    Raises:
        LogMissing: the result has no log.
        TimelineTooLarge: there would be more than ``MAX_EVENTS``.
        OSError: the file cannot be written.
    """
    timeline = _Timeline.of(result, request_ids, window)
    events = timeline.count()
    if events > MAX_EVENTS:
        raise TimelineTooLarge(
            f"the timeline would hold {events} events, more than the {MAX_EVENTS} that a viewer opens with ease: "
            f"choose a window of less time (of {end_of_log_s(result):.1f} s)"
        )
    packed = path.name.endswith(".gz") if packed is None else packed
    with path.open("wb") as raw:
        if packed:
            # Without name and time, so that equal timelines are equal files.
            with gzip.GzipFile("", "wb", compresslevel=6, fileobj=raw, mtime=0) as file:
                timeline.write(file)
        else:
            timeline.write(raw)
    return events


@dataclass(frozen=True)
class _Timeline:
    """Everything that goes into the file, chosen and counted."""

    result: Result
    names: Sequence[str]
    steps: I8
    prefill: I8
    decode: I8
    counters: list[_Counter]
    phases: Phases

    @classmethod
    def of(cls, result: Result, request_ids: Sequence[str] | None, window: Window) -> _Timeline:
        log = step_log(result)
        table = result.requests
        names = [str(k) for k in range(len(table.outcome))] if request_ids is None else request_ids
        prefill, decode = step_tokens(result)
        times = residences(result)
        end_s = end_of_log_s(result)
        counters = [
            _cropped(counter, window)
            for w, at_worker in enumerate(occupancies(result, times))
            for counter in _counters(result, w, at_worker, prefill, decode)
        ]
        phases = request_phases(result, times, end_s)
        finished_s = np.where(np.isfinite(table.finish_s), table.finish_s, end_s)
        shown = (table.worker >= 0) & window.overlaps(table.arrival_s, finished_s)
        return cls(
            result,
            names,
            np.flatnonzero(window.overlaps(log.steps["start_s"], log.steps["end_s"])),
            prefill,
            decode,
            counters,
            phases.of_requests(shown),
        )

    def count(self) -> int:
        """Events in the file."""
        headings = 3 * len(self.result.workers.steps)
        counted = sum(len(counter.at_s) for counter in self.counters)
        return headings + len(self.steps) + counted + 2 * (len(self.phases.requests) + len(self.phases.request))

    def write(self, file: BinaryIO | gzip.GzipFile) -> None:
        """Write the JSON document, one event a line."""
        file.write(b'{"displayTimeUnit":"ms","traceEvents":[\n')
        separator = ""
        for lines in self._blocks():
            if lines:
                file.write((separator + ",\n".join(lines)).encode())
                separator = ",\n"
        file.write(b"\n]}\n")

    def _blocks(self) -> Iterator[list[str]]:
        yield [line for w in range(len(self.result.workers.steps)) for line in _heading(w)]
        yield self._step_lines()
        for counter in self.counters:
            yield _counter_lines(counter)
        yield self._request_lines()

    def _step_lines(self) -> list[str]:
        log = step_log(self.result)
        steps = log.steps[self.steps]
        prefill, decode = self.prefill[self.steps], self.decode[self.steps]
        start, end = _nanoseconds(steps["start_s"]), _nanoseconds(steps["end_s"])
        rows = zip(
            step_kinds(prefill, decode).tolist(), steps["worker"].tolist(), start.tolist(),
            (end - start).tolist(), _nanoseconds(steps["scheduled_s"]).tolist(), prefill.tolist(), decode.tolist(),
            steps["entries"].tolist(), steps["lost"].tolist(), self.steps.tolist(), strict=True,
        )  # fmt: skip
        return [
            f'{{"name":"{kind}","cat":"step","ph":"X","pid":{w + 1},"tid":{_STEPS_THREAD},"ts":{ns / 1000:.3f},'
            f'"dur":{length / 1000:.3f},"args":{{"prefill_tokens":{chunks},"decode_tokens":{decodes},'
            f'"requests":{entries},"preempted":{self._lost(step) if lost else "[]"},'
            f'"formed_us":{formed / 1000:.3f}}}}}'
            for kind, w, ns, length, formed, chunks, decodes, entries, lost, step in rows
        ]

    def _lost(self, step: int) -> str:
        return json.dumps([self.names[r] for r in step_log(self.result).lost_in(step).tolist()])

    def _request_lines(self) -> list[str]:
        """Each request's slice around its phases, in order of time."""
        lines: list[str] = []
        phases = self.phases
        bounds = np.searchsorted(phases.request, [phases.requests, phases.requests + 1])
        opens, closes = _nanoseconds(phases.opens_s).tolist(), _nanoseconds(phases.closes_s).tolist()
        starts, ends = _nanoseconds(phases.start_s).tolist(), _nanoseconds(phases.end_s).tolist()
        kinds = phases.phase.tolist()
        worker = self.result.requests.worker
        for k, r in enumerate(phases.requests.tolist()):
            where = f'"cat":"request","id":{r},"pid":{worker[r] + 1},"tid":{_STEPS_THREAD}'
            args = json.dumps(self._facts(r), separators=(",", ":"))
            lines.append(f'{{"name":"request","ph":"b",{where},"ts":{opens[k] / 1000:.3f},"args":{args}}}')
            for p in range(bounds[0, k], bounds[1, k]):
                event = f'{{"name":"{PHASES[kinds[p]]}","ph":"%s",{where},"ts":%.3f}}'
                lines.append(event % ("b", starts[p] / 1000))
                lines.append(event % ("e", ends[p] / 1000))
            lines.append(f'{{"name":"request","ph":"e",{where},"ts":{closes[k] / 1000:.3f}}}')
        return lines

    def _facts(self, r: int) -> dict[str, Any]:
        table = self.result.requests
        return {
            "request": self.names[r],
            "input_tokens": int(table.input_tokens[r]),
            "output_tokens": int(table.output_tokens[r]),
            "hit_tokens": int(table.hit_tokens[r]),
            "host_hit_tokens": int(table.host_hit_tokens[r]),
            "preemptions": int(table.preemptions[r]),
            "outcome": Outcome(table.outcome[r]).name.lower(),
        }


def _nanoseconds(times_s: F8) -> I8:
    """Rounded once, so that a step ends exactly where the next begins."""
    return np.rint(times_s * 1e9).astype(np.int64)


def _heading(worker: int) -> list[str]:
    """Names of a worker's process and of its thread."""
    where = f'"ph":"M","pid":{worker + 1},"tid":{_STEPS_THREAD}'
    return [
        f'{{"name":"process_name",{where},"args":{{"name":"worker {worker}"}}}}',
        f'{{"name":"process_sort_index",{where},"args":{{"sort_index":{worker}}}}}',
        f'{{"name":"thread_name",{where},"args":{{"name":"steps"}}}}',
    ]


def _counters(result: Result, worker: int, at_worker: Occupancy, prefill: I8, decode: I8) -> list[_Counter]:
    """One worker's counters, before the window is applied."""
    steps = step_log(result).steps
    own_steps = np.flatnonzero(steps["worker"] == worker)
    own_prefill, own_decode = prefill[own_steps], decode[own_steps]
    changes_s = at_worker.changes_s
    requests = {"running": at_worker.running(changes_s), "waiting": at_worker.waiting(changes_s)}
    # A step's tokens count until it ends, unless the next one begins at once.
    start_s, end_s = steps["start_s"][own_steps], steps["end_s"][own_steps]
    pauses = np.flatnonzero(np.append(start_s[1:], np.inf) > end_s)
    batch_s = np.concatenate([start_s, end_s[pauses]])
    order = np.argsort(batch_s, kind="stable")
    nothing = np.zeros(len(pauses), np.int64)
    batch = {
        "prefill": np.concatenate([own_prefill, nothing])[order],
        "decode": np.concatenate([own_decode, nothing])[order],
    }
    # Memory changes when a batch is formed, and is free when no request runs.
    formed_s = steps["scheduled_s"][own_steps]
    emptied_s = changes_s[requests["running"] == 0]
    used_s = np.unique(np.concatenate([formed_s, emptied_s]))
    newest = np.append(0, kv_tokens_used(result)[own_steps])[np.searchsorted(formed_s, used_s, side="right")]
    used = {"used": np.where(at_worker.running(used_s) > 0, newest, 0)}
    return [
        _Counter("requests", worker, changes_s, requests),
        _Counter("batch tokens", worker, batch_s[order], batch),
        _Counter("KV tokens", worker, used_s, used),
    ]


def _cropped(counter: _Counter, window: Window) -> _Counter:
    """The counter from its value at the window's start to the window's end, without repetitions."""
    first = max(int(np.searchsorted(counter.at_s, window.from_s, side="right")) - 1, 0)
    last = int(np.searchsorted(counter.at_s, window.to_s, side="right"))
    at_s = np.maximum(counter.at_s[first:last], window.from_s)
    values = {name: v[first:last] for name, v in counter.values.items()}
    changes = np.zeros(len(at_s), bool)
    changes[:1] = True
    for v in values.values():
        changes[1:] |= v[1:] != v[:-1]
    return _Counter(counter.name, counter.worker, at_s[changes], {name: v[changes] for name, v in values.items()})


def _counter_lines(counter: _Counter) -> list[str]:
    where = f'{{"name":"{counter.name}","ph":"C","pid":{counter.worker + 1},"ts":'
    pattern = where + '%.3f,"args":{' + ",".join(f'"{name}":%d' for name in counter.values) + "}}"
    times = (_nanoseconds(counter.at_s) / 1000).tolist()
    return [pattern % row for row in zip(times, *(v.tolist() for v in counter.values.values()), strict=True)]
