"""The cheapest worker that is not full."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.base.policies import Parameter, RouterPolicy

ROUTER = RouterPolicy(
    "The cheapest worker that is not full.",
    parameters=(
        Parameter(
            "fill_requests",
            8,
            "requests in flight on a worker of full capacity before a dearer one is asked.",
            at_least=1,
            search=(8,),
        ),
    ),
    sees=("requests", "price", "speed"),
    cost="workers",
)


@kernel
def choose(fleet, route, k, r, now):
    """The cheapest for its weight that is not full; where all are, the least loaded for its weight."""
    cheapest = -1
    lightest = -1
    for place in range(route.ups):
        m = fleet.up[route.first + place]
        member = fleet.members[m]
        other = fleet.members[max(lightest, 0)]
        load = member.inflight_requests / member.weight
        if lightest < 0 or load < other.inflight_requests / other.weight:
            lightest = m
        if member.inflight_requests >= route.fill_requests * member.weight:
            continue
        other = fleet.members[max(cheapest, 0)]
        if cheapest < 0 or member.price / member.weight < other.price / other.weight:
            cheapest = m
    return cheapest if cheapest >= 0 else lightest
