"""The event loop: arrivals and workers' step ends in order of time, over all pools.

Order of events at the same time:

1. incidents of workers;
2. arrivals, by request index;
3. actions between prefill and decode workers;
4. events of pools, by kind and then by pool index: servers other than schedulers, then ends of steps (by worker index),
   then starts of steps (by worker index).

So a step that starts at t sees every arrival at or before t, including a follow-up that arrives the moment its
predecessor ends.
"""

from __future__ import annotations

import numpy as np

from hisearch.base.jit import kernel
from hisearch.kernels.engine import device, engine_calls, schedulers
from hisearch.kernels.engine.engine_calls import Op
from hisearch.kernels.fleet import dispatch, members
from hisearch.kernels.layout import fleet as fl
from hisearch.kernels.layout import sim as la
from hisearch.kernels.routing import scrapes
from hisearch.kernels.traffic import flow, heaps, kv_transfer, pools, thinking


@kernel
def _next_pool(fleet):
    """The pool with the next event."""
    best = 0
    for p in range(1, fleet.config.pools):
        sooner = fleet.next_s[p] - fleet.next_s[best]
        if sooner < 0.0 or (sooner == 0.0 and fleet.next_kind[p] < fleet.next_kind[best]):
            best = p
    return best


@kernel
def _settle_bound(fleet, p):
    """If pool ``p``'s next event is a bound on a fast-forward's end, settle it; returns whether it was."""
    sim = pools.at(fleet, p)
    if fleet.next_kind[p] != pools.END or sim.counters[la.EVENT_HEAP] == 0:
        return False
    w = sim.event_heap[0]
    if sim.workers[w].phase != la.FAST_FORWARDING or not sim.workers[w].fast_forward_open:
        return False
    device.settle_fast_forward(sim, w)
    pools.update_next_event(fleet, p)
    return True


@kernel
def _worker_event(sim, w, now):
    """Handle worker ``w``'s event at ``now``: a step ends, or the next one is formed."""
    if sim.config.scheduler_kind == la.LOCKSTEP:
        schedulers.lockstep_event(sim, w, now)
        return
    worker = sim.workers[w]
    if worker.phase == la.FORMING or worker.phase == la.IDLE:
        worker.phase = la.FORMING
        engine_calls.call_engine(sim.config.engine_entry, sim, Op.FORM_BATCH, w, 0, now)
        if sim.config.scheduler_kind == la.PIPE:
            schedulers.note_formed(sim, w)
        return
    engine_calls.call_engine(sim.config.engine_entry, sim, Op.COMPLETE_STEP, w, 0, now)
    worker.phase = la.FORMING
    # The scheduler may have waited for copies for longer than the step took.
    heaps.event_set(sim, w, max(now, worker.now_s))
    if sim.config.scheduler_kind == la.PIPE:
        schedulers.wake_waiting(sim, w, now)


@kernel
def _handle_pool_event(fleet, p, now):
    """Handle pool ``p``'s next event. Returns a pool whose ``counters[FAULT]`` voids the run, or -1."""
    sim = pools.at(fleet, p)
    if fleet.next_kind[p] == pools.SERVED:
        engine_calls.call_engine(sim.config.engine_entry, sim, Op.SERVE, sim.server_heap[0], 0, now)
    else:
        _worker_event(sim, sim.event_heap[0], now)
    _check_node_records(sim)
    pools.update_next_event(fleet, p)
    store_pool = sim.config.store_pool
    if store_pool >= 0:
        front = pools.at(fleet, store_pool)
        _check_node_records(front)
        if front.counters[la.FAULT]:
            return store_pool
    return p if sim.counters[la.FAULT] else -1


@kernel
def _check_node_records(sim):
    """Void the run before the next event could take more node records than there are."""
    needed = la.NODES_PER_REQUEST * (sim.config.max_running + 2) * sim.counters[la.LARGEST_GROUP]
    if sim.config.scheduler_kind == la.LOCKSTEP:
        needed *= sim.config.schedulers
    if sim.counters[la.FAULT] == 0 and sim.counters[la.NODES_LEFT] < needed:
        sim.counters[la.FAULT] = la.NODE_POOL_FULL


@kernel
def _first_arrival_s(fleet):
    return fleet.arrival_s[fleet.open_loop[0]] if fleet.open_loop.shape[0] > 0 else 0.0


@kernel
def _reset_pool(sim):
    """Reset a pool to empty caches and idle workers."""
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
    sim.deepest_cached[:] = -1
    for v in range(trees):
        sim.nodes[v].first = -1
    schedulers.reset(sim)
    first_s = _first_arrival_s(sim.fleet)
    for w in range(sim.config.workers):
        worker = sim.workers[w]
        worker.awake_until_s = first_s
        worker.running_head = -1
        worker.running_tail = -1
        worker.waiting_head = -1
        worker.waiting_tail = -1
        worker.held_head = -1
        worker.held_tail = -1
        worker.chunked = -1
        worker.finished_pending_head = -1
        worker.prompts_head = -1
        worker.prompts_tail = -1
        worker.skipped_head = -1
        worker.endings_new = -1
        worker.endings_old = -1
        worker.event_slot = -1
        worker.held_path_end = -1
        engine_calls.call_engine(sim.config.engine_entry, sim, Op.RESET, w, 0, 0.0)
    _check_node_records(sim)


@kernel
def _forget_after(fleet, end_s):
    """Clear first tokens after ``end_s``: they were noted when their step was launched, but it has not ended."""
    for p in range(fleet.config.pools):
        sim = pools.at(fleet, p)
        requests = sim.requests
        thinking.forget_after(sim, end_s)
        for r in range(requests.shape[0]):
            if requests[r].first_token_s > end_s:
                requests[r].first_token_s = np.nan


@kernel
def _all_done(fleet):
    """Whether every request that has arrived has ended, so that no request waits for the servers' jobs."""
    for p in range(fleet.config.pools):
        if pools.at(fleet, p).counters[la.EVENT_HEAP] > 0:
            return False
    inflight = 0
    for m in range(fleet.members.shape[0]):
        inflight += fleet.members[m].inflight_requests
    return inflight == 0


@kernel
def run(fleet):
    """Simulate until every request has ended, the horizon is passed or too many requests are late.

    Jobs that servers other than schedulers still have when the last request has ended are not finished.

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
        pools.update_next_event(fleet, p)
    while True:
        arrival, r, is_open = flow.next_arrival(fleet)
        p = _next_pool(fleet)
        event = fleet.next_s[p]
        action_s = fleet.kv_transfers[fleet.action_heap[0]].action_s if fleet.counters[fl.ACTIONS] > 0 else np.inf
        incident = members.next_incident_s(fleet)
        now = min(arrival, event, action_s)
        if now == np.inf:
            return last, 0, -1
        if event <= min(now, incident) and _settle_bound(fleet, p):
            continue
        if min(arrival, action_s) == np.inf and fleet.next_kind[p] == pools.SERVED and _all_done(fleet):
            return last, 0, -1
        now = min(now, incident)
        if now > fleet.config.horizon_s:
            _forget_after(fleet, fleet.config.horizon_s)
            return last, 1, -1
        if fleet.counters[fl.LATE] > fleet.config.late_requests:
            _forget_after(fleet, last)
            return last, 1, -1
        if fleet.config.scrape_s <= now:
            scrapes.scrape_where_due(fleet, now)
        fleet.counters[fl.EVENTS] += 1
        if incident <= now:
            members.happen(fleet, now)
            if fleet.counters[fl.SHORT]:
                return last, 0, -1
            for q in range(fleet.config.pools):
                pools.update_next_event(fleet, q)
        elif arrival <= event and arrival <= action_s:
            dispatch.arrive(fleet, r, is_open, now)
        elif action_s <= event:
            dispatch.act(fleet, kv_transfer.pop(fleet), now)
        else:
            if fleet.next_kind[p] != pools.SERVED:
                last = now
            faulty_pool = _handle_pool_event(fleet, p, now)
            if faulty_pool >= 0:
                return last, 0, faulty_pool
