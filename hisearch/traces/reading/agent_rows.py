"""Agents in hisearch's own trace form: who calls, with which adapter, after which calls, what is said of the next call.

Fields of a row, beside those of ``canonical``:

    agent           its caller, in all rows or in none
    adapter         its caller's LoRA adapter, and adapter_rank; the same in all rows of an agent
    gate, behind    this call is waited for by all rows ``behind`` the gate of this name (or gates, in a list), and
                    follows such a gate
    waits_for       ids of earlier calls that this one waits for, instead of gates: a join
    next_call_s, next_call_steps    what is said of its caller's next call when this call ends
    hints, gate_hints   likewise of any agents: [agent, seconds until it is said, s, steps] each; when this call
                    ends, or when its (first) gate opens

Of the file: ``agents`` in its header, with ``by_frames`` (steps are frames), ``hints`` that are known from the start,
and ``known``: [agent, adapter or null, rank or 0] of each, those without a call too; ties are broken by its order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hisearch.traces.agents import AT_START, AgentArrays, gate_count, label
from hisearch.traces.reading.rows import Fields, RowError
from hisearch.traces.reading.source import Codes

AGENT_FIELDS = frozenset({
    "agent", "adapter", "adapter_rank", "gate", "behind", "waits_for", "next_call_s", "next_call_steps", "hints",
    "gate_hints",
})  # fmt: skip
_Hint = tuple[str, float, float, float]


class AgentRows:
    """Collects the agents of a file's rows, in the rows' order."""

    def __init__(self, header: Mapping[str, Any] | None) -> None:
        """``header``: the file's ``agents``.

        Raises:
            RowError: an unknown key, or one of another type.
        """
        given = dict(header or {})
        if unknown := sorted(given.keys() - {"by_frames", "hints", "known"}):
            raise RowError(f"agents.{unknown[0]}", "unknown key; known: by_frames, hints, known")
        self.by_frames = given.get("by_frames", False)
        if not isinstance(self.by_frames, bool):
            raise RowError("agents.by_frames", "expected true or false")
        self._start = _hints(given.get("hints", []), "agents.hints")
        self._agents, self._adapters, self._gates = Codes(), Codes(), Codes()
        self._agent: list[int] = []
        self._adapter: dict[int, int] = {}
        self._rank: dict[int, int] = {}
        self._gate: list[list[int]] = []
        self._behind: list[int] = []
        self._joins: dict[tuple[int, ...], int] = {}
        self._ended: list[tuple[int, _Hint]] = []
        self._opened: list[tuple[int, _Hint]] = []
        for values in _lists(given.get("known", []), "agents.known", ("agent", "adapter", "rank")):
            filled = {name: value for name, value in values.items() if value is not None and value != 0}
            row = {"adapter_rank" if name == "rank" else name: value for name, value in filled.items()}
            self._check_adapter(Fields(row))

    def check(self, row: Fields, inputs_before: int) -> None:
        """Refuse a row whose agent fields contradict earlier ones, before anything is kept of it."""
        present = sorted(AGENT_FIELDS & set(row.names()))
        if inputs_before and ("agent" in row) != bool(self._agent):
            raise RowError("agent", "expected in all rows, or in none")
        if present and "agent" not in row:
            raise RowError(present[0], "expected agent beside it")
        if "adapter_rank" in row and "adapter" not in row:
            raise RowError("adapter_rank", "expected adapter beside it")
        if "waits_for" in row and ("behind" in row or "previous" in row):
            raise RowError("waits_for", "expected neither behind nor previous beside it")
        if "gate_hints" in row and "gate" not in row:
            raise RowError("gate_hints", "expected gate beside it")
        _gate_names(row)
        if "agent" in row:
            self._check_adapter(row)

    def _check_adapter(self, row: Fields) -> None:
        agent = self._agents[str(row.label("agent"))]
        adapter = self._adapters[str(row.label("adapter"))] if "adapter" in row else -1
        if self._adapter.setdefault(agent, adapter) != adapter:
            raise RowError("adapter", f"expected the adapter that agent {row.label('agent')!r} had before")
        rank = row.count("adapter_rank") if "adapter_rank" in row else 0
        if adapter >= 0 and self._rank.setdefault(adapter, rank) != rank:
            raise RowError("adapter_rank", f"expected the rank that adapter {row.label('adapter')!r} had before")

    def waits_for(self, row: Fields, index: Mapping[str, int]) -> list[int]:
        """Earlier rows that the row waits for by id; empty where it names none."""
        if "waits_for" not in row:
            return []
        names = row.raw("waits_for")
        if not isinstance(names, list) or not names or not all(str(name) in index for name in names):
            raise RowError("waits_for", "expected a list of ids of earlier rows")
        return sorted({index[str(name)] for name in names})

    def add(self, row: Fields, waits_for: Sequence[int]) -> None:
        """Keep the agent of the next row, which ``check`` has let pass."""
        if "agent" not in row:
            return
        index = len(self._agent)
        agent = self._agents[str(row.label("agent"))]
        self._agent.append(agent)
        self._gate.append([self._gates[("named", name)] for name in _gate_names(row)])
        self._behind.append(self._gates[("named", row.label("behind"))] if "behind" in row else -1)
        if len(waits_for) > 1:
            self._behind[index] = self._join(waits_for)
        own = str(row.label("agent"))
        if "next_call_s" in row or "next_call_steps" in row:
            seconds, steps = (row.number(name) if name in row else 0.0 for name in ("next_call_s", "next_call_steps"))
            self._ended.append((index, (own, 0.0, seconds, steps)))
        self._ended += [(index, hint) for hint in _hints(row.raw("hints") if "hints" in row else [], "hints")]
        if "gate_hints" in row:
            self._opened += [(self._gate[index][0], hint) for hint in _hints(row.raw("gate_hints"), "gate_hints")]

    def _join(self, waits_for: Sequence[int]) -> int:
        """The gate that waits for these rows."""
        key = tuple(waits_for)
        if key not in self._joins:
            self._joins[key] = self._gates[("join", key)]
            for row in key:
                self._gate[row].append(self._joins[key])
        return self._joins[key]

    def finish(self) -> AgentArrays | None:
        """The agents; None for a file without.

        Raises:
            ValueError: hints of agents that never call.
        """
        if not self._agent:
            return None
        count = len(self._agent)
        # Gates by the first row behind each: what follows a gate is waited for by a later one.
        numbered = _by_first_use(self._gate, self._behind)
        names = self._agents.names()
        hints: list[tuple[int, _Hint]] = [(AT_START, hint) for hint in self._start]
        hints += self._ended
        hints += [(count + numbered[gate], hint) for gate, hint in self._opened]
        unknown = sorted({hint[0] for _, hint in hints} - set(names))
        if unknown:
            raise ValueError(f"hints: agent {unknown[0]!r} never calls")
        hints.sort(key=lambda hint: hint[0])
        columns = np.array([hint[1:] for _, hint in hints], dtype=np.float64).reshape(-1, 3)
        adapter = [self._adapter.get(agent, -1) for agent in range(len(names))]
        pairs = [(row, numbered[gate]) for row, gates in enumerate(self._gate) for gate in gates[1:]]
        further = np.array(pairs, np.int32).reshape(-1, 2)
        return AgentArrays(
            agent=np.array(self._agent, np.int32),
            adapter=np.array(adapter, np.int32),
            gate=np.array([numbered[gates[0]] if gates else -1 for gates in self._gate], np.int32),
            behind=np.array([numbered.get(gate, -1) for gate in self._behind], np.int32),
            hint_trigger=np.array([trigger for trigger, _ in hints], np.int32),
            hint_agent=np.array([names[hint[0]] for _, hint in hints], np.int32),
            hint_after_s=columns[:, 0],
            hint_s=columns[:, 1],
            hint_steps=columns[:, 2],
            by_frames=np.array([self.by_frames], np.int32),
            adapter_rank=np.array([self._rank[key] for key in sorted(self._rank)], np.int32),
            further_request=further[:, 0],
            further_gate=further[:, 1],
            names=tuple(names),
            adapter_names=tuple(self._adapters.names()),
        )


def _hints(values: Any, field: str) -> list[_Hint]:
    rows = map(Fields, _lists(values, field, ("agent", "after_s", "s", "steps")))
    return [(str(row.label("agent")), row.number("after_s"), row.number("s"), row.number("steps")) for row in rows]


def _lists(values: Any, field: str, names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Lists of one value for each of ``names``."""
    if not isinstance(values, list) or not all(isinstance(row, list) and len(row) == len(names) for row in values):
        raise RowError(field, f"expected a list of [{', '.join(names)}]")
    return [dict(zip(names, row, strict=True)) for row in values]


def _gate_names(row: Fields) -> list[str | int]:
    """The gates that a row names, none twice."""
    if "gate" not in row:
        return []
    given = row.raw("gate")
    if not isinstance(given, list):
        return [row.label("gate")]
    if not given:
        raise RowError("gate", "expected a name, or a list of names")
    return list(dict.fromkeys(Fields({"gate": name}).label("gate") for name in given))


def _by_first_use(gate: Sequence[Sequence[int]], behind: Sequence[int]) -> dict[int, int]:
    """New numbers of gates, in order of the first row behind each; those with nobody behind come last."""
    first: dict[int, int] = {}
    for index, number in enumerate(behind):
        if number >= 0:
            first.setdefault(number, index)
    for index, numbers in enumerate(gate):
        for number in numbers:
            first.setdefault(number, len(gate) + index)
    return {number: place for place, number in enumerate(sorted(first, key=lambda number: first[number]))}


def agent_header(agents: AgentArrays) -> dict[str, Any]:
    """What a file's header says of its agents."""
    start = agents.hint_trigger == AT_START
    said = {"hints": [_written(agents, hint) for hint in np.flatnonzero(start).tolist()]} if start.any() else {}
    known = []
    for agent, adapter in enumerate(agents.adapter.tolist()):
        rank = int(agents.adapter_rank[adapter]) if 0 <= adapter < len(agents.adapter_rank) else 0
        own = None if adapter < 0 else label(agents.adapter_names, adapter)
        known.append([label(agents.names, agent), own, rank])
    return {"by_frames": bool(agents.by_frames[0]), "known": known} | said


def agent_columns(agents: AgentArrays) -> Iterator[dict[str, Any]]:
    """The agent fields of each row, in order."""
    count = len(agents.agent)
    last_of_gate = {gate: index for index, gate in enumerate(agents.gate.tolist()) if gate >= 0}
    further: dict[int, list[str]] = {}
    for request, gate in zip(agents.further_request.tolist(), agents.further_gate.tolist(), strict=True):
        further.setdefault(request, []).append(f"{gate}")
    begin = np.searchsorted(agents.hint_trigger, np.arange(count + gate_count(agents) + 1))
    for index, (agent, gate, behind) in enumerate(
        zip(agents.agent.tolist(), agents.gate.tolist(), agents.behind.tolist(), strict=True)
    ):
        row: dict[str, Any] = {"agent": label(agents.names, agent)}
        adapter = int(agents.adapter[agent])
        if adapter >= 0:
            row["adapter"] = label(agents.adapter_names, adapter)
            if adapter < len(agents.adapter_rank) and agents.adapter_rank[adapter]:
                row["adapter_rank"] = int(agents.adapter_rank[adapter])
        if gate >= 0:
            row["gate"] = [f"{gate}", *further[index]] if index in further else f"{gate}"
        row |= {"behind": f"{behind}"} if behind >= 0 else {}
        own = range(begin[index], begin[index + 1])
        row |= {"hints": [_written(agents, hint) for hint in own]} if own else {}
        if gate >= 0 and last_of_gate[gate] == index:
            opened = range(begin[count + gate], begin[count + gate + 1])
            row |= {"gate_hints": [_written(agents, hint) for hint in opened]} if opened else {}
        yield row


def _written(agents: AgentArrays, hint: int) -> list[Any]:
    values = (agents.hint_after_s, agents.hint_s, agents.hint_steps)
    return [label(agents.names, int(agents.hint_agent[hint])), *(float(column[hint]) for column in values)]
