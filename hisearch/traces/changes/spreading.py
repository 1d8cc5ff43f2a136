"""Arrivals recorded in steps of a few seconds, spread evenly over each step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.traces.trace import Trace

#: Recorded times may be this far off a multiple of their quantum.
_ROUNDING_S = 0.005


def starts_on_quantum(arrival_s: F8, quantum_s: float) -> bool:
    """True where at least two different times occur and all are multiples of ``quantum_s``."""
    off = np.abs(arrival_s - np.rint(arrival_s / quantum_s) * quantum_s)
    return bool((off <= _ROUNDING_S).all() and len(np.unique(np.rint(arrival_s / quantum_s))) > 1)


def spread_arrivals(trace: Trace, quantum_s: float, rng: np.random.Generator) -> Trace:
    """Spread each group of equal arrivals uniformly over the ``quantum_s`` that follow, in the trace's order.

    Times within rounding of a multiple of the quantum count as that multiple, so that groups do not overlap. Unknown
    (NaN) times stay unknown.
    """
    multiple = np.rint(trace.arrival_s / quantum_s) * quantum_s
    start = np.where(np.abs(trace.arrival_s - multiple) <= _ROUNDING_S, multiple, trace.arrival_s)
    offset = rng.random(len(trace)) * quantum_s
    # Sorting by (start, offset) and giving the offsets out in the trace's order keeps that order within a group.
    ordered = np.lexsort((offset, start))
    places = np.argsort(start, kind="stable")
    spread = np.empty(len(trace))
    spread[places] = start[ordered] + offset[ordered]
    return replace(trace, arrival_s=spread)
