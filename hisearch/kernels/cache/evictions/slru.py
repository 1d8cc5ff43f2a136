"""What has had fewer than two hits first (segmented LRU)."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.base.policies import EvictionPolicy
from hisearch.kernels.cache import recency

EVICTION = EvictionPolicy(
    "What has had fewer than two hits, then the others, by last use each.",
    engine=True,
    hits=True,
    pages="least recently used of those never used again since they were stored, then of the others",
)

#: Nodes with so many hits are protected.
PROTECTED_HITS = 2


@kernel
def before(sim, a, b):
    """Unprotected ones, then the others, by last access."""
    ka = sim.nodes[a].hits >= PROTECTED_HITS
    kb = sim.nodes[b].hits >= PROTECTED_HITS
    return kb if ka != kb else recency.older(sim, a, b)
