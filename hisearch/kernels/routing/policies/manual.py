"""A session stays with its first worker.

Rule: ``manual`` of sglang-router 0.3.2 (``policies/manual.rs``): the header ``X-SMG-Routing-Key`` names the session. A
session that was idle for ``max_idle_s`` is forgotten at the next look, every ``eviction_interval_s``.
"""

from __future__ import annotations

import numpy as np

from hisearch.base.jit import kernel
from hisearch.base.policies import Parameter, RouterPolicy, State
from hisearch.kernels.layout import fleet as fl
from hisearch.kernels.routing import draws
from hisearch.kernels.traffic import flow

ROUTER = RouterPolicy(
    "A session stays with its first worker.",
    parameters=(
        Parameter(
            "assignment_mode",
            "random",
            "where a new session goes: to any worker, to one with the fewest requests in flight, or to one with the "
            "fewest sessions in flight; ties at random.",
            choices=("random", "min_load", "min_group"),
            search=("random", "min_load", "min_group"),
        ),
        Parameter(
            "max_idle_s",
            14400.0,
            "seconds after its last request at which a session may be forgotten.",
            above=0.0,
            search=(14400.0,),
        ),
        Parameter(
            "eviction_interval_s",
            60.0,
            "seconds between two looks for idle sessions.",
            above=0.0,
            search=(60.0,),
        ),
    ),
    member_state=(State("inflight_keys", "i8"),),  # sessions with requests in flight there
    tracks=("keys",),
    sees=("keys", "requests"),
    remembers="for ever",
    product="sglang-router",
    hash_order=True,
    cost="1; workers, for a new session",
)
RANDOM, MIN_LOAD = 0, 1


@kernel
def _load(fleet, route, m):
    return flow.counted_requests(fleet, m) if route.assignment_mode == MIN_LOAD else fleet.members[m].inflight_keys


@kernel
def _place_of_new(fleet, route, k):
    """Where a new session goes."""
    if route.assignment_mode == RANDOM:
        return np.int64(fleet.members[draws.any_up(fleet, route, k)].place)
    count = 0
    least = 0
    for place in range(route.ups):
        m = np.int64(fleet.up[route.first + place])
        load = _load(fleet, route, m)
        if count == 0 or load < least:
            least = load
            count = 0
        if load == least:
            fleet.candidates[route.first + count] = fleet.members[m].place
            count += 1
    return np.int64(draws.one_of(fleet, route, k, count, route.drawn))


@kernel
def _is_forgotten(route, used_s, now):
    """Whether a look at or before ``now`` found a session idle that was last heard of at ``used_s``."""
    looks = np.ceil((used_s + route.max_idle_s) / route.eviction_interval_s)
    return looks * route.eviction_interval_s <= now


@kernel
def choose(fleet, route, k, r, now):
    """The worker of ``r``'s session, if it still takes requests; else a new one."""
    key = fleet.keys_known[k, fleet.key[r]]
    known = key.place >= 0 and not _is_forgotten(route, key.used_s, now)
    if not known or fleet.members[fleet.at_place[route.first + key.place]].state != fl.UP:
        place = _place_of_new(fleet, route, k)
        if place != key.place:
            key.requests = 0
        key.place = place
    key.used_s = now
    return np.int64(fleet.at_place[route.first + key.place])
