"""The latest next use first: an oracle that knows the trace, and only bounds what a policy could reach.

Of those with the same next use the deepest goes first. Nothing goes that is used before what it would make room for.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.base.policies import EvictionPolicy
from hisearch.kernels.cache import foresight, recency

EVICTION = EvictionPolicy(
    "Latest next use first, by an oracle that knows the trace: bounds what a policy could reach.",
    deepest_first=False,
    next_use=True,
    pages="next looked up last; what was just stored may go at once",
)


@kernel
def before(sim, a, b):
    """By next use, then last access."""
    na = sim.nodes[a]
    nb = sim.nodes[b]
    if foresight.later(sim, na.trace_node, na.begin, nb.trace_node, nb.begin):
        return True
    if foresight.later(sim, nb.trace_node, nb.begin, na.trace_node, na.begin):
        return False
    return recency.older(sim, a, b)


@kernel
def goes_for(sim, d, s, begin):
    """Only for what is used earlier."""
    return foresight.later(sim, sim.nodes[d].trace_node, sim.nodes[d].begin, s, begin)
