"""Trace formats in: detection of a file's format by its content, and its reading.

``formats`` has a file for each format, and says how to add one; ``benchmarks`` the same for results of benchmark tools.

Imports ``changes``, ``reading`` and modules of ``traces``.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np

from hisearch.base.policies import BENCHMARKS, TRACE_FORMATS
from hisearch.specs.workloads.workload import TraceFileSpec
from hisearch.traces.changes.leaving_out import without_long
from hisearch.traces.changes.spreading import spread_arrivals, starts_on_quantum
from hisearch.traces.history import with_history
from hisearch.traces.importers.hints import hint
from hisearch.traces.importers.measured_trace import measured_trace
from hisearch.traces.importers.measurement import Measurement
from hisearch.traces.importers.results import read_results
from hisearch.traces.reading.canonical import FORMAT, is_header
from hisearch.traces.reading.columns import ARRIVALS, proposal
from hisearch.traces.reading.errors import TraceError
from hisearch.traces.reading.rows import BadRows, RowError, decoded, json_rows, one_line
from hisearch.traces.reading.source import Source, with_warnings
from hisearch.traces.reading.tables import Tolerant, container_of, flat, header_in, parquet_schema, table_sample
from hisearch.traces.reading.text import lines, open_text
from hisearch.traces.reading.understood import check_times, kept_notes, left_out_notes, notes_of
from hisearch.traces.sampling import stream
from hisearch.traces.sessions import start_sessions
from hisearch.traces.trace import Trace, declare_limit

_BY_RANK = sorted(TRACE_FORMATS.items(), key=lambda named: named[1].rank)
#: Fields that identify a format, in the order in which they are looked for.
_JSON_FIELDS = [(name, frozenset(fields)) for name, known in _BY_RANK for fields in known.json_fields]
_CSV_FIELDS = [(name, frozenset(fields)) for name, known in _BY_RANK for fields in known.csv_fields]
_BENCHMARK_FIELDS = [(name, fields) for name, fields in _JSON_FIELDS if name in BENCHMARKS]
_AMONG_LINES = [(name, fields) for name, fields in _JSON_FIELDS if TRACE_FORMATS[name].among_lines]
_LINES = [(name, re.compile(known.line_pattern)) for name, known in _BY_RANK if known.line_pattern]
#: Rows of JSON and lines of a log in which a format's marks are looked for: services log other things too.
_FIRST_ROWS, _FIRST_LINES = 50, 2000


def detect_format(path: Path, *, has_columns: bool = False) -> str:
    """The format of a file by its content: its magic number, the fields of its first rows, or its first lines.

    Args:
        path: the file.
        has_columns: a mapping of columns is given, so a table of no known format is ``csv``.

    Raises:
        TraceError: the file cannot be read, is empty, or is of no known format.
    """
    container = container_of(path)
    if container == "parquet":
        names, metadata = parquet_schema(path)
        if is_header(header_in(metadata, FORMAT)):
            return "hisearch"
        format_name = _by_fields(_CSV_FIELDS, names)
    elif container == "json":
        try:
            format_name = _detect_json(path)
        except TraceError:  # Envoy's lines of text begin as an array does
            if known := hint(path, {}):
                raise TraceError.at(known, path=path, line=1) from None
            raise
    else:
        format_name = _detect_text(path)
    if format_name is None and has_columns:
        return "csv"
    if format_name is None:
        sample = table_sample(path)
        known = hint(path, sample) if container != "parquet" else ""
        if known:
            raise TraceError.at(known, path=path, line=1)
        what = "fields" if container == "json" else "columns"
        seen, proposed = one_line(", ".join(sorted(sample))[:80]), one_line(proposal(sample))
        message = (
            f"format not recognised by its {what} ({seen}); {proposed}; or name its format "
            "(--format, or spec.file.format in a Workload)"
        )
        raise TraceError.at(message, path=path, line=1)
    return format_name


def _by_fields(known: list[tuple[str, frozenset[str]]], present: Collection[str]) -> str | None:
    names = frozenset(present)
    return next((name for name, fields in known if fields <= names), None)


def _detect_json(path: Path) -> str | None:
    broken = Tolerant(path)
    none = True
    for _, row in itertools.islice(json_rows(path, broken), _FIRST_ROWS):
        none = False
        if is_header(row.values):
            return "hisearch"
        name = _by_fields(_JSON_FIELDS, flat(row.values))
        if name is not None:
            return name
    if none and broken.first:
        line, error = broken.first[0]
        raise TraceError.at(error.message, path=path, line=line, key=error.field)
    return None


def _detect_text(path: Path) -> str | None:
    """The format of a table by its header, else of a log by its first lines; a log's first line is no good header."""
    try:
        return _by_fields(_CSV_FIELDS, table_sample(path)) or _detect_log(path)
    except TraceError:
        log = _detect_log(path)
        if log is None:
            raise
        return log


def _detect_log(path: Path) -> str | None:
    """The format of a log by one of its first lines, of plain text or of JSON among it."""
    with open_text(path) as text:
        for line in itertools.islice(lines(text, path), _FIRST_LINES):
            name = next((name for name, pattern in _LINES if pattern.search(line)), None)
            if name is None and line.startswith("{"):
                name = _by_fields(_AMONG_LINES, _fields_of(line))
            if name is not None:
                return name
    return None


def _fields_of(line: str) -> Collection[str]:
    """Fields of a line that is a JSON object; none where it is none."""
    try:
        value = decoded(line)
    except RowError:
        return ()
    return flat(value).keys()


def read_measurements(path: Path) -> list[Measurement]:
    """Every run in a file of a benchmark tool's results.

    Raises:
        TraceError: the file cannot be read, is none of a known tool, or lacks what is needed.
    """
    results = read_results(path, BadRows(path))
    name = next((known for _, row in results.rows if (known := _by_fields(_BENCHMARK_FIELDS, flat(row)))), None)
    if name is None:
        tools = ", ".join(declared.summary.removeprefix("Results of ").rstrip(".") for declared in BENCHMARKS.values())
        seen = one_line(", ".join(sorted(results.rows[0][1]))[:80])
        raise TraceError.at(f"expected results of {tools}; its fields are {seen}", path=path, line=results.rows[0][0])
    runs: list[Measurement] = import_module(BENCHMARKS.modules[name]).measurements(results)
    return runs


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
        message = f"columns are for format csv; this file is {name}; --format csv reads it as any table"
        raise TraceError.at(message, path=path, key="columns")
    if spec.time_unit != "auto" and (declared.times or not declared.records_starts):
        message = f"the times of format {name} have their own unit; time_unit does not apply"
        raise TraceError.at(message, path=path, key="time_unit")
    if spec.adapters and not declared.names_adapters:
        able = ", ".join(known for known, other in TRACE_FORMATS.items() if other.names_adapters)
        message = f"format {name} names no models that could be adapters; adapters is for {able}"
        raise TraceError.at(message, path=path, key="adapters")
    if spec.arrivals is not None and declared.records_starts and not ARRIVALS.keys().isdisjoint(spec.columns):
        raise TraceError.at("the table's arrival_s and arrivals exclude each other", path=path, key="arrivals")
    if spec.arrivals is not None and declared.records_starts and name != "csv":
        raise TraceError.at(f"format {name} records its arrivals; arrivals does not apply", path=path, key="arrivals")
    if spec.think is not None and declared.records_think:
        raise TraceError.at(f"format {name} records its own times; think does not apply", path=path, key="think")
    source = Source(path, spec, seed, BadRows(path, spec.skip_bad))
    try:
        trace = _read(source, name)
    except MemoryError as error:
        raise TraceError.at("the file's rows do not fit into memory", path=path) from error
    if spec.history:
        try:
            trace = with_history(trace)
        except ValueError as error:
            raise TraceError.at(str(error), path=path, key="history") from error
    recorded = declared.records_starts and spec.arrivals is None
    understood = source.understood if recorded else replace(source.understood, first_s=math.nan)
    trace = with_warnings(trace, *check_times(understood, path, len(trace)))
    notes = (*notes_of(understood, declared.times, source.bad, len(trace)), *trace.import_notes)
    rows = (*kept_notes(understood), *left_out_notes(understood, source.bad))
    now = (f"{path.name}: {text}" for text in (*rows, *trace.warnings))
    trace = replace(trace, notes=notes, import_notes=(*trace.import_notes, *now))
    if spec.arrivals is not None:
        trace = start_sessions(trace, spec.arrivals, stream("session starts", seed))
    trace = _spread(trace, spec.spread_arrivals_s, declared.quantum_s, stream("spread arrivals", seed))
    trace = declare_limit(trace, spec.max_output_tokens)
    try:
        return trace if spec.max_tokens is None else without_long(trace, spec.max_tokens)
    except ValueError as error:
        raise TraceError.at(str(error), path=path, key="max_tokens") from error


def _read(source: Source, name: str) -> Trace:
    """The trace of a file of format ``name``: of a benchmark's results the requests that it sent."""
    module = import_module(TRACE_FORMATS.modules[name])
    if name in BENCHMARKS:
        return measured_trace(source, module.measurements(read_results(source.path, source.bad)))
    trace: Trace = module.read(source)
    return trace


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
