"""The most recently used first."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.base.policies import EvictionPolicy

EVICTION = EvictionPolicy(
    "Most recently used first.",
    engine=True,
    newest_first=True,
    pages="most recently used",
)


@kernel
def before(sim, a, b):
    """By last access, then age; the latest first."""
    na = sim.nodes[a]
    nb = sim.nodes[b]
    return na.tick > nb.tick or (na.tick == nb.tick and na.serial > nb.serial)
