"""A random worker that takes requests."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.base.policies import RouterPolicy
from hisearch.kernels.core import rng

ROUTER = RouterPolicy("A random worker.")


@kernel
def choose(fleet, route, k, r, now):
    """Any member that is up, with equal probability."""
    return fleet.up[route.first + rng.below(fleet.rng[k], route.ups)]
