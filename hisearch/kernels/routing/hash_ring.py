"""The router policy *consistent_hash*: a request's key, its session or its prompt's beginning, lies on a ring.

The next point of a member that is up takes it, unless that one has more than ``load_factor`` times the mean of requests
in flight; then the next one that has not (bounded loads: Mirrokni, Thorup and Zadimoghaddam 2018).
"""

from __future__ import annotations

import numpy as np

from hisearch.base.jit import kernel
from hisearch.kernels.layout import fleet as fl


@kernel
def choose(fleet, route, r):
    """The member for ``r``; where all points are overloaded, the first one of a member that is up."""
    points = fleet.ring.shape[0]
    total = 0
    for k in range(route.ups):
        total += fleet.members[fleet.up[route.first + k]].inflight_requests
    limit = route.load_factor * (total + 1) / route.ups
    key = fleet.affinity[r]
    low = 0
    high = points
    while low < high:
        middle = (low + high) // 2
        if fleet.ring[middle] < key:
            low = middle + 1
        else:
            high = middle
    first = -1
    for k in range(points):
        m = np.int64(fleet.ring_member[(low + k) % points])
        if m < route.first or m >= route.first + route.members or fleet.members[m].state != fl.UP:
            continue
        if fleet.members[m].inflight_requests + 1 <= limit:
            return m
        if first < 0:
            first = m
    return first
