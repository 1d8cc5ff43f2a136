"""In the order of creation, but what was used since goes to the end of the line once (second chance)."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.base.policies import EvictionPolicy
from hisearch.kernels.layout.hicache import GOES, GOES_ROUND

EVICTION = EvictionPolicy(
    "What was cached first goes first, unless it was used since: then it goes round once.",
    pages="stored first, but one that was used again goes back to the end of the line, once for each pass",
)


@kernel
def before(sim, a, b):
    """By creation, or when the hand came by."""
    return sim.nodes[a].serial < sim.nodes[b].serial


@kernel
def second_chance(sim, v, d):
    """Once for each round in which it was used."""
    if sim.nodes[d].hits > 0:
        sim.nodes[d].hits = 0
        return GOES_ROUND
    return GOES
