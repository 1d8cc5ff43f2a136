"""Mooncake's service recordings, with prefix-block hashes."""

from __future__ import annotations

from collections.abc import Sequence

from hisearch.base.policies import TraceFormat
from hisearch.traces.importers.blocks import prompt_blocks
from hisearch.traces.reading.rows import json_rows
from hisearch.traces.reading.source import Requests, Source
from hisearch.traces.trace import Trace

FORMAT = TraceFormat(
    "Mooncake's services.",
    json_fields=(("timestamp", "input_length", "output_length"),),
    rank=1,  # bailian has these fields too
    quantum_s=3.0,  # give or take a few milliseconds of rounding
    times="timestamp holds milliseconds",
)

MOONCAKE_BLOCK_TOKENS = 512

#: Requests per second beyond which a recording's times are probably not what they are taken for.
LIKELY_RPS = 1000.0


def read(source: Source) -> Trace:
    """Mooncake (github.com/kvcache-ai/Mooncake): ``timestamp`` in ms, lengths, ``hash_ids`` of 512-token blocks."""
    requests = Requests()
    for line, row in json_rows(source.path, source.bad):
        with source.bad.row(line):
            inputs, outputs = row.tokens("input_length"), row.tokens("output_length")
            ids, known = prompt_blocks(row, inputs, MOONCAKE_BLOCK_TOKENS)
            requests.add(row.number("timestamp") / 1e3, inputs, outputs, ids=ids, known_tokens=known)
    requests.sort_by_time(source)
    warnings = _unlikely_milliseconds(requests.arrival_s)
    return requests.build(source, block_tokens=MOONCAKE_BLOCK_TOKENS, warnings=warnings)


def _unlikely_milliseconds(arrival_s: Sequence[float]) -> list[str]:
    """A warning where times read as milliseconds look like seconds: not whole, or of thousands of requests in one."""
    if not arrival_s:
        return []
    span_s = arrival_s[-1] - arrival_s[0]
    integer = all((time_s * 1e3).is_integer() or abs(time_s * 1e3 - round(time_s * 1e3)) < 1e-6 for time_s in arrival_s)
    if integer and len(arrival_s) <= LIKELY_RPS * max(span_s, 1.0):
        return []
    return [
        f"timestamps are milliseconds in this form: {len(arrival_s):,} requests came within {span_s:g} s; if the "
        "file's are seconds, multiply them by 1,000"
    ]
