"""By a hash of the session, modulo the workers.

Rule: ``consistent_hashing`` of sglang-router 0.3.2 over HTTP (``policies/consistent_hashing.rs``:
``find_by_consistent_hash``): the first 8 bytes of BLAKE3 of the header ``X-SMG-Routing-Key``. Its ring of points is
used where workers tell no model name. The key here is the session's number in decimal. The command line has no such
policy; ``RouterArgs`` takes it.
"""

from __future__ import annotations

import numpy as np

from hisearch.base.jit import kernel
from hisearch.base.policies import RouterPolicy

ROUTER = RouterPolicy(
    "By a hash of the session, modulo the workers.",
    sees=("keys",),
    shares_load=False,
    product="sglang-router",
    hash_order=True,
    cost="1",
)


@kernel
def choose(fleet, route, k, r, now):
    """The hash of the session modulo the members that are up, in the router's order."""
    return fleet.up[route.first + np.int64(fleet.affinity[r] % np.uint64(route.ups))]
