"""Azure's service recordings: times and lengths."""

from __future__ import annotations

from hisearch.base.policies import TraceFormat
from hisearch.traces.reading.source import Requests, Source
from hisearch.traces.reading.tables import table_rows
from hisearch.traces.trace import Trace

FORMAT = TraceFormat("Azure's services.", csv_fields=(("TIMESTAMP", "ContextTokens", "GeneratedTokens"),))


def read(source: Source) -> Trace:
    """Azure LLM inference traces (github.com/Azure/AzurePublicDataset): ``TIMESTAMP,ContextTokens,GeneratedTokens``."""
    requests = Requests()
    times = source.times("TIMESTAMP")
    for line, row in table_rows(source.path, source.bad):
        with source.bad.row(line):
            inputs, outputs = row.tokens("ContextTokens"), row.tokens("GeneratedTokens")
            requests.add(times.seconds(row), inputs, outputs)
    requests.sort_by_time(source)
    return requests.build(source)
