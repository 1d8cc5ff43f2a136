"""The workers in turn."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.base.policies import RouterPolicy, State

ROUTER = RouterPolicy("The workers in turn.", state=(State("turn", "i8"),))


@kernel
def choose(fleet, route, k, r, now):
    """The member behind the one that was chosen last."""
    place = route.turn % route.ups
    route.turn = place + 1
    return fleet.up[route.first + place]
