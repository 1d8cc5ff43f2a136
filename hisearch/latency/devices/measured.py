"""Operators timed by another simulator or a profiler: a CSV of latencies and joules, which precede a device's laws.

Columns of the file, in any order:

    operator    name of a weight matrix (qkv_proj, o_proj, gate_up_proj, down_proj, lm_head …) or of an elementwise
                operator (norms, activation …), named as in ``hisearch.latency.parameters`` and ``operators``;
                or prefill_attention, decode_attention: from queries to outputs, softmax included
    tokens      of the step; sequences for lm_head and decode_attention; new tokens of one chunk for prefill_attention
    context     for attention: tokens that decodes read in all, or tokens before the chunk; else empty
    context_each    optional, for decode_attention in place of context: tokens that each decode reads, as profilers
                sweep batches and lengths
    latency_s, or latency_us    of one layer on one rank, launch included
    energy_j, or energy_uj      optional, likewise: joules above idle; of all rows of an operator, or of none
    tensor_parallel   optional: ranks of the row; rows of other numbers of ranks are ignored

Values are linear between points. Attention's are bilinear and need every pair of tokens and context. Beyond the last
point the last slope continues. Operators that the file lacks keep the device's own laws.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.latency.devices.laws import Law
from hisearch.latency.devices.work import Work, WorkKind
from hisearch.latency.measured.curves import Curve, Grid
from hisearch.traces.reading.errors import TraceError
from hisearch.traces.reading.rows import BadRows, csv_names, csv_rows

COLUMNS = ("operator", "tokens", "context")
#: Columns of a value, and its unit in seconds or joules; a file has one of each pair at most.
LATENCY, ENERGY = {"latency_s": 1.0, "latency_us": 1e-6}, {"energy_j": 1.0, "energy_uj": 1e-6}
ATTENTION = ("prefill_attention", "decode_attention")


@dataclass(frozen=True)
class PerDecode:
    """Values stored by decodes and context per decode, looked up by decodes and total context."""

    grid: Grid

    def __call__(self, decodes: F8, context: F8) -> F8:
        """Same shape as the arguments."""
        return self.grid(decodes, context / np.maximum(decodes, 1e-9))


Table = Curve | Grid | PerDecode


@dataclass(frozen=True)
class MeasuredLaw:
    """Measured operators, seconds or joules. other: the law of the rest; None: no law."""

    tables: dict[str, Table]
    other: Law | None

    def knows(self, kind: WorkKind) -> bool:
        """See ``Law``: kinds in the file, or known to the other law; products and the like are known by their names."""
        named = kind not in ATTENTION and any(name not in ATTENTION for name in self.tables)
        return kind in self.tables or named or (self.other is not None and self.other.knows(kind))

    def cost(self, work: Work) -> F8:
        """See ``Law``."""
        table = self.tables.get(work.name)
        if isinstance(table, Grid | PerDecode):
            return table(work.units, work.context)
        if table is not None:
            return table(work.units)
        if self.other is None:
            raise ValueError(f"the measured operators lack {work.name}, and the device has no law of it")
        return self.other.cost(work)


class OperatorTables(NamedTuple):
    """Tables by operator; joules: of those that have them."""

    seconds: dict[str, Table]
    joules: dict[str, Table]


def read_operators(path: Path, tensor_parallel: int) -> OperatorTables:
    """Tables of a file.

    Raises:
        TraceError: the file cannot be read, a column is missing, a cell is no number, attention lacks a pair or has
            both kinds of context, an operator has energy in some of its rows, or no row is of these ranks.
    """
    seconds: dict[str, dict[tuple[float, float], float]] = {}
    joules: dict[str, dict[tuple[float, float], float]] = {}
    context_kinds: set[bool] = set()
    bad, names = BadRows(path), csv_names(path)
    latency, energy = (_column(path, names, known) for known in (LATENCY, ENERGY))
    missing = [name for name in COLUMNS if name not in names] + ([] if latency else [" or ".join(LATENCY)])
    if latency is None or missing:
        needed = ", ".join((*COLUMNS, " or ".join(LATENCY)))
        raise TraceError.at(f"no column {', '.join(missing)}; needed: {needed}", path=path, line=1)
    for line, row in csv_rows(path, bad):
        with bad.row(line):
            if row.filled("tensor_parallel") and row.count("tensor_parallel") != tensor_parallel:
                continue
            name, per_decode = row.raw("operator"), False
            if name == "decode_attention":
                per_decode = row.filled("context_each")
                context_kinds.add(per_decode)
            context = row.number("context_each" if per_decode else "context") if name in ATTENTION else 0.0
            at = row.number("tokens"), context
            seconds.setdefault(name, {})[at] = row.number(latency) * LATENCY[latency]
            if energy is not None and row.filled(energy):
                joules.setdefault(name, {})[at] = row.number(energy) * ENERGY[energy]
    if not seconds:
        raise TraceError.at(f"no rows of tensor_parallel {tensor_parallel}", path=path)
    if len(context_kinds) > 1:
        raise TraceError.at("decode_attention has rows with context_each, and rows without", path=path)
    for name, points in joules.items():
        if len(points) < len(seconds[name]):
            raise TraceError.at(f"{name} has {energy} in some of its rows only", path=path)
    per_decode = context_kinds == {True}
    return OperatorTables(*(_tables(path, points, per_decode=per_decode) for points in (seconds, joules)))


def _column(path: Path, names: Sequence[str], known: Mapping[str, float]) -> str | None:
    """Which of the ``known`` columns the file has; None: none of them."""
    there = [name for name in known if name in names]
    if len(there) > 1:
        raise TraceError.at(f"has both {' and '.join(there)}", path=path, line=1)
    return there[0] if there else None


def _tables(path: Path, points: dict[str, dict[tuple[float, float], float]], *, per_decode: bool) -> dict[str, Table]:
    tables: dict[str, Table] = {name: _table(path, name, values) for name, values in points.items()}
    decodes = tables.get("decode_attention")
    if per_decode and isinstance(decodes, Grid):
        tables["decode_attention"] = PerDecode(decodes)
    return tables


def _table(path: Path, name: str, points: dict[tuple[float, float], float]) -> Curve | Grid:
    tokens = np.array(sorted({at[0] for at in points}))
    if name not in ATTENTION:
        return Curve(tokens, np.array([points[at, 0.0] for at in tokens]))
    contexts = np.array(sorted({at[1] for at in points}))
    missing = [(t, c) for t in tokens for c in contexts if (t, c) not in points]
    if missing:
        problem = f"{name} has no value for tokens {missing[0][0]:g} at context {missing[0][1]:g}"
        raise TraceError.at(problem, path=path)
    return Grid((tokens, contexts), np.array([[points[t, c] for c in contexts] for t in tokens]))
