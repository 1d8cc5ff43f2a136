"""Three FIFO queues: a small one for what is new, a main one, and one of what went from the small one (S3-FIFO).

Pages enter the small queue, or the main one where they are still remembered. One whose turn comes in the small queue
moves on to the main one if it was used more than once, else it goes and is remembered. In the main queue it goes round
once for each use, of three at most. As many pages are remembered as the main queue has. Yang et al. 2023, "FIFO queues
are all you need for cache eviction" (SOSP).
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.base.policies import EvictionPolicy, Parameter
from hisearch.kernels.layout.hicache import GOES, GOES_ROUND, MOVES_ON

EVICTION = EvictionPolicy(
    "Three FIFO queues (S3-FIFO): what is not used again leaves through a small one.",
    parameters=(
        Parameter(
            "small_share", 0.1, "share of the store for what is new; a tenth in the paper.", above=0.0, at_most=1.0
        ),
    ),
    queues=True,
)

#: A run counts no more uses than these: two bits in the paper.
MOST_USES = 3
#: A run that was used more often than this moves on from the small queue, as in the paper.
FEW_USES = 1


@kernel
def before(sim, a, b):
    """By when it entered the queue."""
    return sim.nodes[a].serial < sim.nodes[b].serial


@kernel
def _small_pages(sim, v):
    """Pages that the small queue should have."""
    return max(1.0, sim.store_tiers[sim.trees[v].tier].small_share * sim.trees[v].capacity_pages)


@kernel
def second_chance(sim, v, d):
    """What was used moves on, or goes round."""
    node = sim.nodes[d]
    if sim.hosted[d].queue == 0:
        if node.hits <= FEW_USES:
            return GOES
        node.hits = 0
        return MOVES_ON
    if node.hits == 0:
        return GOES
    node.hits = min(node.hits, MOST_USES) - 1
    return GOES_ROUND


@kernel
def first_queue(sim, v, recalled):
    """The small one, where it has its share."""
    return 0 if sim.trees[v].once_pages >= _small_pages(sim, v) else 1


@kernel
def remembered_in(sim, d):
    """What went from the small queue alone is remembered."""
    return 1 if sim.hosted[d].queue == 0 else 0


@kernel
def forgets(sim, v, n1, n2):
    """As many are remembered as the main queue has."""
    return 1 if n1 > sim.trees[v].capacity_pages - _small_pages(sim, v) else 0
