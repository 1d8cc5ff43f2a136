"""What a router knows of the workers' caches: a set of members for each node of the trace's prefix tree.

A member is a bit, by its place in its route's order, of the route's words.
"""

from __future__ import annotations

import numpy as np

from hisearch.base.jit import kernel
from hisearch.kernels.cache import tree
from hisearch.kernels.routing import outlook
from hisearch.kernels.traffic import pools


@kernel
def column(route, place):
    """Word of ``Fleet.prefix_index`` that has the bit of the member at ``place``, and the bit."""
    place = np.int64(place)
    return route.word + place // 64, np.uint64(1) << np.uint64(place % 64)


@kernel
def forget(fleet, route, m):
    """Nothing is known of member ``m`` any more, which takes no more requests."""
    if route.words == 0:
        return
    word, bit = column(route, fleet.members[m].place)
    for s in range(fleet.prefix_index.shape[0]):
        fleet.prefix_index[s, word] &= ~bit
    fleet.members[m].prefix_index_tokens = 0


@kernel
def match(fleet, route, m, r, now):
    """Tokens of ``r``'s prompt that member ``m`` has in HBM; as of the last look, where that is done now and then."""
    trace = fleet.trace
    s = trace.prompt_node[r]
    if route.staleness_s == 0.0:
        member = fleet.members[m]
        sim = pools.at(fleet, member.pool)
        if not sim.config.prefix_caching:
            return 0
        limit = tree.floor_page(sim, trace.input_tokens[r])
        most = 0
        for w in range(member.index * sim.config.schedulers, (member.index + 1) * sim.config.schedulers):
            most = max(most, outlook.cached_tokens(sim, w, s, limit, now))
        return most
    word, bit = column(route, fleet.members[m].place)
    while s > 0 and not fleet.prefix_index[s, word] & bit:
        s = trace.parent[s]
    return trace.end_tokens[s]


@kernel
def look_where_due(fleet, route, now):
    """Every ``staleness_s`` the router gets a new picture: trace-tree nodes whose last whole page is cached."""
    if route.staleness_s == 0.0 or now < route.look_s:
        return
    while route.look_s <= now:
        route.look_s += route.staleness_s
    fleet.prefix_index[:, route.word : route.word + route.words] = 0
    for k in range(route.ups):
        m = fleet.up[route.first + k]
        member = fleet.members[m]
        sim = pools.at(fleet, member.pool)
        word, bit = column(route, member.place)
        for w in range(member.index * sim.config.schedulers, (member.index + 1) * sim.config.schedulers):
            outlook.depict(sim, w, fleet.prefix_index, word, bit, now)
