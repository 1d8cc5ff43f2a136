"""The report of what a trace file was taken for, and refusal of what it can hardly be.

Importers fill an ``Understood`` while they read. Its notes say the unit of the times, the rate, the span, the dates,
how rows were told apart, and what was sorted or left out. They go wherever a result of the trace goes.
"""

from __future__ import annotations

import datetime
import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from hisearch.specs.wording import counted, listed, per_second
from hisearch.traces.reading.errors import TraceError
from hisearch.traces.reading.rows import BadRows
from hisearch.traces.reading.times import LONGEST_S, PER_SECOND, TITLES, Times, how_to_say

#: Of a trace of more than ``MANY`` requests: below one in 100 s nothing has to be bought for it, and nobody serves
#: 100,000 a second. Beyond either, its times are probably not what they are taken for.
MANY, LEAST_RPS, MOST_RPS = 1000, 0.01, 1e5
#: Whole numbers from a start that come this rarely may be milliseconds.
WHOLE_RPS, WHOLE_MANY = 0.5, 100
#: Lines that a note names.
_SHOWN = 5


@dataclass
class Understood:
    """What a file was taken for.

    Attributes:
        times: the column of times, where its unit is found out; None where the format defines it.
        table: how rows and columns are told apart, where that is not as usual.
        unordered: rows that came before an earlier row's time.
        cancelled: lines of requests that were cancelled, and are kept with the tokens that they have.
        left_out: reason -> lines of rows that are no requests to an engine.
        first_s, last_s: extremes of the times as read; NaN where there are none.
    """

    times: Times | None = None
    table: str = ""
    unordered: int = 0
    cancelled: list[int] = field(default_factory=list)
    left_out: dict[str, list[int]] = field(default_factory=dict)
    first_s: float = math.nan
    last_s: float = math.nan

    def leave_out(self, line: int, reason: str) -> None:
        """Count a row that is no request to an engine."""
        self.left_out.setdefault(reason, []).append(line)

    @property
    def left_out_count(self) -> int:
        """Rows that are no requests to an engine."""
        return sum(len(lines) for lines in self.left_out.values())

    @property
    def rows_left_out(self) -> str:
        """``3 rows left out: no token counts (lines 2, 5 and 9)``; "" where there are none. A line may hold several."""
        if not self.left_out:
            return ""
        named = {reason: list(dict.fromkeys(lines)) for reason, lines in self.left_out.items()}
        reasons = "; ".join(f"{reason} ({_places(lines, len(lines))})" for reason, lines in named.items())
        return f"{counted(self.left_out_count, 'row')} left out: {reasons}"


def notes_of(understood: Understood, defined: str, bad: BadRows, count: int) -> tuple[str, ...]:
    """What a reader of results should know about how the file was read.

    Args:
        understood: what the importer filled in.
        defined: what the times are, where the format defines it; "" otherwise.
        bad: the file's broken rows.
        count: requests.
    """
    notes = [f"times: {understood.times or defined}; {_extent(understood, count)}"] if _timed(understood) else []
    notes += [f"table: {understood.table}"] if understood.table else []
    if understood.unordered:
        notes.append(f"{counted(understood.unordered, 'row')} of {count:,} came out of order of time; they were sorted")
    return (*notes, *kept_notes(understood), *left_out_notes(understood, bad))


def kept_notes(understood: Understood) -> tuple[str, ...]:
    """Which rows of the file are in the trace, and need not be."""
    lines = understood.cancelled
    if not lines:
        return ()
    return (
        f"{counted(len(lines), 'cancelled request')} kept, with the tokens generated until then "
        f"({_places(lines, len(lines))}); spec.file.cancelled: leave_out (trace import --cancelled leave_out) leaves "
        "such requests out",
    )


def left_out_notes(understood: Understood, bad: BadRows) -> tuple[str, ...]:
    """Which rows of the file are not in the trace, and why."""
    notes = [understood.rows_left_out] if understood.rows_left_out else []
    if bad.count:
        faults = "; ".join(dict.fromkeys(str(error) for _, error in bad.first))
        places = _places([line for line, _ in bad.first], bad.count)
        notes.append(f"{counted(bad.count, 'broken row')} left out: {places} ({faults})")
    return tuple(notes)


def check_times(understood: Understood, path: Path, count: int) -> list[str]:
    """Warnings of times that are hardly what they were taken for.

    Raises:
        TraceError: they span more than ten years; or their unit is a guess, and gives a rate that nobody serves.
    """
    if not _timed(understood):
        return []
    times = understood.times
    key = times.field if times is not None else ""
    span = understood.last_s - understood.first_s
    extent = _extent(understood, count)
    if span > LONGEST_S:
        raise TraceError.at(f"expected times within ten years; {times or 'they'}: {extent}", path=path, key=key)
    rate = _rate(understood, count)
    if count > MANY and math.isfinite(rate) and not LEAST_RPS <= rate <= MOST_RPS:
        message = f"read as {times.kind if times is not None else 'seconds'}: {extent}. That is hardly a service's rate"
        if times is None or times.sure:
            return [f"{message}: check the times"]
        other = _likelier(rate, times.unit)
        meant = f"; {TITLES[other]} would be {_number(rate * _faster(times.unit, other))} requests/s" if other else ""
        insist = f"if {TITLES[times.unit]} is right, say --time-unit {times.unit}"
        raise TraceError.at(f"{message}{meant}: {how_to_say(key, other)}; {insist}", path=path, key=key)
    if times is not None and not times.sure and times.whole and count >= WHOLE_MANY and rate < WHOLE_RPS:
        if times.said_by == "name" and times.unit != "s":
            return []
        return [f"{key} holds whole numbers, read as {times.kind}: {extent}. For another unit, {how_to_say(key)}"]
    return []


def _likelier(rate: float, unit: str) -> str | None:
    """The unit, of those in use, that makes a rate of between one request in ten seconds and a thousand a second."""
    likely = (other for other in ("s", "ms", "us", "ns") if other != unit and 0.1 <= rate * _faster(unit, other) <= 1e3)
    return next(likely, None)


def _faster(unit: str, other: str) -> float:
    return PER_SECOND[other] / PER_SECOND[unit]


def _timed(understood: Understood) -> bool:
    return math.isfinite(understood.first_s)


def _rate(understood: Understood, count: int) -> float:
    """Requests per second; infinite where all come at once."""
    span = understood.last_s - understood.first_s
    return (count - 1) / span if span > 0 else math.inf


def _extent(understood: Understood, count: int) -> str:
    """Requests, span and rate, and the dates where they are known."""
    span, rate = understood.last_s - understood.first_s, _rate(understood, count)
    text = f"{counted(count, 'request')} in {format_span(span)}"
    if math.isfinite(rate) and rate > 0:
        text += f", {per_second(_number(rate))}"
    times = understood.times
    first = times.moment(understood.first_s) if times is not None else None
    last = times.moment(understood.last_s) if times is not None else None
    return text if first is None or last is None else f"{text}, {_date(first)} to {_date(last)} UTC"


def _date(moment: datetime.datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}"


def _number(value: float) -> str:
    """Three significant digits, without an exponent where that is short."""
    if not 1e-6 <= value < 1e9:
        return f"{value:.3g}"
    return f"{value:,.{max(0, 2 - math.floor(math.log10(value)))}f}"


def format_span(seconds: float) -> str:
    """A length of time by its two largest units: ``34 min 26 s``, ``3 d 4 h``, ``0.52 s``."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    if seconds > LONGEST_S:
        return f"{_number(seconds / (365.25 * 86400))} years"
    parts: list[str] = []
    rest = round(seconds)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        amount, rest = divmod(rest, size)
        parts += [f"{amount:,} {unit}"] if amount or parts else []
    return " ".join(part for part in parts[:2] if not part.startswith("0 "))


def _places(lines: list[int], count: int) -> str:
    """``line 5``, ``lines 2, 5 and 9``, ``lines 2, 3, 4, 5, 6 and 120 more``."""
    shown = [str(line) for line in lines[:_SHOWN]]
    more = count - len(shown)
    return f"{'line' if count == 1 else 'lines'} {listed([*shown, f'{more:,} more'] if more else shown)}"


def sorting(arrival_s: list[float]) -> tuple[np.ndarray, int]:
    """The stable order of times, and how many come before an earlier row's time."""
    arrival = np.asarray(arrival_s)
    unordered = int((arrival < np.maximum.accumulate(arrival)).sum()) if len(arrival) else 0
    return np.argsort(arrival, kind="stable"), unordered
