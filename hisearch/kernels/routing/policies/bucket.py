"""Each prefill worker takes prompts of a range of lengths, so that all carry the same load.

Load is characters sent within a sliding window. The ranges are drawn anew once a window, if the load of one bucket has
more than doubled or halved since they were last drawn. A lopsided load sends a request to one with the least instead.
Rule: ``bucket`` of sglang-router 0.3.2 (``policies/bucket.rs``), in front of disaggregated prefill workers; elsewhere
it has no buckets and chooses at random. Registering workers one after another leaves all lengths in the first range.
"""

from __future__ import annotations

import numpy as np

from hisearch.base.jit import kernel
from hisearch.base.policies import Parameter, RouterPolicy, State
from hisearch.kernels.routing import draws

ROUTER = RouterPolicy(
    "A range of prompt lengths for each worker, drawn so that all carry the same load.",
    parameters=(
        Parameter(
            "balance_abs_threshold",
            64,
            "as for cache_aware, in characters of the window.",
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
        Parameter(
            "characters_per_token",
            4.0,
            "as for cache_aware.",
            at_least=1.0,
            at_most=16.0,
            search=(4.0,),
        ),
    ),
    state=(
        State("draw_s", "f8", "bucket_window_s"),
        State("bucket_characters", "i8"),  # load of one bucket when the boundaries were last drawn
        State("total_characters", "i8"),  # of the window's requests
        State("window_head", "i8"),  # the window's requests: [head, tail) of Fleet.window
        State("window_tail", "i8"),
    ),
    member_state=(State("window_characters", "i8"),),  # sent to it in the window
    reads_prompts=True,
    sees=("lengths",),
    remembers="within `bucket_window_s`, 5 s",
    cost="workers",
    product="sglang-router",
    hash_order=True,
)

NO_BOUND = 2**62


@kernel
def reset(fleet, route):
    """All lengths go to the first member, and nothing is held against any; the window stays."""
    for m in range(route.first, route.first + route.members):
        fleet.members[m].window_characters = 0
    for place in range(route.ups):
        fleet.bounds[route.first + place] = NO_BOUND


@kernel
def _characters(fleet, route, r):
    return np.int64(fleet.trace.input_tokens[r] * route.characters_per_token)


@kernel
def _draw(fleet, route):
    """Cut the window's prompts, by length, into as many parts of equal load as members are up."""
    count = route.window_tail - route.window_head
    if count == 0:
        return
    share = route.total_characters // route.ups
    before = route.bucket_characters
    if before != 0 and share <= 2 * before and before <= 2 * share:
        return
    route.bucket_characters = share
    lengths = fleet.lengths[:count]
    for k in range(count):
        lengths[k] = _characters(fleet, route, fleet.window[route.window_head + k])
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
def draw_where_due(fleet, route, now):
    """Draw the ranges anew every ``bucket_window_s``. The window has not changed since, as no request came."""
    if now < route.draw_s:
        return
    _draw(fleet, route)
    while route.draw_s <= now:
        route.draw_s += route.bucket_window_s


@kernel
def _forget(fleet, route, now):
    """Requests sent longer ago than the window count no more."""
    while route.window_head < route.window_tail and now - fleet.sent_s[route.window_head] > route.bucket_window_s:
        characters = _characters(fleet, route, fleet.window[route.window_head])
        member = fleet.members[fleet.window_member[route.window_head]]
        member.window_characters = max(member.window_characters - characters, 0)
        route.total_characters -= characters
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
def _by_length(fleet, route, characters):
    """The member whose range holds ``characters``."""
    place = 0
    while characters > fleet.bounds[route.first + place]:
        place += 1
    return np.int64(fleet.up[route.first + place])


@kernel
def _lightest(fleet, route, k, least):
    """Any member with the ``least`` load: a hash map's order decides."""
    count = 0
    for place in range(route.ups):
        member = fleet.members[fleet.up[route.first + place]]
        if member.window_characters == least:
            fleet.candidates[route.first + count] = member.place
            count += 1
    return np.int64(fleet.at_place[route.first + draws.one_of(fleet, route, k, count, route.drawn)])


@kernel
def _choice(fleet, route, k, characters):
    """The member for a prompt of so many ``characters``."""
    least, most = NO_BOUND, 0
    for place in range(route.ups):
        load = fleet.members[fleet.up[route.first + place]].window_characters
        least, most = min(least, load), max(most, load)
    # The source compares in single precision.
    if most - least > route.balance_abs_threshold and np.float32(most) > np.float32(least) * np.float32(
        route.balance_rel_threshold
    ):
        return _lightest(fleet, route, k, least)
    return _by_length(fleet, route, characters)


@kernel
def choose(fleet, route, k, r, now):
    """The member whose range holds the length of ``r``'s prompt, or one with the least load."""
    if not route.disaggregated:
        return np.int64(draws.any_up(fleet, route, k))
    draw_where_due(fleet, route, now)
    characters = _characters(fleet, route, r)
    chosen = _choice(fleet, route, k, characters)
    fleet.members[chosen].window_characters += characters
    _forget(fleet, route, now)
    if route.window_tail == route.window_first + route.window_places:
        _close_up(fleet, route)
    slot = route.window_tail
    fleet.window[slot] = r
    fleet.window_member[slot] = chosen
    fleet.sent_s[slot] = now
    route.window_tail = slot + 1
    route.total_characters += characters
    return chosen
