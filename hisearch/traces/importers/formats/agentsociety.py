"""AgentSociety's log of calls of the model."""

from __future__ import annotations

from hisearch.base.policies import TraceFormat
from hisearch.specs.wording import counted
from hisearch.traces.importers.spans import SpanCall, closed_loop, in_order
from hisearch.traces.reading.rows import json_rows
from hisearch.traces.reading.source import Source
from hisearch.traces.reading.times import LONGEST_S
from hisearch.traces.trace import Trace

FORMAT = TraceFormat(
    "AgentSociety's log of calls of the model.",
    json_fields=(("request_time", "consumption", "input_tokens", "output_tokens"),),
    records_think=True,
    times="calls hold their own starts, in seconds since 1970, and durations",
    rank=4,
)
#: Latest start that is taken for seconds since 1970: the year 2100.
_LATEST_S = 4.2e9


def read(source: Source) -> Trace:
    """What AgentSociety 1 notes of each call (``llm_log`` of its ``Logs``; 1.5.7, ``llm/llm.py: LLMActor.call``).

    A JSON array, as its examples write it, or a call a line: ``request_time``, ``consumption`` (seconds that it took,
    retries included), ``input_tokens``, ``output_tokens``. Who called is not noted. A step of the simulation awaits all
    agents, so that what follows a moment without a call waits for all calls before it: a *round*. Within a round calls
    come at their recorded times from its beginning.
    """
    calls: list[SpanCall] = []
    for line, row in json_rows(source.path, source.bad):
        with source.bad.row(line):
            start_s = row.number("request_time", maximum=_LATEST_S)
            inputs, outputs = row.tokens("input_tokens", minimum=0), row.tokens("output_tokens", minimum=0)
            if not inputs or not outputs:
                source.understood.leave_out(line, "no tokens")
                continue
            end_s = start_s + row.number("consumption", maximum=LONGEST_S)
            calls.append(SpanCall(start_s, end_s, inputs, outputs, run="", agent=f"{line}/{len(calls)}"))
    calls = in_order(calls)
    rounds = _rounds(calls)
    notes = [
        "AgentSociety does not note who calls: each call is an agent of its own, in "
        f"{counted(len(set(rounds)), 'round')}; within a round calls come at their recorded times",
    ]
    return closed_loop(source, calls, _before(rounds), notes)


def _rounds(calls: list[SpanCall]) -> list[int]:
    """The round of each call, from 0: a call that begins when no other is under way begins the next one."""
    rounds = []
    number, ends_s = -1, float("-inf")
    for call in calls:
        if call.start_s >= ends_s:
            number += 1
        ends_s = max(ends_s, call.end_s)
        rounds.append(number)
    return rounds


def _before(rounds: list[int]) -> list[tuple[int, ...]]:
    """All calls of the round before, of each call."""
    members: dict[int, list[int]] = {}
    for index, number in enumerate(rounds):
        members.setdefault(number, []).append(index)
    earlier = {number + 1: tuple(calls) for number, calls in members.items()}
    return [earlier.get(number, ()) for number in rounds]
