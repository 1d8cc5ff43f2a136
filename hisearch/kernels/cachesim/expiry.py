"""Pages that expire, a while after their last use.

A page expires ``ttl_s`` after its last use, at that moment and not after it, and is never hit from then on. Whoever
uses a page uses all pages before it, so that all pages behind an expired one are expired too, and the living pages are
the most recently used ones: to evict the least recently used leaf is to evict expired pages first. What expires stays
until it is reclaimed:

    lazy        where a request comes upon an expired page, that page goes, with all pages behind it
    periodic    at every multiple of a period all expired pages go
    pressure    only as room is needed

An expired page that the request at hand needs is stored anew, where it still stands in its place.
"""

from __future__ import annotations

import numpy as np

from hisearch.base.jit import kernel
from hisearch.kernels.cachesim import pages
from hisearch.kernels.layout.pages import LAZY, PERIODIC


@kernel
def living(sim, chain):
    """Number of a chain's leading pages that are resident and have not expired."""
    count = pages.leading(sim, chain)
    # All pages before a living one live.
    while pages.expires(sim) and count > 0 and pages.expired(sim, chain[count - 1]):
        count -= 1
    return count


@kernel
def advance(sim, now_s):
    """Time passes; what periodic reclaims have met meanwhile goes."""
    cache = sim.trees[0]
    before_s = cache.now_s
    if sim.config.reclaim == PERIODIC:
        # Nothing is used between two requests: of the reclaims since the last one, the latest does all they did.
        cache.now_s = min(now_s, np.floor(now_s / sim.config.period_s) * sim.config.period_s)
        while cache.now_s > before_s and sim.leaf_count[0] > 0 and pages.expired(sim, sim.leaves[0, 0]):
            pages.drop(sim, sim.leaves[0, 0])
    cache.now_s = now_s


@kernel
def renew(sim, chain):
    """What has expired of a chain is dropped, with all behind it, or stored anew where it is."""
    first = living(sim, chain)
    have = pages.leading(sim, chain)
    if first == have:
        return
    if sim.config.reclaim != LAZY:
        for k in range(first, have):
            sim.trees[0].expired_tokens += sim.links[chain[k]].tokens
        return
    deepest = np.int64(chain[first])
    while True:
        while sim.links[deepest].behind >= 0:
            deepest = np.int64(sim.links[deepest].behind)
        above = np.int64(sim.nodes[deepest].above)
        pages.drop(sim, deepest)
        if deepest == chain[first]:
            return
        deepest = above
