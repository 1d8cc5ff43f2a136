"""A workload carried on beyond its own end, for as long as a steady state takes to show.

A generator draws on, from its own seeded streams: the first part of a longer trace is the shorter one. Any other trace
is repeated. Every repetition has sessions and a prefix tree of its own, so that caches gain nothing by it.

Notation
    N   requests of the trace; M nodes of its tree, node 0 is the root, which all repetitions share
    cycle   seconds after which the traffic may repeat a rhythm: a trace's own length, a generator's diurnal period; 0
            of a generator without one, whose traffic is alike at all times
"""

from __future__ import annotations

import hashlib
import math
import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hisearch.specs.workloads.workload import GeneratorSpec
from hisearch.traces.adapters import chosen as chosen_named
from hisearch.traces.changes.selection import requests_at
from hisearch.traces.compiled import REQUEST_COLUMNS, ChosenIds, CompiledTrace, TraceArrays
from hisearch.traces.models import chosen
from hisearch.traces.trace import roots_of


@dataclass(frozen=True)
class Continuation:
    """A trace with what is known of how it goes on.

    trace: the workload as it was asked for, whose first turns arrive over some time. generator: what it was drawn from,
    None where it is repeated. seed: of that draw.
    """

    trace: CompiledTrace
    generator: GeneratorSpec | None = None
    seed: int = 0
    _longest: list[tuple[float, CompiledTrace]] = field(default_factory=list, compare=False, repr=False)
    _lock: Any = field(default_factory=threading.Lock, compare=False, repr=False)

    def __reduce__(self) -> tuple[type[Continuation], tuple[object, ...]]:
        """Another process carries it on itself."""
        return Continuation, (self.trace, self.generator, self.seed)

    @property
    def cycle_s(self) -> float:
        """See the module."""
        return period_s(self.trace) if self.generator is None else self.generator.diurnal_period_s

    def lasting(self, span_s: float) -> CompiledTrace:
        """The workload's sessions that start within its first ``span_s`` seconds, at its own load; at least one."""
        with self._lock:
            if not self._longest or self._longest[0][0] < span_s:
                # Each is at least twice as long as the one before, so that few are made.
                length_s = max(span_s, 2 * self._longest[0][0] if self._longest else 0.0)
                self._longest[:] = [(length_s, self._made(length_s))]
            longest = self._longest[0][1]
        arrays = longest.arrays
        first = roots_of(arrays.previous)
        begin_s = 0.0 if self.generator is not None else float(np.nanmin(arrays.arrival_s))
        kept = np.flatnonzero(arrays.arrival_s[first] < begin_s + span_s)
        return requests_at(longest, kept if len(kept) else np.arange(1))

    def _made(self, length_s: float) -> CompiledTrace:
        from hisearch.traces.compiler import compile_trace
        from hisearch.traces.generate import generate_trace

        if self.generator is None:
            return repeated(self.trace, math.ceil(length_s / self.cycle_s))
        longer = generate_trace(self.generator, seed=self.seed, until_s=length_s)
        return compile_trace(longer, self.trace.name)


def continuation_of(trace: CompiledTrace, generator: GeneratorSpec | None = None, seed: int = 0) -> Continuation | None:
    """How a workload goes on; None where that is not its own: agents and users in a closed loop wait for each other."""
    first = trace.arrays.arrival_s[trace.arrays.previous < 0]
    if trace.agents is not None or not len(first) or not np.ptp(first) > 0:
        return None
    return Continuation(trace, generator, seed)


def period_s(trace: CompiledTrace) -> float:
    """Seconds after which a repetition begins: the span of first turns, and one mean gap."""
    first = trace.arrays.arrival_s[trace.arrays.previous < 0]
    return float(np.ptp(first)) * len(first) / (len(first) - 1)


def repeated(trace: CompiledTrace, times: int) -> CompiledTrace:
    """A trace ``times`` times in a row, each with sessions and a prefix tree of its own.

    Raises:
        ValueError: ``times`` is below 1, or its requests are calls of agents.
    """
    if times < 1 or trace.agents is not None:
        raise ValueError(f"a trace of requests that wait for no agents is repeated 1 time or more, not {times} times")
    if times == 1:
        return trace
    arrays, count, nodes = trace.arrays, len(trace), len(trace.arrays.parent) - 1
    number = np.repeat(np.arange(times), count)
    columns = {name: np.tile(getattr(arrays, name), times) for name in REQUEST_COLUMNS}
    columns["arrival_s"] += number * period_s(trace)
    columns["session"] += (number * (int(arrays.session.max()) + 1)).astype(np.int32)
    for name, step in (("previous", count), ("prompt_node", nodes), ("output_node", nodes)):
        values = np.tile(getattr(arrays, name), times)
        columns[name] = np.where(values >= (name != "previous"), values + number * step, values).astype(np.int32)
    above = np.tile(arrays.parent[1:], times)
    branch = np.repeat(np.arange(times), nodes)
    columns["parent"] = np.concatenate(([-1], np.where(above > 0, above + branch * nodes, 0))).astype(np.int32)
    for name in ("start_tokens", "end_tokens"):
        columns[name] = np.concatenate(([0], np.tile(getattr(arrays, name)[1:], times)))
    for values in columns.values():
        values.flags.writeable = False
    digest = hashlib.sha256(f"{trace.digest} x {times}".encode()).hexdigest()
    return CompiledTrace(
        trace.name,
        TraceArrays(**columns),
        ChosenIds(trace.request_ids, np.tile(np.arange(count), times)),
        digest,
        trace.skipped_rows,
        trace.cautions,
        trace.block_tokens,
        None,
        chosen(trace.models, np.tile(np.arange(count), times)),
        trace.notes,
        adapters=chosen_named(trace.adapters, np.tile(np.arange(count), times)),
        grammars=chosen_named(trace.grammars, np.tile(np.arange(count), times)),
    )
