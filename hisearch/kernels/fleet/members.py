"""Workers that start and stop: those that are up when a run begins, incidents, autoscalers.

A worker that comes up again after it had gone is another member with cold caches. A drained worker takes no more
requests and goes when it has finished those that it has. A worker that dies loses them.
"""

from __future__ import annotations

import math

import numpy as np

from hisearch.base.jit import kernel
from hisearch.base.policies import AUTOSCALERS
from hisearch.kernels.core import tournament
from hisearch.kernels.core.dispatch import dispatcher
from hisearch.kernels.engine import engine_calls
from hisearch.kernels.engine.engine_calls import Op
from hisearch.kernels.fleet import (
    autoscalers,  # noqa: F401  (kernels are compiled from all of them)
    losses,
)
from hisearch.kernels.layout import fleet as fl
from hisearch.kernels.layout import sim as la
from hisearch.kernels.layout import tiers as tl
from hisearch.kernels.routing import prefix_index, router, router_tree
from hisearch.kernels.traffic import flow, heaps, pools

#: An autoscaler does not act if the load per worker is within this share of its target (Kubernetes' HPA: 0.1).
TOLERANCE = 0.1

_load = dispatcher(AUTOSCALERS, "load", "fleet, m")


@kernel
def _list_up_members(fleet, k):
    """Update the list of route ``k``'s members that take requests."""
    route = fleet.routes[k]
    route.ups = 0
    for place in range(route.members):
        m = fleet.at_place[route.first + place]
        if fleet.members[m].state == fl.UP:
            fleet.up[route.first + route.ups] = m
            route.ups += 1
    router.members_changed(fleet, k)


@kernel
def _come_up(fleet, m):
    """Let member ``m`` take requests from now on."""
    member = fleet.members[m]
    member.state = fl.UP
    _list_up_members(fleet, member.route)
    flow.note_load(fleet, m)
    flow.note_prefix(fleet, m)


@kernel
def _take_down(fleet, m, state):
    """Set member ``m``, which takes no more requests, to ``state``."""
    member = fleet.members[m]
    member.state = state
    place = member.place
    for row in range(flow.ROWS * member.route, flow.ROWS * (member.route + 1)):
        tournament.put(fleet.keys[row], fleet.winners[row], place, np.inf)
    prefix_index.forget(fleet, fleet.routes[member.route], m)
    router_tree.prune(fleet, member.route)
    _list_up_members(fleet, member.route)


@kernel
def _drain(fleet, m, now):
    member = fleet.members[m]
    _take_down(fleet, m, fl.DRAINING)
    if member.inflight_requests == 0:
        member.state = fl.ABSENT
        member.gone_s = now


@kernel
def _die(fleet, m, now):
    """Let member ``m`` die; the KV of its requests is lost."""
    member = fleet.members[m]
    sim = pools.at(fleet, member.pool)
    _take_down(fleet, m, fl.ABSENT)
    member.gone_s = now
    member.died = 1
    for scheduler in range(member.index * sim.config.schedulers, (member.index + 1) * sim.config.schedulers):
        heaps.event_clear(sim, scheduler)
        sim.workers[scheduler].phase = la.IDLE
    stores = (sim.config.hicache and sim.tiers.storage) or sim.config.store_pool >= 0
    if stores or sim.offloading.kv_connector != tl.NO_KV_CONNECTOR:
        for scheduler in range(member.index * sim.config.schedulers, (member.index + 1) * sim.config.schedulers):
            engine_calls.call_engine(sim.config.engine_entry, sim, Op.HALT, scheduler, 0, now)
    losses.lose(fleet, m, now)
    member.inflight_requests = 0
    member.inflight_tokens = 0
    member.outstanding_tokens = 0


@kernel
def _lose_stores(fleet, m, now):
    """Clear the stores shared on the host of member ``m``, whose workers have died."""
    member = fleet.members[m]
    sim = pools.at(fleet, member.pool)
    if (sim.config.hicache and sim.tiers.storage) or sim.offloading.kv_connector == tl.LMCACHE:
        engine_calls.call_engine(
            sim.config.engine_entry, sim, Op.LOSE_HOST, member.index * sim.config.schedulers, 0, now
        )


@kernel
def next_incident_s(fleet):
    """Time of the next incident, autoscaler check, or start of a worker by an autoscaler."""
    time = np.inf
    k = fleet.counters[fl.INCIDENTS]
    if k < fleet.incidents.shape[0]:
        time = fleet.incidents[k].at_s
    for scaler in fleet.scalers:
        time = min(time, scaler.look_s)
        if scaler.ready < scaler.used:
            time = min(time, fleet.members[scaler.first + scaler.ready].up_s)
    return time


@kernel
def _apply_incident(fleet, incident):
    m = incident.member
    member = fleet.members[m]
    if incident.kind == fl.COMES_UP:
        member.begun_s = incident.at_s
        member.up_s = incident.at_s
        _come_up(fleet, m)
    elif incident.kind == fl.IS_DRAINED and member.state == fl.UP:
        _drain(fleet, m, incident.at_s)
    elif incident.kind == fl.DIES and member.state != fl.ABSENT:
        _die(fleet, m, incident.at_s)
    elif incident.kind == fl.HOST_DIES:
        _lose_stores(fleet, m, incident.at_s)


@kernel
def happen(fleet, now):
    """Handle the events of ``next_incident_s`` up to ``now``: incidents, workers that come up, autoscalers."""
    while True:
        k = fleet.counters[fl.INCIDENTS]
        if k >= fleet.incidents.shape[0] or fleet.incidents[k].at_s > now:
            break
        fleet.counters[fl.INCIDENTS] = k + 1
        _apply_incident(fleet, fleet.incidents[k])
    for k in range(fleet.scalers.shape[0]):
        scaler = fleet.scalers[k]
        while scaler.ready < scaler.used and fleet.members[scaler.first + scaler.ready].up_s <= now:
            if fleet.members[scaler.first + scaler.ready].state == fl.STARTING:
                _come_up(fleet, scaler.first + scaler.ready)
            scaler.ready += 1
        if scaler.look_s <= now:
            scaler.look_s += scaler.period_s
            _scale(fleet, scaler, now)


@kernel
def _target_workers(fleet, scaler, workers):
    """Workers that would bring the metric of ``scaler`` to its target; ``workers`` if it is near enough."""
    load = 0.0
    for m in range(scaler.first, scaler.first + scaler.used):
        if fleet.members[m].state != fl.UP:
            continue
        load += _load(scaler.metric, fleet, m)
    share = load / (scaler.target * max(workers, 1))
    if abs(share - 1.0) <= TOLERANCE:
        return workers
    return min(max(math.ceil(load / scaler.target), scaler.least), scaler.most)


@kernel
def _scale(fleet, scaler, now):
    """Start workers at once if there are too few; drain the newest if there have been too many for ``calm_s``."""
    workers = 0
    for m in range(scaler.first, scaler.first + scaler.used):
        if fleet.members[m].state == fl.UP or fleet.members[m].state == fl.STARTING:
            workers += 1
    target = _target_workers(fleet, scaler, workers)
    if target >= workers:
        scaler.many_s = np.inf
    for _ in range(target - workers):
        if scaler.used == scaler.members:
            fleet.counters[fl.SHORT] = 1
            return
        member = fleet.members[scaler.first + scaler.used]
        scaler.used += 1
        member.state = fl.STARTING
        member.begun_s = now
        member.up_s = now + scaler.startup_s
    if target < workers:
        scaler.many_s = min(scaler.many_s, now)
        if now - scaler.many_s >= scaler.calm_s:
            _drain_newest(fleet, scaler, workers - target, now)


@kernel
def _drain_newest(fleet, scaler, count, now):
    for m in range(scaler.first + scaler.used - 1, scaler.first - 1, -1):
        if count > 0 and fleet.members[m].state == fl.UP:
            _drain(fleet, m, now)
            count -= 1


@kernel
def reset(fleet):
    """Reset the members: those present from the start are up, and the prefix index is empty."""
    for row in range(fleet.keys.shape[0]):
        tournament.clear(fleet.keys[row], fleet.winners[row])
    fleet.prefix_index[:] = 0
    router_tree.clear(fleet)
    for m in range(fleet.members.shape[0]):
        member = fleet.members[m]
        member.state = fl.UP if member.starts else fl.ABSENT
        member.begun_s = 0.0 if member.starts else np.nan
        member.up_s = 0.0 if member.starts else np.nan
        member.gone_s = np.nan
        member.died = 0
        flow.note_load(fleet, m)
        flow.note_prefix(fleet, m)
    for k in range(fleet.routes.shape[0]):
        _list_up_members(fleet, k)
