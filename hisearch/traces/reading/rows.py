"""Rows of trace files: reading text, checking fields, counting broken rows.

A reader turns each row into values by ``Fields``; the first thing wrong raises ``RowError``. ``BadRows`` turns that
into a ``TraceError`` with file, line and field, or counts it where some broken rows are tolerated.
"""

from __future__ import annotations

import csv
import datetime
import gzip
import io
import json
import math
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hisearch.traces.reading.errors import TraceError


class RowError(ValueError):
    """One row cannot be used; ``field`` and what was expected."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field
        self.message = message


class BadRows:
    """Counts a file's broken rows and refuses the first beyond ``allowed``.

    Attributes:
        count: rows left out so far.
    """

    def __init__(self, path: Path, allowed: int = 0) -> None:
        self.path = path
        self.allowed = allowed
        self.count = 0

    @contextmanager
    def row(self, line: int) -> Iterator[None]:
        """Around the use of one row: a ``RowError`` inside is counted, or raised as a ``TraceError``."""
        try:
            yield
        except RowError as error:
            self.refuse(line, error)

    def refuse(self, line: int, error: RowError) -> None:
        """Count a broken row.

        Raises:
            TraceError: more rows are broken than allowed.
        """
        self.count += 1
        if self.count > self.allowed:
            more = f" (and {self.allowed} broken rows before it, as many as allowed)" if self.allowed else ""
            raise TraceError.at(error.message + more, path=self.path, line=line, key=error.field) from error


@contextmanager
def open_text(path: Path) -> Iterator[io.TextIOBase]:
    """Text of a file, unpacked where it is gzip (by content, whatever its name).

    Raises:
        TraceError: no such file, not readable, not UTF-8 or a broken archive.
    """
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            data = gzip.GzipFile(fileobj=raw) if packed else raw
            with io.TextIOWrapper(data, encoding="utf-8-sig", newline="") as text:
                yield text
    except FileNotFoundError as error:
        raise TraceError.at("no such file", path=path) from error
    except IsADirectoryError as error:
        raise TraceError.at("expected a file, found a folder", path=path) from error
    except UnicodeDecodeError as error:
        raise TraceError.at(f"expected UTF-8 text: {error.reason} at byte {error.start}", path=path) from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError.at(f"broken gzip archive: {error}", path=path) from error


class Fields:
    """Checked access to one row's fields."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def __contains__(self, field: str) -> bool:
        return self._values.get(field) is not None

    def has(self, field: str) -> bool:
        """True where the row has the field, whatever its value."""
        return field in self._values

    def filled(self, field: str) -> bool:
        """True where the field has a value: neither missing nor null nor empty text."""
        return self._values.get(field) not in (None, "")

    def names(self) -> list[str]:
        """The row's fields."""
        return list(self._values)

    def raw(self, field: str) -> Any:
        """The value as it is; missing and null are refused."""
        value = self._values.get(field)
        if value is None or value == "":
            raise RowError(field, "missing")
        return value

    def number(self, field: str, minimum: float = 0.0) -> float:
        """A finite number of at least ``minimum``."""
        value = self.raw(field)
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                raise RowError(field, f"expected a number, got {value!r}") from None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise RowError(field, f"expected a finite number, got {value!r}")
        if value < minimum:
            raise RowError(field, f"expected at least {minimum:g}, got {value!r}")
        return float(value)

    def count(self, field: str, minimum: int = 1, maximum: int = 2**53) -> int:
        """A whole number in ``[minimum, maximum]``."""
        value = self.number(field, minimum)
        if value != int(value) or value > maximum:
            raise RowError(field, f"expected a whole number up to {maximum}, got {self.raw(field)!r}")
        return int(value)

    def seconds(self, field: str) -> float:
        """A time: seconds, or a date and time as ISO 8601 (UTC where no zone is given)."""
        value = self.raw(field)
        if isinstance(value, str) and not _is_number(value):
            try:
                moment = datetime.datetime.fromisoformat(value.strip())
            except ValueError:
                raise RowError(field, f"expected seconds or a date and time, got {value!r}") from None
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=datetime.UTC)
            return moment.timestamp()
        return self.number(field)

    def counts(self, field: str) -> list[int]:
        """A list of whole numbers."""
        value = self.raw(field)
        if not isinstance(value, list) or not all(type(item) is int for item in value):
            raise RowError(field, f"expected a list of whole numbers, got {_short(value)}")
        if any(not -(2**63) <= item < 2**63 for item in value):
            raise RowError(field, "expected whole numbers of at most 64 bits")
        return value

    def rows(self, field: str) -> list[Fields]:
        """A list of objects, at least one."""
        value = self.raw(field)
        if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
            raise RowError(field, f"expected a non-empty list of objects, got {_short(value)}")
        return [Fields(item) for item in value]

    def runs(self, field: str) -> list[tuple[int, int]]:
        """A list of ``[first, count]`` pairs: runs of consecutive ids, counts at least 0."""
        value = self.raw(field)
        if not isinstance(value, list):
            raise RowError(field, f"expected a list of [first, count] pairs, got {_short(value)}")
        for pair in value:
            good = isinstance(pair, list) and len(pair) == 2 and all(type(item) is int and item >= 0 for item in pair)
            if not good:
                raise RowError(field, f"expected [first, count] of whole numbers, got {_short(pair)}")
        return [(pair[0], pair[1]) for pair in value]

    def label(self, field: str) -> str | int:
        """A name: text or a whole number."""
        value = self.raw(field)
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise RowError(field, f"expected text or a whole number, got {_short(value)}")
        return value


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def json_rows(path: Path, bad: BadRows) -> Iterator[tuple[int, Fields]]:
    """Objects of a JSON-lines file with their line numbers, blank lines left out."""
    with open_text(path) as text:
        for line, content in enumerate(text, start=1):
            if not content.strip():
                continue
            try:
                value = json.loads(content)
            except json.JSONDecodeError as error:
                bad.refuse(line, RowError("", f"expected a JSON object: {json_fault(error)}"))
                continue
            if not isinstance(value, dict):
                bad.refuse(line, RowError("", f"expected a JSON object, got {_short(value)}"))
                continue
            yield line, Fields(value)


def csv_names(path: Path) -> list[str]:
    """Names in the header line of a CSV file."""
    with open_text(path) as text:
        return [name.strip() for name in next(csv.reader(text), [])]


def csv_rows(path: Path, bad: BadRows) -> Iterator[tuple[int, Fields]]:
    """Rows of a CSV file with a header line, with their line numbers."""
    with open_text(path) as text:
        reader = csv.reader(text)
        try:
            names = [name.strip() for name in next(reader, [])]
            _refuse_duplicates(path, names)
            for values in reader:
                if not values:
                    continue
                if len(values) != len(names):
                    bad.refuse(reader.line_num, RowError("", f"expected {len(names)} columns, got {len(values)}"))
                    continue
                yield reader.line_num, Fields(dict(zip(names, values, strict=True)))
        except csv.Error as error:
            raise TraceError.at(f"not a CSV file: {error}", path=path, line=reader.line_num) from error


def _refuse_duplicates(path: Path, names: list[str]) -> None:
    """Refuse a header that names a column twice: which one is meant is unknown."""
    duplicate = next((name for at, name in enumerate(names) if name and name in names[:at]), None)
    if duplicate is not None:
        raise TraceError.at("the header names this column twice", path=path, line=1, key=duplicate)


def json_fault(error: json.JSONDecodeError) -> str:
    """What is wrong with a line of JSON, and where in it."""
    return f"{error.msg.removesuffix(' at')} at column {error.colno}"


class Order:
    """Refuses times that run back."""

    def __init__(self, field: str) -> None:
        self.field = field
        self.last = -math.inf

    def check(self, value: float) -> float:
        """``value``, which must not be below the last one that passed."""
        if value < self.last:
            raise RowError(self.field, f"expected rows in order of time, got {value:.6f} s after {self.last:.6f} s")
        self.last = value
        return value
