"""The fewest workers of several pools that together meet the SLO, by simulation.

Notation
    counts   workers of each pool, such as (prefill, decode)
    known    counts that miss the SLO: all with at most as many workers in every pool are taken to miss it too

Counts grow from a first guess, one pool at a time, until the SLO is met. The first pool to grow belongs to the worst
missed term; then any pool that still helps. From there, bisection in all directions at once finds the cheapest counts.
The open counts are those cheaper than the cheapest feasible ones and not ruled out. The next to try is the one that
leaves the fewest open in the worse case. For one pool this is plain bisection.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hisearch.search.model.sizing import LEAST_GAIN, Counts, Sizer

#: Relative difference of sums of prices that are added in another order.
_ROUNDING = 1e-9


class CountsSizing(Sizer):
    """Narrows the counts of several pools down to the cheapest feasible ones."""

    def __init__(
        self, guess: Counts, usd_per_worker: Sequence[float], most: Counts, ranks: Counts, most_ranks: int
    ) -> None:
        """Start near ``guess``.

        usd_per_worker: dollars per hour. most: largest count of each pool. ranks: accelerators of a worker of each
        pool; most_ranks: of all workers together.
        """
        self._ranks, self._most_ranks = ranks, most_ranks
        start = tuple(min(max(count, 1), limit) for count, limit in zip(guess, most, strict=True))
        while not self._allowed(start) and max(start) > 1:
            start = tuple(max(count - 1, 1) for count in start)
        super().__init__(start if self._allowed(start) else None)
        self._largest = start
        self._usd = np.asarray(usd_per_worker, dtype=np.float64)
        self._most = most
        self._known: list[Counts] = []
        self._miss: float | None = None
        self._grown = 0
        self._stalled: set[int] = set()
        self._open: np.ndarray | None = None

    def _allowed(self, counts: Counts) -> bool:
        return sum(rank * count for rank, count in zip(self._ranks, counts, strict=True)) <= self._most_ranks

    def tell(self, counts: Counts, feasible: bool, violation: float, healable: bool = True, pool: int = 0) -> None:
        """See ``Sizer``."""
        if feasible:
            self.fewest = counts
        else:
            self._known.append(counts)
        if self.fewest is not None:
            self.next = self._cheaper()
        else:
            self.next = self._larger(counts, violation, pool) if healable else None

    def _larger(self, counts: Counts, miss: float, pool: int) -> Counts | None:
        """Twice the workers of ``pool``, or of another pool if growing this one has just not helped."""
        if self._miss is not None:
            if miss >= self._miss * (1 - LEAST_GAIN):
                self._stalled.add(self._grown)
            else:
                self._stalled.clear()
        self._miss = miss if self._miss is None else min(self._miss, miss)
        self._largest = counts
        for index in (pool, *(candidate for candidate in range(len(counts)) if candidate != pool)):
            grown = self._doubled(counts, index)
            if index not in self._stalled and grown is not None:
                self._grown = index
                return grown
        return None

    def _doubled(self, counts: Counts, index: int) -> Counts | None:
        """Twice as many workers of a pool, or as many as are allowed; None at the limit."""
        for count in range(min(2 * counts[index], self._most[index]), counts[index], -1):
            grown = (*counts[:index], count, *counts[index + 1 :])
            if self._allowed(grown):
                return grown
        return None

    def _cheaper(self) -> Counts | None:
        """The open counts cheaper than the best whose simulation rules out most in the worse case."""
        assert self.fewest is not None
        usd = float(self._usd @ self.fewest)
        if self._open is None:
            self._open = self._grid(usd)
        open_, prices = self._open, self._prices(self._open.shape)
        open_ &= prices < usd * (1 - _ROUNDING)
        for known in self._known:
            open_[tuple(slice(0, count) for count in known)] = False
        self._known.clear()
        left = np.argwhere(open_)
        if not len(left):
            return None
        ours = prices[open_]
        if_feasible = len(ours) - np.searchsorted(np.sort(ours), ours * (1 - _ROUNDING))
        if_missed = _at_most(open_)[open_]
        order = np.lexsort((*left.T[::-1], ours, -np.minimum(if_feasible, if_missed)))
        return tuple(int(index) + 1 for index in left[order[0]])

    def _grid(self, usd: float) -> np.ndarray:
        """Mask of allowed counts, at most as many of each pool as ``usd`` pays for; index 0 is one worker."""
        shape = tuple(self._within(usd, index) for index in range(len(self._usd)))
        ranks = np.tensordot(np.asarray(self._ranks), np.indices(shape) + 1, axes=1)
        return np.asarray(ranks <= self._most_ranks)

    def _prices(self, shape: tuple[int, ...]) -> np.ndarray:
        """Dollars per hour of all counts of a grid."""
        return np.asarray(np.tensordot(self._usd, np.indices(shape) + 1, axes=1))

    def _within(self, usd: float, index: int) -> int:
        """Most workers of a pool that ``usd`` pays for, with one worker of each other pool."""
        others = float(self._usd.sum() - self._usd[index])
        if self._usd[index] <= 0:
            return self._most[index]
        return max(min(int((usd - others) / self._usd[index] * (1 + _ROUNDING)), self._most[index]), 1)


def _at_most(open_: np.ndarray) -> np.ndarray:
    """For each cell of a grid, the number of true cells with at most its index in every dimension."""
    counts = open_.astype(np.int64)
    for axis in range(open_.ndim):
        counts = np.cumsum(counts, axis=axis)
    return counts
