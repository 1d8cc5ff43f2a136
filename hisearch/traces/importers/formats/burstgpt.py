"""BurstGPT's service recordings: times, lengths and, from 2.0, sessions."""

from __future__ import annotations

import math

from hisearch.base.policies import TraceFormat
from hisearch.traces.reading.rows import Order, csv_rows
from hisearch.traces.reading.source import Codes, Requests, Source
from hisearch.traces.trace import Trace

FORMAT = TraceFormat("BurstGPT.", csv_fields=(("Timestamp", "Request tokens", "Response tokens"),))


def read(source: Source) -> Trace:
    """BurstGPT (github.com/HPMLL/BurstGPT): seconds, token counts; releases from 2.0 with sessions and elapsed times.

    Requests of one ``Session ID`` follow each other up; the think time is what the gap leaves beyond ``Elapsed time``.
    Recorded arrivals are replayed unless a closed loop is asked for. Prompts' contents are not recorded: nothing is
    shared. ``Model`` becomes the tenant. Failed requests (``Response tokens`` 0) are broken rows.
    """
    requests = Requests()
    order, models, sessions = Order("Timestamp"), Codes(), Codes()
    last: dict[int, tuple[int, float]] = {}
    for line, row in csv_rows(source.path, source.bad):
        with source.bad.row(line):
            inputs, outputs = row.count("Request tokens"), row.count("Response tokens")
            arrival = row.number("Timestamp")
            elapsed = row.number("Elapsed time") if row.filled("Elapsed time") else math.nan
            tenant = models[row.label("Model")] if "Model" in row else 0
            named = str(row.raw("Session ID")) if row.filled("Session ID") else None
            order.check(arrival)
            session = sessions[named if named is not None else ("row", line)]
            previous, finish = last.get(session, (-1, arrival))
            index = requests.add(
                arrival,
                inputs,
                outputs,
                previous=previous,
                think_s=max(0.0, arrival - finish) if not math.isnan(finish) else math.nan,
                session=session,
                tenant=tenant,
            )
            last[session] = (index, arrival + elapsed)
    return requests.build(source)
