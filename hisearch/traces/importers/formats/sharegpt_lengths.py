"""ShareGPT's conversations: lengths alone."""

from __future__ import annotations

import math

from hisearch.base.policies import TraceFormat
from hisearch.traces.reading.source import Requests, Source
from hisearch.traces.reading.tables import table_rows
from hisearch.traces.sampling import draw_think_s, stream
from hisearch.traces.trace import Trace

FORMAT = TraceFormat(
    "ShareGPT's lengths.",
    csv_fields=(("num_prefill_tokens", "num_decode_tokens"),),
    records_starts=False,
    records_think=False,
)


def read(source: Source) -> Trace:
    """ShareGPT lengths (github.com/microsoft/sarathi-serve): ``num_prefill_tokens,num_decode_tokens``, with history.

    The rows of a conversation follow each other, each prompt holding the whole history. Where one ends is not
    marked: a row continues the one before it if its prompt is at least as long as that one's prompt and output.
    """
    requests = Requests()
    shares_with: list[int] = []
    shared_tokens: list[int] = []
    for line, row in table_rows(source.path, source.bad):
        with source.bad.row(line):
            inputs, outputs = row.tokens("num_prefill_tokens"), row.tokens("num_decode_tokens")
            before = len(requests) - 1
            history = requests.input_tokens[-1] + requests.output_tokens[-1] if before >= 0 else math.inf
            follows = inputs >= history
            shares_with.append(before if follows else -1)
            shared_tokens.append(int(history) if follows else 0)
            requests.add(math.nan if follows else 0.0, inputs, outputs, previous=before if follows else -1)
    warnings = ["conversations are not marked in the file: they were told apart by their lengths"]
    think = draw_think_s(source.spec.think, len(requests), stream("think", source.seed))
    requests.think_s = [think[i] if requests.previous[i] >= 0 else 0.0 for i in range(len(requests))]
    if source.spec.think is None:
        warnings.append("think times are not recorded: 0 s was taken; give file.think to set them")
    return requests.build(source, shares=(shares_with, shared_tokens), open_loop=False, warnings=warnings)
