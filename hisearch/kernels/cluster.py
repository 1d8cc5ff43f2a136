"""The event loop: arrivals and workers' step ends in order of time.

Ties: arrivals (by request index), then what servers beside the schedulers have done, then ends of steps (by worker
index), then starts of steps (by worker index). So a
step that starts at t sees every arrival at or before t, a follow-up that is due the moment its predecessor ends among
them.
"""

from __future__ import annotations

import numpy as np

from hisearch.kernels import doors, heaps, lanes, lists, router
from hisearch.kernels import layout as la
from hisearch.kernels.jit import kernel


@kernel
def _next_arrival(sim):
    """The earliest arrival not yet delivered: (time, request, 1 if open loop); time infinity where none is known."""
    k = sim.counters[la.NEXT_OPEN]
    time = np.inf
    r = -1
    is_open = 0
    if k < sim.open_loop.shape[0]:
        r = sim.open_loop[k]
        time = sim.requests[r].arrival_s
        is_open = 1
    if sim.counters[la.PENDING] > 0:
        f = sim.pending[0]
        due = sim.requests[f].arrival_s
        if due < time or (due == time and f < r):
            return due, f, 0
    return time, r, is_open


@kernel
def _never_fits(sim, r):
    if sim.trace.input_tokens[r] + sim.trace.max_output_tokens[r] > sim.config.max_request_tokens:
        return True
    return doors.knock(sim.config.door, sim, doors.NEVER_FITS, 0, r, 0.0) != 0


@kernel
def _deliver(sim, r, is_open, now):
    """Request ``r`` reaches the router at ``now``."""
    if is_open:
        sim.counters[la.NEXT_OPEN] += 1
    else:
        heaps.pending_pop(sim)
    request = sim.requests[r]
    if _never_fits(sim, r):
        request.outcome = la.TOO_LARGE
        lists.announce_end(sim, r, now)
        return
    request.outcome = la.IN_FLIGHT
    first = router.route(sim, r)
    worker = sim.workers[first]
    worker.inflight_tokens += sim.trace.input_tokens[r]
    worker.inflight_requests += 1
    w = lanes.choose(sim, first, sim.trace.input_tokens[r])
    request.worker = w
    sim.workers[w].requests += 1
    doors.knock(sim.config.door, sim, doors.RECEIVE, w, r, now)
    if sim.config.lane_kind == la.WAVE:
        lanes.wake_group(sim, w, now)


@kernel
def _worker_event(sim, w, now):
    """Worker ``w``'s step ends at ``now``, or its next one begins."""
    if sim.config.lane_kind == la.WAVE:
        lanes.wave_event(sim, w, now)
        return
    worker = sim.workers[w]
    if worker.phase == la.FORMING or worker.phase == la.IDLE:
        worker.phase = la.FORMING
        doors.knock(sim.config.door, sim, doors.FORM, w, 0, now)
        if sim.config.lane_kind == la.PIPE:
            lanes.note_formed(sim, w)
        return
    doors.knock(sim.config.door, sim, doors.COMPLETE, w, 0, now)
    worker.phase = la.FORMING
    # The scheduler may have waited for something for longer than the step took.
    heaps.event_set(sim, w, max(now, worker.now_s))
    if sim.config.lane_kind == la.PIPE:
        lanes.wake_waiting(sim, w, now)


@kernel
def _reset(sim):
    """Empty caches, idle workers."""
    counters = sim.counters
    counters[:] = 0
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
    lanes.reset(sim)
    first_s = sim.requests[sim.open_loop[0]].arrival_s if sim.open_loop.shape[0] > 0 else 0.0
    for w in range(sim.config.workers):
        worker = sim.workers[w]
        worker.standby_s = 0.0
        worker.awake_until_s = first_s
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


@kernel
def _forget_after(sim, end_s):
    """First tokens are noted when their step is launched: those of steps that have not ended did not happen."""
    for r in range(sim.requests.shape[0]):
        if sim.requests[r].first_token_s > end_s:
            sim.requests[r].first_token_s = np.nan


@kernel
def run(sim):
    """Simulate until nothing is left to happen, the horizon is passed or too many requests are late.

    Returns (time of the last event, 1 if it stopped early). ``counters[FAULT]`` says why the run is void, if it
    is.
    """
    last = 0.0
    if sim.nodes.shape[0] < 2 * sim.trees.shape[0]:
        sim.counters[la.FAULT] = la.NODE_POOL_FULL
        return last, 0
    _reset(sim)
    nodes_per_event = la.NODES_PER_REQUEST * (sim.config.max_running + 2)
    if sim.config.lane_kind == la.WAVE:
        nodes_per_event *= sim.config.lanes
    while True:
        needed = nodes_per_event * sim.counters[la.LARGEST_GROUP]
        if sim.counters[la.FAULT] == 0 and sim.counters[la.NODES_LEFT] < needed:
            sim.counters[la.FAULT] = la.NODE_POOL_FULL
        if sim.counters[la.FAULT]:
            return last, 0
        arrival, r, is_open = _next_arrival(sim)
        event = np.inf
        if sim.counters[la.EVENT_HEAP] > 0:
            event = sim.workers[sim.event_heap[0]].event_s
        served = np.inf
        if sim.counters[la.SERVING] > 0:
            served = sim.servers[sim.server_heap[0]].end_s
        now = min(arrival, event, served)
        if now == np.inf:
            return last, 0
        if now > sim.config.horizon_s:
            _forget_after(sim, sim.config.horizon_s)
            return last, 1
        if sim.counters[la.LATE] > sim.config.late_requests:
            _forget_after(sim, last)
            return last, 1
        sim.counters[la.EVENTS] += 1
        if arrival <= event and arrival <= served:
            _deliver(sim, r, is_open, now)
        elif served <= event:
            doors.knock(sim.config.door, sim, doors.SERVE, sim.server_heap[0], 0, now)
        else:
            last = now
            _worker_event(sim, sim.event_heap[0], now)
