"""Recordings of agents: WEKA's Claude Code sessions, LMCache's agent sessions, LLMServingSim's workloads.

An agent asks again only when it has its answer, so follow-ups are replayed closed-loop by default.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from hisearch.traces.reading.rows import Fields, Order, RowError, json_rows
from hisearch.traces.reading.source import Requests, Source
from hisearch.traces.trace import Trace

#: Blocks of an LMCache trace are 64 bytes of text; at about 4 bytes a token, as its authors say, that is 16 tokens.
BYTES_PER_TOKEN = 4

#: Block ids are local to a session and dense; anything beyond is taken for a broken row.
_MAX_LOCAL_ID = 1 << 24

_STARTS_UNKNOWN = "sessions' starts are not recorded: all start at 0 s; give file.arrivals to set them"


@dataclass
class _Call:
    """One request of a session: its times from the session's start, its lengths, its blocks' ids."""

    at_s: float
    inputs: int
    outputs: int
    ids: np.ndarray
    busy_s: float
    think_s: float
    chain: int
    parent_chain: int


def read_weka(source: Source) -> Trace:
    """Claude Code sessions (github.com/callanjfox/kv-cache-tester), one per line, in their compact form.

    A request's blocks are the first ``keep`` of the request before it and then the runs ``new``; ids are local to the
    session and name the whole prefix. A ``subagent`` entry is a chain of its own behind the request before it.
    ``think_time`` is the time from the predecessor's end; where absent, the gap less the predecessor's ``api_time``.
    Requests without output (cut off by the user) are left out, and counted in a warning.
    """
    requests = Requests()
    shares: tuple[list[int], list[int]] = ([], [])
    cut_off = common_blocks = 0
    for line, row in json_rows(source.path, source.bad):
        with source.bad.row(line):
            block_tokens = row.count("block_size")
            calls: list[_Call] = []
            _session_calls(row.rows("requests"), block_tokens, 0.0, (0, -1), itertools.count(1), calls)
            name = str(row.label("id"))
            cut_off += _add_session(requests, shares, calls, block_tokens, name)
            common_blocks = math.gcd(common_blocks, block_tokens)
    warnings = [] if source.spec.arrivals else [_STARTS_UNKNOWN]
    if cut_off:
        warnings.append(f"{cut_off} requests without output were left out")
    return requests.build(
        source,
        shares=shares,
        shares_block_tokens=common_blocks or 1,
        open_loop=False,
        from_first_arrival=False,
        warnings=warnings,
    )


def _session_calls(
    rows: list[Fields],
    block_tokens: int,
    start_s: float,
    chain: tuple[int, int],
    chains: Iterator[int],
    calls: list[_Call],
) -> None:
    """Append the calls of one chain (its number, its parent's), nested subagents' behind the request they follow."""
    order = Order("requests.t")
    path = np.zeros(0, dtype=np.int64)
    before: _Call | None = None
    for row in rows:
        at = start_s + order.check(row.number("t"))
        if "requests" in row:
            _session_calls(row.rows("requests"), block_tokens, at, (next(chains), chain[0]), chains, calls)
            continue
        inputs, outputs = row.count("in"), row.count("out", minimum=0)
        keep, runs = row.count("keep", minimum=0), row.runs("new")
        whole_blocks = inputs // block_tokens
        if keep > len(path):
            raise RowError(
                "requests.keep", f"expected at most the {len(path)} blocks of the request before, got {keep}"
            )
        if keep + sum(count for _, count in runs) != whole_blocks:
            raise RowError("requests.new", f"keep and new should make up {whole_blocks} blocks of {inputs} tokens")
        if any(first + count > _MAX_LOCAL_ID for first, count in runs):
            raise RowError("requests.new", f"expected ids local to the session, below {_MAX_LOCAL_ID}")
        path = np.concatenate([path[:keep], *(np.arange(first, first + count) for first, count in runs)])
        busy = row.number("api_time") if "api_time" in row else 0.0
        gap = max(0.0, at - before.at_s - before.busy_s) if before else 0.0
        think = row.number("think_time") if "think_time" in row else gap
        before = _Call(at, inputs, outputs, path, busy, think, *chain)
        calls.append(before)


def _add_session(
    requests: Requests, shares: tuple[list[int], list[int]], calls: list[_Call], block_tokens: int, name: str
) -> int:
    """Add a session's calls that have an output; returns how many had none.

    Ids name whole prefixes, so the longest prefix that a call shares with an earlier one ends with the last of its
    leading ids that any earlier call has used.
    """
    used = np.full(max((int(call.ids.max(initial=-1)) for call in calls), default=-1) + 1, -1, dtype=np.int64)
    session = len(requests)
    last_of_chain: dict[int, int] = {}
    last_at: dict[int, float] = {}
    for call in calls:
        if not call.outputs:
            continue
        owners = used[call.ids]
        shared = int(np.argmax(owners < 0)) if (owners < 0).any() else len(owners)
        shares[0].append(int(owners[shared - 1]) if shared else -1)
        shares[1].append(shared * block_tokens)
        previous = last_of_chain.get(call.chain, last_of_chain.get(call.parent_chain, -1))
        first_of_chain = call.chain not in last_of_chain
        think = call.think_s
        if first_of_chain and previous >= 0:
            think = max(0.0, call.at_s - last_at[previous])
        index = requests.add(
            call.at_s,
            call.inputs,
            call.outputs,
            previous=previous,
            think_s=think if previous >= 0 else 0.0,
            session=session,
            request_id=f"{name}/{len(requests) - session}",
        )
        used[call.ids[shared:]] = index
        last_of_chain[call.chain] = index
        last_at[index] = call.at_s + call.busy_s
    return sum(not call.outputs for call in calls)


def read_lmcache(source: Source) -> Trace:
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
                    think_s=call.at_s - calls[number - 1].at_s if number else 0.0,
                    session=session,
                    request_id=f"{name}/{number}",
                    ids=call.ids.tolist(),
                    known_tokens=len(call.ids) * size,
                )
    warnings = ["finish times are not recorded: think times are whole gaps, which include the answers' own times"]
    if source.spec.arrivals is None:
        warnings.append(_STARTS_UNKNOWN)
    if empty:
        warnings.append(f"{empty} requests without prompt or output text were left out")
    return requests.build(
        source, block_tokens=block_tokens, open_loop=False, from_first_arrival=False, warnings=warnings
    )


def _byte_calls(rows: list[Fields], block_bytes: int) -> list[_Call]:
    """One LMCache session's calls, lengths turned from bytes into tokens."""
    order = Order("requests.t")
    calls: list[_Call] = []
    for row in rows:
        at = order.check(row.number("t"))
        size, answer, runs = row.count("in_bytes", 0), row.count("out_bytes", 0), row.runs("h")
        blocks = sum(count for _, count in runs)
        if blocks != size // block_bytes:
            raise RowError("requests.h", f"expected {size // block_bytes} blocks for {size} bytes, got {blocks}")
        ids = np.concatenate([np.zeros(0, dtype=np.int64), *(np.arange(a, a + n) for a, n in runs)])
        inputs, outputs = math.ceil(size / BYTES_PER_TOKEN), math.ceil(answer / BYTES_PER_TOKEN)
        calls.append(_Call(at, inputs, outputs, ids, 0.0, 0.0, 0, -1))
    return calls


def read_llmservingsim(source: Source) -> Trace:
    """LLMServingSim workloads (github.com/casys-kaist/LLMServingSim): flat requests and sessions of ``sub_requests``.

    ``tool_duration_ns`` of a sub-request is the think time of the next. Prefixes are shared by token ids where given.
    Lines may come in any order, as the format allows: they are sorted by arrival.
    """
    chains: list[tuple[float, list[dict[str, Any]]]] = []
    for line, row in json_rows(source.path, source.bad):
        with source.bad.row(line):
            arrival = row.number("arrival_time_ns") / 1e9
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
    inputs, outputs = row.count("input_toks"), row.count("output_toks")
    ids: list[int] = []
    for field, count in (("input_tok_ids", inputs), ("output_tok_ids", outputs)):
        if field not in row or (field == "output_tok_ids" and not ids):
            break
        token_ids = row.counts(field)
        if len(token_ids) != count:
            raise RowError(field, f"expected {count} token ids, got {len(token_ids)}")
        ids += token_ids
    pause = row.number("tool_duration_ns") / 1e9 if "tool_duration_ns" in row else 0.0
    return {
        "input_tokens": inputs, "output_tokens": outputs, "ids": ids, "known_tokens": len(ids), "pause_s": pause,
    }  # fmt: skip
