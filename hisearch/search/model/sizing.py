"""The fewest workers that meet the SLO, by simulation."""

from __future__ import annotations

#: Doubling the replicas must reduce the worst miss by at least this share; otherwise more will not help.
LEAST_GAIN = 0.02


#: Workers of each pool.
Counts = tuple[int, ...]


class Sizer:
    """Asks for counts, one at a time, until the cheapest that meet the SLO are known; it returns simulated ones alone.

    next: counts to simulate now; None when done. fewest: cheapest counts seen to meet the SLO, or None.
    """

    def __init__(self, first: Counts | None) -> None:
        """Begin with these counts; None: nothing is allowed."""
        self.next = first
        self.fewest: Counts | None = None
        self._largest: Counts = first or ()

    @property
    def best_guess(self) -> Counts:
        """The cheapest feasible counts, else the largest tried."""
        return self.fewest if self.fewest is not None else self._largest

    def tell(self, counts: Counts, feasible: bool, violation: float, healable: bool = True, pool: int = 0) -> None:
        """Report the result of the requested counts.

        Args:
            counts: of each pool.
            feasible: whether they meet the SLO.
            violation: excess of the worst term over its bound.
            healable: False if more workers cannot help, because too many requests are rejected.
            pool: pool of the worst missed term.
        """
        raise NotImplementedError

    def stop(self) -> None:
        """Ask for no more, for a spent budget or a deployment that cannot be simulated."""
        self.next = None


class Sizing(Sizer):
    """Asks for replica counts and narrows them down to the fewest that are feasible.

    Grows by doubling from a first guess until one count is feasible, then bisects. Shrinks in growing steps while
    counts stay feasible. More replicas are assumed to help, as they nearly always do. If doubling no longer reduces the
    worst miss, the search gives up: the miss (a long prompt's prefill, say) does not depend on load. Rejections never
    do: a request is rejected for its size, as each worker must hold it alone.
    """

    def __init__(self, guess: int, most: int) -> None:
        """Start at ``guess`` replicas of the one pool, in [1, ``most``]."""
        super().__init__((min(max(guess, 1), most),))
        self._most = most
        self._infeasible = 0
        self._step = 1
        self._miss: float | None = None

    def tell(self, counts: Counts, feasible: bool, violation: float, healable: bool = True, pool: int = 0) -> None:
        """See ``Sizer``."""
        replicas = counts[0]
        if feasible:
            self.fewest = counts
            self._ask(self._below(replicas))
            return
        stalled = self._miss is not None and violation >= self._miss * (1 - LEAST_GAIN)
        self._infeasible = max(self._infeasible, replicas)
        self._largest = (self._infeasible,)
        if not healable:
            self._ask(None)
        elif self.fewest is not None:
            self._ask(self._below(self.fewest[0]))
        else:
            self._miss = violation
            self._ask(None if stalled or replicas >= self._most else min(replicas * 2, self._most))

    def cap(self, most: int) -> None:
        """Ask for at most ``most`` from now on; done if fewer replicas are known to miss the SLO."""
        self._most = min(self._most, most)
        if self.next is not None and self.next[0] > self._most:
            self._ask(self._most if self._most > self._infeasible else None)

    def _ask(self, replicas: int | None) -> None:
        self.next = None if replicas is None else (replicas,)

    def _below(self, feasible: int) -> int | None:
        if feasible - self._infeasible <= 1:
            return None
        if self._infeasible:
            return (feasible + self._infeasible) // 2
        step, self._step = self._step, self._step * 2
        return max(feasible - step, 1)
