"""The fewest replicas that meet the SLO, by simulation."""

from __future__ import annotations

#: Doubling the replicas must reduce the worst miss by at least this share; otherwise more will not help.
LEAST_GAIN = 0.02


class Sizing:
    """Asks for replica counts and narrows them down to the fewest that are feasible.

    Grows by doubling from a first guess until one count is feasible, then bisects. Shrinks in growing steps while
    counts stay feasible. More replicas are assumed to help, as they nearly always do. If doubling no longer reduces the
    worst miss, the search gives up: the miss (a long prompt's prefill, say) does not depend on load. Rejections never
    do: a request is rejected for its size, as each worker must hold it alone. Every count that it relies on was
    simulated.
    """

    def __init__(self, guess: int, most: int) -> None:
        """Start at ``guess``, in [1, ``most``]."""
        self._most = most
        self._next: int | None = min(max(guess, 1), most)
        self._feasible: int | None = None
        self._infeasible = 0
        self._step = 1
        self._miss: float | None = None

    @property
    def next(self) -> int | None:
        """Replica count to simulate now; None when done."""
        return self._next

    @property
    def fewest(self) -> int | None:
        """Fewest replicas seen to meet the SLO, or None."""
        return self._feasible

    @property
    def best_guess(self) -> int:
        """The fewest feasible count, else the largest tried."""
        return self._feasible if self._feasible is not None else max(self._infeasible, 1)

    def tell(self, replicas: int, feasible: bool, violation: float, healable: bool = True) -> None:
        """Report the result of the requested count.

        Args:
            replicas: the count.
            feasible: whether it meets the SLO.
            violation: excess of the worst term over its bound.
            healable: False if more replicas cannot help, because too many requests are rejected.
        """
        if feasible:
            self._feasible = replicas
            self._next = self._below(replicas)
        elif not healable:
            self._infeasible, self._next = max(self._infeasible, replicas), None
        elif self._feasible is not None:
            self._infeasible = max(self._infeasible, replicas)
            self._next = self._below(self._feasible)
        else:
            self._next = self._above(replicas, violation)

    def cap(self, most: int) -> None:
        """Ask for at most ``most`` from now on; done if fewer replicas are known to miss the SLO."""
        self._most = min(self._most, most)
        if self._next is not None and self._next > self._most:
            self._next = self._most if self._most > self._infeasible else None

    def stop(self) -> None:
        """Ask for no more, for a spent budget or a deployment that cannot be simulated."""
        self._next = None

    def _below(self, feasible: int) -> int | None:
        if feasible - self._infeasible <= 1:
            return None
        if self._infeasible:
            return (feasible + self._infeasible) // 2
        step, self._step = self._step, self._step * 2
        return max(feasible - step, 1)

    def _above(self, infeasible: int, miss: float) -> int | None:
        stalled = self._miss is not None and miss >= self._miss * (1 - LEAST_GAIN)
        self._infeasible, self._miss = infeasible, miss
        if stalled or infeasible >= self._most:
            return None
        return min(infeasible * 2, self._most)
