"""Routers: which member a request goes to.

They know what a router can: in-flight load, and their own belief about the workers' caches; ``kv_aware`` alone sees the
caches themselves, as they were when it last looked. Rules of SGLang's router (sgl-router 0.3), where it has the policy;
its measure of a text, characters, is tokens here.

To add a policy: its code in ``layout.fleet``, a kernel here, a line in ``_choose``, its name in
``specs.deployments.routing``.
"""

from __future__ import annotations

import numpy as np

from hisearch.base.jit import kernel
from hisearch.kernels.core import rng, tournament
from hisearch.kernels.layout import fleet as fl
from hisearch.kernels.routing import buckets, hash_ring, prefix_index
from hisearch.kernels.traffic import flow


@kernel
def _random(fleet, route, k):
    return fleet.up[route.first + rng.below(fleet.rng[k], route.ups)]


@kernel
def _round_robin(fleet, route):
    k = route.robin % route.ups
    route.robin = k + 1
    return fleet.up[route.first + k]


@kernel
def _power_of_two(fleet, route, k):
    """Two distinct random members; fewer in-flight tokens, then fewer requests, then the lower one."""
    first = rng.below(fleet.rng[k], route.ups)
    second = rng.below(fleet.rng[k], route.ups - 1)
    if second >= first:
        second += 1
    a = fleet.up[route.first + min(first, second)]
    b = fleet.up[route.first + max(first, second)]
    ma = fleet.members[a]
    mb = fleet.members[b]
    if mb.inflight_tokens < ma.inflight_tokens:
        return b
    if mb.inflight_tokens == ma.inflight_tokens and mb.inflight_requests < ma.inflight_requests:
        return b
    return a


@kernel
def _cache_aware(fleet, route, k, r, now):
    """Balance first; else the best believed prefix if it is long enough, else the smallest believed cache."""
    prefix_index.trim_where_due(fleet, route, now)
    row = flow.ROWS * k
    least = route.first + tournament.best(fleet.winners[row + flow.FEWEST])
    fewest = fleet.members[least].inflight_requests
    most = fleet.members[route.first + tournament.best(fleet.winners[row + flow.MOST])].inflight_requests
    if most - fewest > route.balance_abs and most > route.balance_rel * fewest:
        chosen = least
    else:
        tokens, place = prefix_index.best_match(fleet, route, r)
        if place >= 0 and tokens / fleet.trace.input_tokens[r] > route.cache_threshold:
            chosen = route.first + place
        else:
            chosen = route.first + tournament.best(fleet.winners[row + flow.SMALLEST])
    prefix_index.believe(fleet, route, chosen, r, now)
    return chosen


@kernel
def _least_outstanding(fleet, route, k):
    """Fewest prompt tokens in flight for its weight; of equals the lower one."""
    return route.first + tournament.best(fleet.winners[flow.ROWS * k + flow.LIGHTEST])


@kernel
def _weighted(fleet, route):
    """Smooth weighted round robin: each turn everyone earns its weight, and the richest pays for all."""
    chosen = -1
    total = 0.0
    for k in range(route.ups):
        m = fleet.up[route.first + k]
        member = fleet.members[m]
        member.credit += member.weight
        total += member.weight
        if chosen < 0 or member.credit > fleet.members[chosen].credit:
            chosen = m
    fleet.members[chosen].credit -= total
    return chosen


@kernel
def _cost_aware(fleet, route):
    """The cheapest for its weight with room; where none has any, the least loaded for its weight."""
    cheapest = -1
    lightest = -1
    for k in range(route.ups):
        m = fleet.up[route.first + k]
        member = fleet.members[m]
        other = fleet.members[max(lightest, 0)]
        load = member.inflight_requests / member.weight
        if lightest < 0 or load < other.inflight_requests / other.weight:
            lightest = m
        if member.inflight_requests >= route.fill_requests * member.weight:
            continue
        other = fleet.members[max(cheapest, 0)]
        if cheapest < 0 or member.price / member.weight < other.price / other.weight:
            cheapest = m
    return cheapest if cheapest >= 0 else lightest


@kernel
def _kv_aware(fleet, route, r, now):
    """Least load: prompt tokens in flight, and those of this prompt that are not cached there, by their worth."""
    prefix_index.look_where_due(fleet, route, now)
    chosen = -1
    least = np.inf
    for k in range(route.ups):
        m = fleet.up[route.first + k]
        member = fleet.members[m]
        missing = fleet.trace.input_tokens[r] - prefix_index.match(fleet, route, m, r, now)
        load = (route.overlap_weight * missing + member.inflight_tokens) / member.weight
        if load < least:
            least = load
            chosen = m
    return chosen


@kernel
def _choose(fleet, route, k, r, now):
    policy = route.policy
    if policy == fl.ROUND_ROBIN:
        return _round_robin(fleet, route)
    if policy == fl.RANDOM:
        return _random(fleet, route, k)
    if policy == fl.POWER_OF_TWO:
        return _power_of_two(fleet, route, k)
    if policy == fl.CACHE_AWARE:
        return _cache_aware(fleet, route, k, r, now)
    if policy == fl.BUCKET:
        return buckets.choose(fleet, route, r, now)
    if policy == fl.LEAST_OUTSTANDING_TOKENS:
        return _least_outstanding(fleet, route, k)
    if policy == fl.CONSISTENT_HASH:
        return hash_ring.choose(fleet, route, r)
    if policy == fl.KV_AWARE:
        return _kv_aware(fleet, route, r, now)
    if policy == fl.WEIGHTED:
        return _weighted(fleet, route)
    return _cost_aware(fleet, route)


@kernel
def route(fleet, k, r, now):
    """Choose a member of route ``k`` for request ``r``, which is one of its model's; -1 where none takes requests."""
    here = fleet.routes[k]
    if here.ups == 0:
        return -1
    if here.ups == 1:
        return np.int64(fleet.up[here.first])
    return np.int64(_choose(fleet, here, k, r, now))
