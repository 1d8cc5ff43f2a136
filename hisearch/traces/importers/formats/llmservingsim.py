"""LLMServingSim's workloads: flat requests, and sessions of agents."""

from __future__ import annotations

import math
from typing import Any

from hisearch.base.policies import TraceFormat
from hisearch.traces.reading.rows import Fields, RowError, json_rows
from hisearch.traces.reading.source import Requests, Source
from hisearch.traces.reading.times import LONGEST_S
from hisearch.traces.trace import Trace

FORMAT = TraceFormat(
    "LLMServingSim's workloads.",
    json_fields=(("arrival_time_ns", "input_toks", "output_toks"), ("arrival_time_ns", "sub_requests")),
    rank=4,
    times="arrival_time_ns holds nanoseconds",
)


def read(source: Source) -> Trace:
    """LLMServingSim workloads (github.com/casys-kaist/LLMServingSim): flat requests and sessions of ``sub_requests``.

    ``tool_duration_ns`` of a sub-request is the think time of the next. Prefixes are shared by token ids where given.
    Lines may come in any order, as the format allows: they are sorted by arrival.
    """
    chains: list[tuple[float, list[dict[str, Any]]]] = []
    for line, row in json_rows(source.path, source.bad):
        with source.bad.row(line):
            arrival = row.number("arrival_time_ns", maximum=LONGEST_S * 1e9) / 1e9
            nested = "sub_requests" in row
            calls = [_token_call(call) for call in (row.rows("sub_requests") if nested else [row])]
            chains.append((arrival, calls))
    requests = Requests()
    for number, (arrival, calls) in enumerate(sorted(chains, key=lambda chain: chain[0])):
        previous, think = -1, 0.0
        for call in calls:
            pause = call.pop("pause_s")
            at = arrival if previous < 0 else math.nan
            previous = requests.add(at, previous=previous, think_s=think, session=number, **call)
            think = pause
    return requests.build(source, block_tokens=1, open_loop=False, from_first_arrival=False)


def _token_call(row: Fields) -> dict[str, Any]:
    """Columns of one LLMServingSim request, with the pause after it."""
    inputs, outputs = row.tokens("input_toks"), row.tokens("output_toks")
    ids: list[int] = []
    for field, count in (("input_tok_ids", inputs), ("output_tok_ids", outputs)):
        if field not in row or (field == "output_tok_ids" and not ids):
            break
        token_ids = row.counts(field)
        if len(token_ids) != count:
            raise RowError(field, f"expected {count} token ids, got {len(token_ids)}")
        ids += token_ids
    pause = row.number("tool_duration_ns", maximum=LONGEST_S * 1e9) / 1e9 if "tool_duration_ns" in row else 0.0
    return {
        "input_tokens": inputs, "output_tokens": outputs, "ids": ids, "known_tokens": len(ids), "pause_s": pause,
    }  # fmt: skip
