"""What was cached first goes first."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.base.policies import EvictionPolicy

EVICTION = EvictionPolicy(
    "What was cached first goes first.",
    engine=True,
    pages="stored first",
)


@kernel
def before(sim, a, b):
    """By creation."""
    return sim.nodes[a].serial < sim.nodes[b].serial
