"""When the last multiprocessor is done with the tiles of an attention kernel, taken in the order of its grid."""

from __future__ import annotations

import numpy as np

from hisearch.base.jit import kernel


@kernel
def _insert(free, end):
    """Give the first of the sorted ``free`` a tile that ends at ``end``, and sort again."""
    at = 0
    last = free.shape[0] - 1
    while at < last and free[at + 1] < end:
        free[at] = free[at + 1]
        at += 1
    free[at] = end


@kernel
def _alike(free, other, tiles, tile_s):
    """Hand out ``tiles`` tiles of one length; ``free``, sorted, and ``other``, scratch, are modified in place."""
    slots = free.shape[0]
    while tiles > 0:
        # Those that are free before the first of these tiles ends take one each: both runs stay sorted.
        end = free[0] + tile_s
        take = 1
        while take < min(tiles, slots) and free[take] <= end:
            take += 1
        i = 0
        j = take
        for k in range(slots):
            if j >= slots or (i < take and free[i] + tile_s <= free[j]):
                other[k] = free[i] + tile_s
                i += 1
            else:
                other[k] = free[j]
                j += 1
        free[:] = other
        tiles -= take


@kernel
def makespans(batches, heads, slots, rows, keys, start_s, keys_s, seconds):
    """Seconds of each batch's attention, written to ``seconds`` (shape (N,)), one layer.

    For every head in turn, the grid has a tile of up to ``rows`` tokens of the chunk after another, then one of each
    decode; whichever of ``slots`` multiprocessors is free first takes the next tile, which takes
    ``start_s + keys_s`` times the ``keys`` keys that it reads, or part of them.

    Args:
        batches: int64, shape (N, 4): tokens of the chunk (0: none), before it, decodes, tokens before each one's new.
        heads: of queries.
        slots: multiprocessors, at least 1.
        rows: queries of a tile.
        keys: that a tile reads at a time.
        start_s: of a tile.
        keys_s: of ``keys`` keys, or part of them.
        seconds: float64, modified in place.
    """
    free = np.zeros(slots)
    other = np.zeros(slots)
    for b in range(batches.shape[0]):
        chunk, before, decodes, context = batches[b]
        decode_s = start_s + keys_s * ((context + keys) // keys)
        free[:] = 0.0
        for _ in range(heads):
            done = 0
            while done < chunk:
                done = min(done + rows, chunk)
                _insert(free, free[0] + start_s + keys_s * ((before + done + keys - 1) // keys))
            _alike(free, other, decodes, decode_s)
        seconds[b] = free[slots - 1]
