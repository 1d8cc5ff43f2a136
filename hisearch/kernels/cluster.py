"""The event loop: arrivals and workers' step ends in order of time, over all pools.

Ties: arrivals (by request index), then pools, by what they do next and by index: what servers beside the schedulers
have done, then ends of steps (by worker index), then starts of steps (by worker index). So a step that starts at t sees
every arrival at or before t, a follow-up that is due the moment its predecessor ends among them.
"""

from __future__ import annotations

import numpy as np

from hisearch.kernels import doors, flow, heaps, members, pools, router
from hisearch.kernels import fleet_layout as fl
from hisearch.kernels import layout as la
from hisearch.kernels.jit import kernel

# What a pool does next.
_SERVED, _END, _START = 0, 1, 2


@kernel
def _look(fleet, p):
    """Note when pool ``p``'s next event is, and of which kind."""
    sim = pools.at(fleet, p)
    time = np.inf
    kind = _START
    if sim.counters[la.EVENT_HEAP] > 0:
        worker = sim.workers[sim.event_heap[0]]
        time = worker.event_s
        kind = _START if worker.phase == la.FORMING else _END
    if sim.counters[la.SERVING] > 0:
        served = sim.servers[sim.server_heap[0]].end_s
        if served <= time:
            time = served
            kind = _SERVED
    fleet.next_s[p] = time
    fleet.next_kind[p] = kind


@kernel
def _soonest(fleet):
    """The pool whose event is next."""
    best = 0
    for p in range(1, fleet.config.pools):
        sooner = fleet.next_s[p] - fleet.next_s[best]
        if sooner < 0.0 or (sooner == 0.0 and fleet.next_kind[p] < fleet.next_kind[best]):
            best = p
    return best


@kernel
def _never_fits(sim, r):
    if sim.trace.input_tokens[r] + sim.trace.max_output_tokens[r] > sim.config.max_request_tokens:
        return True
    return doors.knock(sim.config.door, sim, doors.NEVER_FITS, 0, r, 0.0) != 0


@kernel
def _fits_nowhere(fleet, r):
    """Whether no pool that takes arriving requests could ever serve ``r``."""
    for p in range(fleet.config.pools):
        sim = pools.at(fleet, p)
        if sim.config.role != fl.DECODE and not _never_fits(sim, r):
            return False
    return True


@kernel
def _refuse(fleet, r, outcome, now):
    """Request ``r`` is turned away."""
    pools.at(fleet, fleet.members[fleet.routes[fl.FRONT].first].pool).requests[r].outcome = outcome
    flow.announce_end(fleet, r, now)


@kernel
def _send(fleet, m, r, now):
    """Request ``r`` reaches member ``m``."""
    member = fleet.members[m]
    sim = pools.at(fleet, member.pool)
    request = sim.requests[r]
    request.arrival_s = fleet.arrival_s[r]
    if fleet.config.pools > 1 and _never_fits(sim, r):
        request.outcome = la.TOO_LARGE
        flow.announce_end(fleet, r, now)
        return
    request.outcome = la.IN_FLIGHT
    request.worker = member.index
    fleet.sent_to[r] = m
    sim.workers[member.index].requests += 1
    flow.join(fleet, m, r)
    doors.knock(sim.config.door, sim, doors.RECEIVE, member.index, r, now)
    _look(fleet, member.pool)


@kernel
def _arrive(fleet, r, is_open, now):
    """Request ``r`` reaches the router at ``now``."""
    if is_open:
        fleet.counters[fl.NEXT_OPEN] += 1
    else:
        flow.pending_pop(fleet)
    if _fits_nowhere(fleet, r):
        _refuse(fleet, r, la.TOO_LARGE, now)
        return
    _send(fleet, router.route(fleet, fl.FRONT, r, now), r, now)


@kernel
def _worker_event(sim, w, now):
    """Worker ``w``'s step ends at ``now``, or its next one begins."""
    worker = sim.workers[w]
    if worker.phase == la.FORMING or worker.phase == la.IDLE:
        worker.phase = la.FORMING
        doors.knock(sim.config.door, sim, doors.FORM, w, 0, now)
        return
    doors.knock(sim.config.door, sim, doors.COMPLETE, w, 0, now)
    worker.phase = la.FORMING
    # The scheduler may have waited for something for longer than the step took.
    heaps.event_set(sim, w, max(now, worker.now_s))


@kernel
def _turn(fleet, p, now):
    """Pool ``p`` does what it does next."""
    sim = pools.at(fleet, p)
    if fleet.next_kind[p] == _SERVED:
        doors.knock(sim.config.door, sim, doors.SERVE, sim.server_heap[0], 0, now)
    else:
        _worker_event(sim, sim.event_heap[0], now)
    _check_room(sim)
    _look(fleet, p)


@kernel
def _check_room(sim):
    """Stop before the next event could take more node records than there are."""
    needed = la.NODES_PER_REQUEST * (sim.config.max_running + 2) * sim.counters[la.LARGEST_GROUP]
    if sim.counters[la.FAULT] == 0 and sim.counters[la.NODES_LEFT] < needed:
        sim.counters[la.FAULT] = la.NODE_POOL_FULL


@kernel
def _reset_pool(sim):
    """Empty caches, idle workers."""
    counters = sim.counters
    counters[:] = 0
    if sim.nodes.shape[0] < 2 * sim.trees.shape[0]:
        counters[la.FAULT] = la.NODE_POOL_FULL
        return
    counters[la.FREE_NODE] = -1
    counters[la.FREE_FETCH] = -1
    counters[la.FREE_MOVE] = -1
    trees = sim.trees.shape[0]
    counters[la.NODES_USED] = trees
    counters[la.NODES_LEFT] = sim.nodes.shape[0] - trees
    counters[la.LARGEST_GROUP] = 1
    sim.cover[:] = -1
    for v in range(trees):
        sim.nodes[v].first = -1
    for w in range(sim.config.workers):
        worker = sim.workers[w]
        worker.running_head = -1
        worker.running_tail = -1
        worker.waiting_head = -1
        worker.waiting_tail = -1
        worker.chunked = -1
        worker.prompts_head = -1
        worker.prompts_tail = -1
        worker.sitting_head = -1
        worker.endings_new = -1
        worker.endings_old = -1
        worker.ended_prompts_new = -1
        worker.ended_prompts_old = -1
        worker.event_slot = -1
        worker.way_end = -1
        doors.knock(sim.config.door, sim, doors.RESET, w, 0, 0.0)
    _check_room(sim)


@kernel
def _forget_after(fleet, end_s):
    """First tokens are noted when their step is launched: those of steps that have not ended did not happen."""
    for p in range(fleet.config.pools):
        requests = pools.at(fleet, p).requests
        for r in range(requests.shape[0]):
            if requests[r].first_token_s > end_s:
                requests[r].first_token_s = np.nan


@kernel
def run(fleet):
    """Simulate until nothing is left to happen, the horizon is passed or too many requests are late.

    Returns (time of the last event, 1 if it stopped early, pool whose ``counters[FAULT]`` says why the run is void, or
    -1).
    """
    last = 0.0
    fleet.counters[:] = 0
    members.reset(fleet)
    for p in range(fleet.config.pools):
        sim = pools.at(fleet, p)
        _reset_pool(sim)
        if sim.counters[la.FAULT]:
            return last, 0, p
        _look(fleet, p)
    while True:
        arrival, r, is_open = flow.next_arrival(fleet)
        p = _soonest(fleet)
        event = fleet.next_s[p]
        now = min(arrival, event)
        if now == np.inf:
            return last, 0, -1
        if now > fleet.config.horizon_s:
            _forget_after(fleet, fleet.config.horizon_s)
            return last, 1, -1
        if fleet.counters[fl.LATE] > fleet.config.late_requests:
            _forget_after(fleet, last)
            return last, 1, -1
        fleet.counters[fl.EVENTS] += 1
        if arrival <= event:
            _arrive(fleet, r, is_open, now)
        else:
            if fleet.next_kind[p] != _SERVED:
                last = now
            _turn(fleet, p, now)
            if pools.at(fleet, p).counters[la.FAULT]:
                return last, 0, p
