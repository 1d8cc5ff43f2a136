"""Tabulates laws of tokens for kernels: an entry for each count, never falling."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np

from hisearch.base.dtypes import F8


@functools.lru_cache(maxsize=16)
def token_grid(limit: int) -> F8:
    """Counts at which a law of tokens is evaluated: each up to 64, then 64 per octave."""
    counts, step = list(range(1, min(limit, 64) + 1)), 1
    while counts[-1] < limit:
        step = max(step, 1 << max((counts[-1]).bit_length() - 6, 0))
        counts.append(min(counts[-1] + step, limit))
    return np.asarray(counts, dtype=np.float64)


def rising(law: Callable[[F8], F8], limit: int, padded: Sequence[int]) -> F8:
    """A law of units as a table of ``limit + 1`` entries that never falls; entry 0 is 0.

    Units up to the last of ``padded`` are priced at the next padded size.
    """
    grid = token_grid(limit)
    values = np.maximum.accumulate(law(grid))
    units = np.arange(1.0, limit + 1.0)
    if padded:
        sizes = np.asarray([size for size in padded if size <= limit], dtype=np.float64)
        index = np.searchsorted(sizes, units)
        inside = index < len(sizes)
        units[inside] = sizes[index[inside]]
    return np.concatenate(([0.0], np.interp(units, grid, values)))
