"""The adaptive replacement cache (Megiddo and Modha 2003).

Notation
    C       capacity in pages; p the target size of T1, 0 … C
    T1, T2  the first and the second queue: runs not used since they were made, and the others
    B1, B2  lists of pages that went from them

A page that is remembered moves p, by the ratio of B1 and B2, and goes to T2. After each page as many are forgotten as
|T1| + |B1| <= C and |T1| + |T2| + |B1| + |B2| <= 2 C ask for.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.base.policies import EvictionPolicy
from hisearch.kernels.cache import recency

EVICTION = EvictionPolicy(
    "Adaptive (Megiddo and Modha).",
    recency=True,
    queues=True,
    pages="adaptive replacement: lists of once and of often used pages, sized by what was evicted too early",
)


@kernel
def before(sim, a, b):
    """By last access, in each queue."""
    return recency.older(sim, a, b)


@kernel
def moves_on(sim, d):
    """Whatever is used again is in T2."""
    return True


@kernel
def recalled(sim, v, which, n1, n2):
    """The list that remembered it should have been the larger one."""
    cache = sim.trees[v]
    if which == 1:
        cache.target = min(float(cache.capacity_pages), cache.target + max(1.0, n2 / n1))
    else:
        cache.target = max(0.0, cache.target - max(1.0, n1 / n2))


@kernel
def first_queue(sim, v, recalled):
    """T1 where it has more than its target."""
    cache = sim.trees[v]
    once = cache.once_pages
    if once >= 1 and (once > cache.target or (recalled == 2 and once == cache.target)):
        return 0
    return 1


@kernel
def remembered_in(sim, d):
    """B1 or B2."""
    return 1 + sim.hosted[d].queue


@kernel
def forgets(sim, v, n1, n2):
    """What is too much to remember."""
    cache = sim.trees[v]
    if n1 > 0 and cache.once_pages + n1 > cache.capacity_pages:
        return 1
    if n2 > 0 and cache.capacity_pages - cache.free_pages + n1 + n2 > 2 * cache.capacity_pages:
        return 2
    return 0
