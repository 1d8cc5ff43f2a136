"""WEKA's recordings of Claude Code sessions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np

from hisearch.base.policies import TraceFormat
from hisearch.traces.importers.agent_calls import MAX_BLOCKS, STARTS_UNKNOWN, Call
from hisearch.traces.reading.rows import Fields, Order, RowError, json_rows
from hisearch.traces.reading.source import Requests, Source
from hisearch.traces.reading.times import LONGEST_S
from hisearch.traces.trace import Trace

FORMAT = TraceFormat("Claude Code sessions.", json_fields=(("block_size", "requests"),), records_starts=False, rank=2)


def read(source: Source) -> Trace:
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
            calls: list[Call] = []
            _session_calls(row.rows("requests"), block_tokens, 0.0, (0, -1), itertools.count(1), calls)
            name = str(row.label("id"))
            cut_off += _add_session(requests, shares, calls, block_tokens, name)
            common_blocks = math.gcd(common_blocks, block_tokens)
    warnings = [] if source.spec.arrivals else [STARTS_UNKNOWN]
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
    calls: list[Call],
) -> None:
    """Append the calls of one chain (its number, its parent's), nested subagents' behind the request they follow."""
    order = Order("requests.t")
    path = np.zeros(0, dtype=np.int64)
    before: Call | None = None
    for row in rows:
        at = start_s + order.check(row.number("t", maximum=LONGEST_S))
        if "requests" in row:
            _session_calls(row.rows("requests"), block_tokens, at, (next(chains), chain[0]), chains, calls)
            continue
        inputs, outputs = row.tokens("in"), row.tokens("out", minimum=0)
        keep, runs = row.count("keep", minimum=0), row.runs("new")
        whole_blocks = inputs // block_tokens
        if keep > len(path):
            raise RowError(
                "requests.keep", f"expected at most the {len(path)} blocks of the request before, got {keep}"
            )
        if keep + sum(count for _, count in runs) != whole_blocks:
            raise RowError("requests.new", f"keep and new should make up {whole_blocks} blocks of {inputs} tokens")
        if any(first + count > MAX_BLOCKS for first, count in runs):
            raise RowError("requests.new", f"expected ids local to the session, below {MAX_BLOCKS:,}")
        path = np.concatenate([path[:keep], *(np.arange(first, first + count) for first, count in runs)])
        busy = row.number("api_time", maximum=LONGEST_S) if "api_time" in row else 0.0
        gap = max(0.0, at - before.at_s - before.busy_s) if before else 0.0
        think = row.number("think_time", maximum=LONGEST_S) if "think_time" in row else gap
        before = Call(at, inputs, outputs, path, busy, think, *chain)
        calls.append(before)


def _add_session(
    requests: Requests, shares: tuple[list[int], list[int]], calls: list[Call], block_tokens: int, name: str
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
            think_s=think,
            session=session,
            request_id=f"{name}/{len(requests) - session}",
        )
        used[call.ids[shared:]] = index
        last_of_chain[call.chain] = index
        last_at[index] = call.at_s + call.busy_s
    return sum(not call.outputs for call in calls)
