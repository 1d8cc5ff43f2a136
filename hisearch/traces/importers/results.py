"""Files of results of benchmark tools: their JSON objects, with errors that name file, line and key."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hisearch.base.dtypes import F8, I8
from hisearch.specs.errors import SpecError
from hisearch.traces.importers.measurement import PERCENTILES, Measurement, PerRequest, rates_of
from hisearch.traces.reading.errors import TraceError
from hisearch.traces.reading.rows import MAX_TOKENS, BadRows, RowError, decoded, json_rows, short
from hisearch.traces.reading.text import open_text
from hisearch.traces.reading.times import LONGEST_S

#: Characters of a file of results: ten thousand requests with every gap between their tokens take half of it.
MAX_RESULTS = 1 << 28


#: Units of times, in seconds.
UNITS_S = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


@dataclass(frozen=True)
class Results:
    """The objects of a file of results, with their lines; broken rows are counted in ``bad``."""

    path: Path
    rows: list[tuple[int, Mapping[str, Any]]]
    bad: BadRows

    def objects(self) -> Iterator[ResultObject]:
        """One by one; the line counts only where there are several."""
        for line, data in self.rows:
            yield ResultObject(self.path, line if len(self.rows) > 1 else None, data)


def read_results(path: Path, bad: BadRows) -> Results:
    """The objects of a JSON document, of a JSON array, or of JSON lines.

    Raises:
        TraceError: the file cannot be read, or holds anything else.
    """
    with open_text(path) as stream:
        text = stream.read(MAX_RESULTS + 1)
    if len(text) > MAX_RESULTS:
        raise TraceError.at(f"expected at most {MAX_RESULTS:,} characters of results", path=path)
    if not text.strip():
        raise TraceError.at("empty: the benchmark wrote nothing, or has not ended", path=path)
    if text.lstrip().startswith("["):
        rows = [(line, row.values) for line, row in json_rows(path, bad)]
    else:
        document = _document(text)
        rows = [(1, document)] if document is not None else list(_lines(text, bad))
    if not rows:
        raise TraceError.at("expected JSON objects, one a line or in an array", path=path)
    return Results(path, rows, bad)


def _document(text: str) -> Mapping[str, Any] | None:
    """The text as one JSON object; None where it is none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _lines(text: str, bad: BadRows) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for line, content in enumerate(text.splitlines(), 1):
        if not content.strip():
            continue
        value: Any = None
        with bad.row(line):
            value = decoded(content)
            if not isinstance(value, dict):
                raise RowError("", f"expected a JSON object, got {short(value)}")
        if isinstance(value, dict):
            yield line, value


@dataclass(frozen=True)
class ResultObject:
    """One object of a file, with errors that name file, line and key. Keys of nested objects are dotted.

    prefix: key of the object in its document, with a dot behind it, or "".
    """

    path: Path
    line: int | None
    data: Mapping[str, Any]
    prefix: str = ""

    def refuse(self, key: str, message: str) -> SpecError:
        """The error of a key, a ``TraceError``."""
        return TraceError.at(message, path=self.path, line=self.line, key=f"{self.prefix}{key}")

    def get(self, key: str) -> Any:
        """The value of a dotted key; None where it is absent."""
        value: Any = self.data
        for name in key.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        return value

    def first(self, *keys: str) -> str | None:
        """The first of some keys that has a value."""
        return next((key for key in keys if self.get(key) is not None), None)

    def number(self, key: str, most: float = LONGEST_S * 1e3) -> float:
        """A finite number from 0 to ``most``."""
        return self.checked(key, [self.get(key)], key, most)[0]

    def count(self, key: str) -> int:
        """A whole number of at least 0."""
        return int(self.number(key, MAX_TOKENS * 1e6))

    def numbers(self, key: str) -> F8:
        """A list of finite numbers of at least 0."""
        return np.array(self.checked(key, self.get(key)), dtype=np.float64)

    def checked(self, key: str, values: Any, name: str = "", most: float = LONGEST_S * 1e3) -> list[float]:
        """``values``, a list of finite numbers from 0 to ``most``; ``name``: of a single value.

        Raises:
            TraceError: it is none; names the key.
        """
        if not isinstance(values, list):
            raise self.refuse(key, f"expected a list, got {short(values)}")
        for at, value in enumerate(values):
            where = name or f"{key}[{at}]"
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not value >= 0:
                raise self.refuse(where, f"expected a number of at least 0, got {short(value)}")
            if not value <= most:
                raise self.refuse(where, f"expected at most {most:g}, got {short(value)}")
        return [float(value) for value in values]

    def seconds(self, names: Mapping[str, str], unit_s: float) -> dict[str, float]:
        """Figure -> seconds, of the keys that exist."""
        return {figure: self.number(key) * unit_s for figure, key in names.items() if self.get(key) is not None}

    def inner(self, key: str) -> ResultObject:
        """A nested object.

        Raises:
            TraceError: there is none.
        """
        value = self.get(key)
        if not isinstance(value, Mapping):
            raise self.refuse(key, f"expected an object, got {short(value)}")
        return ResultObject(self.path, self.line, value, f"{self.prefix}{key}.")

    def measurement(
        self,
        tool: str,
        *,
        sent: int,
        failed: int,
        figures: dict[str, float],
        part: str = "",
        rate_rps: float | None = None,
        concurrency: int | None = None,
        input_tokens: int | None = None,
        requests: PerRequest | None = None,
        burstiness: float = 1.0,
        notes: tuple[str, ...] = (),
    ) -> Measurement:
        """The run that this object is of; see ``Measurement``.

        Raises:
            TraceError: no request succeeded.
        """
        if sent <= failed:
            raise self.refuse("", "no request succeeded")
        return Measurement(
            tool, self.path, self.line, part, sent, failed, rate_rps, concurrency, input_tokens, figures, requests,
            burstiness, notes,
        )  # fmt: skip


@dataclass
class RequestRows:
    """Requests of a tool that writes one object each, in any order. Times are of one clock, in seconds."""

    start_s: list[float] = field(default_factory=list)
    ttft_s: list[float] = field(default_factory=list)
    e2e_s: list[float] = field(default_factory=list)
    input_tokens: list[int] = field(default_factory=list)
    output_tokens: list[int] = field(default_factory=list)
    thinking_tokens: list[int] = field(default_factory=list)
    failed_s: list[float] = field(default_factory=list)

    def add(
        self,
        start_s: float,
        ttft_s: float,
        e2e_s: float,
        input_tokens: float,
        output_tokens: float,
        thinking_tokens: float = 0,
    ) -> None:
        """Append a successful request."""
        self.start_s.append(start_s)
        self.ttft_s.append(ttft_s)
        self.e2e_s.append(e2e_s)
        self.input_tokens.append(int(input_tokens))
        self.output_tokens.append(int(output_tokens))
        self.thinking_tokens.append(int(thinking_tokens))

    @property
    def sent(self) -> int:
        """Requests, failed ones included."""
        return len(self.start_s) + len(self.failed_s)

    def built(self) -> PerRequest:
        """The requests in the order in which they were sent; at least one."""
        order = np.argsort(self.start_s, kind="stable")
        start = np.array(self.start_s)[order]
        sent = np.sort(np.concatenate((start, self.failed_s)))
        places = np.searchsorted(sent, start) + _among_equals(start)
        columns = (np.array(values)[order] for values in (self.ttft_s, self.e2e_s))
        counts = (self.input_tokens, self.output_tokens, self.thinking_tokens)
        tokens = (np.array(values, dtype=np.int64)[order] for values in counts)
        return PerRequest(places, start - sent[0], *columns, *tokens)


def measurement_of(
    rows: RequestRows, results: Results, tool: str, key: str, notes: tuple[str, ...] = ()
) -> Measurement:
    """The measurement of a tool's requests. key: what a failed request lacks, for the error where all failed.

    Raises:
        TraceError: no request succeeded.
    """
    whole = ResultObject(results.path, None, {})
    if not rows.start_s:
        raise whole.refuse(key, "no request succeeded")
    requests = rows.built()
    known = bool((requests.input_tokens > 0).all())
    return whole.measurement(
        tool,
        sent=rows.sent,
        failed=len(rows.failed_s),
        figures=requests.figures() | rates_of(requests),
        input_tokens=int(requests.input_tokens.sum()) if known else None,
        requests=requests,
        notes=notes,
    )


def _among_equals(values: F8) -> I8:
    """Place of each value among those equal to it; ``values`` rise."""
    index = np.arange(len(values))
    return index - np.searchsorted(values, values)


def names_of(stem: str, tool_stem: str, mean: str, percentiles: str, median: str | None = None) -> dict[str, str]:
    """Our figure -> a tool's key: ``tool_stem`` and ``mean``, and ``percentiles`` with ``{}`` for the percent."""
    keys = {f"{stem}_mean_s": f"{tool_stem}{mean}"}
    keys |= {f"{stem}_p{percent}_s": f"{tool_stem}{percentiles.format(percent)}" for percent in PERCENTILES}
    return keys if median is None else keys | {f"{stem}_p50_s": f"{tool_stem}{median}"}


def check_latencies(item: ResultObject, figures: Mapping[str, float], expected: Sequence[str]) -> None:
    """Refuse a summary without any latency.

    Raises:
        TraceError: names the keys that were expected.
    """
    if not any(name.startswith(("ttft", "tpot", "e2e")) for name in figures):
        raise item.refuse(expected[0], f"missing; expected latencies under {', '.join(expected)}")
