"""Logs of engine steps: the requests in the batch, their tokens, and the step's latency.

The file's name says which of two formats it has (``.gz`` may follow):

``.jsonl``  a line for each step::

    {"latency_s": 0.0123, "requests": [{"new_tokens": 512, "cached_tokens": 0}, {"new_tokens": 1, "cached_tokens": 9}]}

``.csv``    a row for each request of a step: ``step, latency_s, new_tokens, cached_tokens`` and, optionally, ``kind``;
            rows of a step are consecutive and repeat its number and latency.

``cached_tokens`` are the request's tokens before this step. ``kind`` is ``prefill`` or ``decode``; where absent, one
new token behind cached ones is a decode. Further keys and columns are ignored.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np

from hisearch.base.dtypes import BOOL, F8, I8

KINDS = ("prefill", "decode")
COLUMNS = ("step", "latency_s", "new_tokens", "cached_tokens")


class StepLogError(ValueError):
    """A log that cannot be read: file, line, key, and what was expected."""


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
        StepLogError: a file has another format, or no steps.
        OSError: a file cannot be read.
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
            raise StepLogError(f"{path}: no steps")
    table = np.array(rows, dtype=np.int64).reshape(-1, 4)
    return StepLog(
        np.array(latency), np.array(runs, dtype=np.int64), table[:, 0], table[:, 1], table[:, 2], table[:, 3] != 0
    )


def _steps(path: Path) -> Iterator[tuple[float, list[_Share]]]:
    name = path.name.removesuffix(".gz")
    with _opened(path) as file:
        if name.endswith(".jsonl"):
            yield from _json_steps(path, file)
        elif name.endswith(".csv"):
            yield from _csv_steps(path, file)
        else:
            raise StepLogError(f"{path}: expected a name ending in .jsonl, .csv, .jsonl.gz or .csv.gz")


def _opened(path: Path) -> TextIO:
    if path.name.endswith(".gz"):
        return io.TextIOWrapper(gzip.open(path, "rb"), encoding="utf-8")
    return path.open(encoding="utf-8", newline="")


def _json_steps(path: Path, file: TextIO) -> Iterator[tuple[float, list[_Share]]]:
    for line, text in enumerate(file, start=1):
        if not text.strip():
            continue
        where = f"{path}:{line}"
        try:
            step = json.loads(text)
        except json.JSONDecodeError as error:
            raise StepLogError(f"{where}: not JSON: {error.msg}") from None
        if not isinstance(step, dict) or not isinstance(step.get("requests"), list) or not step["requests"]:
            raise StepLogError(f"{where}: requests: expected a list with an object for each request of the step")
        shares = []
        for index, request in enumerate(step["requests"]):
            if not isinstance(request, dict):
                raise StepLogError(f"{where}: requests.{index}: expected an object, not {json.dumps(request)}")
            shares.append(_share(f"{where}: requests.{index}.", request))
        yield _latency(where, step.get("latency_s")), shares


def _csv_steps(path: Path, file: TextIO) -> Iterator[tuple[float, list[_Share]]]:
    reader = csv.DictReader(file)
    missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
    if missing:
        raise StepLogError(f"{path}:1: no column {', '.join(missing)}; expected {', '.join(COLUMNS)}")
    current, latency_s, shares = None, 0.0, list[_Share]()
    seen = set[str]()
    for row in reader:
        where = f"{path}:{reader.line_num}"
        row_latency_s = _latency(where, row["latency_s"])
        if row["step"] != current:
            if row["step"] in seen:
                raise StepLogError(f"{where}: step: rows of step {row['step']} do not stand together")
            if shares:
                yield latency_s, shares
            current, latency_s, shares = row["step"], row_latency_s, []
            seen.add(current)
        elif row_latency_s != latency_s:
            raise StepLogError(
                f"{where}: latency_s: expected {latency_s:g} as in the step's other rows, not {row_latency_s:g}"
            )
        shares.append(_share(f"{where}: ", row))
    if shares:
        yield latency_s, shares


def _latency(where: str, value: object) -> float:
    try:
        seconds = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        seconds = math.nan
    if isinstance(value, bool) or not 0 < seconds < math.inf:
        raise StepLogError(f"{where}: latency_s: expected a positive number of seconds, not {value!r}")
    return seconds


def _share(where: str, row: Mapping[str, Any]) -> _Share:
    new, cached = (_count(where, row, name, least) for name, least in (("new_tokens", 1), ("cached_tokens", 0)))
    kind = row.get("kind") or ("decode" if new == 1 and cached > 0 else "prefill")
    if kind not in KINDS:
        raise StepLogError(f"{where}kind: expected {' or '.join(KINDS)}, not {kind!r}")
    if kind == "decode" and new != 1:
        raise StepLogError(f"{where}new_tokens: a decode has 1, not {new}")
    return _Share(new, cached, kind == "decode")


def _count(where: str, row: Mapping[str, Any], name: str, least: int) -> int:
    value = row.get(name)
    try:
        number = -1 if isinstance(value, bool | float) else int(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = -1
    if number < least:
        raise StepLogError(f"{where}{name}: expected a whole number of at least {least}, not {value!r}")
    return number
