"""By a hash of the session or of the prompt's beginning: what belongs together goes to one worker.

A request's key lies on a ring. The next point of a member that is up takes it, unless that one has more than
``load_factor`` times the mean of requests in flight; then the next one that has not (bounded loads: Mirrokni, Thorup
and Zadimoghaddam 2018).
"""

from __future__ import annotations

import numpy as np

from hisearch.base.jit import kernel
from hisearch.base.policies import Parameter, RouterPolicy
from hisearch.kernels.layout import fleet as fl

ROUTER = RouterPolicy(
    "By session or prefix.",
    parameters=(
        Parameter(
            "hash_key",
            "session",
            "what is hashed, the session or the prompt's first tokens.",
            choices=("session", "prefix"),
            search=("session",),
        ),
        Parameter(
            "prefix_tokens",
            256,
            "by prefix: tokens that are hashed.",
            at_least=1,
            search=(256,),
            only_with=("hash_key", "prefix"),
        ),
        Parameter(
            "load_factor",
            1.25,
            "a worker takes at most so many times the mean of requests in flight.",
            at_least=1.0,
            search=(1.25,),
        ),
    ),
    sees=("keys", "prefixes", "requests"),
    shares_load=False,
    cost="workers + points",
)


@kernel
def choose(fleet, route, k, r, now):
    """The member for ``r``; where all points are overloaded, the first one of a member that is up."""
    points = fleet.ring.shape[0]
    total = 0
    for place in range(route.ups):
        total += fleet.members[fleet.up[route.first + place]].inflight_requests
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
    for ahead in range(points):
        m = np.int64(fleet.ring_member[(low + ahead) % points])
        if m < route.first or m >= route.first + route.members or fleet.members[m].state != fl.UP:
            continue
        if fleet.members[m].inflight_requests + 1 <= limit:
            return m
        if first < 0:
            first = m
    return first
