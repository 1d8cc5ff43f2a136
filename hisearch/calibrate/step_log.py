"""Logs of engine steps: the requests in the batch, their tokens, and the step's latency.

A file has one of two formats, told by its content; it may be gzip:

JSON lines  a line for each step::

    {"latency_s": 0.0123, "requests": [{"new_tokens": 512, "cached_tokens": 0}, {"new_tokens": 1, "cached_tokens": 9}]}

CSV         a row for each request of a step: ``step, latency_s, new_tokens, cached_tokens`` and, optionally, ``kind``;
            rows of a step are consecutive and repeat its number and latency.

``cached_tokens`` are the request's tokens before this step. ``kind`` is ``prefill`` or ``decode``; where absent, one
new token behind cached ones is a decode. Further keys and columns are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hisearch.base.dtypes import BOOL, F8, I8
from hisearch.traces.reading.errors import TraceError
from hisearch.traces.reading.rows import BadRows, Fields, RowError, csv_names, csv_rows, json_rows
from hisearch.traces.reading.text import is_parquet, lines, open_text

KINDS = ("prefill", "decode")
COLUMNS = ("step", "latency_s", "new_tokens", "cached_tokens")


class StepLog(NamedTuple):
    """Steps of one worker in the order in which they ran.

    latency_s: (N,), of each step.
    run: (N,), index of each step's file.
    step: (M,), index of the step, rising, for each request in a step.
    new, cached: (M,), the request's tokens.
    decode: (M,), True for a decode.
    """

    latency_s: F8
    run: I8
    step: I8
    new: I8
    cached: I8
    decode: BOOL

    def only(self, steps: BOOL) -> StepLog:
        """The steps where ``steps``, (N,), is True."""
        rows = steps[self.step]
        numbers = np.cumsum(steps) - 1
        return StepLog(
            self.latency_s[steps], self.run[steps], numbers[self.step[rows]], self.new[rows], self.cached[rows],
            self.decode[rows],
        )  # fmt: skip


class _Share(NamedTuple):
    """One request's part of a step."""

    new: int
    cached: int
    decode: bool


def read_step_logs(paths: Iterable[Path]) -> StepLog:
    """All steps of ``paths``, one after another.

    Raises:
        TraceError: a file cannot be read, has another format, or no steps; names file, line and field.
    """
    latency: list[float] = []
    runs: list[int] = []
    rows: list[tuple[int, int, int, bool]] = []
    for run, path in enumerate(paths):
        before = len(latency)
        for latency_s, shares in _steps(path):
            rows += [(len(latency), *share) for share in shares]
            latency.append(latency_s)
            runs.append(run)
        if len(latency) == before:
            raise TraceError.at("no steps", path=path)
    table = np.array(rows, dtype=np.int64).reshape(-1, 4)
    return StepLog(
        np.array(latency), np.array(runs, dtype=np.int64), table[:, 0], table[:, 1], table[:, 2], table[:, 3] != 0
    )


def _steps(path: Path) -> Iterator[tuple[float, list[_Share]]]:
    """Latency and requests of each step."""
    if is_parquet(path):
        raise TraceError.at("expected JSON lines or CSV, found a parquet file", path=path)
    yield from (_json_steps if _is_json(path) else _csv_steps)(path, BadRows(path))


def _is_json(path: Path) -> bool:
    """Whether the first line that is not blank begins a JSON value; True where there is none."""
    with open_text(path) as text:
        first = next((line for line in lines(text, path) if line.strip()), "{")
    return first.lstrip().startswith(("{", "["))


def _json_steps(path: Path, bad: BadRows) -> Iterator[tuple[float, list[_Share]]]:
    for line, step in json_rows(path, bad):
        with bad.row(line):
            shares = [_share(request, f"requests.{index}.") for index, request in enumerate(step.rows("requests"))]
            yield _latency(step), shares


def _csv_steps(path: Path, bad: BadRows) -> Iterator[tuple[float, list[_Share]]]:
    missing = [name for name in COLUMNS if name not in csv_names(path)]
    if missing:
        problem = f"no column {', '.join(missing)}; expected {', '.join(COLUMNS)}"
        raise TraceError.at(problem, path=path, line=1)
    steps: dict[str, tuple[float, list[_Share]]] = {}
    for line, row in csv_rows(path, bad):
        with bad.row(line):
            step, row_latency_s = str(row.raw("step")), _latency(row)
            latency_s, shares = steps.setdefault(step, (row_latency_s, []))
            if step != next(reversed(steps)):
                raise RowError("step", f"rows of step {step} do not stand together")
            if row_latency_s != latency_s:
                expected = f"expected {latency_s:g} as in the step's other rows, got {row_latency_s:g}"
                raise RowError("latency_s", expected)
            shares.append(_share(row))
    yield from steps.values()


def _latency(row: Fields) -> float:
    seconds = row.number("latency_s")
    if seconds == 0:
        raise RowError("latency_s", "expected a positive number of seconds, got 0")
    return seconds


def _share(row: Fields, place: str = "") -> _Share:
    """``place``: of the row in its step, before the names of its fields in errors."""
    try:
        new, cached = row.count("new_tokens", 1), row.count("cached_tokens", 0)
        kind = row.raw("kind") if row.filled("kind") else "decode" if new == 1 and cached > 0 else "prefill"
        if kind not in KINDS:
            raise RowError("kind", f"expected {' or '.join(KINDS)}, got {kind!r}")
        if kind == "decode" and new != 1:
            raise RowError("new_tokens", f"a decode has 1, got {new}")
    except RowError as error:
        raise RowError(place + error.field, error.message) from None
    return _Share(new, cached, kind == "decode")
