"""Measured delay of unequal decodes in mixed steps.

A long decode's delay is ``late`` times its delay as the only decode with the prompt (``latency.costs``). The share
depends on the accelerator's other work: the number of sequences (waves of their tiles), how many of them are long (one
ends behind all others; many are nearly all the work, which the mean includes), and the tokens of all (beyond a cache,
sequences of unequal lengths no longer share reads).

Batches of two lengths were measured. Any other batch counts as the two-length batch with the same mean, variance and
longest context, so that a step's cost needs only sums.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from hisearch.base.dtypes import F8
from hisearch.latency.costs import LateCosts
from hisearch.latency.knots import LONG_PARTS, late_octaves
from hisearch.latency.measured.curves import Grid
from hisearch.latency.measured.tiles import fill_along

if TYPE_CHECKING:
    import pandas as pd

_I8 = npt.NDArray[np.int64]


def late_shares(late: LateCosts, sequences: F8, long: F8, context: F8) -> F8:
    """``late`` of batches of ``sequences``, the share ``long`` of them long, ``context`` tokens in all; same shapes."""
    grid = Grid(tuple(_knots(axis, count) for axis, count in enumerate(late.shares.shape)), late.shares)
    at = zip(grid.axes, (sequences, LONG_PARTS * long, context), strict=True)
    return grid(*(np.clip(x, knots[0], knots[-1]) for knots, x in at))


def late_tokens(late: LateCosts, mean: F8, long: F8) -> F8:
    """Tokens of the long sequences in measured batches of ``mean`` tokens, the share ``long`` of them long."""
    return np.asarray(mean * late.ratio / (1.0 + (late.ratio - 1.0) * long))


def fit_late(frame: pd.DataFrame, prefill: Grid, mixed: Grid) -> LateCosts | None:
    """Fit ``late`` to ``operator_tables.skew_rows`` with a chunk, over ``AttentionTables.prefill`` and ``.mixed``.

    A knot's share minimises the sum of absolute relative errors over the rows nearest to it, never below 0: a batch
    costs at least as much as one of equal contexts. Knots without rows are interpolated along octaves. None where no
    row's longest decode alone would end later.
    """
    rows = frame[(frame["pc"] > 0) & (frame["longer"] > 0)]
    if rows.empty:
        return None
    chunk, before, n, mean, longest, long, skew_s = (
        rows[name].to_numpy(np.float64) for name in ("pc", "kp", "n", "kv_mean", "kv_big", "long", "skew_s")
    )
    short = np.maximum((mean - long * longest) / (1.0 - long), 1.0)
    late = LateCosts(np.zeros((1, 1, 1)), float(np.median(longest / short)))
    even, reached, last = (
        mixed(chunk, before, 1.0, length)
        for length in (mean, np.minimum(longest, late_tokens(late, mean, long)), longest)
    )
    seen = reached > even
    if not seen.any():
        return None
    rest_s = skew_s - (prefill(chunk, before) + mixed(chunk, before, n, mean) + last - reached)
    share, weight = rest_s[seen] / (reached - even)[seen], (reached - even)[seen] / skew_s[seen]
    places = (n[seen], LONG_PARTS * long[seen], (n * (mean + 1.0))[seen])
    axes = [_reaching(axis, place.max()) for axis, place in enumerate(places)]
    shares = np.full(tuple(len(axis) for axis in axes), np.nan)
    cells = np.ravel_multi_index(
        [_nearest(axis, place) for axis, place in zip(axes, places, strict=True)], shares.shape
    )
    order = np.argsort(cells, kind="stable")
    for inside in np.split(order, np.flatnonzero(np.diff(cells[order])) + 1):
        shares.flat[cells[inside[0]]] = max(_weighted_median(share[inside], weight[inside]), 0.0)
    for axis in (2, 1, 0):
        shares = fill_along(shares, axis, np.log2(axes[axis]))
    return late._replace(shares=np.ascontiguousarray(shares))


def _reaching(axis: int, largest: float) -> F8:
    """Knots up to the first that is at least ``largest``."""
    count = 1
    while late_octaves(axis, count)[-1] < largest:
        count += 1
    return _knots(axis, count)


def _knots(axis: int, count: int) -> F8:
    return np.array(late_octaves(axis, count), dtype=np.float64)


def _nearest(knots: F8, values: F8) -> _I8:
    octaves = np.abs(np.log2(np.maximum(values, 1.0))[:, None] - np.log2(knots))
    return np.asarray(np.argmin(octaves, axis=1))


def _weighted_median(values: F8, weights: F8) -> float:
    order = np.argsort(values)
    sums = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(sums, 0.5 * sums[-1])])
