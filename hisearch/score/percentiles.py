"""Exact percentiles of latencies, including requests that never ended.

Notation
    n   finished requests, their latencies sorted in ``finished_s``
    u   requests still queued or running when the simulation stopped: their latency counts as infinite

A percentile is linear between order statistics (rank ``p / 100 * (n + u - 1)``), as ``numpy.percentile`` computes it by
default. A rank that touches an unfinished request is infinite. An overloaded run therefore cannot look good by
finishing only its lucky requests.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hisearch.base.dtypes import F8


def requests_needed(percent: float) -> int:
    """Fewest requests for which a percentile, in (0, 100], leaves one above: ``ceil(1 / (1 - percent / 100))``.

    With fewer, it lies between the two largest values. The 100th percentile is the largest by definition and needs one.
    """
    above = round(100.0 - percent, 9)
    return math.ceil(round(100.0 / above, 9)) if above > 0.0 else 1


@dataclass(frozen=True)
class Latencies:
    """Sorted latencies of one metric, seconds: ``finished_s`` of shape (n,), and ``unfinished`` infinite ones."""

    finished_s: F8
    unfinished: int = 0

    @classmethod
    def of(cls, values_s: F8, unfinished: int) -> Latencies:
        """Sort ``values_s`` (shape (n,), any order)."""
        return cls(np.sort(values_s), unfinished)

    def __len__(self) -> int:
        return len(self.finished_s) + self.unfinished

    def percentile(self, percent: float) -> float:
        """The percentile in seconds, ``percent`` in (0, 100]; infinite without any request."""
        if len(self) == 0:
            return math.inf
        rank = percent / 100.0 * (len(self) - 1)
        low = math.floor(rank)
        share = rank - low
        lower = self._order_statistic(low)
        if share == 0.0:
            return lower
        upper = self._order_statistic(low + 1)
        return lower + (upper - lower) * share if math.isfinite(upper) else math.inf

    def mean(self) -> float:
        """Mean in seconds; infinite with any unfinished request, or without any request."""
        if self.unfinished or len(self.finished_s) == 0:
            return math.inf
        return float(self.finished_s.mean())

    def _order_statistic(self, index: int) -> float:
        return float(self.finished_s[index]) if index < len(self.finished_s) else math.inf
