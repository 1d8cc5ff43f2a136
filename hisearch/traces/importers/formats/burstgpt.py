"""BurstGPT's service recordings: times, lengths and, from 2.0, sessions."""

from __future__ import annotations

import math

from hisearch.base.policies import TraceFormat
from hisearch.traces.reading.source import Codes, Requests, Source
from hisearch.traces.reading.tables import table_rows
from hisearch.traces.trace import Trace

FORMAT = TraceFormat(
    "BurstGPT.",
    csv_fields=(("Timestamp", "Request tokens", "Response tokens"),),
    times="Timestamp holds seconds",
)


def read(source: Source) -> Trace:
    """BurstGPT (github.com/HPMLL/BurstGPT): seconds, token counts; releases from 2.0 with sessions and elapsed times.

    Requests of one ``Session ID`` follow each other up; the think time is what the gap leaves beyond ``Elapsed time``.
    Recorded arrivals are replayed unless a closed loop is asked for. Prompts' contents are not recorded: nothing is
    shared. ``Model`` becomes the tenant. Failed requests (``Response tokens`` 0) are broken rows.
    """
    requests = Requests()
    models, sessions = Codes(), Codes()
    ends: list[float] = []
    names: list[str | None] = []
    for line, row in table_rows(source.path, source.bad):
        with source.bad.row(line):
            inputs, outputs = row.tokens("Request tokens"), row.tokens("Response tokens")
            arrival = row.number("Timestamp")
            elapsed = row.number("Elapsed time") if row.filled("Elapsed time") else math.nan
            tenant = models[row.label("Model")] if row.filled("Model") else 0
            requests.add(arrival, inputs, outputs, tenant=tenant)
            ends.append(arrival + elapsed)
            names.append(str(row.raw("Session ID")) if row.filled("Session ID") else None)
    places = requests.sort_by_time(source)
    requests.chain([names[k] for k in places], sessions)
    for index, previous in enumerate(requests.previous):
        if previous >= 0:
            end = ends[places[previous]]
            requests.think_s[index] = math.nan if math.isnan(end) else max(0.0, requests.arrival_s[index] - end)
    return requests.build(source)
