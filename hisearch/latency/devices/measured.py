"""Operators timed by another simulator or a profiler: a CSV of latencies, which precede a device's law.

Columns of the file, in any order:

    operator    name of a weight matrix (qkv_proj, o_proj, gate_up_proj, down_proj, lm_head …) or of an elementwise
                operator (norms, activation …), named as in ``hisearch.latency.parameters`` and ``operators``;
                or prefill_attention, decode_attention
    tokens      of the step; sequences for lm_head and decode_attention; new tokens of one chunk for prefill_attention
    context     for attention: tokens that decodes read in all, or tokens before the chunk; else empty
    context_each    optional, for decode_attention in place of context: tokens that each decode reads, as profilers
                sweep batches and lengths
    latency_s   of one layer on one rank, launch included
    tensor_parallel   optional: ranks of the row; rows of other numbers of ranks are ignored

Latencies are linear between points. Attention's are bilinear and need every pair of tokens and context. Beyond the last
point the last slope continues. Operators that the file lacks keep the device's own law.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.latency.devices.laws import Law
from hisearch.latency.devices.work import Work, WorkKind
from hisearch.latency.measured.curves import Curve, Grid
from hisearch.traces.reading.errors import TraceError
from hisearch.traces.reading.rows import BadRows, csv_names, csv_rows

COLUMNS = ("operator", "tokens", "context", "latency_s")
ATTENTION = ("prefill_attention", "decode_attention")


@dataclass(frozen=True)
class PerDecode:
    """Latencies stored by decodes and context per decode, looked up by decodes and total context."""

    grid: Grid

    def __call__(self, decodes: F8, context: F8) -> F8:
        """Same shape as the arguments."""
        return self.grid(decodes, context / np.maximum(decodes, 1e-9))


Table = Curve | Grid | PerDecode


@dataclass(frozen=True)
class MeasuredLaw:
    """Measured operators. other: the law of the rest; None: no law."""

    tables: dict[str, Table]
    other: Law | None

    def knows(self, kind: WorkKind) -> bool:
        """See ``Law``: kinds in the file, or known to the other law."""
        return kind in self.tables or (self.other is not None and self.other.knows(kind))

    def cost(self, work: Work) -> F8:
        """See ``Law``."""
        table = self.tables.get(work.name)
        if isinstance(table, Grid | PerDecode):
            return table(work.units, work.context)
        if table is not None:
            return table(work.units)
        if self.other is None:
            raise ValueError(f"no latencies of {work.name}, and the device has no law")
        return self.other.cost(work)


def read_operators(path: Path, tensor_parallel: int) -> dict[str, Table]:
    """Tables by operator.

    Raises:
        TraceError: the file cannot be read, a column is missing, a cell is no number, attention lacks a pair or has
            both kinds of context, or no row is of these ranks.
    """
    points: dict[str, dict[tuple[float, float], float]] = {}
    context_kinds: set[bool] = set()
    bad = BadRows(path)
    missing = [name for name in COLUMNS if name not in csv_names(path)]
    if missing:
        raise TraceError.at(f"no column {', '.join(missing)}; needed: {', '.join(COLUMNS)}", path=path, line=1)
    for line, row in csv_rows(path, bad):
        with bad.row(line):
            if row.filled("tensor_parallel") and row.count("tensor_parallel") != tensor_parallel:
                continue
            name, per_decode = row.raw("operator"), False
            if name == "decode_attention":
                per_decode = row.filled("context_each")
                context_kinds.add(per_decode)
            context = row.number("context_each" if per_decode else "context") if name in ATTENTION else 0.0
            points.setdefault(name, {})[row.number("tokens"), context] = row.number("latency_s")
    if not points:
        raise TraceError.at(f"no rows of tensor_parallel {tensor_parallel}", path=path)
    if len(context_kinds) > 1:
        raise TraceError.at("decode_attention has rows with context_each, and rows without", path=path)
    tables: dict[str, Table] = {name: _table(path, name, latencies) for name, latencies in points.items()}
    decodes = tables.get("decode_attention")
    if context_kinds == {True} and isinstance(decodes, Grid):
        tables["decode_attention"] = PerDecode(decodes)
    return tables


def _table(path: Path, name: str, points: dict[tuple[float, float], float]) -> Curve | Grid:
    tokens = np.array(sorted({at[0] for at in points}))
    if name not in ATTENTION:
        return Curve(tokens, np.array([points[at, 0.0] for at in tokens]))
    contexts = np.array(sorted({at[1] for at in points}))
    missing = [(t, c) for t in tokens for c in contexts if (t, c) not in points]
    if missing:
        problem = f"{name} has no latency for tokens {missing[0][0]:g} at context {missing[0][1]:g}"
        raise TraceError.at(problem, path=path)
    return Grid((tokens, contexts), np.array([[points[t, c] for c in contexts] for t in tokens]))
