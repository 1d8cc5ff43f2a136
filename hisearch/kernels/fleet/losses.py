"""Requests that lose a worker: they are retried from the beginning, or lost.

With prefill/decode disaggregation a request has two workers. The surviving one finishes its work for the request up to
where it would need the other. A prompt being computed is finished, and its KV freed then. KV being transferred, or the
pages reserved for it, are freed when it would have arrived. A decode worker that waits for a prompt, or for KV that the
dead worker held, frees its pages at once.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.engine import engine_calls, schedulers
from hisearch.kernels.engine.engine_calls import Op
from hisearch.kernels.layout import fleet as fl
from hisearch.kernels.layout import sim as la
from hisearch.kernels.layout import tiers as tl
from hisearch.kernels.sglang import running
from hisearch.kernels.traffic import flow, kv_transfer, pools, thinking


@kernel
def tell(fleet, m, op, r, now):
    """Send ``op`` for ``r`` to the scheduler of member ``m`` that has it."""
    member = fleet.members[m]
    sim = pools.at(fleet, member.pool)
    w = sim.requests[r].worker
    engine_calls.call_engine(sim.config.engine_entry, sim, op, w, r, now)
    if sim.config.scheduler_kind == la.LOCKSTEP and sim.workers[w].waiting > 0:
        schedulers.wake_group(sim, w, now)
    elif sim.config.scheduler_kind == la.PIPE:
        schedulers.wake_waiting(sim, w, now)


@kernel
def forget(fleet, m, r):
    """Reset request ``r`` as if it had never reached member ``m``."""
    sim = pools.at(fleet, fleet.members[m].pool)
    request = sim.requests[r]
    preemptions = request.preemptions
    arrival = request.arrival_s
    sim.requests[r] = sim.blank[0]
    request.preemptions = preemptions
    request.arrival_s = arrival
    thinking.forget(sim, r)
    if sim.offloading.kv_connector != tl.NO_KV_CONNECTOR:
        sim.offloaded[r] = sim.fresh[0]


@kernel
def try_again(fleet, r, now):
    """Retry request ``r``, which has no worker, later, or lose it. It must have no scheduled action."""
    hand = fleet.kv_transfers[r]
    hand.state = fl.NO_TRANSFER
    hand.retries += 1
    fleet.sent_to[r] = -1
    if hand.retries > fleet.config.retries:
        pools.first(fleet).requests[r].outcome = la.LOST
        flow.announce_end(fleet, r, now, now)
    else:
        kv_transfer.schedule_action(fleet, r, fl.RETRY, now + fleet.config.retry_s)


@kernel
def _is_at(fleet, m, r):
    """Whether request ``r`` waits or runs at member ``m``."""
    member = fleet.members[m]
    sim = pools.at(fleet, member.pool)
    request = sim.requests[r]
    return request.outcome == la.IN_FLIGHT and request.worker // sim.config.schedulers == member.index


@kernel
def drop(fleet, m, r, now):
    """Take request ``r``, whose KV will not arrive, from decode member ``m``."""
    tell(fleet, m, Op.CANCEL_KV, r, now)
    flow.forgo(fleet, m, r, now)
    forget(fleet, m, r)


@kernel
def _filter_out(fleet, m, r):
    """SGLang: unlink ``r``, which has finished at member ``m``, from the running list if it is still there."""
    sim = pools.at(fleet, fleet.members[m].pool)
    w = sim.requests[r].worker
    if sim.workers[w].finished_pending > 0:
        running.filter_finished(sim, w)
        sim.workers[w].full = 0


@kernel
def let_go(fleet, m, r, now):
    """Free any KV that prefill member ``m`` still holds of request ``r``, which no decode worker takes over."""
    if not fleet.members[m].died:
        tell(fleet, m, Op.RELEASE_KV, r, now)
        _filter_out(fleet, m, r)
    forget(fleet, m, r)


@kernel
def _lose_decode(fleet, r, now):
    """Handle the death of ``r``'s decode worker."""
    hand = fleet.kv_transfers[r]
    if hand.state == fl.COMPUTING or hand.state == fl.MOVING:
        return
    if hand.state == fl.ARRIVED:
        flow.count_answers(fleet, r, -1)
    if hand.state == fl.COMPUTED or hand.state == fl.ARRIVED:
        let_go(fleet, hand.source, r, now)
    try_again(fleet, r, now)


@kernel
def _lose_prefill(fleet, r, now):
    """Handle the death of ``r``'s prefill worker before its prompt was computed."""
    hand = fleet.kv_transfers[r]
    if hand.target >= 0 and _is_at(fleet, hand.target, r):
        drop(fleet, hand.target, r, now)
    # If its decode worker has died too, nothing else retries the request.
    try_again(fleet, r, now)


@kernel
def lose(fleet, m, now):
    """Handle the death of member ``m``: retry or lose its requests, and those whose KV it held."""
    member = fleet.members[m]
    sim = pools.at(fleet, member.pool)
    role = sim.config.role
    for r in range(sim.requests.shape[0]):
        request = sim.requests[r]
        if request.worker < 0 or request.worker // sim.config.schedulers != member.index:
            continue
        if request.outcome == la.IN_FLIGHT:
            forget(fleet, m, r)
            if role == fl.DECODE:
                _lose_decode(fleet, r, now)
            elif role == fl.PREFILL:
                _lose_prefill(fleet, r, now)
            else:
                try_again(fleet, r, now)
        elif role == fl.PREFILL and request.outcome == la.FINISHED and fleet.kv_transfers[r].state == fl.COMPUTED:
            target = fleet.kv_transfers[r].target
            if target >= 0 and _is_at(fleet, target, r):
                drop(fleet, target, r, now)
                forget(fleet, m, r)
                try_again(fleet, r, now)
