"""The less loaded of two random workers."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.base.policies import RouterPolicy
from hisearch.kernels.core import rng

ROUTER = RouterPolicy("Of two random workers the less loaded by tokens.")


@kernel
def choose(fleet, route, k, r, now):
    """Two distinct random members; fewer in-flight tokens, then fewer requests, then the lower one."""
    first = rng.below(fleet.rng[k], route.ups)
    second = rng.below(fleet.rng[k], route.ups - 1)
    if second >= first:
        second += 1
    a = fleet.up[route.first + min(first, second)]
    b = fleet.up[route.first + max(first, second)]
    ma = fleet.members[a]
    mb = fleet.members[b]
    if mb.inflight_tokens < ma.inflight_tokens:
        return b
    if mb.inflight_tokens == ma.inflight_tokens and mb.inflight_requests < ma.inflight_requests:
        return b
    return a
