"""How much later a batch of unequal decodes ends beside a prompt, as measured.

A long decode ends ``late`` times as much later as it would alone beside the prompt (``latency.costs``). That share
depends on what else keeps the accelerator busy: on the number of sequences (rounds of their tiles), on how many of
them are long (one ends behind all others; many are nearly the whole work, which the mean has already), and on the
tokens of all (beyond a cache, sequences of unequal lengths no longer meet in what they read).

Batches of two lengths were measured. Any other counts as the one of them that has its mean, its variance and its
longest context, so that a step's price needs only sums.
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
    """Of batches of ``sequences``, ``long`` of them long (a share), with ``context`` tokens in all; same shapes."""
    grid = Grid(tuple(_knots(axis, count) for axis, count in enumerate(late.shares.shape)), late.shares)
    at = zip(grid.axes, (sequences, LONG_PARTS * long, context), strict=True)
    return grid(*(np.clip(x, knots[0], knots[-1]) for knots, x in at))


def late_tokens(late: LateCosts, mean: F8, long: F8) -> F8:
    """How many tokens the long ones have, as measured, in batches of that ``mean``, ``long`` of them long."""
    return np.asarray(mean * late.ratio / (1.0 + (late.ratio - 1.0) * long))


def fit_late(frame: pd.DataFrame, prefill: Grid, mixed: Grid) -> LateCosts | None:
    """Of ``operator_tables.skew_rows`` with a chunk, over ``AttentionTables.prefill`` and ``.mixed``.

    At each knot the share that leaves the least sum of absolute relative errors over the rows that it is the nearest
    knot of, never below 0: a batch is not priced below one of equal contexts. Where no row is near to a knot, evenly
    along octaves between those that have some. None where no row would end later with its longest alone.
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
    """Knots up to the first that is no less than ``largest``."""
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
