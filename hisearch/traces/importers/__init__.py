"""Trace formats in: detection of a file's format by its content, and its reading.

``formats`` has a file for each format, and says how to add one.
"""

from __future__ import annotations

import csv
import json
from importlib import import_module
from pathlib import Path

import numpy as np

from hisearch.base.policies import TRACE_FORMATS
from hisearch.specs.workloads.workload import TraceFileSpec
from hisearch.traces.changes.spreading import spread_arrivals, starts_on_quantum
from hisearch.traces.importers.formats.csv import MAP_COLUMNS
from hisearch.traces.reading.canonical import PARQUET_MAGIC, is_header
from hisearch.traces.reading.errors import TraceError
from hisearch.traces.reading.rows import BadRows, json_fault, open_text
from hisearch.traces.reading.source import Source, with_warnings
from hisearch.traces.sampling import stream
from hisearch.traces.sessions import start_sessions
from hisearch.traces.trace import Trace, declare_limit

_BY_RANK = sorted(TRACE_FORMATS.items(), key=lambda named: named[1].rank)
#: Fields that identify a format, in the order in which they are looked for.
_JSON_FIELDS = [(name, frozenset(fields)) for name, known in _BY_RANK for fields in known.json_fields]
_CSV_FIELDS = [(name, frozenset(fields)) for name, known in _BY_RANK for fields in known.csv_fields]


def detect_format(path: Path, *, has_columns: bool = False) -> str:
    """The format of a file by its content: its magic number, or the fields of its first row.

    Args:
        path: the file.
        has_columns: a mapping of columns is given, so a table of no known format is ``csv``.

    Raises:
        TraceError: the file cannot be read, is empty, or is of no known format.
    """
    if path.is_file():
        with path.open("rb") as raw:
            if raw.read(4) == PARQUET_MAGIC:
                return "hisearch"
    with open_text(path) as text:
        first = next((line for line in text if line.strip()), None)
    if first is None:
        raise TraceError.at("no requests: the file is empty", path=path)
    if first.lstrip().startswith("{"):
        return _detect_json(path, first)
    names = frozenset(name.strip() for name in next(csv.reader([first])))
    format_name = next((name for name, fields in _CSV_FIELDS if fields <= names), "csv" if has_columns else None)
    if format_name is None:
        raise TraceError.at(
            f"format not recognised by its columns ({', '.join(sorted(names))[:80]}); of a table of your own say which "
            f"column is what: {MAP_COLUMNS}; else name its format (--format, or spec.file.format in a Workload), one "
            f"of {', '.join(TRACE_FORMATS)}", path=path, line=1,
        )  # fmt: skip
    return format_name


def _detect_json(path: Path, first: str) -> str:
    try:
        row = json.loads(first)
    except json.JSONDecodeError as error:
        message = f"expected a JSON object on every line: {json_fault(error)}"
        raise TraceError.at(message, path=path, line=1) from error
    if is_header(row):
        return "hisearch"
    for name, fields in _JSON_FIELDS:
        if fields <= row.keys():
            return name
    raise TraceError.at(
        f"format not recognised by its fields ({', '.join(sorted(row))[:80]}); name it (--format, or spec.file.format "
        f"in a Workload), one of {', '.join(TRACE_FORMATS)}", path=path, line=1,
    )  # fmt: skip


def read_trace(path: Path, spec: TraceFileSpec, *, seed: int = 0) -> Trace:
    """Read a trace file as ``spec`` says; ``path`` is where ``spec.path`` was found.

    Broken rows are refused beyond ``spec.skip_bad``. ``spec.limit`` is not applied here, because it counts requests in
    the compiled trace's order.

    Raises:
        TraceError: the file is missing, of no known format, or has broken rows; or an option does not fit the format.
    """
    name = spec.format if spec.format != "auto" else detect_format(path, has_columns=bool(spec.columns))
    declared = TRACE_FORMATS[name]
    if spec.columns and name != "csv":
        raise TraceError.at(f"columns are for format csv; this file is {name}", path=path, key="columns")
    if spec.arrivals is not None and declared.records_starts and "arrival_s" in spec.columns:
        raise TraceError.at("the table's arrival_s and arrivals exclude each other", path=path, key="arrivals")
    if spec.arrivals is not None and declared.records_starts and name != "csv":
        raise TraceError.at(f"format {name} records its arrivals; arrivals does not apply", path=path, key="arrivals")
    if spec.think is not None and declared.records_think:
        raise TraceError.at(f"format {name} records its own times; think does not apply", path=path, key="think")
    source = Source(path, spec, seed, BadRows(path, spec.skip_bad))
    trace: Trace = import_module(TRACE_FORMATS.modules[name]).read(source)
    if spec.arrivals is not None:
        trace = start_sessions(trace, spec.arrivals, stream("session starts", seed))
    trace = _spread(trace, spec.spread_arrivals_s, declared.quantum_s, stream("spread arrivals", seed))
    return declare_limit(trace, spec.max_output_tokens)


def _spread(trace: Trace, quantum_s: float | None, usual_s: float, rng: np.random.Generator) -> Trace:
    """Spread arrivals over ``quantum_s`` if given, or the format's usual one where they are detected as quantised."""
    if quantum_s is None:
        if not usual_s or not starts_on_quantum(trace.arrival_s, usual_s):
            return trace
        quantum_s = usual_s
    if quantum_s == 0:
        return trace
    note = f"arrivals are quantised to {quantum_s:g} s; they were spread evenly over it, seeded"
    return with_warnings(spread_arrivals(trace, quantum_s, rng), note)
