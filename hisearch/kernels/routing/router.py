"""Routers: which member a request goes to, by the policy of its route (``routing.policies``)."""

from __future__ import annotations

import numpy as np

from hisearch.base.jit import kernel
from hisearch.base.policies import ROUTERS
from hisearch.kernels.core.dispatch import dispatcher
from hisearch.kernels.routing import policies  # noqa: F401  (kernels are compiled from all of them)

_choose = dispatcher(ROUTERS, "choose", "fleet, route, k, r, now")
_reset = dispatcher(ROUTERS, "reset", "fleet, route", otherwise="None")


@kernel
def route(fleet, k, r, now):
    """Choose a member of route ``k`` for request ``r``, which is one of its model's; -1 where none takes requests."""
    own_route = fleet.routes[k]
    if own_route.ups == 0:
        return -1
    if own_route.members == 1:
        return np.int64(fleet.up[own_route.first])
    return np.int64(_choose(own_route.policy, fleet, own_route, k, r, now))


@kernel
def members_changed(fleet, k):
    """Other members than before take the requests of route ``k``."""
    _reset(fleet.routes[k].policy, fleet, fleet.routes[k])
