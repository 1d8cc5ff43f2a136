"""Data-sheet figures that laws need of an accelerator, and formulas that several laws share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hisearch.base.dtypes import F8


class Sheet(NamedTuple):
    """Figures of one accelerator.

    multiprocessors: SMs.
    flops: FLOP/s of the operands' format, dense.
    bytes_per_s: of the device memory.
    """

    multiprocessors: int
    flops: float
    bytes_per_s: float


def p_norm(sharpness: float, *terms: F8) -> F8:
    """``(sum of term ** p) ** (1 / p)``: the largest term where one dominates, more where terms are similar."""
    largest = np.maximum.reduce(np.broadcast_arrays(*terms))
    safe = np.where(largest > 0, largest, 1.0)
    total = sum((term / safe) ** sharpness for term in terms)
    return np.asarray(largest * total ** (1.0 / sharpness))


def waves(tiles: F8, multiprocessors: int, quantisation: float) -> F8:
    """Waves that ``tiles`` take; ``quantisation`` 1 rounds a partial wave up, 0 counts it fractionally."""
    rounds = tiles / multiprocessors
    return np.asarray(rounds + quantisation * (np.maximum(np.ceil(rounds), 1.0) - rounds))


def corrected(seconds: F8, units: F8, knots: Sequence[int], factors: Sequence[float]) -> F8:
    """``seconds`` times a factor that is linear in log ``units`` between knots, and flat beyond them."""
    if not knots:
        return seconds
    return np.asarray(seconds * np.interp(np.log(units), np.log(np.asarray(knots, dtype=np.float64)), factors))
