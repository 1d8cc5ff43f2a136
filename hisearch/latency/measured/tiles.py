"""Attention beside prompts as tiles that multiprocessors take one after another, with a table's residuals over it.

A kernel for prompts (FlashAttention 2, without splitting) gives each head a tile of every 64 or 128 tokens of a chunk
and one of each decode; whichever multiprocessor is free takes the next. A tile takes a start and a time for the keys
that it reads. So a batch ends by rounds, and tiles of two lengths fill each other's gaps: times jump where a line
between two measured batches rises. The law says when the last tile ends; what it does not know (memory that falls
behind, caches) is the ratio of measured times to it, which changes slowly and is read between measured batches.

All is fitted on the table: what a tile takes on the shortest chunk alone; tokens of a tile and multiprocessors for each
head on all batches with a chunk.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from hisearch.base.dtypes import F8
from hisearch.latency.measured.curves import Grid

if TYPE_CHECKING:
    import pandas as pd

_PLACES = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
#: Heads that are simulated: only multiprocessors for each matter, and as many make whole numbers of nearly all.
HEADS = 16
#: Keys that a tile reads at a time.
KEYS = 64
#: Tokens of a tile that kernels are known to take.
_ROWS = (64, 128)
#: Multiprocessors for 16 heads that are tried; then those by up to this factor from the best.
_SLOTS = tuple(round(4 * 2 ** (k / 6)) for k in range(49))
_NEAR = 1.4
#: Batches they are tried on, and the most tokens of their chunks.
_TRIED = 400
_FEW_TOKENS = 1024
#: A table whose batches are further from the law than this in the median is of another kernel.
_REACH = 0.15
#: Coordinates of residuals are octaves; below this many tokens or sequences nothing changes.
_LEAST = np.array([8.0, 8.0, 0.5, 8.0])


@dataclass(frozen=True)
class TileLaw:
    """Tiles of up to ``rows`` queries on ``slots`` multiprocessors for 16 heads; seconds of one layer."""

    slots: int
    rows: int
    start_s: float
    keys_s: float

    def __call__(
        self, chunk: npt.ArrayLike, cached: npt.ArrayLike, sequences: npt.ArrayLike, mean: npt.ArrayLike
    ) -> F8:
        """Of ``chunk`` tokens behind ``cached`` beside ``sequences`` decodes of ``mean`` tokens each, broadcast."""
        from hisearch.latency.measured._tiles import makespans

        places = np.broadcast_arrays(chunk, cached, sequences, mean)
        batches = np.stack([np.ravel(place) for place in places], axis=-1).astype(np.int64)
        seconds = np.empty(len(batches))
        makespans(batches, HEADS, self.slots, self.rows, KEYS, self.start_s, self.keys_s, seconds)
        return seconds.reshape(places[0].shape)


def fit_tiles(frame: pd.DataFrame) -> TileLaw | None:
    """The law of ``attention_rows``; None where they do not show it.

    Decodes beside chunks are what shows it: without them there is none.
    """
    prompts, decodes = frame["prefill_chunk"] > 0, frame["n_decode"] > 0
    alone, both = frame[prompts & ~decodes], frame[prompts & decodes]
    if both.empty:
        return None
    one = alone[alone["prefill_chunk"] == alone["prefill_chunk"].min()]
    if one["kv_prefill"].nunique() < 3:
        return None
    # Least squares of relative errors: short and long tiles count alike.
    weight = 1.0 / one["time_s"].to_numpy()
    reads = np.ceil((one["prefill_chunk"] + one["kv_prefill"]) / KEYS).to_numpy()
    (start_s, keys_s), *_ = np.linalg.lstsq(np.stack((weight, reads * weight), axis=-1), np.ones(len(one)), rcond=None)
    if keys_s <= 0:
        return None
    # Where rounds are few they show, and caches hold.
    few = both[(both["n_decode"] <= HEADS) & (both["prefill_chunk"] <= _FEW_TOKENS)]
    if few.empty:
        return None
    start_s = max(float(start_s), 0.0)
    coarse = _closest(few, _TRIED // 4, [TileLaw(*each, start_s, float(keys_s)) for each in product(_SLOTS, _ROWS)])
    if coarse is None:
        return None
    # Fewer multiprocessors and slower tiles are told apart by the jumps: with the true number residuals are even.
    near = range(max(int(coarse.slots / _NEAR), 1), int(coarse.slots * _NEAR) + 2)
    return _closest(few, _TRIED, [replace(coarse, slots=slots) for slots in near], even=True)


def _closest(frame: pd.DataFrame, tried: int, laws: list[TileLaw], *, even: bool = False) -> TileLaw | None:
    """Of ``laws``, that which ``tried`` rows are closest to, or most evenly far from; None beyond ``_REACH``."""
    shown = frame.iloc[:: max(len(frame) // tried, 1)]
    places, measured = [shown[name].to_numpy() for name in _PLACES], shown["time_s"].to_numpy()
    logs = [np.log(measured / law(*places)) for law in laws]
    far = [float(np.median(np.abs(each))) for each in logs]
    best = int(np.argmin([np.std(each) for each in logs] if even else far))
    return laws[best] if far[best] <= _REACH else None


@dataclass(frozen=True)
class Residuals:
    """Measured times over a law's, between measured batches linear in the logarithm along octaves; flat beyond them."""

    law: TileLaw
    logs: Grid

    def __call__(
        self, chunk: npt.ArrayLike, cached: npt.ArrayLike, sequences: npt.ArrayLike, mean: npt.ArrayLike
    ) -> F8:
        """Seconds of one layer, as ``TileLaw``."""
        places = (chunk, cached, sequences, mean)
        at = [_octave(axis, np.asarray(place, dtype=np.float64)) for axis, place in enumerate(places)]
        inside = [np.clip(x, axis[0], axis[-1]) for x, axis in zip(at, self.logs.axes, strict=True)]
        return np.asarray(self.law(*places) * np.exp(self.logs(*inside)))


def residuals(law: TileLaw, frame: pd.DataFrame) -> Residuals:
    """Of rows with a chunk, of prompts alone or of both kinds, each at its measured place."""
    places = [frame[name].to_numpy(np.float64) for name in _PLACES]
    axes = [np.unique(place) for place in places]
    logs = np.full(tuple(len(axis) for axis in axes), np.nan)
    at = tuple(np.searchsorted(axis, place) for axis, place in zip(axes, places, strict=True))
    logs[at] = np.log(frame["time_s"].to_numpy() / law(*places))
    octaves = tuple(_octave(axis, values) for axis, values in enumerate(axes))
    # Along the decodes' length first: it is what residuals depend on most evenly.
    for axis in (3, 1, 0, 2):
        logs = fill_along(logs, axis, octaves[axis])
    return Residuals(law, Grid(octaves, np.ascontiguousarray(logs)))


def fill_along(values: F8, axis: int, at: F8) -> F8:
    """Gaps along ``axis`` filled between neighbours, evenly along ``at``; as the nearest at the ends.

    A line that is all gaps stays one.
    """

    def filled(line: F8) -> F8:
        known = np.flatnonzero(~np.isnan(line))
        return line if not len(known) else np.interp(at, at[known], line[known])

    return np.asarray(np.apply_along_axis(filled, axis, values))


def _octave(axis: int, values: F8) -> F8:
    return np.asarray(np.log2(np.maximum(values, _LEAST[axis])))
