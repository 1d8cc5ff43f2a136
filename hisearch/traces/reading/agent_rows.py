"""Agents in hisearch's own trace form: who calls, with which adapter, after which calls, what is said of the next call.

Fields of a row, beside those of ``canonical``:

    agent           its caller, in all rows or in none
    adapter         its caller's LoRA adapter, the same in all rows of an agent; adapter_rank, adapter_bytes: its sizes.
                    Without agent: that of the request (``canonical``)
    memory          its caller's memory beside KV (an index, embeddings), likewise; memory_bytes
    gate, behind    this call is waited for by all rows ``behind`` the gate of this name (or gates, in a list), and
                    follows such a gate
    waits_for       ids of earlier calls that this one waits for, instead of gates: a join
    next_call_s, next_call_steps    what is said of its caller's next call when this call ends
    hints, gate_hints   likewise of any agents: [agent, seconds until it is said, s, steps] each; when this call
                    ends, or when its (first) gate opens

Of the file: ``agents`` in its header, with ``by_frames`` (steps are frames), ``hints`` that are known from the start,
and ``known``: [agent, adapter or null, rank or 0] of each, those without a call too, or [agent, adapter, rank, bytes,
memory, bytes]; ties are broken by its order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hisearch.specs.workloads.workload import LARGEST_RANK
from hisearch.traces.agents import AT_START, AgentArrays, gate_count, label
from hisearch.traces.reading.rows import Fields, RowError
from hisearch.traces.reading.source import Codes

AGENT_FIELDS = frozenset({
    "agent", "adapter", "adapter_rank", "adapter_bytes", "memory", "memory_bytes", "gate", "behind", "waits_for",
    "next_call_s", "next_call_steps", "hints", "gate_hints",
})  # fmt: skip
#: Those of a request without an agent, too.
REQUEST_ADAPTER = ("adapter", "adapter_rank")
_Hint = tuple[str, float, float, float]
#: Fields of what an agent has one of: of its sizes.
_SIZES = {"adapter": ("adapter_rank", "adapter_bytes"), "memory": ("memory_bytes",)}
#: Fields of an agent in the header, in order; the first three may stand alone.
_KNOWN = ("agent", "adapter", "adapter_rank", "adapter_bytes", "memory", "memory_bytes")


class _Objects:
    """Objects of a kind of which an agent has one, or none: whose each is, and how large."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.codes = Codes()
        self.of_agent: dict[int, int] = {}
        self._sizes: dict[str, dict[int, int]] = {size: {} for size in _SIZES[kind]}

    def check(self, row: Fields, agent: int) -> None:
        """Note what the row says of its agent's object, or refuse it where earlier rows say otherwise."""
        own = self.codes[str(row.label(self.kind))] if self.kind in row else -1
        if self.of_agent.setdefault(agent, own) != own:
            raise RowError(self.kind, f"expected the {self.kind} that agent {row.label('agent')!r} had before")
        for size, known in self._sizes.items():
            most = LARGEST_RANK if size == "adapter_rank" else 2**53
            given = row.count(size, maximum=most) if size in row else 0
            if own >= 0 and known.setdefault(own, given) != given:
                what = size.removeprefix(f"{self.kind}_")
                raise RowError(size, f"expected the {what} that {self.kind} {row.label(self.kind)!r} had before")

    def sizes(self, size: str) -> np.ndarray:
        """Of each object; 0: not given."""
        return np.array([value for _, value in sorted(self._sizes[size].items())], np.int64)

    def bytes(self) -> np.ndarray:
        """Of each object; empty where none is given."""
        given = self.sizes(f"{self.kind}_bytes")
        return given if given.any() else given[:0]

    def of(self, agents: int) -> np.ndarray:
        """The object of each agent, or -1; shape (agents,)."""
        return np.array([self.of_agent.get(agent, -1) for agent in range(agents)], np.int32)

    def names(self) -> tuple[str, ...]:
        """Of each object."""
        return tuple(self.codes.names())


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
        self._agents, self._gates = Codes(), Codes()
        self._adapters, self._memories = _Objects("adapter"), _Objects("memory")
        self._agent: list[int] = []
        self._gate: list[list[int]] = []
        self._behind: list[int] = []
        self._joins: dict[tuple[int, ...], int] = {}
        self._ended: list[tuple[int, _Hint]] = []
        self._opened: list[tuple[int, _Hint]] = []
        for values in _lists(given.get("known", []), "agents.known", _KNOWN, least=3):
            # Sizes may be 0, which an agent's name may be too.
            row = {
                name: value for name, value in values.items() if value is not None and (value != 0 or name in _SIZES)
            }
            self._check_objects(Fields({"agent": values["agent"]} | row))

    def check(self, row: Fields, inputs_before: int) -> None:
        """Refuse a row whose agent fields contradict earlier ones, before anything is kept of it."""
        present = sorted(AGENT_FIELDS.difference(REQUEST_ADAPTER) & set(row.names()))
        if inputs_before and ("agent" in row) != bool(self._agent):
            raise RowError("agent", "expected in all rows, or in none")
        if present and "agent" not in row:
            raise RowError(present[0], "expected agent beside it")
        for kind, sizes in _SIZES.items():
            for size in sizes:
                if size in row and kind not in row:
                    raise RowError(size, f"expected {kind} beside it")
        if "waits_for" in row and ("behind" in row or "previous" in row):
            raise RowError("waits_for", "expected neither behind nor previous beside it")
        if "gate_hints" in row and "gate" not in row:
            raise RowError("gate_hints", "expected gate beside it")
        _gate_names(row)
        if "agent" in row:
            self._check_objects(row)

    def _check_objects(self, row: Fields) -> None:
        agent = self._agents[str(row.label("agent"))]
        self._adapters.check(row, agent)
        self._memories.check(row, agent)

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
        pairs = [(row, numbered[gate]) for row, gates in enumerate(self._gate) for gate in gates[1:]]
        further = np.array(pairs, np.int32).reshape(-1, 2)
        return AgentArrays(
            agent=np.array(self._agent, np.int32),
            adapter=self._adapters.of(len(names)),
            gate=np.array([numbered[gates[0]] if gates else -1 for gates in self._gate], np.int32),
            behind=np.array([numbered.get(gate, -1) for gate in self._behind], np.int32),
            hint_trigger=np.array([trigger for trigger, _ in hints], np.int32),
            hint_agent=np.array([names[hint[0]] for _, hint in hints], np.int32),
            hint_after_s=columns[:, 0],
            hint_s=columns[:, 1],
            hint_steps=columns[:, 2],
            by_frames=np.array([self.by_frames], np.int32),
            adapter_rank=self._adapters.sizes("adapter_rank").astype(np.int32),
            further_request=further[:, 0],
            further_gate=further[:, 1],
            adapter_bytes=self._adapters.bytes(),
            memory=self._memories.of(len(names)) if self._memories.names() else np.zeros(0, np.int32),
            memory_bytes=self._memories.bytes(),
            names=tuple(names),
            adapter_names=self._adapters.names(),
            memory_names=self._memories.names(),
        )


def _hints(values: Any, field: str) -> list[_Hint]:
    rows = map(Fields, _lists(values, field, ("agent", "after_s", "s", "steps")))
    return [(str(row.label("agent")), row.number("after_s"), row.number("s"), row.number("steps")) for row in rows]


def _lists(values: Any, field: str, names: tuple[str, ...], least: int | None = None) -> list[dict[str, Any]]:
    """Lists of one value for each of ``names``, or of the first ``least`` alone."""
    lengths = (len(names), least or len(names))
    if not isinstance(values, list) or not all(isinstance(row, list) and len(row) in lengths for row in values):
        shorter = f", or of [{', '.join(names[:least])}]" if least else ""
        raise RowError(field, f"expected a list of [{', '.join(names)}]{shorter}")
    return [dict(zip(names, row, strict=False)) for row in values]


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
    every = len(agents.adapter_bytes) or len(agents.memory)
    known: list[list[Any]] = []
    for agent in range(len(agents.adapter)):
        row = {"agent": label(agents.names, agent)} | _objects(agents, agent)
        values = [row.get(name, None if name in _SIZES else 0) for name in _KNOWN]
        known.append(values if every else values[:3])
    return {"by_frames": bool(agents.by_frames[0]), "known": known} | said


def _objects(agents: AgentArrays, agent: int) -> dict[str, Any]:
    """What an agent has, by the fields of a row."""
    row: dict[str, Any] = {}
    columns: dict[str, np.ndarray] = {size: getattr(agents, size) for sizes in _SIZES.values() for size in sizes}
    for kind, of_agent, names in (
        ("adapter", agents.adapter, agents.adapter_names), ("memory", agents.memory, agents.memory_names),
    ):  # fmt: skip
        own = int(of_agent[agent]) if len(of_agent) else -1
        if own >= 0:
            row[kind] = label(names, own)
            sizes = {size: int(columns[size][own]) for size in _SIZES[kind] if own < len(columns[size])}
            row |= {size: value for size, value in sizes.items() if value}
    return row


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
        row: dict[str, Any] = {"agent": label(agents.names, agent)} | _objects(agents, agent)
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
