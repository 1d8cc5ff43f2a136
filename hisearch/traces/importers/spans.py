"""Model calls recorded as spans of agents' runs: what each waited for, by times; shared prompts, by messages.

Notation
    a call *precedes* another of its run where it ended before the other began. The other waits for those that precede
    it and precede no other such call: one, or several that ran side by side (a join). Several may wait for one (a
    fan-out). What lies between is the agents' own time and their tools'.

Times say more than the graph: of two branches side by side, a call of one may seem to wait for one of the other.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hisearch.traces.agents import AgentArrays, frozen, joined, without_hints
from hisearch.traces.importers.adapters import several_models, split_models
from hisearch.traces.reading.source import Codes, Requests, Source
from hisearch.traces.trace import Trace

#: Calls of a run that may be under way at once, and are looked through for those that a later call waits for.
_MOST_PARALLEL = 1000
#: Why a span that counts tokens is no call: frameworks count again what the client or an inner agent has counted.
ENCLOSES = "encloses a call that counts its own tokens"
_BY_TIMES = "what a call waits for is told by times: branches side by side may seem to wait for each other"


@dataclass(frozen=True)
class SpanCall:
    """A call of the model.

    Attributes:
        start_s, end_s: since 1970. inputs, outputs: tokens; thinking: the first of the outputs.
        run: name of what its calls belong to together: a conversation, or a trace. agent: name of its caller within.
        model: asked for, or "". messages: texts of the prompt, in order; answer: of the output, or "". name: its id.
    """

    start_s: float
    end_s: float
    inputs: int
    outputs: int
    run: str
    agent: str
    model: str = ""
    messages: tuple[str, ...] = ()
    answer: str = ""
    name: str | None = None
    thinking: int = 0


def enclosing(calls: Iterable[Hashable], parents: Mapping[Any, Hashable]) -> set[Hashable]:
    """Keys of the spans around any of ``calls``, by the parent of each; unknown parents end the way up."""
    around: set[Hashable] = set()
    for call in calls:
        at = parents.get(call)
        while at in parents and at not in around:
            around.add(at)
            at = parents[at]
    return around


def trace_of(source: Source, calls: Sequence[SpanCall]) -> Trace:
    """The closed loop of all calls: each follows what it waited for, after the time that lay between.

    Raises:
        TraceError: there are no calls.
    """
    calls = in_order(calls)
    return closed_loop(source, calls, _waits_for(calls), [_BY_TIMES])


def in_order(calls: Sequence[SpanCall]) -> list[SpanCall]:
    """By start, then by end."""
    return sorted(calls, key=lambda call: (call.start_s, call.end_s))


def closed_loop(
    source: Source, calls: Sequence[SpanCall], waits_for: Sequence[Sequence[int]], notes: Sequence[str]
) -> Trace:
    """Calls in order of their starts, each after those that it waits for; ``notes`` are of the reading.

    Raises:
        TraceError: there are no calls; see ``adapters.split_models``.
    """
    requests, runs = Requests(), Codes()
    ranks = source.spec.adapters
    models, adapters = split_models([call.model for call in calls], ranks, source.path)
    several = len(set(models)) > 1
    first_s = calls[0].start_s if calls else 0.0
    for call, model, before in zip(calls, models, waits_for, strict=True):
        latest = max(before, key=lambda earlier: calls[earlier].end_s, default=-1)
        think_s = max(call.start_s - calls[latest].end_s, 0.0) if latest >= 0 else 0.0
        requests.add(
            call.start_s - first_s, call.inputs, call.outputs, previous=latest, think_s=think_s,
            session=runs[call.run], request_id=call.name, model=model if several else None,
            thinking_tokens=call.thinking,
        )  # fmt: skip
    if several and not ranks:
        notes = [*notes, several_models(set(models))]
    if not any(call.messages for call in calls):
        notes = [*notes, "the export has no messages: nothing is shared between prompts"]
    shares = shared_prompts(calls) if not several else ([-1] * len(calls), [0] * len(calls))
    trace = requests.build(source, shares=shares, open_loop=False, warnings=list(notes))
    gate, behind, request, further = joined(waits_for)
    agents = _callers(calls, adapters, ranks)
    return replace(
        trace,
        agents=frozen(agents._replace(gate=gate, behind=behind, further_request=request, further_gate=further)),
    )


def _callers(calls: Sequence[SpanCall], adapters: Sequence[str], ranks: Mapping[str, int]) -> AgentArrays:
    """Who calls, by name, with which adapter; what calls for several adapters is an agent for each."""
    agents, used = Codes(), Codes()
    agent = np.array([agents[(call.run, call.agent, own)] for call, own in zip(calls, adapters, strict=True)], np.int32)
    keys: dict[tuple[str, str, str], None] = dict.fromkeys(
        (call.run, call.agent, own) for call, own in zip(calls, adapters, strict=True)
    )
    several = Counter((run, name) for run, name, _ in keys)
    names: dict[str, None] = {}
    for run, name, own in keys:
        plain = "/".join(filter(None, (run, name, own if several[run, name] > 1 else "")))
        number = 2
        shown = plain
        while shown in names:
            shown, number = f"{plain} ({number})", number + 1
        names[shown] = None
    adapter = np.array([used[own] if own else -1 for _, _, own in keys], np.int32)
    return without_hints(agent, adapter)._replace(
        adapter_rank=np.array([ranks[name] for name in used.names()], np.int32),
        names=tuple(names),
        adapter_names=tuple(used.names()),
    )


def _waits_for(calls: Sequence[SpanCall]) -> list[list[int]]:
    """What each call waits for, in order; calls are in order of their starts."""
    of_run: dict[str, list[int]] = {}
    waits_for = []
    for index, call in enumerate(calls):
        earlier = of_run.setdefault(call.run, [])
        ended = [k for k in earlier[-_MOST_PARALLEL:] if calls[k].end_s <= call.start_s]
        newest_start = max((calls[k].start_s for k in ended), default=0.0)
        waits_for.append([k for k in ended if calls[k].end_s > newest_start])
        earlier.append(index)
    return waits_for


def shared_prompts(calls: Sequence[SpanCall]) -> tuple[list[int], list[int]]:
    """``shares_with`` and ``shared_tokens`` by leading messages that are equal, an answer being one more.

    Tokens of a message are its share of the prompt's characters. An answer behind thinking shares the prompt before it
    alone: its KV was computed after the thinking, which later prompts lack.
    """
    known: dict[bytes, tuple[int, int]] = {}
    shares_with, shared = [], []
    for index, call in enumerate(calls):
        characters = sum(map(len, call.messages))
        digest, at = hashlib.sha256(), 0
        best = (-1, 0)
        own: list[tuple[bytes, int]] = []
        for message in call.messages:
            digest.update(f"{len(message)}:{message}".encode())
            at += len(message)
            tokens = call.inputs * at // max(characters, 1)
            own.append((digest.digest(), tokens))
            if own[-1][0] in known:
                earlier, theirs = known[own[-1][0]]
                best = (earlier, min(tokens, theirs))
        if call.messages and call.answer:
            digest.update(f"{len(call.answer)}:{call.answer}".encode())
            own.append((digest.digest(), call.inputs + (0 if call.thinking else call.outputs)))
        for key, tokens in own:
            known.setdefault(key, (index, tokens))
        shares_with.append(best[0] if best[1] else -1)
        shared.append(best[1])
    return shares_with, shared
