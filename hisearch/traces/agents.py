"""What a trace of agents holds beyond its requests: callers, adapters, dependencies between calls, predicted calls.

Notation
    N requests, A agents, G gates, H hints

A *gate* waits for the ends of a set of requests; when the last has ended, the requests *behind* it follow, each after
its ``think_s``. A frame of a simulated world is a gate.

A *hint* says when an agent will call next, as far as its world can tell: an estimate. It is given ``after_s`` after its
*trigger*: the end of a request (its index), the opening of a gate (N + its index), or the trace's start (-1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hisearch.base.dtypes import F8, I4, I8
from hisearch.traces.adapters import RequestAdapters

#: Trigger of a hint that is known from the trace's start.
AT_START = -1


class AgentArrays(NamedTuple):
    """Read-only, contiguous once compiled.

    Attributes:
        agent: of each request; shape (N,).
        adapter: of each agent, or -1; shape (A,).
        gate: that waits for the request's end, or -1; shape (N,). Further gates that wait for it: below.
        behind: gate that the request follows, or -1: it follows ``previous``, or none; shape (N,).
        hint_trigger: in rising order; shape (H,), like those below.
        hint_agent: who will call.
        hint_after_s: seconds from the trigger to the hint.
        hint_s, hint_steps: from the hint to the call: so many seconds and so many steps, a step being a frame, or else
            what a call takes.
        by_frames: 1 where steps are frames, that is, intervals between the openings of gates; shape (1,).
        adapter_rank: of each adapter, as many as are known; 0: as the deployment says.
        further_request, further_gate: of requests whose end several gates wait for: each and one such gate beside
            ``gate``; shape (K,), by request.
        adapter_bytes: of each adapter, as many as are known; 0: as its rank says. Whole, as in a file.
        memory: of each agent, or -1; shape (A,), or empty: nobody has one. memory_bytes: of each, as adapter_bytes.
        names, adapter_names, memory_names: for people; empty where there are none. They decide nothing.
    """

    agent: I4
    adapter: I4
    gate: I4
    behind: I4
    hint_trigger: I4
    hint_agent: I4
    hint_after_s: F8
    hint_s: F8
    hint_steps: F8
    by_frames: I4
    adapter_rank: I4 = np.zeros(0, np.int32)
    further_request: I4 = np.zeros(0, np.int32)
    further_gate: I4 = np.zeros(0, np.int32)
    adapter_bytes: I8 = np.zeros(0, np.int64)
    memory: I4 = np.zeros(0, np.int32)
    memory_bytes: I8 = np.zeros(0, np.int64)
    names: tuple[str, ...] = ()
    adapter_names: tuple[str, ...] = ()
    memory_names: tuple[str, ...] = ()


#: Names, which are no arrays.
AGENT_NAMES = ("names", "adapter_names", "memory_names")
#: Columns that no digest counts where they are empty: traces without them keep their digest.
LATER_COLUMNS = ("adapter_bytes", "memory", "memory_bytes")
#: Types of the columns.
AGENT_DTYPES: dict[str, type] = {name: np.int32 for name in AgentArrays._fields if name not in AGENT_NAMES} | {
    "hint_after_s": np.float64, "hint_s": np.float64, "hint_steps": np.float64, "adapter_bytes": np.int64,
    "memory_bytes": np.int64,
}  # fmt: skip

_HINT_COLUMNS = AgentArrays._fields[4:9]


def agent_arrays(agents: AgentArrays) -> dict[str, Any]:
    """The columns by name, without the names for people."""
    return {name: getattr(agents, name) for name in AGENT_DTYPES}


def label(names: Sequence[str], number: int) -> str:
    """The name of an agent, an adapter or a memory; its number where the trace has no names of them."""
    return names[number] if names else f"{number}"


def gate_count(agents: AgentArrays) -> int:
    """Gates in all."""
    return int(max(agents.gate.max(initial=-1), agents.further_gate.max(initial=-1))) + 1


def memberships(agents: AgentArrays) -> tuple[I4, I4]:
    """Requests and the gates that wait for their ends, a pair each; shapes (pairs,)."""
    own = np.flatnonzero(agents.gate >= 0).astype(np.int32)
    return np.concatenate([own, agents.further_request]), np.concatenate([agents.gate[own], agents.further_gate])


def check_agents(agents: AgentArrays, requests: int) -> None:
    """Check what everything downstream relies on.

    Raises:
        ValueError: a broken rule of the class's documentation.
    """
    gates = gate_count(agents)
    request, gate = memberships(agents)
    if (
        len(agents.further_request) != len(agents.further_gate)
        or not ((agents.further_request >= 0) & (agents.further_request < requests) & (agents.further_gate >= 0)).all()
    ):
        raise ValueError("agents: further_request, further_gate: a request and a gate each")
    for name in ("agent", "gate", "behind"):
        if len(getattr(agents, name)) != requests:
            raise ValueError(f"agents: column {name} has {len(getattr(agents, name))} rows, not {requests}")
    count = len(agents.adapter)
    rules: dict[str, Any] = {
        "agent: one of the agents": ((agents.agent >= 0) & (agents.agent < count)).all(),
        "hint_agent: one of the agents": ((agents.hint_agent >= 0) & (agents.hint_agent < count)).all(),
        "behind: a gate that waits for requests": (agents.behind < gates).all(),
        "behind: not a gate that waits for the request, nor a later one": (agents.behind[request] < gate).all(),
        "hint_trigger: a request, a gate, or the start, in rising order": (
            (agents.hint_trigger >= AT_START) & (agents.hint_trigger < requests + gates)
        ).all()
        and (np.diff(agents.hint_trigger) >= 0).all(),
        "hints: times of at least 0": (
            np.isfinite(agents.hint_s) & (agents.hint_s >= 0) & (agents.hint_after_s >= 0) & (agents.hint_steps >= 0)
        ).all(),
    }
    rules["adapter_rank, adapter_bytes, memory_bytes: at least 0"] = all(
        (column >= 0).all() for column in (agents.adapter_rank, agents.adapter_bytes, agents.memory_bytes)
    )
    rules["memory: of every agent, or of none"] = len(agents.memory) in (0, count)
    numbered = (count, int(agents.adapter.max(initial=-1)) + 1, int(agents.memory.max(initial=-1)) + 1)
    for name, number in zip(AGENT_NAMES, numbered, strict=True):
        given = getattr(agents, name)
        rules[f"{name}: of all or of none, none twice"] = not given or len(set(given)) == len(given) >= number
    for rule, holds in rules.items():
        if not holds:
            raise ValueError(f"agents: {rule}")


def is_closed(agents: AgentArrays) -> bool:
    """Whether all agents are there from the start, as in a population, so that no call comes by a clock."""
    return bool(agents.by_frames[0]) or bool((agents.hint_trigger == AT_START).any())


def frozen(agents: AgentArrays) -> AgentArrays:
    """Contiguous and read-only, of the documented types."""
    columns: dict[str, Any] = {}
    for name, values in agent_arrays(agents).items():
        columns[name] = np.array(values, dtype=AGENT_DTYPES[name])
        columns[name].flags.writeable = False
    return agents._replace(**columns)


def reordered(agents: AgentArrays, order: np.ndarray) -> AgentArrays:
    """With the requests in ``order``: their former indices, as many as are kept; shape (kept,).

    Hints whose trigger is gone go too. A gate waits for those of its requests that are kept.
    """
    count = len(agents.agent)
    gates = gate_count(agents)
    rank = np.full(count, -1)
    rank[order] = np.arange(len(order))
    left = np.zeros(gates, dtype=bool)
    gate = agents.gate[order]
    left[gate[gate >= 0]] = True
    further = np.flatnonzero(rank[agents.further_request] >= 0)
    further = further[np.argsort(rank[agents.further_request[further]], kind="stable")]
    left[agents.further_gate[further]] = True
    # Trigger -1 stays; of requests their new index, of gates what is left of them behind the requests.
    moved = np.concatenate(([AT_START], rank, np.where(left, len(order) + np.arange(gates), -1)))
    known = np.concatenate(([True], rank >= 0, left))
    kept = known[agents.hint_trigger + 1]
    trigger = moved[agents.hint_trigger[kept] + 1]
    by_trigger = np.argsort(trigger, kind="stable")
    hints = {name: getattr(agents, name)[kept][by_trigger] for name in _HINT_COLUMNS}
    hints["hint_trigger"] = trigger[by_trigger]
    return frozen(
        agents._replace(
            agent=agents.agent[order],
            gate=gate,
            behind=agents.behind[order],
            further_request=rank[agents.further_request[further]],
            further_gate=agents.further_gate[further],
            **hints,
        )
    )


def without_hints(agent: I4, adapter: I4, *, gate: I4 | None = None, behind: I4 | None = None) -> AgentArrays:
    """Agents of whose next calls nothing is known; ``gate`` and ``behind``: none where absent."""
    none = np.full(len(agent), -1, np.int32)
    nobody, never = np.empty(0, np.int32), np.empty(0)
    return frozen(
        AgentArrays(
            agent=agent,
            adapter=adapter,
            gate=none if gate is None else gate,
            behind=none if behind is None else behind,
            hint_trigger=nobody,
            hint_agent=nobody,
            hint_after_s=never,
            hint_s=never,
            hint_steps=never,
            by_frames=np.zeros(1, np.int32),
        )
    )


def of_requests(session: I4, adapters: RequestAdapters) -> AgentArrays:
    """Each session of a trace as an agent, or as several, one for each adapter that its requests ask for."""
    pairs = session.astype(np.int64) * (len(adapters.names) + 1) + adapters.adapter + 1
    known, agent = np.unique(pairs, return_inverse=True)
    adapter = (known % (len(adapters.names) + 1) - 1).astype(np.int32)
    arrays = without_hints(agent.astype(np.int32), adapter)
    return arrays._replace(adapter_rank=adapters.rank, adapter_names=adapters.names)


def of_sessions(session: I4, *, adapters: bool) -> AgentArrays:
    """Each session of a trace as an agent, with an adapter of its own or without; without hints."""
    count = int(session.max(initial=-1)) + 1
    return without_hints(session, np.arange(count, dtype=np.int32) if adapters else np.full(count, -1, np.int32))


def joined(waits_for: Sequence[Sequence[int]]) -> tuple[I4, I4, I4, I4]:
    """Gates of joins: each set of several calls that a call waits for is one.

    Args:
        waits_for: earlier calls that each call waits for, in rising order; shape (N,).

    Returns:
        ``gate``, ``behind``, ``further_request``, ``further_gate`` of ``AgentArrays``.
    """
    gate, behind = (np.full(len(waits_for), -1, np.int32) for _ in range(2))
    further: list[tuple[int, int]] = []
    sets: dict[tuple[int, ...], int] = {}
    for index, before in enumerate(waits_for):
        if len(before) < 2:
            continue
        key = tuple(before)
        if key not in sets:
            sets[key] = len(sets)
            for call in key:
                if gate[call] < 0:
                    gate[call] = sets[key]
                else:
                    further.append((call, sets[key]))
        behind[index] = sets[key]
    pairs = np.array(sorted(further), np.int32).reshape(-1, 2)
    return gate, behind, pairs[:, 0], pairs[:, 1]
