"""A random worker that takes requests.

Rule: ``random`` of sglang-router 0.3.2 (``policies/random.rs``).
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.base.policies import RouterPolicy
from hisearch.kernels.routing import draws

ROUTER = RouterPolicy(
    "A random worker.",
    product="sglang-router",
    cost="1",
)


@kernel
def choose(fleet, route, k, r, now):
    """Any member that is up, with equal probability."""
    return draws.any_up(fleet, route, k)
