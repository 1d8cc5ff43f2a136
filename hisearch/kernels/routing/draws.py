"""Choices that a router leaves to chance: a stream's, or, where a recording is followed, those that it tells.

Workers are told by their place in the router's order.
"""

from __future__ import annotations

import numpy as np

from hisearch.base.jit import kernel
from hisearch.kernels.core import rng
from hisearch.kernels.layout import fleet as fl


@kernel
def one_of(fleet, route, k, count, drawn):
    """One of the first ``count`` places of ``Fleet.candidates``: the one ``drawn``, if it is among them."""
    if count == 1:
        return fleet.candidates[route.first]
    route.draws += 1
    for c in range(count):
        if fleet.candidates[route.first + c] == drawn:
            return drawn
    return fleet.candidates[route.first + rng.below(fleet.rng[k], count)]


@kernel
def _is_up(fleet, route, place):
    return 0 <= place < route.members and fleet.members[fleet.at_place[route.first + place]].state == fl.UP


@kernel
def any_up(fleet, route, k):
    """Any member that takes requests, with equal probability."""
    if route.ups == 1:
        return fleet.up[route.first]
    route.draws += 1
    if _is_up(fleet, route, route.drawn):
        return fleet.at_place[route.first + route.drawn]
    return fleet.up[route.first + rng.below(fleet.rng[k], route.ups)]


@kernel
def two_up(fleet, route, k):
    """Two members that take requests, the first of all, the second of the others; there are at least two."""
    route.draws += 1
    if route.drawn != route.drawn_next and _is_up(fleet, route, route.drawn) and _is_up(fleet, route, route.drawn_next):
        return fleet.at_place[route.first + route.drawn], fleet.at_place[route.first + route.drawn_next]
    first = rng.below(fleet.rng[k], route.ups)
    second = (first + 1 + rng.below(fleet.rng[k], route.ups - 1)) % route.ups
    return fleet.up[route.first + first], fleet.up[route.first + second]


@kernel
def by_score(fleet, route, k, total):
    """A member that takes requests, with its share of ``Fleet.scores``, which add up to ``total``, as probability."""
    route.draws += 1
    if _is_up(fleet, route, route.drawn):
        return np.int64(fleet.at_place[route.first + route.drawn])
    point = rng.unit(fleet.rng[k])
    reached = 0.0
    for place in range(route.ups):
        reached += fleet.scores[route.first + place] / total
        if point <= reached:
            return np.int64(fleet.up[route.first + place])
    return np.int64(fleet.up[route.first + route.ups - 1])
