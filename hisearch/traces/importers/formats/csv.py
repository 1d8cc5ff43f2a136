"""Any CSV table, by a mapping of columns."""

from __future__ import annotations

import math

from hisearch.base.policies import TraceFormat
from hisearch.traces.reading.errors import TraceError
from hisearch.traces.reading.rows import Fields, Order, RowError, csv_names, csv_rows
from hisearch.traces.reading.source import Codes, Requests, Source
from hisearch.traces.trace import Trace

FORMAT = TraceFormat(
    "Any table.",
    csv_fields=(("input_tokens", "output_tokens"),),
    rank=1,  # a service's own table may have these columns too
)

#: hisearch fields that ``columns`` may map to a table's columns.
CSV_FIELDS = (
    "id", "arrival_s", "input_tokens", "output_tokens", "session", "tenant", "think_s", "model",
)  # fmt: skip

#: Fields that are never taken from a column of the same name: services name their models as they like.
_MAPPED_ONLY = ("model",)

#: Where a mapping of columns is given.
MAP_COLUMNS = "--columns arrival_s=COLUMN,input_tokens=COLUMN,output_tokens=COLUMN, or spec.file.columns in a Workload"


def read(source: Source) -> Trace:
    """Any CSV table, by ``columns``: hisearch field -> its column. ``input_tokens`` and ``output_tokens`` are needed.

    Without ``columns`` every column with the name of a hisearch field is that field, except ``model``, which only a
    mapping names.
    ``arrival_s`` may be seconds or dates; without it ``arrivals`` must say when sessions start. Rows of one ``session``
    follow each other up, ``think_s`` after their predecessor's end. Contents are not recorded: nothing is shared.
    """
    columns = _columns(source)
    for field, column in columns.items():
        if field not in CSV_FIELDS:
            message = f"expected fields among {', '.join(CSV_FIELDS)}, got {field!r}: {column!r}"
            raise TraceError.at(message, path=source.path, key="columns")
    timed = "arrival_s" in columns
    if not timed and source.spec.arrivals is None:
        message = (
            f"arrival_s has no column; give {MAP_COLUMNS}; or, to draw sessions' starts, spec.file.arrivals in a "
            "Workload"
        )
        raise TraceError.at(message, path=source.path, key="columns")
    requests = Requests()
    order, tenants, sessions = Order(columns.get("arrival_s", "")), Codes(), Codes()
    last: dict[int, int] = {}
    for line, row in csv_rows(source.path, source.bad):
        with source.bad.row(line):
            inputs = row.count(_column(row, columns, "input_tokens"))
            outputs = row.count(_column(row, columns, "output_tokens"))
            arrival = row.seconds(_column(row, columns, "arrival_s")) if timed else math.nan
            named = row.raw(_column(row, columns, "session")) if "session" in columns else ("row", line)
            tenant = tenants[row.raw(_column(row, columns, "tenant"))] if "tenant" in columns else 0
            name = str(row.raw(_column(row, columns, "id"))) if "id" in columns else None
            model = str(row.label(_column(row, columns, "model"))) if "model" in columns else None
            think = row.number(columns["think_s"]) if row.filled(columns.get("think_s", "")) else math.nan
            if timed:
                order.check(arrival)
            session = sessions[named]
            previous = last.get(session, -1)
            last[session] = requests.add(
                arrival if timed or previous >= 0 else 0.0,
                inputs,
                outputs,
                previous=previous,
                think_s=think,
                session=session,
                tenant=tenant,
                request_id=name,
                model=model,
            )
    if not timed and any(math.isnan(think) for think in requests.think_s):
        message = "without arrival_s every follow-up of a session needs a think_s"
        raise TraceError.at(message, path=source.path, key="columns")
    return requests.build(source, open_loop=timed and "think_s" not in columns)


def _columns(source: Source) -> dict[str, str]:
    """Field -> the table's column: as mapped; ``arrival_s``, and all fields where nothing is mapped, by their names.

    Where arrivals are drawn, no column is taken by name.
    """
    columns = dict(source.spec.columns)
    if source.spec.arrivals is not None:
        return columns
    named = {field: field for field in CSV_FIELDS if field in csv_names(source.path) and field not in _MAPPED_ONLY}
    return columns | {field: named[field] for field in named if not columns or field == "arrival_s"} | columns


def _column(row: Fields, columns: dict[str, str], field: str) -> str:
    """The table's column for a hisearch field: as mapped, else of the same name."""
    column = columns.get(field, field)
    if not row.has(column):
        for_field = f" (for {field})" if field != column else ""
        raise RowError(column, f"no such column{for_field}; the file has {', '.join(row.names())}")
    return column
