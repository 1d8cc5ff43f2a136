"""Statistics of a trace of agents: who calls how often, who waits for whom, what prompts share, what is said ahead."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hisearch.base.dtypes import I8
from hisearch.traces.agents import AgentArrays, gate_count, label, memberships
from hisearch.traces.compiled import CompiledTrace, TraceArrays
from hisearch.traces.distribution import Distribution

#: Agents that are listed by name.
_BUSIEST = 5


@dataclass(frozen=True)
class Caller:
    """An agent by name (its number where the trace has no names): calls, and adapter, None where it has none."""

    name: str
    calls: int
    adapter: str | None


@dataclass(frozen=True)
class AgentStats:
    """Statistics of agents' calls.

    Attributes:
        agents: that call. calls: theirs. calls_per_agent: distribution over agents.
        adapters: LoRA adapters of agents that call. adapter_ranks: those that are known, each once, rising.
        memories: of agents that call.
        depth: calls of the longest chain in which each waits for the one before it.
        waiting_fraction: share of calls that wait for a call of another agent. joins: sets of several calls that others
            wait for together. fan_out: calls that wait for one call, over those that any waits for.
        tool_s: time from the last call that a call waits for to the call: tools, people, the agent itself.
        shared_prefixes: distinct beginnings that agents' first prompts share with other agents' earlier ones.
        shared_prefix_tokens: their lengths, over the agents whose first prompt has one.
        hints: what is said of next calls. hint_unit: ``s``, ``frames`` (of the world), or ``s and steps`` (a step being
            what a call takes); None without hints. hint_ahead: how far ahead, in that unit, or in s.
        hinted_fraction: share of calls at whose end something is said of their own agent's next call.
        busiest: the agents with most calls.
    """

    agents: int
    calls: int
    calls_per_agent: Distribution
    adapters: int
    adapter_ranks: tuple[int, ...]
    memories: int
    depth: int
    waiting_fraction: float
    joins: int
    fan_out: Distribution | None
    tool_s: Distribution | None
    shared_prefixes: int
    shared_prefix_tokens: Distribution | None
    hints: int
    hint_unit: str | None
    hint_ahead: Distribution | None
    hinted_fraction: float
    busiest: tuple[Caller, ...]


def agent_stats(trace: CompiledTrace, hits: I8) -> AgentStats | None:
    """Statistics of the trace's agents; None for a trace without.

    Args:
        trace: the trace.
        hits: tokens of each prompt that earlier prompts have; shape (N,).
    """
    agents, arrays = trace.agents, trace.arrays
    if agents is None:
        return None
    calls = np.bincount(agents.agent, minlength=len(agents.adapter))
    calling = np.flatnonzero(calls)
    per_agent = Distribution.of(calls[calling])
    assert per_agent is not None  # a trace has requests
    adapter = np.unique(agents.adapter[calling])
    used = adapter[adapter >= 0]
    ranks = np.unique(agents.adapter_rank[used[used < len(agents.adapter_rank)]])
    memory = agents.memory[calling] if len(agents.memory) else agents.memory
    waits = (agents.behind >= 0) | (arrays.previous >= 0)
    lengths, prefixes = _shared_prefixes(arrays, agents, hits)
    unit, ahead = _hints(agents)
    ended = np.flatnonzero((agents.hint_trigger >= 0) & (agents.hint_trigger < len(trace)))
    own = ended[agents.hint_agent[ended] == agents.agent[agents.hint_trigger[ended]]]
    followers = _followers(arrays, agents)
    return AgentStats(
        agents=len(calling),
        calls=len(trace),
        calls_per_agent=per_agent,
        adapters=len(used),
        adapter_ranks=tuple(ranks[ranks > 0].tolist()),
        memories=len(np.unique(memory[memory >= 0])),
        depth=int(_levels(arrays, agents).max()),
        waiting_fraction=float(_waits_for_others(arrays, agents).mean()),
        joins=_joins(agents),
        fan_out=Distribution.of(followers[followers > 0]),
        tool_s=Distribution.of(arrays.think_s[waits]),
        shared_prefixes=prefixes,
        shared_prefix_tokens=Distribution.of(lengths),
        hints=len(agents.hint_agent),
        hint_unit=unit,
        hint_ahead=Distribution.of(ahead),
        hinted_fraction=len(np.unique(agents.hint_trigger[own])) / len(trace),
        busiest=tuple(
            Caller(label(agents.names, a), int(calls[a]), _adapter_of(agents, a))
            for a in np.argsort(-calls, kind="stable")[: min(_BUSIEST, len(calling))].tolist()
        ),
    )


def _adapter_of(agents: AgentArrays, agent: int) -> str | None:
    adapter = int(agents.adapter[agent])
    return label(agents.adapter_names, adapter) if adapter >= 0 else None


def _joins(agents: AgentArrays) -> int:
    """Gates of several calls that others are behind."""
    gates = gate_count(agents)
    waited = np.bincount(memberships(agents)[1], minlength=gates) > 1
    return int((waited & (np.bincount(agents.behind[agents.behind >= 0], minlength=gates) > 0)).sum())


def _followers(arrays: TraceArrays, agents: AgentArrays) -> I8:
    """Calls that wait for each call; shape (N,)."""
    count = len(agents.agent)
    direct = arrays.previous[(arrays.previous >= 0) & (agents.behind < 0)]
    behind = np.bincount(agents.behind[agents.behind >= 0], minlength=gate_count(agents))
    request, gate = memberships(agents)
    gated = np.bincount(request, weights=behind[gate], minlength=count).astype(np.int64)
    return np.asarray(np.bincount(direct, minlength=count) + gated, np.int64)


def _waits_for_others(arrays: TraceArrays, agents: AgentArrays) -> npt.NDArray[np.bool_]:
    """Whether each call waits for a call of another agent; shape (N,)."""
    own, previous = agents.agent, arrays.previous
    others = (previous >= 0) & (own[np.maximum(previous, 0)] != own)
    gates = gate_count(agents)
    if not gates:
        return np.asarray(others)
    request, gate = memberships(agents)
    least, most = np.full(gates, len(agents.adapter)), np.full(gates, -1)
    np.minimum.at(least, gate, own[request])
    np.maximum.at(most, gate, own[request])
    behind = np.maximum(agents.behind, 0)
    return np.asarray(np.where(agents.behind >= 0, (least[behind] != own) | (most[behind] != own), others))


def _levels(arrays: TraceArrays, agents: AgentArrays) -> I8:
    """Calls of the longest chain that ends with each call; shape (N,).

    Raises:
        ValueError: calls wait for each other in a ring.
    """
    count, gates = len(agents.agent), gate_count(agents)
    previous, behind = arrays.previous.tolist(), agents.behind.tolist()
    after: list[list[int]] = [[] for _ in range(count + gates)]
    waiting = [0] * (count + gates)
    for call in range(count):
        before = count + behind[call] if behind[call] >= 0 else previous[call]
        if before >= 0:
            after[before].append(call)
            waiting[call] = 1
    for call, gate in zip(*(column.tolist() for column in memberships(agents)), strict=True):
        after[call].append(count + gate)
        waiting[count + gate] += 1
    level = [0] * (count + gates)
    ready = [node for node, number in enumerate(waiting) if not number]
    for node in ready:  # which grows
        level[node] += node < count
        for other in after[node]:
            level[other] = max(level[other], level[node])
            waiting[other] -= 1
            if not waiting[other]:
                ready.append(other)
    if len(ready) < count + gates:
        raise ValueError("calls of agents wait for each other in a ring")
    return np.array(level[:count], np.int64)


def _shared_prefixes(arrays: TraceArrays, agents: AgentArrays, hits: I8) -> tuple[I8, int]:
    """Tokens that agents' first prompts share with earlier ones, where they do; how many distinct beginnings these are.

    Earlier prompts are other agents', since these are the first.
    """
    first = np.unique(agents.agent, return_index=True)[1]
    first = first[hits[first] > 0]
    parent, start = arrays.parent.tolist(), arrays.start_tokens.tolist()
    places = set()
    for call in first.tolist():
        node = int(arrays.prompt_node[call])
        while start[node] >= hits[call]:
            node = parent[node]
        places.add(node)
    return hits[first], len(places)


def _hints(agents: AgentArrays) -> tuple[str | None, np.ndarray]:
    """Unit of the hints, and how far ahead they look in it; shape (H,)."""
    if not len(agents.hint_agent):
        return None, np.empty(0)
    if agents.by_frames[0]:
        return "frames", agents.hint_steps
    return "s and steps" if (agents.hint_steps > 0).any() else "s", agents.hint_s
