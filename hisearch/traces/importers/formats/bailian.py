"""Qwen-Bailian's service recordings, with prefix-block hashes and conversations."""

from __future__ import annotations

import math

from hisearch.base.policies import TraceFormat
from hisearch.traces.importers.blocks import prompt_blocks
from hisearch.traces.reading.rows import RowError, json_rows
from hisearch.traces.reading.source import Codes, Requests, Source
from hisearch.traces.trace import Trace

FORMAT = TraceFormat(
    "Qwen-Bailian's services.",
    json_fields=(("chat_id", "timestamp", "input_length", "output_length"),),
    times="timestamp holds seconds",
)

BAILIAN_BLOCK_TOKENS = 16


def read(source: Source) -> Trace:
    """Qwen-Bailian (github.com/alibaba-edu/qwen-bailian-usagetraces-anon): seconds, 16-token blocks, conversations.

    A request with ``parent_chat_id`` follows that one up. Finish times are not recorded, so think times are not known:
    the recorded arrivals are replayed unless a closed loop is asked for. ``type`` becomes the tenant.
    """
    requests = Requests()
    types = Codes()
    known_chats: set[str | int] = set()
    chats: list[str | int] = []
    parents: list[str | int] = []
    for line, row in json_rows(source.path, source.bad):
        with source.bad.row(line):
            chat = row.label("chat_id")
            if chat in known_chats:
                raise RowError("chat_id", f"{chat!r} was used before")
            inputs, outputs = row.tokens("input_length"), row.tokens("output_length")
            ids, known = prompt_blocks(row, inputs, BAILIAN_BLOCK_TOKENS)
            parent = row.label("parent_chat_id") if "parent_chat_id" in row else -1
            kind = types[row.label("type")] if "type" in row else 0
            at = row.number("timestamp")
            requests.add(at, inputs, outputs, tenant=kind, request_id=str(chat), ids=ids, known_tokens=known)
            known_chats.add(chat)
            chats.append(chat)
            parents.append(parent)
    orphans = 0
    index: dict[str | int, int] = {}
    for place, row_number in enumerate(requests.sort_by_time(source)):
        parent = parents[row_number]
        if parent in index:
            requests.follow_up(place, index[parent], math.nan)
        orphans += parent != -1 and parent not in index
        index[chats[row_number]] = place
    note = f"{orphans} requests follow up a chat that the file does not hold before them; they are taken as first turns"
    return requests.build(source, block_tokens=BAILIAN_BLOCK_TOKENS, warnings=[note] if orphans else [])
