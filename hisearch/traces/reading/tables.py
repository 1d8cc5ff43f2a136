"""Tables of any columns: CSV, JSON lines, a JSON array, parquet.

A row is its columns by name. Of nested values, such as JSON's objects, every leaf is a column by its dotted path:
``usage.prompt_tokens``.
"""

from __future__ import annotations

import datetime
import decimal
import itertools
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from hisearch.traces.reading.errors import TraceError
from hisearch.traces.reading.rows import BadRows, Fields, csv_dialect, csv_names, csv_rows, json_rows
from hisearch.traces.reading.text import is_parquet, lines, open_text

#: Levels of nested values that are looked into.
_DEEPEST = 6
_BATCH_ROWS = 4096
#: Blank lines that a file may begin with.
_MOST_BLANK = 1_000_000


def container_of(path: Path) -> Literal["parquet", "json", "csv"]:
    """What a table is written in, by its content.

    Raises:
        TraceError: the file cannot be read, or is empty.
    """
    if is_parquet(path):
        return "parquet"
    return "json" if _first_line(path).startswith(("{", "[")) else "csv"


def is_array(path: Path) -> bool:
    """True for text that is one JSON array, by how it begins."""
    return _first_line(path).startswith("[")


def _first_line(path: Path) -> str:
    """The first line that is not blank, without blanks before it.

    Raises:
        TraceError: the file cannot be read, or is empty, or begins with too many blank lines.
    """
    with open_text(path) as text:
        for number, line in enumerate(lines(text, path)):
            if line.strip():
                return line.lstrip()
            if number == _MOST_BLANK:
                raise TraceError.at(f"no requests: the first {_MOST_BLANK:,} lines are blank", path=path)
    raise TraceError.at("no requests: the file is empty", path=path)


def table_rows(path: Path, bad: BadRows) -> Iterator[tuple[int, Fields]]:
    """Rows of a table with their lines; in parquet the rows' numbers, from 1."""
    container = container_of(path)
    if container == "csv":
        yield from csv_rows(path, bad)
        return
    rows = parquet_rows(path) if container == "parquet" else json_rows(path, bad)
    for line, row in rows:
        yield line, Fields(flat(row.values))


def table_sample(path: Path) -> dict[str, Any]:
    """The columns of a table, with the first row's values; "" where there is no row."""
    container = container_of(path)
    if container == "csv":
        names = csv_names(path)
        row = next((row for _, row in csv_rows(path, Tolerant(path))), None)
        return {name: row.values.get(name, "") if row is not None else "" for name in names}
    if container == "parquet":
        names = [name for name in parquet_schema(path)[0] if name]
        first = next((row for _, row in parquet_rows(path)), None)
        return flat(first.values) if first is not None else dict.fromkeys(names, "")
    return flat(next((row.values for _, row in json_rows(path, Tolerant(path))), {}))


def table_note(path: Path) -> str:
    """How rows and columns are told apart, where that is not by lines and commas; "" otherwise."""
    if container_of(path) != "csv":
        return ""
    dialect = csv_dialect(path)
    return "" if dialect.separator == "," else str(dialect)


class Tolerant(BadRows):
    """Broken rows that do not matter: the file is only looked at."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, allowed=2**62)


def flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """``values`` with the leaves of nested mappings as columns of their own."""
    if not any(isinstance(value, dict) for value in values.values()):
        return dict(values)
    leaves: dict[str, Any] = {}
    todo = [("", values, 0)]
    while todo:
        path, mapping, depth = todo.pop(0)
        for name, value in mapping.items():
            if isinstance(value, dict) and depth < _DEEPEST:
                todo.append((f"{path}{name}.", value, depth + 1))
            else:
                leaves.setdefault(f"{path}{name}", value)
    return leaves


def parquet_schema(path: Path) -> tuple[list[str], dict[bytes, bytes]]:
    """Names of a parquet file's columns, and its metadata.

    Raises:
        TraceError: it cannot be read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow
            return list(schema.names), dict(schema.metadata or {})
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _unreadable(path, error) from error


def parquet_rows(path: Path) -> Iterator[tuple[int, Fields]]:
    """Rows of a parquet file; a row's line is its number, from 1.

    Raises:
        TraceError: it cannot be read, or names a column twice.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            twice = next((name for at, name in enumerate(names) if name in names[:at]), None)
            if twice is not None:
                raise TraceError.at("the table names this column twice", path=path, key=twice)
            line = 0
            for batch in file.iter_batches(batch_size=_BATCH_ROWS):
                for row in _coarse(batch).to_pylist():
                    line += 1
                    yield line, Fields({key: _plain(value) for key, value in row.items()})
    except (pa.ArrowException, OSError, OverflowError) as error:
        raise _unreadable(path, error) from error
    except ValueError as error:
        if isinstance(error, TraceError):
            raise
        raise _unreadable(path, error) from error


def _coarse(batch: Any) -> Any:
    """Dates to the microsecond: Python has no finer ones."""
    import pyarrow as pa

    fields = [
        field.with_type(pa.timestamp("us", tz=field.type.tz)) if pa.types.is_timestamp(field.type) else field
        for field in batch.schema
    ]
    return pa.Table.from_batches([batch]).cast(pa.schema(fields), safe=False)


def _unreadable(path: Path, error: Exception) -> TraceError:
    reason = next(itertools.chain((line for line in str(error).splitlines() if line.strip()), ["no reason given"]))
    unreadable = TraceError.at(f"not a readable parquet file: {reason}", path=path)
    assert isinstance(unreadable, TraceError)
    return unreadable


def _plain(value: Any) -> Any:
    """A cell as JSON would have it: null for NaN, which is how tables often write a missing number."""
    if isinstance(value, float):
        return None if math.isnan(value) else value
    if isinstance(value, decimal.Decimal):
        return float(value) if value.is_finite() else None
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return value.isoformat()
    return value


def header_in(metadata: Mapping[bytes, bytes], key: str) -> dict[str, Any]:
    """The JSON object that a parquet file's metadata hold under ``key``; empty where they hold none."""
    try:
        header = json.loads(metadata.get(key.encode(), b"{}"))
    except (ValueError, RecursionError):
        return {}
    return header if isinstance(header, dict) else {}
