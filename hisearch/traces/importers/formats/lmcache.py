"""LMCache's recordings of agents' sessions."""

from __future__ import annotations

import math

import numpy as np

from hisearch.base.policies import TraceFormat
from hisearch.traces.importers.agent_calls import MAX_BLOCKS, STARTS_UNKNOWN, Call
from hisearch.traces.reading.rows import Fields, Order, RowError, json_rows
from hisearch.traces.reading.source import Requests, Source
from hisearch.traces.reading.times import LONGEST_S
from hisearch.traces.trace import Trace

FORMAT = TraceFormat(
    "LMCache's agent sessions.", json_fields=(("block_bytes", "requests"),), records_starts=False, rank=3
)

#: Blocks of an LMCache trace are 64 bytes of text; at about 4 bytes a token, as its authors say, that is 16 tokens.
BYTES_PER_TOKEN = 4


def read(source: Source) -> Trace:
    """Agent sessions (github.com/LMCache/lmcache-agent-trace), one per line: runs ``h`` of 64-byte blocks' ids.

    Lengths are bytes of text; tokens are taken as a quarter of them, rounded up. Ids are global in the file, and name
    whole prefixes. Finish times are not recorded, so think times are the whole gaps between requests. Requests without
    text are left out, and counted in a warning.
    """
    requests = Requests()
    block_tokens = empty = 0
    for line, row in json_rows(source.path, source.bad):
        with source.bad.row(line):
            size = row.count("block_bytes", minimum=BYTES_PER_TOKEN) // BYTES_PER_TOKEN
            if block_tokens and size != block_tokens:
                raise RowError("block_bytes", f"expected {block_tokens * BYTES_PER_TOKEN}, as in the lines before")
            every = _byte_calls(row.rows("requests"), size * BYTES_PER_TOKEN)
            name = str(row.label("id"))
            block_tokens = size
            calls = [call for call in every if call.inputs and call.outputs]
            empty += len(every) - len(calls)
            session, previous = len(requests), -1
            for number, call in enumerate(calls):
                previous = requests.add(
                    call.at_s,
                    call.inputs,
                    call.outputs,
                    previous=previous,
                    think_s=call.at_s - calls[number - 1].at_s,
                    session=session,
                    request_id=f"{name}/{number}",
                    ids=call.ids.tolist(),
                    known_tokens=len(call.ids) * size,
                )
    warnings = ["finish times are not recorded: think times are whole gaps, which include the answers' own times"]
    if source.spec.arrivals is None:
        warnings.append(STARTS_UNKNOWN)
    if empty:
        warnings.append(f"{empty} requests without prompt or output text were left out")
    return requests.build(
        source, block_tokens=block_tokens, open_loop=False, from_first_arrival=False, warnings=warnings
    )


def _byte_calls(rows: list[Fields], block_bytes: int) -> list[Call]:
    """One LMCache session's calls, lengths turned from bytes into tokens."""
    order = Order("requests.t")
    calls: list[Call] = []
    for row in rows:
        at = order.check(row.number("t", maximum=LONGEST_S))
        size, answer, runs = row.count("in_bytes", 0), row.count("out_bytes", 0), row.runs("h")
        blocks = sum(count for _, count in runs)
        if blocks > MAX_BLOCKS:
            raise RowError("requests.h", f"expected at most {MAX_BLOCKS:,} blocks, got {blocks:,}")
        if blocks != size // block_bytes:
            raise RowError("requests.h", f"expected {size // block_bytes} blocks for {size} bytes, got {blocks}")
        ids = np.concatenate([np.zeros(0, dtype=np.int64), *(np.arange(a, a + n) for a, n in runs)])
        inputs, outputs = math.ceil(size / BYTES_PER_TOKEN), math.ceil(answer / BYTES_PER_TOKEN)
        calls.append(Call(at, inputs, outputs, ids, 0.0, 0.0, 0, -1))
    return calls
