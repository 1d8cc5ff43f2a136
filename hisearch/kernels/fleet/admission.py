"""Admission of arriving requests by a router."""

from __future__ import annotations

import numpy as np

from hisearch.base.jit import kernel
from hisearch.kernels.layout import fleet as fl
from hisearch.kernels.traffic import flow


@kernel
def _below_cap(fleet, front):
    """Whether a model has fewer requests in flight than the cap of all its members that are up."""
    total = 0
    for k in range(front, front + fl.SIDES):
        route = fleet.routes[k]
        for m in range(route.first, route.first + route.members):
            total += fleet.members[m].inflight_requests
    return total < fleet.config.queue_cap * fleet.routes[front].ups


@kernel
def _takes_token(fleet, now):
    """Take a token out of the bucket, which fills at a rate; False where there is none."""
    config = fleet.config
    config.tokens = min(config.tokens_burst, config.tokens + (now - config.tokens_s) * config.tokens_rps)
    config.tokens_s = now
    if config.tokens < 1.0:
        return False
    config.tokens -= 1.0
    return True


@kernel
def _in_time(fleet, front):
    """Whether the member with the shortest wait computes its waiting prompts within ``shed_s``."""
    route = fleet.routes[front]
    least = np.inf
    for k in range(route.ups):
        member = fleet.members[fleet.up[route.first + k]]
        least = min(least, member.outstanding_tokens / member.prefill_tokens_per_s)
    return least <= fleet.config.shed_s


@kernel
def admits(fleet, r, now):
    """Whether request ``r``, which arrives at ``now``, is admitted."""
    rule = fleet.config.admission
    if rule == fl.ADMIT_ALL:
        return True
    if rule == fl.QUEUE_CAP:
        return _below_cap(fleet, flow.front_of(fleet, r))
    if rule == fl.TOKEN_BUCKET:
        return _takes_token(fleet, now)
    return _in_time(fleet, flow.front_of(fleet, r))
