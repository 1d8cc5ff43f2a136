"""Requests of an exported benchmark: ``benchmark/requests.jsonl``."""

from __future__ import annotations

import math

from hisearch.base.policies import TraceFormat
from hisearch.traces.reading.errors import TraceError
from hisearch.traces.reading.rows import json_rows
from hisearch.traces.reading.source import Requests, Source
from hisearch.traces.reading.times import LONGEST_S
from hisearch.traces.trace import Trace

FORMAT = TraceFormat(
    "Requests of an exported benchmark.",
    json_fields=(("arrival_s", "input_tokens", "output_tokens", "block_ids"),),
    times="arrival_s holds seconds from the start",
)

#: Smallest block of an exported benchmark; others are its doubles.
_BLOCK_TOKENS = 16


def read(source: Source) -> Trace:
    """A line for each request: times, lengths, names of the blocks that prompts share.

    The size of a block is not in the file. It follows from how many blocks the prompts have: the last one may hold
    less. Where several sizes fit, it is the smallest double of 16, else the largest.
    """
    rows: list[tuple[float, int, int, list[int]]] = []
    least, most = 1, 1 << 30
    for line, row in json_rows(source.path, source.bad):
        with source.bad.row(line):
            lengths = (row.tokens("input_tokens"), row.tokens("output_tokens"))
            rows.append((row.number("arrival_s", maximum=LONGEST_S), *lengths, row.counts("block_ids")))
            inputs, count = rows[-1][1], len(rows[-1][3])
            least = max(least, math.ceil(inputs / count) if count else most)
            most = min(most, (inputs - 1) // (count - 1) if count > 1 else most)
            if least > most:
                expected = "as many ids as the prompt has blocks, of one size in all rows"
                raise TraceError.at(f"expected {expected}", path=source.path, line=line, key="block_ids")
    doubles = (_BLOCK_TOKENS << power for power in range(26))
    block_tokens = next((tokens for tokens in doubles if least <= tokens <= most), most)
    requests = Requests()
    for arrival_s, inputs, outputs, ids in rows:
        requests.add(arrival_s, inputs, outputs, ids=ids, known_tokens=inputs)
    requests.sort_by_time(source)
    return requests.build(source, block_tokens=block_tokens)
