"""Any table, by a mapping of columns."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import replace

import numpy as np

from hisearch.base.policies import TraceFormat
from hisearch.traces.agents import reordered
from hisearch.traces.importers.adapters import check_asked_for
from hisearch.traces.importers.cancelled import take_cancelled
from hisearch.traces.importers.logs import failed
from hisearch.traces.reading.agent_rows import AgentRows
from hisearch.traces.reading.columns import ARRIVALS, MAP_COLUMNS, TABLE_FIELDS, proposal
from hisearch.traces.reading.errors import TraceError
from hisearch.traces.reading.rows import Fields, RowError, one_line
from hisearch.traces.reading.source import LARGEST_CLASS, Codes, Requests, Source
from hisearch.traces.reading.tables import table_note, table_rows, table_sample
from hisearch.traces.reading.times import LONGEST_S
from hisearch.traces.trace import Trace

FORMAT = TraceFormat(
    "Any table.",
    json_fields=(("input_tokens", "output_tokens"),),
    csv_fields=(("input_tokens", "output_tokens"),),
    names_adapters=True,
    rank=9,  # a service's own table may have these columns too
)

#: Fields that are never taken from a column of the same name: services name their models as they like.
_MAPPED_ONLY = ("model", "agent", "adapter", "grammar")
#: Fields that a row may leave blank.
_OPTIONAL = ("id", "session", "tenant", "priority", "think_s", "adapter", "thinking_tokens", "grammar")
#: Columns that say whether a request failed, unless they are mapped to something else.
_STATUSES = ("status", "status_code", "response_code", "http_status")


def read(source: Source) -> Trace:
    """Any table (CSV, JSON lines, parquet), by ``columns``: hisearch field -> its column.

    ``input_tokens`` and ``output_tokens`` are needed; ``thinking_tokens`` are part of the latter. Without ``columns``
    every column with the name of a hisearch field is that field, except ``model``, ``agent``, ``adapter`` and
    ``grammar``, which only a mapping names. The arrival may be dates, or numbers as ``reading.times`` tells them;
    without it ``arrivals`` must say when sessions start. Rows of one ``session`` follow each other up, ``think_s``
    after their predecessor's end. Rows whose ``status`` (or ``status_code``) says that they failed are left out; of
    cancelled requests see ``importers.cancelled``. Contents are not recorded: nothing is shared.

    ``grammar`` is what a row's output follows, blank for free text.
    ``adapter`` is the LoRA adapter that a row asks for, blank for the base model. With ``agent`` (who calls, in all
    rows, each with the same adapter in all of its own) the trace is one of agents, in a closed loop. Rows of an agent
    follow each other up where no session is named.
    """
    columns = _columns(source)
    arrival = _arrival_field(source, columns)
    times = source.times(columns[arrival], _unit(source, arrival)) if arrival else None
    source.understood.table = table_note(source.path)
    requests = Requests()
    tenants = Codes()
    agents = AgentRows(None)
    names: list[Hashable | None] = []
    thinks: list[float] = []
    statuses = [column for column in _STATUSES if column not in columns.values()]
    unseen = {columns[field] for field in _OPTIONAL if field in columns}
    mapped = frozenset(columns.values())
    for line, row in table_rows(source.path, source.bad):
        said = [row.values[column] for column in statuses if row.filled(column)]
        cancelled, dropped = take_cancelled(source, line, row, said, columns.get("output_tokens"), mapped)
        if dropped:
            continue
        if not cancelled and any(map(failed, said)):
            source.understood.leave_out(line, "failed")
            continue
        with source.bad.row(line):
            unseen = {column for column in unseen if not row.has(column)} if unseen else unseen
            inputs = row.tokens(_column(row, columns, "input_tokens"))
            outputs = row.tokens(_column(row, columns, "output_tokens"))
            tenant = tenants[_optional(row, columns, "tenant")] if "tenant" in columns else 0
            ranked = row.filled(columns.get("priority", ""))
            priority = row.count(columns["priority"], minimum=0, maximum=LARGEST_CLASS) if ranked else 0
            reasoned = row.filled(columns.get("thinking_tokens", ""))
            thinking = row.count(columns["thinking_tokens"], minimum=0, maximum=outputs) if reasoned else 0
            model = str(row.label(_column(row, columns, "model"))) if "model" in columns else None
            filled = row.filled(columns.get("think_s", ""))
            think = row.number(columns["think_s"], maximum=LONGEST_S) if filled else math.nan
            name = _optional(row, columns, "id")
            session = _optional(row, columns, "session")
            adapter = _optional(row, columns, "adapter")
            rank = source.spec.adapters.get(adapter or "", 0)
            caller = _caller(row, columns, adapter, rank)
            _check_caller(agents, caller, len(requests), columns)
            _column(row, columns, arrival or "input_tokens")
            at = times.seconds(row) if times is not None else 0.0
            own = (None, 0) if "agent" in columns else (adapter, rank)
            requests.add(
                at, inputs, outputs, tenant=tenant, priority=priority, request_id=name, model=model,
                thinking_tokens=thinking, adapter=own[0], adapter_rank=own[1],
                grammar=_optional(row, columns, "grammar"),
            )  # fmt: skip
            agents.add(caller, ())
            if cancelled:
                source.understood.cancelled.append(line)
            names.append(str(caller.raw("agent")) if session is None and "agent" in columns else session)
            thinks.append(think)
    if unseen and len(requests):
        message = f"no such column; the file has {', '.join(table_sample(source.path))[:200]}"
        raise TraceError.at(message, path=source.path, key=one_line(min(unseen)))
    known = agents.finish()
    named = {name for name in requests.adapter if name is not None} if known is None else known.adapter_names
    check_asked_for(named, source.spec.adapters, source.path, asked=named)
    places = requests.sort_by_time(source)
    requests.chain([names[k] for k in places], Codes())
    for index, previous in enumerate(requests.previous):
        if previous >= 0:
            requests.think_s[index] = thinks[places[index]]
            if times is None:
                requests.arrival_s[index] = math.nan
    if times is None and any(math.isnan(think) for think in requests.think_s):
        message = "without arrival_s every follow-up of a session needs a think_s"
        raise TraceError.at(message, path=source.path, key="columns")
    trace = requests.build(source, open_loop=times is not None and "think_s" not in columns and known is None)
    return trace if known is None else replace(trace, agents=reordered(known, np.array(places)))


def _caller(row: Fields, columns: dict[str, str], adapter: str | None, rank: int) -> Fields:
    """The row's agent and its adapter, as rows of hisearch's own form name them; empty where no agent is mapped."""
    if "agent" not in columns:
        return Fields({})
    agent = str(row.label(_column(row, columns, "agent")))
    return Fields({"agent": agent, "adapter": adapter, "adapter_rank": rank or None})


def _check_caller(agents: AgentRows, caller: Fields, before: int, columns: Mapping[str, str]) -> None:
    """Refuse what contradicts earlier rows, by the column that it stands in."""
    try:
        agents.check(caller, before)
    except RowError as error:
        field = columns.get(error.field, error.field)
        raise RowError(field, error.message, incomplete=error.incomplete) from error


def _columns(source: Source) -> dict[str, str]:
    """Field -> the table's column: as mapped; ``arrival_s``, and all fields where nothing is mapped, by their names.

    Where arrivals are drawn, no column is taken by name.

    Raises:
        TraceError: a field is none of a request's, or several say when it arrives.
    """
    columns = dict(source.spec.columns)
    for field, column in columns.items():
        if field not in TABLE_FIELDS:
            message = f"expected fields among {', '.join(TABLE_FIELDS)}, got {field!r}: {column!r}"
            raise TraceError.at(message, path=source.path, key="columns")
    if source.spec.adapters and "adapter" not in columns:
        raise TraceError.at("expected a column of adapters: --columns adapter=COLUMN", path=source.path, key="adapters")
    if source.spec.arrivals is not None:
        return columns
    present = table_sample(source.path)
    for field in TABLE_FIELDS:
        arrival = field in ARRIVALS
        if field not in present or field in _MAPPED_ONLY or (arrival and not columns.keys().isdisjoint(ARRIVALS)):
            continue
        if arrival or not source.spec.columns:
            columns.setdefault(field, field)
    return columns


def _arrival_field(source: Source, columns: dict[str, str]) -> str:
    """The field that says when requests arrive; "" where that is drawn."""
    fields = [field for field in ARRIVALS if field in columns]
    if len(fields) > 1:
        raise TraceError.at(f"expected one of {', '.join(fields)}", path=source.path, key="columns")
    if fields or source.spec.arrivals is not None:
        return fields[0] if fields else ""
    message = (
        f"arrival_s has no column; give {MAP_COLUMNS}; or, to draw sessions' starts, spec.file.arrivals in a Workload; "
        f"{proposal(table_sample(source.path))}"
    )
    raise TraceError.at(message, path=source.path, key="columns")


def _unit(source: Source, arrival: str) -> str:
    """The unit that the mapping or ``time_unit`` states."""
    mapped, stated = ARRIVALS[arrival] if arrival in source.spec.columns else "auto", source.spec.time_unit
    if "auto" not in (mapped, stated) and mapped != stated:
        raise TraceError.at(f"time_unit {stated} contradicts {arrival}", path=source.path, key="time_unit")
    return stated if mapped == "auto" else mapped


def _column(row: Fields, columns: dict[str, str], field: str) -> str:
    """The table's column for a hisearch field: as mapped, else of the same name."""
    column = columns.get(field, field)
    if not row.has(column):
        for_field = f" (for {field})" if field != column else ""
        raise RowError(column, f"no such column{for_field}; the file has {', '.join(row.names())[:200]}")
    return column


def _optional(row: Fields, columns: dict[str, str], field: str) -> str | None:
    """Text of a column that may be blank; None where it is, or where the field has none."""
    if field not in columns or not row.filled(columns[field]):
        return None
    value = row.raw(columns[field])
    return str(row.label(columns[field]) if isinstance(value, str | list | dict) else value)
