"""The largest load that a deployment holds with a required probability: step times as uncertain as they are stated.

Every draw scales step times by its own factors, for as long as the load lasts; it holds a load or misses it. Verdicts
are taken to be monotone in load: a draw that holds one holds every smaller one. A load is tried on the draws with the
slowest steps first, so that one which too many of them miss is soon refused. The others are tried at the smallest load
that was refused: what holds that need not be tried again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

#: Relative distance of the largest load that has the probability and the smallest that lacks it.
TOLERANCE = 0.02

#: First factor below a load that lacks the probability; squared at every further step until one has it.
STEP = 1.1

#: Smallest load tried, as a share of the first.
LEAST_SHARE = 0.02

#: Draws simulated at once: fixed, so that the answer does not depend on the threads.
BATCH = 8

#: Runs a function on every item, in threads.
Each = Callable[[Callable[[int], bool], Sequence[int]], list[bool]]


@dataclass(frozen=True)
class AssuredLoad:
    """Outcome.

    load: the largest tried that at least ``at_least`` of the draws hold; 0.0 if none does. share: of the draws that
    hold it. share_first: of those that hold the load at which the search began; None if a limit left it open. ended:
    the limit that ended the search before the tolerance was reached, or "".
    """

    load: float
    at_least: float
    share: float
    share_first: float | None
    draws: int
    simulations: int
    ended: str = ""


class _Verdicts:
    """What is known of every draw: the largest load that it held, the smallest that it missed."""

    def __init__(self, holds: Callable[[int, float], bool], slowest: Sequence[int], each: Each, near: int) -> None:
        self._holds, self._slowest, self._each = holds, slowest, each
        self._near = frozenset(slowest[:near])
        self._held = dict.fromkeys(slowest, 0.0)
        self._missed = dict.fromkeys(slowest, math.inf)
        self.simulations = 0

    def holding(self, load: float) -> int:
        """Draws known to hold ``load``."""
        return sum(held >= load for held in self._held.values())

    def missing(self, load: float) -> int:
        """Draws known to miss it."""
        return sum(missed <= load for missed in self._missed.values())

    def learn(self, load: float, refused: float, most_missing: int, over: Callable[[], str]) -> str:
        """Simulate draws until all are decided or more than ``most_missing`` miss; the limit that ended it, or ""."""
        while self.missing(load) <= most_missing:
            undecided = [draw for draw in self._slowest if self._open(draw, load)][:BATCH]
            if not undecided or (ended := over()):
                return "" if not undecided else ended
            self._simulate({d: load if d in self._near or not self._open(d, refused) else refused for d in undecided})
        return ""

    def _simulate(self, loads: Mapping[int, float]) -> None:
        """Simulate draws, each at its load."""
        draws = list(loads)
        for draw, held in zip(draws, self._each(lambda d: self._holds(d, loads[d]), draws), strict=True):
            (self._held if held else self._missed)[draw] = loads[draw]
        self.simulations += len(draws)

    def _open(self, draw: int, load: float) -> bool:
        return self._held[draw] < load < self._missed[draw]


def assured_load(
    holds: Callable[[int, float], bool],
    slowest: Sequence[int],
    at_least: float,
    start: float,
    *,
    each: Each,
    over: Callable[[], str] = lambda: "",
) -> AssuredLoad:
    """Search downwards from a load.

    Args:
        holds: whether a draw, by number, holds a load; called from several threads at once.
        slowest: the numbers of all draws, those with the slowest steps first; at least one.
        at_least: required share of them, above 0 and below 1.
        start: the first load, which is the largest tried.
        each: see ``Each``.
        over: the limit that lets no new simulation begin, or "".
    """
    count = len(slowest)
    allowed = count - math.ceil(at_least * count - 1e-9)
    verdicts = _Verdicts(holds, slowest, each, 2 * allowed + BATCH)
    best, refused, load, step = 0.0, math.inf, start, STEP
    while not (ended := verdicts.learn(load, refused, allowed, over)):
        if verdicts.missing(load) <= allowed:
            best = load
        else:
            refused = load
        if refused <= best * (1.0 + TOLERANCE) or best == start:
            break
        if best > 0.0:
            load = math.sqrt(best * refused)
        elif refused <= LEAST_SHARE * start:
            break
        else:
            load, step = max(refused / step, LEAST_SHARE * start), step * step
    is_open = verdicts.learn(start, math.inf, count, over)
    share_first = None if is_open else verdicts.holding(start) / count
    share = verdicts.holding(best) / count if best else 0.0
    return AssuredLoad(best, at_least, share, share_first, count, verdicts.simulations, ended)
