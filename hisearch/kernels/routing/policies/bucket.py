"""Each worker takes prompts of a range of lengths, so that all carry the same load.

Load is prompt tokens sent within a sliding window. The ranges are drawn anew once a window, if the load of one bucket
has more than doubled or halved since they were last drawn. A lopsided load sends a request to the least loaded member
instead. Rule: ``bucket`` of SGLang's router (sgl-router 0.3).
"""

from __future__ import annotations

import numpy as np

from hisearch.base.jit import kernel
from hisearch.base.policies import Parameter, RouterPolicy, State

ROUTER = RouterPolicy(
    "A range of prompt lengths for each worker, drawn so that all carry the same load.",
    parameters=(
        Parameter(
            "balance_abs_threshold",
            64,
            "as for cache_aware, in prompt tokens of the window.",
            at_least=0,
            search=(64,),
            search_key="bucket_abs_threshold",
        ),
        Parameter(
            "balance_rel_threshold",
            1.5,
            "as for cache_aware.",
            at_least=1.0,
            search=(1.5,),
            search_key="bucket_rel_threshold",
        ),
        Parameter(
            "bucket_window_s",
            5.0,
            "length of the window whose load counts, and time between two drawings.",
            above=0.0,
            search=(5.0,),
        ),
    ),
    state=(
        State("draw_s", "f8", "bucket_window_s"),
        State("bucket_tokens", "i8"),  # load of one bucket when the boundaries were last drawn
        State("window_head", "i8"),  # the window's requests: [head, tail) of Fleet.window
        State("window_tail", "i8"),
    ),
    member_state=(State("window_tokens", "i8"),),  # prompt tokens sent to it in the window
    reads_prompts=True,
)

#: The first ranges divide prompts of so many tokens evenly (sgl-router: characters).
FIRST_LENGTH = 4096
NO_BOUND = 2**62


@kernel
def reset(fleet, route):
    """Even ranges, nothing sent."""
    route.window_head = route.window_first
    route.window_tail = route.window_first
    route.bucket_tokens = 0
    for m in range(route.first, route.first + route.members):
        fleet.members[m].window_tokens = 0
    gap = FIRST_LENGTH // max(route.ups, 1)
    for k in range(route.ups):
        fleet.bounds[route.first + k] = (k + 1) * gap - 1
    if route.ups > 0:
        fleet.bounds[route.first + route.ups - 1] = NO_BOUND


@kernel
def _load(fleet, route):
    total = 0
    for k in range(route.ups):
        total += fleet.members[fleet.up[route.first + k]].window_tokens
    return total


@kernel
def _draw(fleet, route):
    """Cut the window's prompts, by length, into as many parts of equal load as members are up."""
    count = route.window_tail - route.window_head
    if count == 0:
        return
    share = _load(fleet, route) // route.ups
    before = route.bucket_tokens
    if before != 0 and share <= 2 * before and before <= 2 * share:
        return
    route.bucket_tokens = share
    lengths = fleet.lengths[:count]
    for k in range(count):
        lengths[k] = fleet.trace.input_tokens[fleet.window[route.window_head + k]]
    lengths.sort()
    at = 0
    lowest = 0
    for k in range(route.ups - 1):
        load = 0
        bound = lowest + share
        while at < count:
            load += lengths[at]
            at += 1
            if load >= share:
                if lengths[at - 1] > lowest:
                    bound = lengths[at - 1]
                break
        fleet.bounds[route.first + k] = bound
        lowest = bound + 1
    fleet.bounds[route.first + route.ups - 1] = NO_BOUND


@kernel
def _forget(fleet, route, now):
    """Requests sent longer ago than the window count no more."""
    while route.window_head < route.window_tail and now - fleet.sent_s[route.window_head] > route.bucket_window_s:
        r = fleet.window[route.window_head]
        fleet.members[fleet.window_member[route.window_head]].window_tokens -= fleet.trace.input_tokens[r]
        route.window_head += 1


@kernel
def _close_up(fleet, route):
    """Make room behind the window's requests; there are twice as many places as requests."""
    count = route.window_tail - route.window_head
    for k in range(count):
        to, source = route.window_first + k, route.window_head + k
        fleet.window[to] = fleet.window[source]
        fleet.window_member[to] = fleet.window_member[source]
        fleet.sent_s[to] = fleet.sent_s[source]
    route.window_head = route.window_first
    route.window_tail = route.window_first + count


@kernel
def choose(fleet, route, k, r, now):
    """The member whose range holds the length of ``r``'s prompt, or the least loaded one."""
    if now >= route.draw_s:
        _draw(fleet, route)
        while route.draw_s <= now:
            route.draw_s += route.bucket_window_s
    tokens = fleet.trace.input_tokens[r]
    least = fleet.up[route.first]
    most = fleet.members[least].window_tokens
    for place in range(1, route.ups):
        m = fleet.up[route.first + place]
        load = fleet.members[m].window_tokens
        most = max(most, load)
        if load < fleet.members[least].window_tokens:
            least = m
    fewest = fleet.members[least].window_tokens
    chosen = least
    if most - fewest <= route.balance_abs_threshold or most <= route.balance_rel_threshold * fewest:
        place = 0
        while tokens > fleet.bounds[route.first + place]:
            place += 1
        chosen = fleet.up[route.first + place]
    fleet.members[chosen].window_tokens += tokens
    _forget(fleet, route, now)
    if route.window_tail == route.window_first + route.window_places:
        _close_up(fleet, route)
    slot = route.window_tail
    fleet.window[slot] = r
    fleet.window_member[slot] = chosen
    fleet.sent_s[slot] = now
    route.window_tail = slot + 1
    return np.int64(chosen)
