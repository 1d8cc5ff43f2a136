"""What every importer gets, and the columns it fills."""

from __future__ import annotations

import math
from array import array
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from hisearch.specs.workloads.workload import TraceFileSpec
from hisearch.traces.adapters import adapters_of, grammars_of
from hisearch.traces.models import models_of, separate_blocks
from hisearch.traces.reading.errors import TraceError
from hisearch.traces.reading.rows import BadRows
from hisearch.traces.reading.times import Times
from hisearch.traces.reading.understood import Understood, sorting
from hisearch.traces.trace import Trace, make_trace

#: Largest number of a priority, tenant or session: columns have 32 bits.
LARGEST_CLASS = 2**31 - 1


@dataclass
class Source:
    """A trace file, how it is to be read, its broken rows so far, and the seed for anything random.

    ``understood`` is what the importer takes the file for; see ``reading.understood``.
    """

    path: Path
    spec: TraceFileSpec
    seed: int
    bad: BadRows
    understood: Understood = field(default_factory=Understood)

    def times(self, column: str, unit: str | None = None) -> Times:
        """The file's column of times, in the unit that its mapping states or else the spec."""
        self.understood.times = Times(column, unit or self.spec.time_unit)
        return self.understood.times


class Codes:
    """Small integers for names, in order of first appearance."""

    def __init__(self) -> None:
        self._codes: dict[Hashable, int] = {}

    def __getitem__(self, name: Hashable) -> int:
        return self._codes.setdefault(name, len(self._codes))

    def names(self) -> dict[str, int]:
        """The numbers given so far, by name as text."""
        return {str(name): code for name, code in self._codes.items()}


@dataclass
class Requests:
    """Columns of a trace under construction; a row is added only when all of it is known to be good.

    Block ids of all requests lie one after another in ``ids``; see ``share_blocks``. ``model`` names what each request
    asks for, and is empty where the file does not.
    """

    arrival_s: list[float] = field(default_factory=list)
    input_tokens: list[int] = field(default_factory=list)
    output_tokens: list[int] = field(default_factory=list)
    previous: list[int] = field(default_factory=list)
    think_s: list[float] = field(default_factory=list)
    session: list[int] = field(default_factory=list)
    tenant: list[int] = field(default_factory=list)
    priority: list[int] = field(default_factory=list)
    request_ids: list[str] = field(default_factory=list)
    ids: array[int] = field(default_factory=lambda: array("q"))
    id_counts: list[int] = field(default_factory=list)
    known_tokens: list[int] = field(default_factory=list)
    model: list[str] = field(default_factory=list)
    thinking_tokens: list[int] = field(default_factory=list)
    adapter: list[str | None] = field(default_factory=list)
    adapter_rank: list[int] = field(default_factory=list)
    grammar: list[str | None] = field(default_factory=list)
    compile_s: list[float] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.arrival_s)

    def add(
        self,
        arrival_s: float,
        input_tokens: int,
        output_tokens: int,
        *,
        previous: int = -1,
        think_s: float = math.nan,
        session: int | None = None,
        tenant: int = 0,
        priority: int = 0,
        request_id: str | None = None,
        ids: Sequence[int] = (),
        known_tokens: int = 0,
        model: str | None = None,
        thinking_tokens: int = 0,
        adapter: str | None = None,
        adapter_rank: int = 0,
        grammar: str | None = None,
        compile_s: float = math.nan,
    ) -> int:
        """Append one request; returns its index.

        Where no session is given, it is the predecessor's, or its own. Think times are of follow-ups alone.
        """
        index = len(self.arrival_s)
        if session is None:
            session = self.session[previous] if previous >= 0 else index
        self.arrival_s.append(arrival_s)
        self.input_tokens.append(input_tokens)
        self.output_tokens.append(output_tokens)
        self.previous.append(previous)
        self.think_s.append(think_s if previous >= 0 else 0.0)
        self.session.append(session)
        self.tenant.append(tenant)
        self.priority.append(priority)
        self.request_ids.append(str(index) if request_id is None else request_id)
        self.ids.extend(ids)
        self.id_counts.append(len(ids))
        self.known_tokens.append(known_tokens)
        self.thinking_tokens.append(thinking_tokens)
        if model is not None:
            self.model.append(model)
        self.adapter.append(adapter)
        self.adapter_rank.append(adapter_rank)
        self.grammar.append(grammar)
        self.compile_s.append(compile_s)
        return index

    def sort_by_time(self, source: Source) -> list[int]:
        """Put the requests in order of time, and note how many were not; none may refer to another yet.

        Returns:
            Former indices in the new order, for columns that an importer keeps beside these.
        """
        order, source.understood.unordered = sorting(self.arrival_s)
        places: list[int] = order.tolist()
        if source.understood.unordered:
            ends = np.cumsum(self.id_counts).tolist()
            ids, counts, given = self.ids, self.id_counts, self.session
            own = given == list(range(len(self)))
            self.ids = array("q")
            for k in places:
                self.ids.extend(ids[ends[k] - counts[k] : ends[k]])
            columns = ("arrival_s", "input_tokens", "output_tokens", "tenant", "priority", "request_ids", "id_counts",
                       "known_tokens", "think_s", "thinking_tokens", "adapter", "adapter_rank", "grammar",
                       "compile_s")  # fmt: skip
            for name in columns:
                values = getattr(self, name)
                setattr(self, name, [values[k] for k in places])
            self.model = [self.model[k] for k in places] if self.model else []
            self.session = given if own else [given[k] for k in places]
        return places

    def chain(self, names: Sequence[Hashable | None], sessions: Codes) -> None:
        """Let each request of a session follow up the one before it; a request without a name is its own session."""
        last: dict[Hashable, int] = {}
        for index, name in enumerate(names):
            key = name if name is not None else ("row", index)
            if key in last:
                self.previous[index] = last[key]
            self.session[index] = sessions[key]
            last[key] = index

    def follow_up(self, index: int, previous: int, think_s: float) -> None:
        """Let a request wait for an earlier one."""
        self.previous[index], self.think_s[index] = previous, think_s
        self.session[index] = self.session[previous]

    def share_blocks(self, block_tokens: int) -> tuple[np.ndarray, np.ndarray]:
        """``shares_with`` and ``shared_tokens`` of all requests by their block ids."""
        from hisearch.traces import _tree

        ptr = np.zeros(len(self) + 1, dtype=np.int64)
        np.cumsum(self.id_counts, out=ptr[1:])
        ids = np.frombuffer(self.ids, dtype=np.int64) if len(self.ids) else np.zeros(0, dtype=np.int64)
        if self.model and len(ids):
            ids = separate_blocks(ids, self.id_counts, models_of(self.model))
        shared: tuple[np.ndarray, np.ndarray] = _tree.resolve_blocks(
            ptr, ids, block_tokens, np.array(self.known_tokens, dtype=np.int64)
        )
        return shared

    def build(
        self,
        source: Source,
        *,
        block_tokens: int = 0,
        shares: tuple[Sequence[int], Sequence[int]] | None = None,
        shares_block_tokens: int = 1,
        open_loop: bool = True,
        from_first_arrival: bool = True,
        warnings: Sequence[str] = (),
    ) -> Trace:
        """The finished trace.

        Args:
            source: where it comes from.
            block_tokens: size of the blocks named by ``ids``; 0 where there are none.
            shares: ``shares_with`` and ``shared_tokens``, where known otherwise than by ``ids``.
            shares_block_tokens: size of the blocks that ``shares`` are made of.
            open_loop: see ``Trace``.
            from_first_arrival: count times from the first arrival.
            warnings: what a reader should know.

        Raises:
            TraceError: there are no requests.
        """
        if not len(self):
            left_out = source.understood.rows_left_out
            raise TraceError.at(f"no requests in the file{left_out and f': {left_out}'}", path=source.path)
        content = self.share_blocks(block_tokens) if block_tokens else shares
        arrival = np.array(self.arrival_s)
        source.understood.first_s, source.understood.last_s = float(np.nanmin(arrival)), float(np.nanmax(arrival))
        return make_trace(
            arrival_s=arrival - np.nanmin(arrival) if from_first_arrival else arrival,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            request_ids=self.request_ids,
            previous=self.previous,
            think_s=self.think_s,
            session=self.session,
            tenant=self.tenant,
            priority=self.priority,
            thinking_tokens=self.thinking_tokens,
            shares_with=content[0] if content else None,
            shared_tokens=content[1] if content else None,
            open_loop=open_loop,
            skipped_rows=source.bad.count + source.understood.left_out_count,
            warnings=warnings,
            block_tokens=block_tokens or shares_block_tokens,
            models=models_of(self.model) if self.model else None,
            adapters=adapters_of(self.adapter, self.adapter_rank),
            grammars=grammars_of(self.grammar, self.compile_s),
        )


def with_warnings(trace: Trace, *warnings: str) -> Trace:
    """The trace with additional warnings."""
    return replace(trace, warnings=(*trace.warnings, *warnings))
