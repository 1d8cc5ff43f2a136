"""Makespan of an attention kernel's tiles on the multiprocessors, taken in grid order."""

from __future__ import annotations

import numpy as np

from hisearch.base.jit import kernel


@kernel
def _insert(free, end):
    """Replace the first of the sorted ``free`` times by ``end``, and keep them sorted."""
    at = 0
    last = free.shape[0] - 1
    while at < last and free[at + 1] < end:
        free[at] = free[at + 1]
        at += 1
    free[at] = end


@kernel
def _alike(free, scratch, tiles, tile_s):
    """Assign ``tiles`` tiles of one length; ``free`` (sorted) and ``scratch`` are modified in place."""
    slots = free.shape[0]
    while tiles > 0:
        # Multiprocessors that are free before the first of these tiles ends take one each: both runs stay sorted.
        end = free[0] + tile_s
        take = 1
        while take < min(tiles, slots) and free[take] <= end:
            take += 1
        i = 0
        j = take
        for k in range(slots):
            if j >= slots or (i < take and free[i] + tile_s <= free[j]):
                scratch[k] = free[i] + tile_s
                i += 1
            else:
                scratch[k] = free[j]
                j += 1
        free[:] = scratch
        tiles -= take


@kernel
def makespans(batches, heads, slots, rows, keys, start_s, keys_s, seconds):
    """Seconds of each batch's attention, written to ``seconds`` (shape (N,)), one layer.

    For every head in turn, the grid has the chunk's tiles of up to ``rows`` tokens each, then one tile per decode. The
    first free of ``slots`` multiprocessors takes the next tile. A tile takes ``start_s``, plus ``keys_s`` for every
    started ``keys`` keys.

    Args:
        batches: int64, shape (N, 4): tokens of the chunk (0: none), tokens before it, decodes, cached tokens of each.
        heads: query heads.
        slots: multiprocessors, at least 1.
        rows: queries of a tile.
        keys: keys that a tile reads at a time.
        start_s: seconds to start a tile.
        keys_s: seconds of every started ``keys`` keys.
        seconds: float64, modified in place.
    """
    free = np.zeros(slots)
    scratch = np.zeros(slots)
    for b in range(batches.shape[0]):
        chunk, before, decodes, context = batches[b]
        decode_s = start_s + keys_s * ((context + keys) // keys)
        free[:] = 0.0
        for _ in range(heads):
            done = 0
            while done < chunk:
                done = min(done + rows, chunk)
                _insert(free, free[0] + start_s + keys_s * ((before + done + keys - 1) // keys))
            _alike(free, scratch, decodes, decode_s)
        seconds[b] = free[slots - 1]
