"""A sample in a few figures."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Distribution:
    """Mean, extremes and percentiles of a sample."""

    mean: float
    min: float
    p10: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: np.ndarray) -> Distribution | None:
        """Of a sample; None where it is empty."""
        if not len(values):
            return None
        low, p10, p50, p90, p95, p99, high = np.percentile(values, [0, 10, 50, 90, 95, 99, 100]).tolist()
        return cls(float(values.mean()), low, p10, p50, p90, p95, p99, high)
