"""What a router believes, or knows, of the workers' caches: a set of members for each node of the trace's prefix tree.

A member is a bit, by its place on its route, of the route's words.
"""

from __future__ import annotations

import numpy as np

from hisearch.base.jit import kernel
from hisearch.kernels.cache import tree
from hisearch.kernels.routing import outlook
from hisearch.kernels.traffic import flow, pools


@kernel
def _lowest_bit(word):
    bit = 0
    while not (word >> np.uint64(bit)) & np.uint64(1):
        bit += 1
    return bit


@kernel
def best_match(fleet, route, r):
    """The lowest member that is believed to hold the longest prefix of ``r``'s prompt: (tokens, place or -1)."""
    trace = fleet.trace
    s = trace.prompt_node[r]
    while s > 0:
        for word in range(route.words):
            bits = fleet.prefix_index[s, route.word + word]
            if bits:
                return trace.end_tokens[s], 64 * word + _lowest_bit(bits)
        s = trace.parent[s]
    return 0, -1


@kernel
def believe(fleet, route, m, r, now):
    """Member ``m`` will hold ``r``'s whole prompt."""
    trace = fleet.trace
    place = m - route.first
    word = route.word + place // 64
    bit = np.uint64(1) << np.uint64(place % 64)
    keeps_time = fleet.used_s.shape[0] > 0
    s = trace.prompt_node[r]
    gained = 0
    while s > 0 and (keeps_time or not fleet.prefix_index[s, word] & bit):
        if not fleet.prefix_index[s, word] & bit:
            fleet.prefix_index[s, word] |= bit
            gained += trace.end_tokens[s] - trace.start_tokens[s]
        if keeps_time:
            fleet.used_s[s, m] = now
        s = trace.parent[s]
    if gained > 0:
        fleet.members[m].prefix_index_tokens += gained
        flow.note_prefix(fleet, m)


@kernel
def forget(fleet, route, m):
    """Nothing is believed of member ``m`` any more, which takes no more requests."""
    if route.words == 0:
        return
    place = m - route.first
    word = route.word + place // 64
    bit = np.uint64(1) << np.uint64(place % 64)
    for s in range(fleet.prefix_index.shape[0]):
        fleet.prefix_index[s, word] &= ~bit
    fleet.members[m].prefix_index_tokens = 0


@kernel
def _trim(fleet, route, m):
    """Forget what member ``m`` was asked for least recently, ends of paths first, until the rest is small enough."""
    trace = fleet.trace
    member = fleet.members[m]
    place = m - route.first
    word = route.word + place // 64
    bit = np.uint64(1) << np.uint64(place % 64)
    held = np.empty(fleet.prefix_index.shape[0], np.int64)
    count = 0
    # A child's number exceeds its parent's: of equal times the deeper comes first once the order is reversed.
    for s in range(fleet.prefix_index.shape[0] - 1, 0, -1):
        if fleet.prefix_index[s, word] & bit:
            held[count] = s
            count += 1
    times = np.empty(count)
    for k in range(count):
        times[k] = fleet.used_s[held[k], m]
    for k in np.argsort(times, kind="mergesort"):
        if member.prefix_index_tokens <= route.max_tree_tokens:
            break
        s = held[k]
        fleet.prefix_index[s, word] &= ~bit
        member.prefix_index_tokens -= trace.end_tokens[s] - trace.start_tokens[s]
    flow.note_prefix(fleet, m)


@kernel
def trim_where_due(fleet, route, now):
    """Every ``eviction_interval_s`` what is believed beyond ``max_tree_tokens`` is trimmed."""
    if fleet.used_s.shape[0] == 0 or now < route.trim_s:
        return
    while route.trim_s <= now:
        route.trim_s += route.eviction_interval_s
    for k in range(route.ups):
        m = fleet.up[route.first + k]
        if fleet.members[m].prefix_index_tokens > route.max_tree_tokens:
            _trim(fleet, route, m)


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
    place = m - route.first
    word = route.word + place // 64
    bit = np.uint64(1) << np.uint64(place % 64)
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
        place = m - route.first
        word = route.word + place // 64
        bit = np.uint64(1) << np.uint64(place % 64)
        for w in range(member.index * sim.config.schedulers, (member.index + 1) * sim.config.schedulers):
            outlook.depict(sim, w, fleet.prefix_index, word, bit, now)
