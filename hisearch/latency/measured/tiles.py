"""Attention of mixed steps: tiles that multiprocessors take one after another, times a table's residuals.

A kernel for prompts (FlashAttention 2, without splitting) gives each head a tile for every 64 or 128 tokens of a chunk,
and one for each decode. A free multiprocessor takes the next tile. A tile takes a start time and a time per key read.
A batch therefore ends in waves, and tiles of two lengths fill each other's gaps: times jump where linear interpolation
between measured batches would rise smoothly. The law says when the last tile ends. Its residuals are the ratios of
measured times to it (memory bandwidth, caches). They change slowly and are interpolated between measured batches.

All is fitted on the table: a tile's time on the shortest chunk alone; tokens per tile and multiprocessors per head on
all batches with a chunk.
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
#: Simulated heads. Only the multiprocessors per head matter; with 16 heads nearly all ratios are whole numbers.
HEADS = 16
#: Keys that a tile reads at a time.
KEYS = 64
#: Tokens of a tile in known kernels.
_ROWS = (64, 128)
#: Multiprocessors for 16 heads tried first; then all within the factor ``_NEAR`` of the best.
_SLOTS = tuple(round(4 * 2 ** (k / 6)) for k in range(49))
_NEAR = 1.4
#: Batches of a trial, and the most tokens of their chunks.
_TRIED = 400
_FEW_TOKENS = 1024
#: A table whose median deviation from the law exceeds this is of another kernel.
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
        """Seconds of ``chunk`` tokens behind ``cached``, and ``sequences`` decodes of ``mean`` tokens, broadcast."""
        from hisearch.latency.measured._tiles import makespans

        places = np.broadcast_arrays(chunk, cached, sequences, mean)
        batches = np.stack([np.ravel(place) for place in places], axis=-1).astype(np.int64)
        seconds = np.empty(len(batches))
        makespans(batches, HEADS, self.slots, self.rows, KEYS, self.start_s, self.keys_s, seconds)
        return seconds.reshape(places[0].shape)


def fit_tiles(frame: pd.DataFrame) -> TileLaw | None:
    """The law of ``attention_rows``; None where they do not show it, or have no mixed steps."""
    prompts, decodes = frame["prefill_chunk"] > 0, frame["n_decode"] > 0
    alone, both = frame[prompts & ~decodes], frame[prompts & decodes]
    if both.empty:
        return None
    shortest = alone[alone["prefill_chunk"] == alone["prefill_chunk"].min()]
    if shortest["kv_prefill"].nunique() < 3:
        return None
    # Least squares of relative errors: short and long tiles count alike.
    weight = 1.0 / shortest["time_s"].to_numpy()
    reads = np.ceil((shortest["prefill_chunk"] + shortest["kv_prefill"]) / KEYS).to_numpy()
    (start_s, keys_s), *_ = np.linalg.lstsq(
        np.stack((weight, reads * weight), axis=-1), np.ones(len(shortest)), rcond=None
    )
    if keys_s <= 0:
        return None
    # With few waves, waves are visible and caches suffice.
    few = both[(both["n_decode"] <= HEADS) & (both["prefill_chunk"] <= _FEW_TOKENS)]
    if few.empty:
        return None
    start_s = max(float(start_s), 0.0)
    coarse = _closest(few, _TRIED // 4, [TileLaw(*shape, start_s, float(keys_s)) for shape in product(_SLOTS, _ROWS)])
    if coarse is None:
        return None
    # Jumps distinguish fewer multiprocessors from slower tiles: at the true number residuals are even.
    near = range(max(int(coarse.slots / _NEAR), 1), int(coarse.slots * _NEAR) + 2)
    return _closest(few, _TRIED, [replace(coarse, slots=slots) for slots in near], even=True)


def _closest(frame: pd.DataFrame, tried: int, laws: list[TileLaw], *, even: bool = False) -> TileLaw | None:
    """The law closest to ``tried`` rows, or with the most ``even`` residuals; None beyond ``_REACH``."""
    shown = frame.iloc[:: max(len(frame) // tried, 1)]
    places, measured = [shown[name].to_numpy() for name in _PLACES], shown["time_s"].to_numpy()
    logs = [np.log(measured / law(*places)) for law in laws]
    far = [float(np.median(np.abs(deviation))) for deviation in logs]
    best = int(np.argmin([np.std(deviation) for deviation in logs] if even else far))
    return laws[best] if far[best] <= _REACH else None


@dataclass(frozen=True)
class Residuals:
    """Ratios of measured times to a law's: log-linear along octaves between measured batches, flat beyond them."""

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
    """Residuals of rows with a chunk (prompts alone or mixed steps), each at its measured coordinates."""
    places = [frame[name].to_numpy(np.float64) for name in _PLACES]
    axes = [np.unique(place) for place in places]
    logs = np.full(tuple(len(axis) for axis in axes), np.nan)
    at = tuple(np.searchsorted(axis, place) for axis, place in zip(axes, places, strict=True))
    logs[at] = np.log(frame["time_s"].to_numpy() / law(*places))
    octaves = tuple(_octave(axis, values) for axis, values in enumerate(axes))
    # Along the decodes' length first: residuals depend on it most evenly.
    for axis in (3, 1, 0, 2):
        logs = fill_along(logs, axis, octaves[axis])
    return Residuals(law, Grid(octaves, np.ascontiguousarray(logs)))


def fill_along(values: F8, axis: int, at: F8) -> F8:
    """Fill gaps along ``axis`` by linear interpolation over ``at``; the nearest value at the ends.

    A line without values stays empty.
    """

    def filled(line: F8) -> F8:
        known = np.flatnonzero(~np.isnan(line))
        return line if not len(known) else np.interp(at, at[known], line[known])

    return np.asarray(np.apply_along_axis(filled, axis, values))


def _octave(axis: int, values: F8) -> F8:
    return np.asarray(np.log2(np.maximum(values, _LEAST[axis])))
