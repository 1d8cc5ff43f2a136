"""Service recordings with prefix-block hashes: Mooncake and Qwen-Bailian.

Both list one id per block of the prompt; equal ids at the head of two prompts mean equal tokens. The last, partial
block has an id too, or none; outputs have none, so a follow-up shares its predecessor's prompt alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hisearch.traces.reading.rows import Fields, Order, RowError, json_rows
from hisearch.traces.reading.source import Codes, Requests, Source
from hisearch.traces.trace import Trace

MOONCAKE_BLOCK_TOKENS = 512
BAILIAN_BLOCK_TOKENS = 16

#: Requests per second beyond which a recording's times are probably not what they are taken for.
LIKELY_RPS = 1000.0


def prompt_blocks(row: Fields, input_tokens: int, block_tokens: int) -> tuple[list[int], int]:
    """A prompt's block ids, checked in number, and the tokens that they cover."""
    ids = row.counts("hash_ids")
    whole_blocks, all_blocks = input_tokens // block_tokens, math.ceil(input_tokens / block_tokens)
    if len(ids) not in (whole_blocks, all_blocks):
        expected = f"{all_blocks} ids, one per {block_tokens} tokens of {input_tokens}"
        raise RowError("hash_ids", f"expected {expected}, got {len(ids)}")
    return ids, min(input_tokens, len(ids) * block_tokens)


def read_mooncake(source: Source) -> Trace:
    """Mooncake (github.com/kvcache-ai/Mooncake): ``timestamp`` in ms, lengths, ``hash_ids`` of 512-token blocks."""
    requests = Requests()
    order = Order("timestamp")
    for line, row in json_rows(source.path, source.bad):
        with source.bad.row(line):
            inputs, outputs = row.count("input_length"), row.count("output_length")
            ids, known = prompt_blocks(row, inputs, MOONCAKE_BLOCK_TOKENS)
            requests.add(order.check(row.number("timestamp") / 1e3), inputs, outputs, ids=ids, known_tokens=known)
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


def read_bailian(source: Source) -> Trace:
    """Qwen-Bailian (github.com/alibaba-edu/qwen-bailian-usagetraces-anon): seconds, 16-token blocks, conversations.

    A request with ``parent_chat_id`` follows that one up. Finish times are not recorded, so think times are not known:
    the recorded arrivals are replayed unless a closed loop is asked for. ``type`` becomes the tenant.
    """
    requests = Requests()
    order, types = Order("timestamp"), Codes()
    known_chats: dict[str | int, int] = {}
    orphans = 0
    for line, row in json_rows(source.path, source.bad):
        with source.bad.row(line):
            chat = row.label("chat_id")
            if chat in known_chats:
                raise RowError("chat_id", f"{chat!r} was used before")
            inputs, outputs = row.count("input_length"), row.count("output_length")
            ids, known = prompt_blocks(row, inputs, BAILIAN_BLOCK_TOKENS)
            parent = row.label("parent_chat_id") if "parent_chat_id" in row else -1
            kind = types[row.label("type")] if "type" in row else 0
            previous = known_chats.get(parent, -1)
            orphans += parent != -1 and previous < 0
            known_chats[chat] = requests.add(
                order.check(row.number("timestamp")),
                inputs,
                outputs,
                previous=previous,
                think_s=math.nan if previous >= 0 else 0.0,
                session=requests.session[previous] if previous >= 0 else None,
                tenant=kind,
                request_id=str(chat),
                ids=ids,
                known_tokens=known,
            )
    note = f"{orphans} requests follow up a chat that the file does not hold; they are taken as first turns"
    return requests.build(source, block_tokens=BAILIAN_BLOCK_TOKENS, warnings=[note] if orphans else [])
