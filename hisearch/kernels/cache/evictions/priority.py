"""The lowest priority first.

A node has the highest priority value among the requests that inserted it. Whichever way the waiting queue is ordered,
the engine evicts the lowest value first (SGLang's ``mem_cache/evict_policy.py``, 0.5.9).
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.base.policies import EvictionPolicy
from hisearch.kernels.cache import recency

EVICTION = EvictionPolicy(
    "Lowest priority first: of each run the highest among the requests that wrote or used it.",
    engine=True,
    priorities=True,
    pages="lowest of the greatest priority values of those that used it, then least recently used",
)


@kernel
def before(sim, a, b):
    """By priority value, then last access."""
    ka = sim.node_ranks[a].priority
    kb = sim.node_ranks[b].priority
    return ka < kb if ka != kb else recency.older(sim, a, b)
