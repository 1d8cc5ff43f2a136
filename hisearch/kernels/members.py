"""Who takes requests: members that come up, and what a route knows when it starts."""

from __future__ import annotations

import numpy as np

from hisearch.kernels import buckets, flow, tournament
from hisearch.kernels import fleet_layout as fl
from hisearch.kernels.jit import kernel


@kernel
def _list_ups(fleet, route):
    """Write down who of ``route`` takes requests."""
    route.ups = 0
    for k in range(route.members):
        m = route.first + k
        if fleet.members[m].state == fl.UP:
            fleet.up[route.first + route.ups] = m
            route.ups += 1


@kernel
def come_up(fleet, m, now):
    """Member ``m`` takes requests from ``now`` on, its caches cold."""
    member = fleet.members[m]
    member.state = fl.UP
    member.up_s = now
    _list_ups(fleet, fleet.routes[member.route])
    flow.note_load(fleet, m)
    flow.note_belief(fleet, m)


@kernel
def reset(fleet):
    """All members are up, and nothing is known of them."""
    for row in range(fleet.keys.shape[0]):
        tournament.clear(fleet.keys[row], fleet.winners[row])
    fleet.belief[:] = 0
    for m in range(fleet.members.shape[0]):
        member = fleet.members[m]
        member.state = fl.UP
        member.up_s = 0.0
        member.gone_s = np.nan
        flow.note_load(fleet, m)
        flow.note_belief(fleet, m)
    for k in range(fleet.routes.shape[0]):
        _list_ups(fleet, fleet.routes[k])
        buckets.reset(fleet, fleet.routes[k])
