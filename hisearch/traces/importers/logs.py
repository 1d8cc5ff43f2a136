"""What logs of gateways have in common: a row per request, with its time, token counts and perhaps its session.

A log names its fields in a few known ways; the first row that has token counts says which are used. Rows that are no
request to an engine (other routes, failures, answers from the gateway's own cache) are left out and listed.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from hisearch.specs.wording import listed
from hisearch.traces.importers.adapters import split_models
from hisearch.traces.importers.cancelled import take_cancelled
from hisearch.traces.importers.grammars import BLANK, grammar_of
from hisearch.traces.reading.rows import Fields, RowError, decoded
from hisearch.traces.reading.source import Codes, Requests, Source
from hisearch.traces.reading.tables import flat, is_array, table_rows
from hisearch.traces.reading.text import is_parquet, lines, open_text
from hisearch.traces.reading.times import LONGEST_S, Times
from hisearch.traces.trace import Trace

#: How far back in a session the request is looked for that another follows up.
_MOST_PARALLEL = 1000


@dataclass(frozen=True)
class LogFields:
    """Names of a log's fields, likelier ones first; none where it has no such field.

    Attributes:
        arrivals: when the request came. inputs, outputs: token counts. thinking: those of the outputs that were
            reasoning.
        ends: when its last token came, as a time. durations_ms: for how long it was served.
        ids, sessions, tenants, models: names.
        statuses: of HTTP; rows of 400 and more are left out, but those of cancelled requests (``importers.cancelled``).
        cache_hits: true where the gateway answered from its own cache.
        bodies: where the request's body may be (see ``importers.grammars``).
    """

    arrivals: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    thinking: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    durations_ms: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    sessions: tuple[str, ...] = ()
    tenants: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    statuses: tuple[str, ...] = ()
    cache_hits: tuple[str, ...] = ()
    bodies: tuple[str, ...] = ()


@dataclass
class _Columns:
    """What is kept beside the requests until they are sorted."""

    sessions: list[Hashable | None] = field(default_factory=list)
    ends_s: list[float] = field(default_factory=list)
    models: list[str] = field(default_factory=list)


def read_log(source: Source, names: LogFields, rows: Iterable[tuple[int, Fields]]) -> Trace:
    """The trace of a log's rows.

    A request follows up the last one of its session that had ended when it came. Where no ends are recorded it follows
    up the one before it, at its recorded time. Models are told apart only where the log names several.

    Raises:
        TraceError: no field has the times or the token counts.
    """
    requests, columns, tenants = Requests(), _Columns(), Codes()
    times: Times | None = None
    known: set[str] = set()
    for line, row in rows:
        inputs, outputs = _first(row, names.inputs), _first(row, names.outputs)
        status = _first(row, names.statuses)
        said = None if status is None else row.values[status]
        cancelled, dropped = take_cancelled(source, line, row, () if said is None else (said,), outputs)
        if dropped:
            continue
        reason = _no_request(row, names, inputs, outputs, None if cancelled else said)
        if reason:
            source.understood.leave_out(line, reason)
            continue
        with source.bad.row(line):
            lengths = row.tokens(str(inputs)), row.tokens(str(outputs))
            reasoned = _first(row, names.thinking)
            thinking = row.count(reasoned, minimum=0, maximum=lengths[1]) if reasoned is not None else 0
            arrival = times.field if times is not None else _first(row, names.arrivals)
            if arrival is None:
                raise RowError(names.arrivals[0], f"no time of arrival; expected one of {', '.join(names.arrivals)}")
            times = times if times is not None else source.times(arrival)
            name = _text(row, names.ids)
            at = times.seconds(row)
            end = _end(row, names, at, times)
            unique = name if name is not None and name not in known else None
            tenant = tenants[_text(row, names.tenants)]
            name_or_line = unique or f"line {line}"
            requests.add(
                at, *lengths, tenant=tenant, request_id=name_or_line, thinking_tokens=thinking,
                grammar=grammar_of(row.values, names.bodies),
            )  # fmt: skip
            known.add(name or "")
            if cancelled:
                source.understood.cancelled.append(line)
            columns.sessions.append(_text(row, names.sessions))
            columns.ends_s.append(end)
            columns.models.append(_text(row, names.models) or "")
    return _trace(source, requests, columns)


def json_log_rows(source: Source) -> Iterator[tuple[int, Fields]]:
    """Objects of a log in JSON, one a line, nested fields by dotted paths; lines of plain text are left out."""
    path = source.path
    if is_parquet(path) or is_array(path):
        yield from table_rows(path, source.bad)
        return
    with open_text(path) as text:
        for line, content in enumerate(lines(text, path), start=1):
            if not content.lstrip().startswith("{"):
                if content.strip():
                    source.understood.leave_out(line, "no JSON object")
                continue
            value: Any = None
            with source.bad.row(line):
                value = decoded(content)
            if value is not None:
                yield line, Fields(flat(value))


def _trace(source: Source, requests: Requests, columns: _Columns) -> Trace:
    places = requests.sort_by_time(source)
    sessions = [columns.sessions[k] for k in places]
    ends = [columns.ends_s[k] for k in places]
    timed = bool(ends) and not any(math.isnan(end) for end in ends)
    if timed:
        _follow_ended(requests, sessions, ends)
    else:
        requests.chain(sessions, Codes())
    asked = [columns.models[k] for k in places]
    if source.spec.adapters:
        asked, adapters = split_models(asked, source.spec.adapters, source.path)
        requests.adapter = [name or None for name in adapters]
        requests.adapter_rank = [source.spec.adapters.get(name, 0) for name in adapters]
    models = dict.fromkeys(model for model in asked if model)
    if len(models) > 1:
        requests.model = [model or "unknown" for model in asked]
    warnings = []
    if len(models) > 1:
        shown = listed([*list(models)[:5], *(["others"] if len(models) > 5 else [])])
        warnings.append(
            f"requests ask for {len(models)} models: {shown}; --model of `hisearch trace import` names one, --adapters "
            "says which are LoRA adapters"
        )
    return requests.build(source, open_loop=not timed, warnings=warnings)


def _follow_ended(requests: Requests, sessions: Sequence[Hashable | None], ends: Sequence[float]) -> None:
    """Let each request follow up the last one of its session that had ended; calls in parallel follow up none."""
    members: dict[Hashable, list[int]] = {}
    codes = Codes()
    for index, session in enumerate(sessions):
        key = session if session is not None else ("row", index)
        requests.session[index] = codes[key]
        earlier = members.setdefault(key, [])
        at = requests.arrival_s[index]
        ended = [k for k in earlier[-_MOST_PARALLEL:] if ends[k] <= at]
        if ended:
            previous = max(ended, key=ends.__getitem__)
            requests.previous[index], requests.think_s[index] = previous, at - ends[previous]
        earlier.append(index)


def _no_request(row: Fields, names: LogFields, inputs: str | None, outputs: str | None, status: object) -> str:
    """Why a row is no request to an engine; "" where it is one. status: None where it has none that counts."""
    if status is not None and failed(status):
        return "failed"
    hit = _first(row, names.cache_hits)
    if hit is not None and str(row.values[hit]).lower() in ("true", "1", "hit"):
        return "answered from the gateway's cache"
    if inputs is None or outputs is None:
        return f"no {' and no '.join(n for n, there in (('input', inputs), ('output', outputs)) if not there)} tokens"
    if str(row.values[outputs]).strip() in ("0", "0.0"):
        return "no output"
    return ""


def failed(status: object) -> bool:
    """True for the status of a request that failed: of HTTP 400 and more, or a word for it."""
    text = str(status).strip().lower()
    return text in ("failure", "failed", "error") or (text.isdecimal() and len(text) == 3 and int(text) >= 400)


def _end(row: Fields, names: LogFields, at: float, times: Times) -> float:
    """When the request ended, on the clock of ``times``; NaN where that is not recorded."""
    end = _first(row, names.ends)
    if end is not None:
        return max(at, times.seconds(row, end))
    duration = _first(row, names.durations_ms)
    if duration is None or not str(row.values[duration]).replace(".", "", 1).isdecimal():
        return math.nan
    return at + row.number(duration, maximum=LONGEST_S * 1e3) / 1e3


def _first(row: Fields, names: tuple[str, ...]) -> str | None:
    """The first of the fields that the row has a value of."""
    values = row.values
    return next((name for name in names if (value := values.get(name)) is not None and value not in BLANK), None)


def _text(row: Fields, names: tuple[str, ...]) -> str | None:
    name = _first(row, names)
    if name is None:
        return None
    value = row.raw(name)
    return str(row.label(name) if isinstance(value, str | list | dict) else value)
