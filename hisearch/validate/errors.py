"""Relative errors of a group of runs, as every comparison with measurements states them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hisearch.base.dtypes import F8


@dataclass(frozen=True)
class Errors:
    """Errors of a figure over runs, as fractions; NaN without runs. bias: mean of the signed errors."""

    runs: int
    median_ape: float
    mape: float
    bias: float


def errors_of(signed: Sequence[float] | F8) -> Errors:
    """Errors of runs whose signed relative errors these are."""
    if not len(signed):
        return Errors(0, *(float("nan"),) * 3)
    values = np.asarray(signed)
    sizes = np.abs(values)
    return Errors(len(values), float(np.median(sizes)), float(np.mean(sizes)), float(np.mean(values)))
