"""Requests on their way to workers, as the router sees them: next arrivals, loads of members, follow-ups."""

from __future__ import annotations

import numpy as np

from hisearch.base.jit import kernel
from hisearch.base.policies import ROUTERS
from hisearch.kernels.core import tournament
from hisearch.kernels.layout import fleet as fl
from hisearch.kernels.traffic import active_blocks

# Rows of Fleet.keys and Fleet.winners, four for each route: by fewest requests in flight, most (negated), fewest tokens
# in the prefix index, least load relative to the weight.
FEWEST, MOST, SMALLEST, LIGHTEST = 0, 1, 2, 3
ROWS = 4
_TRACKS_REQUESTS = ROUTERS.mask(lambda policy: "requests" in policy.tracks)
_TRACKS_TOKENS = ROUTERS.mask(lambda policy: "tokens" in policy.tracks)
_TRACKS_KEYS = ROUTERS.mask(lambda policy: "keys" in policy.tracks)
_TRACKS_BLOCKS = ROUTERS.mask(lambda policy: "blocks" in policy.tracks)


@kernel
def front_of(fleet, r):
    """Row of the front route of request ``r``'s model; the next row is its back route."""
    return np.int64(fleet.front_of[r]) if fleet.front_of.shape[0] > 0 else np.int64(fl.FRONT)


@kernel
def _arrives_before(at_s, r, follow_up):
    """Whether request ``r``, with arrival at ``at_s``, arrives before the pending ``follow_up``."""
    return at_s < follow_up.arrival_s or (at_s == follow_up.arrival_s and r < follow_up.request)


@kernel
def _pending_push(fleet, r):
    """Add follow-up ``r``, whose arrival is known, to the pending follow-ups."""
    heap = fleet.pending
    at_s = fleet.arrival_s[r]
    slot = fleet.counters[fl.PENDING]
    fleet.counters[fl.PENDING] = slot + 1
    while slot > 0:
        up = (slot - 1) >> 1
        if not _arrives_before(at_s, r, heap[up]):
            break
        heap[slot] = heap[up]
        slot = up
    heap[slot].arrival_s = at_s
    heap[slot].request = r


@kernel
def pending_pop(fleet):
    """Remove the earliest pending follow-up."""
    heap = fleet.pending
    size = fleet.counters[fl.PENDING] - 1
    fleet.counters[fl.PENDING] = size
    at_s = heap[size].arrival_s
    r = heap[size].request
    slot = 0
    while True:
        down = 2 * slot + 1
        if down >= size:
            break
        if down + 1 < size and _arrives_before(heap[down + 1].arrival_s, heap[down + 1].request, heap[down]):
            down += 1
        if _arrives_before(at_s, r, heap[down]):
            break
        heap[slot] = heap[down]
        slot = down
    heap[slot].arrival_s = at_s
    heap[slot].request = r


@kernel
def next_arrival(fleet):
    """The earliest arrival not yet delivered: (time, request, 1 if open loop); time infinity if none is known."""
    k = fleet.counters[fl.NEXT_OPEN]
    time = np.inf
    r = -1
    is_open = 0
    if k < fleet.open_loop.shape[0]:
        r = fleet.open_loop[k]
        time = fleet.arrival_s[r]
        is_open = 1
    if fleet.counters[fl.PENDING] > 0:
        pending_s = fleet.pending[0].arrival_s
        f = fleet.pending[0].request
        if pending_s < time or (pending_s == time and f < r):
            return pending_s, f, 0
    return time, r, is_open


@kernel
def _follow(fleet, f, delivered_s, free_s):
    """Let follow-up ``f`` arrive; see ``announce_end``. Its front end takes it up once it is free."""
    sent_s = delivered_s + fleet.trace.think_s[f]
    if fleet.front_end_s.shape[0] == 0:
        fleet.arrival_s[f] = sent_s
    else:
        # What the client waits for besides the engine: the rest of the step, and its own prompt.
        fleet.front_end_s[f] += max(free_s - sent_s, 0.0)
        fleet.arrival_s[f] = sent_s + fleet.front_end_s[f]
    _pending_push(fleet, f)


@kernel
def _announce_to_gates(fleet, r, delivered_s, free_s):
    """Count the end of request ``r`` at its gates; with the last of its requests a gate opens, and others follow."""
    k = r
    while k >= 0:
        g = fleet.gate[k]
        if g >= 0:
            gate = fleet.gates[g]
            gate.left -= 1
            if gate.left == 0:
                f = gate.head
                while f >= 0:
                    _follow(fleet, f, delivered_s, free_s)
                    f = fleet.behind_next[f]
        k = fleet.gate_next[k]


@kernel
def announce_end(fleet, r, delivered_s, free_s):
    """Request ``r`` ended: its follow-ups, or the next request of a pool, are sent after their think time.

    delivered_s: when its client has its last token. free_s: when its front end has sent all tokens of that step.
    """
    f = fleet.follower_head[r]
    while f >= 0:
        _follow(fleet, f, delivered_s, free_s)
        f = fleet.follower_next[f]
    k = fleet.counters[fl.POOLED]
    if k < fleet.pool.shape[0]:
        fleet.counters[fl.POOLED] = k + 1
        _follow(fleet, fleet.pool[k], delivered_s, free_s)
    if fleet.gates.shape[0] > 0:
        _announce_to_gates(fleet, r, delivered_s, free_s)


@kernel
def counted_requests(fleet, m):
    """Requests of member ``m`` that cache_aware and manual compare.

    Of disaggregated workers sglang-router 0.3.2 counts requests from the first byte of a streamed answer on, so that
    no prompt that is being computed counts (``routers/http/pd_router.rs: create_streaming_response``).
    """
    member = fleet.members[m]
    return member.streaming if fleet.routes[member.route].disaggregated else member.inflight_requests


@kernel
def note_load(fleet, m):
    """Update the tournaments after a change in member ``m``'s load."""
    member = fleet.members[m]
    route = fleet.routes[member.route]
    if member.state != fl.UP:
        return
    row = ROWS * member.route
    place = member.place
    if _TRACKS_REQUESTS >> route.policy & 1:
        requests = counted_requests(fleet, m)
        tournament.put(fleet.keys[row + FEWEST], fleet.winners[row + FEWEST], place, requests)
        tournament.put(fleet.keys[row + MOST], fleet.winners[row + MOST], place, -requests)
    if _TRACKS_TOKENS >> route.policy & 1:
        load = member.inflight_tokens / member.weight
        tournament.put(fleet.keys[row + LIGHTEST], fleet.winners[row + LIGHTEST], place, load)


@kernel
def note_prefix(fleet, m):
    """Update the tournament after a change in member ``m``'s share of the prefix index."""
    member = fleet.members[m]
    if member.state != fl.UP:
        return
    row = ROWS * member.route + SMALLEST
    tournament.put(fleet.keys[row], fleet.winners[row], member.place, member.prefix_index_tokens)


@kernel
def join(fleet, m, r):
    """Count request ``r``, which is sent to member ``m``."""
    member = fleet.members[m]
    tokens = fleet.trace.input_tokens[r]
    member.taken += 1
    member.inflight_requests += 1
    member.inflight_tokens += tokens
    member.outstanding_tokens += tokens
    route = fleet.routes[member.route]
    if _TRACKS_KEYS >> route.policy & 1 and not route.disaggregated:
        _count_key(fleet, member, r, 1)
    if _TRACKS_BLOCKS >> route.policy & 1:
        active_blocks.enter(fleet, m, r)
    note_load(fleet, m)


@kernel
def count_answer(fleet, m, r, change, streamed):
    """The answer to request ``r`` of disaggregated member ``m`` begins (``change`` 1) or ends (-1).

    sglang-router 0.3.2 looks for the session of a ``streamed`` answer in the answer's headers, which do not name it.
    """
    member = fleet.members[m]
    member.streaming += change
    if _TRACKS_KEYS >> fleet.routes[member.route].policy & 1 and not streamed:
        _count_key(fleet, member, r, change)
    note_load(fleet, m)


@kernel
def count_answers(fleet, r, change):
    """The same for both of the members that ``r`` went to, which stream it."""
    hand = fleet.kv_transfers[r]
    count_answer(fleet, hand.source, r, change, True)
    count_answer(fleet, hand.target, r, change, True)


@kernel
def _count_key(fleet, member, r, change):
    """Count request ``r`` among those in flight of its session, where it went to the session's worker."""
    key = fleet.keys_known[member.route, fleet.key[r]]
    if key.place != member.place:
        return
    before = key.requests
    key.requests += change
    if min(before, key.requests) == 0:
        member.inflight_keys += change


@kernel
def leave(fleet, m, r, now):
    """Count request ``r``, which has had its first token, out of member ``m``."""
    member = fleet.members[m]
    member.inflight_requests -= 1
    member.inflight_tokens -= fleet.trace.input_tokens[r]
    route = fleet.routes[member.route]
    if route.disaggregated:
        # An empty table: a router by itself.
        if fleet.kv_transfers.shape[0] > 0 and fleet.kv_transfers[r].state == fl.ARRIVED:
            count_answers(fleet, r, -1)
    elif _TRACKS_KEYS >> route.policy & 1:
        _count_key(fleet, member, r, -1)
    if _TRACKS_BLOCKS >> route.policy & 1:
        active_blocks.leave(fleet, m, r)
    if member.state == fl.DRAINING and member.inflight_requests == 0:
        member.state = fl.ABSENT
        member.gone_s = now
    note_load(fleet, m)


@kernel
def forgo(fleet, m, r, now):
    """Count request ``r`` out of member ``m``, which has made no token of it."""
    fleet.members[m].outstanding_tokens -= fleet.trace.input_tokens[r]
    leave(fleet, m, r, now)


@kernel
def note_first_token(fleet, m, r, at_s, last):
    """Member ``m`` makes the first token of ``r`` at ``at_s``; ``last``: the user gets it from this member."""
    fleet.members[m].outstanding_tokens -= fleet.trace.input_tokens[r]
    if _TRACKS_BLOCKS >> fleet.routes[fleet.members[m].route].policy & 1:
        active_blocks.note_first_token(fleet, m, r, at_s)
    if last and at_s - fleet.arrival_s[r] > fleet.config.late_s:
        fleet.counters[fl.LATE] += 1


@kernel
def delay_first_token(fleet, m, r, from_s, until_s, last):
    """The first token of ``r`` from member ``m``, noted for ``from_s``, comes at ``until_s``."""
    if _TRACKS_BLOCKS >> fleet.routes[fleet.members[m].route].policy & 1:
        active_blocks.delay_first_token(fleet, r, until_s)
    late_s = fleet.config.late_s
    if last and from_s - fleet.arrival_s[r] <= late_s < until_s - fleet.arrival_s[r]:
        fleet.counters[fl.LATE] += 1
