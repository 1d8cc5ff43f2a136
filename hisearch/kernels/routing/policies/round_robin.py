"""The workers in turn.

Rule: ``round_robin`` of sglang-router 0.3.2 (``policies/round_robin.rs``).
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.base.policies import RouterPolicy, State

ROUTER = RouterPolicy(
    "The workers in turn.",
    state=(State("turn", "i8"),),
    product="sglang-router",
    cost="1",
)


@kernel
def choose(fleet, route, k, r, now):
    """A counter of requests, modulo the members that are up."""
    place = route.turn % route.ups
    route.turn += 1
    return fleet.up[route.first + place]
