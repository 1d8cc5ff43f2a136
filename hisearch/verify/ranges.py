"""The precision of a correction: the values that explain the measurement as well as the best ones.

Each term is moved away from its best value, the others fixed, until the measurement is explained worse. Slow prefill
and lost cache hits have the same effect on a queue, and near saturation the queue dominates the measurement. So have
fast prefill and prompts that begin alike. They are therefore varied as pairs, with prefill refitted at each share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np

from hisearch.verify.terms import Term, Variables, correction_of

#: Terms with the same effect on a queue, and shares at which the first is refitted; one of the others is searched.
TANGLED = ("prefill", "hits_lost", "shared")
_SHARES = 3
#: Halvings of the search for the value at which a term explains worse.
_HALVINGS = 5


#: Whether a point explains the measurements as well as the best one, apart from luck.
Explains = Callable[[dict[str, float]], bool]


class Search(Protocol):
    """Evaluates how well a point explains the measurements, see ``correction_search``."""

    terms: tuple[Term, ...]

    def left(self, variables: Variables) -> tuple[float, ...]:
        """Remaining differences of the figures and of the step times."""

    def luck(self, variables: Variables) -> float:
        """By how much either may be larger only because other prompts lose their hits."""

    def with_term(self, others: Variables, term: Term) -> dict[str, float]:
        """``others`` with the best value of ``term`` added."""


def ranges(search: Search, best: Mapping[str, float], tolerance: float) -> dict[str, tuple[float, float]]:
    """Lowest and highest value of each term among points that explain as well as ``best``.

    Args:
        search: evaluates points.
        best: the chosen correction, a point of the search.
        tolerance: on remaining differences, in addition to luck, where those of ``best`` are smaller.

    Returns:
        By name, in the term's own unit; of the terms of ``best`` and of their substitutes.
    """
    # If even the best leaves a large difference, twice that difference is as good an explanation. This holds for the
    # figures and the step times separately: noise in one of them does not excuse the other.
    limits = [remaining + max(tolerance, remaining) for remaining in search.left(dict(best))]

    def explains(point: Variables) -> bool:
        luck = search.luck(point)
        return all(remaining <= limit + luck for remaining, limit in zip(search.left(point), limits, strict=True))

    by_name = {term.name: term for term in search.terms}
    points = [dict(best)]
    for name in best:
        term = by_name[name]
        points += [_farthest(explains, best, name, bound) for bound in (term.low, term.high)]
    if any(name in best for name in TANGLED) and len(by_name.keys() & set(TANGLED)) > 1:
        points += [point for point in _pairs(search, best, by_name) if explains(point)]
    corrections = [correction_of(point) for point in points]
    names = dict.fromkeys(name for point in points for name in point)
    values = {name: [correction.value(name) for correction in corrections] for name in names}
    return {name: (min(reached), max(reached)) for name, reached in values.items()}


def _farthest(explains: Explains, best: Mapping[str, float], name: str, bound: float) -> dict[str, float]:
    """``best`` with one term moved towards a bound as far as it still explains as well."""
    if explains({**best, name: bound}):
        return {**best, name: bound}
    near, far = best[name], bound
    for _ in range(_HALVINGS):
        middle = (near + far) / 2
        near, far = (middle, far) if explains({**best, name: middle}) else (near, middle)
    return {**best, name: near}


def _pairs(search: Search, best: Mapping[str, float], by_name: Mapping[str, Term]) -> list[dict[str, float]]:
    """Other shares, each with its best prefill, with the other terms of ``best`` and alone."""
    speed, lost = (name for name in TANGLED if name in by_name)
    other_terms = {name: x for name, x in best.items() if name not in TANGLED}
    shares = np.linspace(by_name[lost].low, by_name[lost].high, _SHARES + 1).tolist()
    bases = [other_terms, {}] if other_terms else [{}]
    return [search.with_term({**base, lost: share}, by_name[speed]) for base in bases for share in shares]
