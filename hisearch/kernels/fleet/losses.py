"""Requests that lose a worker: they are tried again from the beginning, or lost.

Where prompts and outputs are made apart a request has two of them. What the one that is left does for it ends when it
would have had to do with the other: a prompt that is being computed is finished, and its KV given back then; KV that is
on its way is given back, or its room, when it would have arrived. A decode worker that waits for a prompt, or for KV
that the dead worker held, gives the room back at once.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.engine import engine_calls, schedulers
from hisearch.kernels.engine.engine_calls import Op
from hisearch.kernels.layout import fleet as fl
from hisearch.kernels.layout import sim as la
from hisearch.kernels.layout import tiers as tl
from hisearch.kernels.sglang import running as sglang_running
from hisearch.kernels.traffic import flow, kv_transfer, pools


@kernel
def tell(fleet, m, op, r, now):
    """The lane of member ``m`` that ``r`` was dealt to learns of it."""
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
    """Request ``r`` is as if it had never reached member ``m``."""
    sim = pools.at(fleet, fleet.members[m].pool)
    request = sim.requests[r]
    preemptions = request.preemptions
    arrival = request.arrival_s
    sim.requests[r] = sim.blank[0]
    request.preemptions = preemptions
    request.arrival_s = arrival
    if sim.offloading.kv_connector != tl.NO_KV_CONNECTOR:
        sim.offloaded[r] = sim.fresh[0]


@kernel
def try_again(fleet, r, now):
    """Request ``r`` has no worker: it is tried again later, or lost. Nothing else may be due for it."""
    hand = fleet.hands[r]
    hand.state = fl.NOT_HANDED
    hand.retries += 1
    fleet.sent_to[r] = -1
    if hand.retries > fleet.config.retries:
        pools.first(fleet).requests[r].outcome = la.LOST
        flow.announce_end(fleet, r, now)
    else:
        kv_transfer.set_due(fleet, r, fl.RETRY, now + fleet.config.retry_s)


@kernel
def _is_at(fleet, m, r):
    """Whether request ``r`` waits or runs at member ``m``."""
    member = fleet.members[m]
    sim = pools.at(fleet, member.pool)
    request = sim.requests[r]
    return request.outcome == la.IN_FLIGHT and request.worker // sim.config.schedulers == member.index


@kernel
def drop(fleet, m, r, now):
    """Decode member ``m`` gives up request ``r``, whose KV will not come."""
    tell(fleet, m, Op.CANCEL_KV, r, now)
    flow.forgo(fleet, m, r, now)
    forget(fleet, m, r)


@kernel
def _filter_out(fleet, m, r):
    """SGLang: ``r``, which has finished at member ``m``, may still be in a running list, whose links it has."""
    sim = pools.at(fleet, fleet.members[m].pool)
    w = sim.requests[r].worker
    if sim.workers[w].finished_pending > 0:
        sglang_running.filter_finished(sim, w)
        sim.workers[w].full = 0


@kernel
def let_go(fleet, m, r, now):
    """Prefill member ``m`` gives back what it may still hold of request ``r``, which nobody will take over."""
    if not fleet.members[m].died:
        tell(fleet, m, Op.RELEASE_KV, r, now)
        _filter_out(fleet, m, r)
    forget(fleet, m, r)


@kernel
def _of_decode(fleet, r, now):
    """The decode worker of ``r`` has died."""
    hand = fleet.hands[r]
    if hand.state == fl.COMPUTING or hand.state == fl.MOVING:
        return
    if hand.state == fl.COMPUTED or hand.state == fl.ARRIVED:
        let_go(fleet, hand.source, r, now)
    try_again(fleet, r, now)


@kernel
def _of_prefill(fleet, r, now):
    """The prefill worker of ``r`` has died before it had computed its prompt."""
    hand = fleet.hands[r]
    if hand.target >= 0 and _is_at(fleet, hand.target, r):
        drop(fleet, hand.target, r, now)
    # Where its decode worker has died too, nothing else finds out.
    try_again(fleet, r, now)


@kernel
def lose(fleet, m, now):
    """Member ``m`` has died: what becomes of its requests, and of those whose KV it held."""
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
                _of_decode(fleet, r, now)
            elif role == fl.PREFILL:
                _of_prefill(fleet, r, now)
            else:
                try_again(fleet, r, now)
        elif role == fl.PREFILL and request.outcome == la.FINISHED and fleet.hands[r].state == fl.COMPUTED:
            target = fleet.hands[r].target
            if target >= 0 and _is_at(fleet, target, r):
                drop(fleet, target, r, now)
                forget(fleet, m, r)
                try_again(fleet, r, now)
