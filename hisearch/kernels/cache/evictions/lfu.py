"""The least frequently used first."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.base.policies import EvictionPolicy
from hisearch.kernels.cache import recency

EVICTION = EvictionPolicy(
    "Least frequently used first.",
    engine=True,
    hits=True,
    every_hit=True,
    pages="least often used since it was stored, then least recently used",
)


@kernel
def before(sim, a, b):
    """By hits, then last access."""
    ka = sim.nodes[a].hits
    kb = sim.nodes[b].hits
    return ka < kb if ka != kb else recency.older(sim, a, b)
