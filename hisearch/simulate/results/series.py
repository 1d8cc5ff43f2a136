"""What each worker did over time, from the log of steps: at every step, or at regular times.

Definitions, for a worker at time t, once all that happens at t has happened
    running         requests admitted and neither finished nor without their KV (see ``residence``)
    waiting         requests that have reached the worker and neither finished nor are running; preempted ones included
                    Under prefill/decode disaggregation, a request is at its prefill worker until its KV has arrived
                    at the decode worker: it waits there from its arrival on, and runs until its KV has been sent
    kv_tokens_used  tokens of KV memory that requests hold, in full pages, after the pass that formed the newest batch;
                    0 while nothing runs. Cached pages that no request holds are not counted
    prefill_tokens  tokens computed in chunks of prompts, those computed again after a preemption included
    decode_tokens   tokens computed one at a time, to make the next one
    batch_tokens    prefill_tokens + decode_tokens
    preempted       requests that lost their KV while the batch was formed

The contents of the tiers' stores, which workers may share, are in ``tier_series``.

At a horizon the log ends with the last recorded launch. vLLM's and SGLang's fast-forwards are logged as they end, so
that the steps of one cut by the horizon are missing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from hisearch.base.dtypes import F8, I4, I8
from hisearch.kernels.layout import sim as la
from hisearch.simulate.results.gaps import NOT_MADE, entry_steps, step_log, token_entries
from hisearch.simulate.results.residence import Residences, residences
from hisearch.simulate.results.result import Result
from hisearch.simulate.results.tables import RequestTable, StepLog

#: Most rows of a regular series; longer ones are refused.
MAX_ROWS = 5_000_000


class TooManyRows(ValueError):  # noqa: N818
    """An interval that is too short for the time simulated."""


@dataclass(frozen=True)
class Occupancy:
    """Requests at one worker: sorted times, seconds, of arrivals, finishes, admissions and ends of running."""

    arrived_s: F8
    finished_s: F8
    admitted_s: F8
    left_s: F8

    def running(self, at_s: F8) -> I8:
        """Requests running at each time."""
        return _count(self.admitted_s, at_s) - _count(self.left_s, at_s)

    def waiting(self, at_s: F8) -> I8:
        """Requests waiting at each time."""
        return _count(self.arrived_s, at_s) - _count(self.finished_s, at_s) - self.running(at_s)

    @cached_property
    def changes_s(self) -> F8:
        """Times, ascending, at which ``running`` or ``waiting`` may change."""
        return np.unique(np.concatenate([self.arrived_s, self.finished_s, self.admitted_s, self.left_s]))


def _count(sorted_s: F8, at_s: F8) -> I8:
    """Number of ``sorted_s`` at or before each time."""
    return np.searchsorted(sorted_s, at_s, side="right")


def occupancies(result: Result, times: Residences | None = None) -> list[Occupancy]:
    """One per worker; ``times``: the result's ``residences``, if already computed."""
    table = result.requests
    times = residences(result) if times is None else times
    visits = [_Visits(table.worker, table.arrival_s, table.finish_s)]
    stays = [_Visits(table.worker[times.request], times.admitted_s, times.left_s)]
    if table.kv_arrived_s is not None:
        kv_arrived_s = np.where(
            np.isnan(table.kv_arrived_s) & (table.worker != table.prefill_worker), np.inf, table.kv_arrived_s
        )
        visits = _split_visits(table, kv_arrived_s)
        stays = _split_stays(result, times, kv_arrived_s)
    return [
        Occupancy(
            _of_worker(visits, "from_s", w),
            _of_worker(visits, "to_s", w),
            _of_worker(stays, "from_s", w),
            _of_worker(stays, "to_s", w),
        )
        for w in range(len(result.workers.steps))
    ]


class _Visits(NamedTuple):
    """Intervals in which requests were, or ran, at a worker; arrays of equal length, NaN: not yet, or to the end."""

    worker: I4
    from_s: F8
    to_s: F8


def _of_worker(visits: list[_Visits], column: str, w: int) -> F8:
    times_s = np.concatenate([getattr(group, column)[group.worker == w] for group in visits])
    return np.sort(times_s[np.isfinite(times_s)])


def _split_visits(table: RequestTable, kv_arrived_s: F8) -> list[_Visits]:
    """Each request at its prefill worker until its KV transfer, then at its decode worker; NaN: it stays."""
    stays = np.isnan(kv_arrived_s)
    arrived = np.isfinite(kv_arrived_s)
    before_s = np.where(stays, table.finish_s, np.where(arrived, kv_arrived_s, np.nan))
    return [
        _Visits(table.prefill_worker, table.arrival_s, before_s),
        _Visits(table.worker[arrived], kv_arrived_s[arrived], table.finish_s[arrived]),
    ]


def _split_stays(result: Result, times: Residences, kv_arrived_s: F8) -> list[_Visits]:
    """Times of running at either worker; one that spans the KV transfer resumes with the next logged step."""
    table, log = result.requests, step_log(result)
    request = times.request
    at_s = kv_arrived_s[request]
    before = np.isnan(at_s) | (times.admitted_s < at_s)
    until_s = np.fmin(times.left_s, np.where(np.isfinite(at_s), at_s, np.nan))
    spans_transfer = np.isfinite(at_s) & before & ~(times.left_s <= at_s)
    owner = log.entries["request"]
    at_decode_worker = log.steps["worker"][entry_steps(log)] == table.worker[owner]
    formed_s = np.where(at_decode_worker, log.steps["scheduled_s"][entry_steps(log)], np.inf)
    resumed_s = np.full(len(table.worker), np.inf)
    np.minimum.at(resumed_s, owner, np.where(formed_s >= kv_arrived_s[owner], formed_s, np.inf))
    goes_on = spans_transfer & np.isfinite(resumed_s[request])
    return [
        _Visits(table.prefill_worker[request[before]], times.admitted_s[before], until_s[before]),
        _Visits(table.worker[request[~before]], times.admitted_s[~before], times.left_s[~before]),
        _Visits(table.worker[request[goes_on]], resumed_s[request[goes_on]], times.left_s[goes_on]),
    ]


def decode_entries(result: Result) -> npt.NDArray[np.bool_]:
    """(E,) whether each entry of the log is a decode: one token, computed to make a further output token, or drafts.

    An extra decode, behind a request's last token, counts too. SGLang logs it as the kind of the step. In a mixed step
    a resumed request with one uncomputed token counts as a decode.
    """
    log = step_log(result)
    single = log.entries["tokens"] == 1
    kind = log.steps["kind"][entry_steps(log)]
    unknown = kind == la.ANY_STEP
    # Matching entries to tokens is by far the slowest part; skip it if the engine logs the kinds of its steps.
    makes_later = _make_later_tokens(result) if unknown.any() else unknown
    computed, request = log.entries["computed"], log.entries["request"]
    beyond_prompt = computed >= result.requests.input_tokens[request]
    extra = computed >= (result.requests.input_tokens + result.requests.output_tokens - 1)[request]
    decodes: npt.NDArray[np.bool_] = np.select(
        [unknown, kind == la.MIXED_STEP],
        [single & (makes_later | extra), single & beyond_prompt],
        default=kind == la.DECODE_STEP,
    )
    if log.outputs is None:
        return decodes
    logged = log.outputs["decodes"]
    return np.asarray(np.where(logged < 0, decodes, logged > 0))


def _make_later_tokens(result: Result) -> npt.NDArray[np.bool_]:
    """(E,) whether each entry made an output token after its request's first."""
    first, entry = token_entries(result)
    later = np.ones(len(entry), bool)
    later[first[:-1]] = False
    makes_later = np.zeros(len(step_log(result).entries), bool)
    makes_later[entry[later & (entry != NOT_MADE)]] = True
    return makes_later


def step_tokens(result: Result) -> tuple[I8, I8]:
    """Tokens computed by each step, (prefill (S,), decode (S,))."""
    log = step_log(result)
    kind, tokens = log.steps["kind"], log.entries["tokens"]
    total = _sums(log, tokens)
    if np.isin(kind, (la.PREFILL_STEP, la.DECODE_STEP)).all():  # each step is entirely one or the other
        decode = np.where(kind == la.DECODE_STEP, total, 0)
    else:
        decode = _sums(log, np.where(decode_entries(result), tokens, 0))
    return total - decode, decode


def _sums(log: StepLog, values: I4) -> I8:
    """Sum over each step's entries."""
    until = np.concatenate([[0], np.cumsum(values, dtype=np.int64)])
    first = log.steps["first_entry"]
    return np.asarray(until[first + log.steps["entries"]] - until[first])


def kv_tokens_used(result: Result) -> I8:
    """Tokens of KV memory that requests hold once each step's batch is formed, (S,)."""
    steps = step_log(result).steps
    held = result.worker_kv_tokens[steps["worker"]]
    return np.asarray(held - steps["free_tokens"] - steps["evictable_tokens"])


def step_kinds(prefill: I8, decode: I8) -> npt.NDArray[np.str_]:
    """(S,) ``prefill``, ``decode`` or ``mixed``, by what each step computes."""
    return np.where(decode == 0, "prefill", np.where(prefill == 0, "decode", "mixed"))


def worker_series(result: Result, interval_s: float | None = None) -> pd.DataFrame:
    """Activity of each worker, from the log: a row for each step, or for each ``interval_s`` seconds."""
    return step_series(result) if interval_s is None else regular_series(result, interval_s)


def step_series(result: Result) -> pd.DataFrame:
    """A row for each step, by worker and time.

    Columns: ``worker``, ``time_s`` (when the batch was formed: the time of ``running``, ``waiting`` and
    ``kv_tokens_used``), ``start_s`` and ``end_s`` on the device, ``kind``, and those of the module's definitions.

    Raises:
        LogMissing: there is no log.
    """
    steps = step_log(result).steps
    prefill, decode = step_tokens(result)
    used = kv_tokens_used(result)
    frame = pd.DataFrame(
        {
            "worker": steps["worker"],
            "time_s": steps["scheduled_s"],
            "start_s": steps["start_s"],
            "end_s": steps["end_s"],
            "kind": step_kinds(prefill, decode),
            "running": 0,
            "waiting": 0,
            "kv_tokens_used": used,
            "prefill_tokens": prefill,
            "decode_tokens": decode,
            "batch_tokens": prefill + decode,
            "preempted": steps["lost"],
        }
    )
    running, waiting = np.zeros(len(steps), np.int64), np.zeros(len(steps), np.int64)
    for w, at_worker in enumerate(occupancies(result)):
        mine = steps["worker"] == w
        running[mine] = at_worker.running(steps["scheduled_s"][mine])
        waiting[mine] = at_worker.waiting(steps["scheduled_s"][mine])
    frame["running"], frame["waiting"] = running, waiting
    return frame.sort_values("worker", kind="stable", ignore_index=True)


def regular_series(result: Result, interval_s: float) -> pd.DataFrame:
    """A row for each worker and each multiple of ``interval_s``, from 0 to the first one past the last event.

    As a metrics server would scrape an engine: ``running``, ``waiting`` and ``kv_tokens_used`` are those of ``time_s``;
    ``steps``, ``prefill_tokens``, ``decode_tokens``, ``batch_tokens`` and ``preempted`` are totals of the steps that
    ended since the row before, ``busy_s`` is the device's time in it, in which any attention group or stage had a step.

    Raises:
        LogMissing: there is no log.
        ValueError: the interval is not positive.
        TooManyRows: more than ``MAX_ROWS``.
    """
    at_s = ticks_s(result, interval_s, len(result.workers.steps))
    steps = step_log(result).steps
    prefill, decode = step_tokens(result)
    used = kv_tokens_used(result)
    frames = []
    for w, at_worker in enumerate(occupancies(result)):
        mine = np.flatnonzero(steps["worker"] == w)
        running = at_worker.running(at_s)
        newest = _count(steps["scheduled_s"][mine], at_s)
        ended = _count(steps["end_s"][mine], at_s)
        totals = {
            "steps": np.ones(len(mine), np.int64),
            "prefill_tokens": prefill[mine],
            "decode_tokens": decode[mine],
            "batch_tokens": (prefill + decode)[mine],
            "preempted": steps["lost"][mine].astype(np.int64),
        }
        columns = {
            "worker": w,
            "time_s": at_s,
            "running": running,
            "waiting": at_worker.waiting(at_s),
            "kv_tokens_used": np.where(running > 0, np.append(0, used[mine])[newest], 0),
            **{name: np.diff(np.append(0, np.cumsum(v))[ended], prepend=0) for name, v in totals.items()},
            "busy_s": np.diff(_busy_s(steps["start_s"][mine], steps["end_s"][mine], at_s), prepend=0.0),
        }
        frames.append(pd.DataFrame(columns))
    return pd.concat(frames, ignore_index=True)


def ticks_s(result: Result, interval_s: float, rows: int) -> F8:
    """Times of a regular series, each of which has ``rows`` rows; errors as of ``regular_series``."""
    if not (interval_s > 0 and math.isfinite(interval_s)):
        raise ValueError(f"interval_s must be a positive number of seconds, not {interval_s:g}")
    end_s = end_of_log_s(result)
    intervals = end_s / interval_s
    if (intervals + 2) * rows > MAX_ROWS:
        raise TooManyRows(
            f"a series every {interval_s:g} s would have {(intervals + 2) * rows:.0f} rows, at most {MAX_ROWS} are "
            f"written: the interval must be longer, {1.01 * end_s * rows / MAX_ROWS:.3g} s or more"
        )
    last = math.ceil(intervals)
    if last * interval_s < end_s:
        last += 1  # the quotient was rounded down to a whole number
    return np.arange(last + 1) * np.float64(interval_s)


def end_of_log_s(result: Result) -> float:
    """Time of the last event in the log or the requests' table, seconds; 0 without events."""
    table = result.requests
    times = (step_log(result).steps["end_s"], table.arrival_s[table.worker >= 0], table.finish_s)
    return max((float(np.nanmax(t)) for t in times if np.isfinite(t).any()), default=0.0)


def _busy_s(start_s: F8, end_s: F8, at_s: F8) -> F8:
    """Time before each time in which a step was under way: steps of attention groups and stages overlap."""
    if not len(start_s):
        return np.zeros(len(at_s))
    order = np.argsort(start_s, kind="stable")
    ends = np.maximum.accumulate(end_s[order])
    begins = np.maximum(start_s[order], np.concatenate(([-np.inf], ends[:-1])))  # what no earlier step covers
    done = np.cumsum(ends - begins)
    edges = np.stack([begins, ends], axis=1).ravel()
    before = np.stack([done - (ends - begins), done], axis=1).ravel()
    return np.asarray(np.interp(at_s, edges, before))
