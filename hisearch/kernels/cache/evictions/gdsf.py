"""The lowest value first: what was evicted last, plus uses times the cost of computing a token again.

Greedy-Dual-Size-Frequency (Cherkasova 1998). A token at depth d costs 1 + d / ``store_runs.ATTENTION_TOKENS``.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.base.policies import EvictionPolicy
from hisearch.kernels.cache import recency

EVICTION = EvictionPolicy(
    "Lowest recompute cost per byte first, aged.",
    deepest_first=False,
    pages="greedy dual by frequency and cost: least clock + uses * cost, the clock being the greatest such value "
    "evicted before the last use, the cost that of computing the page's tokens again; then least recently used",
)


@kernel
def before(sim, a, b):
    """By value, then last access."""
    va = sim.hosted[a].value
    vb = sim.hosted[b].value
    return va < vb if va != vb else recency.older(sim, a, b)


@kernel
def going(sim, v, d):
    """What is used from now on is worth at least as much as what goes now."""
    sim.trees[v].worth = max(sim.trees[v].worth, sim.hosted[d].value)
