"""When multiprocessors are done with the tiles of an attention kernel."""

from __future__ import annotations

import heapq

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisearch.latency.measured._tiles import makespans
from tests.kernels.systems import examples

COUNTS = st.integers(0, 9)
TOKENS = st.integers(0, 700)


def slow(
    batch: tuple[int, int, int, int], heads: int, slots: int, rows: int, keys: int, start_s: float, keys_s: float
) -> float:
    """One tile after another, to whoever is free first."""
    chunk, before, decodes, context = batch
    free = [0.0] * slots
    for _ in range(heads):
        reads = [before + min(done + rows, chunk) for done in range(0, chunk, rows)] + [context + 1] * decodes
        for tokens in reads:
            heapq.heapreplace(free, free[0] + start_s + keys_s * -(-tokens // keys))
    return max(free)


def fast(batch: tuple[int, int, int, int], *grid: float) -> float:
    seconds = np.empty(1)
    makespans(np.array([batch], dtype=np.int64), *grid, seconds)
    return float(seconds[0])


@examples(100)
@given(
    st.tuples(TOKENS, TOKENS, st.integers(0, 40), TOKENS), COUNTS, st.integers(1, 30), st.sampled_from((16, 64)),
    st.sampled_from((16, 64)), st.sampled_from((0.0, 0.75)), st.sampled_from((0.25, 1.0)),
)  # fmt: skip
def test_whoever_is_free_first_takes_the_next_tile(
    batch: tuple[int, int, int, int], heads: int, slots: int, rows: int, keys: int, start_s: float, keys_s: float
) -> None:
    grid = (heads, slots, rows, keys, start_s, keys_s)
    # Binary fractions: sums are exact in any order.
    seconds = fast(batch, *grid)
    assert seconds == slow(batch, *grid)
    # Graham's bounds: no multiprocessor does more than its share and one tile.
    chunk, before, decodes, context = batch
    tiles = [start_s + keys_s * -(-(before + min(done + rows, chunk)) // keys) for done in range(0, chunk, rows)]
    tiles += [start_s + keys_s * -(-(context + 1) // keys)] * decodes
    longest, share = (max(tiles, default=0.0) if heads else 0.0), heads * sum(tiles) / slots
    assert max(longest, share) - 1e-9 <= seconds <= share + longest + 1e-9


@pytest.mark.parametrize(("decodes", "rounds"), [(1, 1), (5, 1), (6, 2), (11, 2), (12, 3)])
def test_equal_tiles_take_rounds(decodes: int, rounds: int) -> None:
    assert fast((0, 0, decodes, 63), 16, 94, 64, 64, 0.0, 2.0) == 2.0 * rounds


def test_short_tiles_fill_the_gaps_of_long_ones() -> None:
    """One long tile for each of two heads, and eight short ones, on four multiprocessors."""
    assert fast((1, 255, 4, 63), 2, 4, 64, 64, 0.0, 1.0) == 5.0
