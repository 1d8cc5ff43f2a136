"""Rows of trace files: reading text, checking fields, counting broken rows.

A reader turns each row into values by ``Fields``; the first thing wrong raises ``RowError``. ``BadRows`` turns that
into a ``TraceError`` with file, line and field, or counts it where some broken rows are tolerated.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hisearch.traces.reading.dialects import Dialect, dialect_of, stated_separator
from hisearch.traces.reading.documents import documents
from hisearch.traces.reading.errors import TraceError
from hisearch.traces.reading.text import MAX_LINE, lines, open_text

#: Tokens of a prompt or an output; a hundred times the largest window there is is no request's.
MAX_TOKENS = 10**9
#: Characters of a file that is one JSON array.
MAX_ARRAY = 1 << 28
#: Broken rows that are remembered by line.
_SHOWN = 5
#: Behind so many lines that could be read, a row is broken and not the file read in a wrong way.
_SOUND = 10

csv.field_size_limit(MAX_LINE)


class RowError(ValueError):
    """One row cannot be used.

    Attributes:
        field: whose value is wrong; "" for the row as a whole.
        message: what was expected.
        incomplete: a value or a column is missing, however the others are read.
    """

    def __init__(self, field: str, message: str, *, incomplete: bool = False) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = one_line(field)
        self.message = one_line(message)
        self.incomplete = incomplete


class BadRows:
    """Counts a file's broken rows and refuses the first beyond ``allowed``.

    Attributes:
        count: rows left out so far.
        first: lines of the first of them, and what is wrong with each.
    """

    def __init__(self, path: Path, allowed: int = 0) -> None:
        self.path = path
        self.allowed = allowed
        self.count = 0
        self.first: list[tuple[int, RowError]] = []

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
            broken = line > _SOUND or error.incomplete
            if broken and not self.allowed:
                more = " (--skip-bad N leaves out up to N such rows)"
            raise TraceError.at(error.message + more, path=self.path, line=line, key=error.field) from error
        if len(self.first) < _SHOWN:
            self.first.append((line, error))


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

    @property
    def values(self) -> Mapping[str, Any]:
        """All of it as it is."""
        return self._values

    def names(self) -> list[str]:
        """The row's fields."""
        return list(self._values)

    def raw(self, field: str) -> Any:
        """The value as it is; missing and null are refused."""
        value = self._values.get(field)
        if value is None or value == "":
            raise RowError(field, "missing", incomplete=True)
        return value

    def number(self, field: str, minimum: float = 0.0, maximum: float = math.inf) -> float:
        """A finite number in ``[minimum, maximum]``."""
        value = self.raw(field)
        if isinstance(value, str):
            number = _parsed(value)
            if number is None:
                raise RowError(field, f"expected a number, got {short(value)}")
        else:
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise RowError(field, f"expected a finite number, got {short(value)}")
            try:
                number = float(value)
            except OverflowError:
                number = math.inf
        if not math.isfinite(number):
            raise RowError(field, f"expected a finite number, got {short(value)}")
        if number < minimum:
            raise RowError(field, f"expected at least {minimum:g}, got {_amount(value)}")
        if number > maximum:
            raise RowError(field, f"expected at most {maximum:g}, got {_amount(value)}")
        return number

    def count(self, field: str, minimum: int = 1, maximum: int = 2**53) -> int:
        """A whole number in ``[minimum, maximum]``."""
        value = self.number(field, minimum)
        if value != int(value) or value > maximum:
            raise RowError(field, f"expected a whole number up to {maximum}, got {_amount(self.raw(field))}")
        return int(value)

    def tokens(self, field: str, minimum: int = 1) -> int:
        """A number of tokens, at least ``minimum``."""
        return self.count(field, minimum, MAX_TOKENS)

    def counts(self, field: str) -> list[int]:
        """A list of whole numbers."""
        value = self.raw(field)
        if not isinstance(value, list) or not all(type(item) is int for item in value):
            raise RowError(field, f"expected a list of whole numbers, got {short(value)}")
        if any(not -(2**63) <= item < 2**63 for item in value):
            raise RowError(field, "expected whole numbers of at most 64 bits")
        return value

    def rows(self, field: str) -> list[Fields]:
        """A list of objects, at least one."""
        value = self.raw(field)
        if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
            raise RowError(field, f"expected a non-empty list of objects, got {short(value)}")
        return [Fields(item) for item in value]

    def runs(self, field: str) -> list[tuple[int, int]]:
        """A list of ``[first, count]`` pairs: runs of consecutive ids, counts at least 0."""
        value = self.raw(field)
        if not isinstance(value, list):
            raise RowError(field, f"expected a list of [first, count] pairs, got {short(value)}")
        for pair in value:
            good = isinstance(pair, list) and len(pair) == 2 and all(type(item) is int and item >= 0 for item in pair)
            if not good:
                raise RowError(field, f"expected [first, count] of whole numbers, got {short(pair)}")
        return [(pair[0], pair[1]) for pair in value]

    def label(self, field: str) -> str | int:
        """A name: text or a whole number."""
        value = self.raw(field)
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise RowError(field, f"expected text or a whole number, got {short(value)}")
        if isinstance(value, str) and not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
            raise RowError(field, "expected text in Unicode, got half a character")
        return value


def _parsed(text: str) -> float | None:
    """A number's text as a number; None for other text."""
    if "_" in text:
        return None
    try:
        return float(text)
    except ValueError:
        return None


def one_line(text: str) -> str:
    """``text`` for a message: nothing in it ends the line or moves the cursor."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _amount(value: object) -> str:
    """A number as the file has it."""
    return short(value) if not isinstance(value, str) else short(value)[1:-1]


def short(value: object) -> str:
    """A value for a message: as Python writes it, cut to 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def json_rows(path: Path, bad: BadRows) -> Iterator[tuple[int, Fields]]:
    """Objects of JSON documents one after another, or of one JSON array, with the lines on which they begin."""
    with open_text(path) as text:
        stream = enumerate(lines(text, path), start=1)
        first = next((line for line in stream if line[1].strip()), None)
        if first is None:
            return
        if first[1].lstrip().startswith("["):
            head = "\n" * (first[0] - 1) + first[1]
            yield from _items(head, (more for _, more in stream), path, bad)
            return
        for line, document in documents(itertools.chain([first], stream)):
            yield from _object(line, document, bad)


def _object(line: int, content: str, bad: BadRows) -> Iterator[tuple[int, Fields]]:
    """The object of a line; none where it is broken."""
    try:
        value = decoded(content)
        if not isinstance(value, dict):
            raise RowError("", f"expected a JSON object, got {short(value)}")
    except RowError as error:
        bad.refuse(line, error)
        return
    yield line, Fields(value)


def decoded(content: str) -> Any:
    """A line's JSON value.

    Raises:
        RowError: it is none.
    """
    try:
        return json.loads(content)
    except json.JSONDecodeError as error:
        raise RowError("", f"expected a JSON object: {json_fault(error)}") from error
    except RecursionError as error:
        raise RowError("", "expected a JSON object, got values nested too deeply") from error
    except ValueError as error:  # digits beyond what a whole number may have
        raise RowError("", "expected a JSON object, got a number of too many digits") from error


def _items(head: str, rest: Iterator[str], path: Path, bad: BadRows) -> Iterator[tuple[int, Fields]]:
    """Objects of a file that is one JSON array, which begins with ``head``."""
    parts, size = [head], len(head)
    for more in rest:
        parts.append(more)
        size += len(more)
        if size > MAX_ARRAY:
            message = f"expected JSON lines, or an array of at most {MAX_ARRAY:,} characters; jq -c '.[]' makes lines"
            raise TraceError.at(message, path=path)
    content = "".join(parts)
    decoder, at, line, counted = json.JSONDecoder(), content.index("[") + 1, 1, 0
    first = True
    while True:
        at = _after_blanks(content, at)
        line, counted = line + content.count("\n", counted, at), at
        if content[at : at + 1] == "]" and first:
            return
        try:
            value, at = decoder.raw_decode(content, at)
        except (ValueError, RecursionError) as error:
            fault = error.msg if isinstance(error, json.JSONDecodeError) else "nested too deeply, or too many digits"
            raise TraceError.at(f"expected a JSON array of objects: {fault}", path=path, line=line) from error
        if isinstance(value, dict):
            yield line, Fields(value)
        else:
            bad.refuse(line, RowError("", f"expected a JSON object, got {short(value)}"))
        first = False
        at = _after_blanks(content, at)
        if content[at : at + 1] == "]":
            return
        if content[at : at + 1] != ",":
            line += content.count("\n", counted, at)
            raise TraceError.at("expected a comma or the end of the JSON array", path=path, line=line)
        at += 1


def _after_blanks(content: str, at: int) -> int:
    while at < len(content) and content[at] in " \t\r\n":
        at += 1
    return at


class _Table:
    """A CSV file that is being read: its dialect, the names of its columns, and its rows."""

    def __init__(self, stream: Iterator[str], path: Path) -> None:
        self.before, first = next(((k, line) for k, line in enumerate(stream) if line.strip()), (0, ""))
        stated = stated_separator(first)
        if stated is not None:
            self.before, first = self.before + 1, next(stream, "")
        self.dialect = dialect_of(first) if stated is None else Dialect(stated)
        self.reader = csv.reader(itertools.chain([first] if first else [], stream), delimiter=self.dialect.separator)
        self.names = [name.strip() for name in next(self.reader, [])]
        while self.names and not self.names[-1]:
            self.names.pop()
        _refuse_duplicates(path, self.names, self.line)

    @property
    def line(self) -> int:
        """Number of the line that was read last."""
        return self.before + self.reader.line_num

    def rows(self, bad: BadRows) -> Iterator[tuple[int, Fields]]:
        """The rows below the header; blank ones left out."""
        width, value = len(self.names), self.dialect.value
        for cells in self.reader:
            if not any(cells) and not (cells and width == 1):
                continue
            if len(cells) < width or any(cells[width:]):
                message = f"expected {width} columns, got {len(cells)}"
                bad.refuse(self.line, RowError("", message, incomplete=True))
                continue
            if self.dialect.separator != ",":
                cells = [value(cell) for cell in cells]  # noqa: PLW2901 - the same cells
            yield self.line, Fields(dict(zip(self.names, cells, strict=False)))


@contextmanager
def _open_table(path: Path) -> Iterator[_Table]:
    with open_text(path) as text:
        table = None
        try:
            table = _Table(lines(text, path), path)
            yield table
        except csv.Error as error:
            line = table.line if table is not None else 1
            raise TraceError.at(f"not a CSV file: {error}", path=path, line=line) from error


def csv_names(path: Path) -> list[str]:
    """Names in the header line of a CSV file."""
    with _open_table(path) as table:
        return table.names


def csv_dialect(path: Path) -> Dialect:
    """How a CSV file separates its columns."""
    with _open_table(path) as table:
        return table.dialect


def csv_rows(path: Path, bad: BadRows) -> Iterator[tuple[int, Fields]]:
    """Rows of a CSV file with a header line, with their line numbers."""
    with _open_table(path) as table:
        yield from table.rows(bad)


def _refuse_duplicates(path: Path, names: list[str], line: int) -> None:
    """Refuse a header that names a column twice: which one is meant is unknown."""
    duplicate = next((name for at, name in enumerate(names) if name and name in names[:at]), None)
    if duplicate is not None:
        raise TraceError.at("the header names this column twice", path=path, line=line, key=duplicate)


def json_fault(error: json.JSONDecodeError) -> str:
    """What is wrong with a JSON document, and where in it."""
    line = f" of its line {error.lineno}" if error.lineno > 1 else ""
    return f"{error.msg.removesuffix(' at')} at column {error.colno}{line}"


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
