"""In turn, by capacity: smooth weighted round robin."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.base.policies import RouterPolicy, State

ROUTER = RouterPolicy(
    "In turn, by capacity.",
    member_state=(State("credit", "f8"),),
    sees=("speed",),
    cost="workers",
)


@kernel
def choose(fleet, route, k, r, now):
    """Each turn everyone earns its weight, and the richest pays for all."""
    chosen = -1
    total = 0.0
    for place in range(route.ups):
        m = fleet.up[route.first + place]
        member = fleet.members[m]
        member.credit += member.weight
        total += member.weight
        if chosen < 0 or member.credit > fleet.members[chosen].credit:
            chosen = m
    fleet.members[chosen].credit -= total
    return chosen
