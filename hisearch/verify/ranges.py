"""How well a measurement tells a correction: the values that explain it as well as the best ones do.

Each term is moved away from its best value, the others held, until the measurement is explained worse. Slow prefill and
lost cache hits do the same to a queue, and near saturation the queue is most of what is measured: of these two, pairs
are looked at, prefill fitted anew at each share of lost hits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np

from hisearch.verify.terms import Term, Variables, correction_of

#: Terms that do the same to a queue, and shares of the second one at which the first is fitted anew.
TANGLED = ("prefill", "hits_lost")
_SHARES = 3
#: Halvings on the way to where a term explains worse.
_HALVINGS = 5


#: Whether a point explains the measurements as well as the best one, but for luck.
Explains = Callable[[dict[str, float]], bool]


class Search(Protocol):
    """What tells how well a point explains the measurements: ``correction_search``."""

    terms: tuple[Term, ...]

    def left(self, variables: Variables) -> tuple[float, ...]:
        """What is left of the figures and of the step times, one by one."""

    def luck(self, variables: Variables) -> float:
        """By how much either may be larger for no other reason than which prompts lose their hits."""

    def with_term(self, others: Variables, term: Term) -> dict[str, float]:
        """``others`` and the best value of ``term`` beside them."""


def ranges(search: Search, best: Mapping[str, float], tolerance: float) -> dict[str, tuple[float, float]]:
    """Lowest and highest value of each term among points that explain as well as ``best``.

    Args:
        search: tells how well.
        best: the correction that was found, a point of the search.
        tolerance: on what is left, beside luck, where ``best`` leaves less.

    Returns:
        By name, in the term's own unit; of the terms of ``best``, and of those that may stand in for them.
    """
    # Where even the best leaves much, what leaves as much again is no worse an explanation: of the figures and of the
    # step times each, since noise that one of them has excuses nothing in the other.
    limits = [left + max(tolerance, left) for left in search.left(dict(best))]

    def explains(point: Variables) -> bool:
        luck = search.luck(point)
        return all(left <= limit + luck for left, limit in zip(search.left(point), limits, strict=True))

    by_name = {term.name: term for term in search.terms}
    points = [dict(best)]
    for name in best:
        term = by_name[name]
        points += [_farthest(explains, best, name, bound) for bound in (term.low, term.high)]
    if any(name in best for name in TANGLED):
        points += [point for point in _pairs(search, best, by_name) if explains(point)]
    corrections = [correction_of(point) for point in points]
    names = dict.fromkeys(name for point in points for name in point)
    values = {name: [one.value(name) for one in corrections] for name in names}
    return {name: (min(found), max(found)) for name, found in values.items()}


def _farthest(explains: Explains, best: Mapping[str, float], name: str, bound: float) -> dict[str, float]:
    """``best`` with one term as far towards a bound as it still explains as well."""
    if explains({**best, name: bound}):
        return {**best, name: bound}
    near, far = best[name], bound
    for _ in range(_HALVINGS):
        middle = (near + far) / 2
        near, far = (middle, far) if explains({**best, name: middle}) else (near, middle)
    return {**best, name: near}


def _pairs(search: Search, best: Mapping[str, float], by_name: Mapping[str, Term]) -> list[dict[str, float]]:
    """Other shares of lost hits and the prefill that goes with each, beside the other terms of ``best`` and alone."""
    speed, lost = TANGLED
    others = {name: x for name, x in best.items() if name not in TANGLED}
    shares = np.linspace(by_name[lost].low, by_name[lost].high, _SHARES + 1).tolist()
    beside = [others, {}] if others else [{}]
    return [search.with_term({**held, lost: share}, by_name[speed]) for held in beside for share in shares]
