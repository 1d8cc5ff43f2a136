"""A request's way from its arrival to a worker, or from a prefill to a decode worker."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import tree
from hisearch.kernels.engine import engine_calls, schedulers
from hisearch.kernels.engine.engine_calls import Op
from hisearch.kernels.fleet import admission, losses
from hisearch.kernels.layout import fleet as fl
from hisearch.kernels.layout import sim as la
from hisearch.kernels.routing import router
from hisearch.kernels.traffic import flow, pools


@kernel
def _never_fits(sim, r):
    if sim.trace.input_tokens[r] + sim.trace.max_output_tokens[r] > sim.config.max_request_tokens:
        return True
    return engine_calls.call_engine(sim.config.engine_entry, sim, Op.NEVER_FITS, 0, r, 0.0) != 0


@kernel
def _fits_nowhere(fleet, r):
    """Whether the pools of its model could never serve ``r``."""
    front = flow.front_of(fleet, r)
    if _fits(fleet, r, front):
        return _is_disaggregated(fleet, front) and not _fits(fleet, r, front + fl.BACK)
    return True


@kernel
def _fits(fleet, r, k):
    """Whether a pool on route ``k`` could serve ``r``."""
    for p in range(fleet.config.pools):
        sim = pools.at(fleet, p)
        if fleet.members[sim.config.first_member].route == k and not _never_fits(sim, r):
            return True
    return False


@kernel
def _is_disaggregated(fleet, front):
    """Whether the model with front route ``front`` is served with prefill/decode disaggregation."""
    return fleet.routes[front + fl.BACK].members > 0


@kernel
def _refuse(fleet, r, outcome, now):
    """Refuse request ``r`` with the given outcome."""
    pools.first(fleet).requests[r].outcome = outcome
    flow.announce_end(fleet, r, now, now)


@kernel
def _send(fleet, m, r, now):
    """Send request ``r`` to member ``m``."""
    member = fleet.members[m]
    sim = pools.at(fleet, member.pool)
    request = sim.requests[r]
    request.arrival_s = fleet.arrival_s[r]
    if fleet.config.pools > 1 and _never_fits(sim, r):
        request.outcome = la.TOO_LARGE
        if sim.config.role == fl.DECODE and fleet.kv_transfers[r].state == fl.COMPUTED:
            losses.tell(fleet, fleet.kv_transfers[r].source, Op.RELEASE_KV, r, now)
            pools.update_next_event(fleet, fleet.members[fleet.kv_transfers[r].source].pool)
        flow.announce_end(fleet, r, now, now)
        return
    request.outcome = la.IN_FLIGHT
    w = schedulers.choose(sim, member.index * sim.config.schedulers, sim.trace.input_tokens[r])
    request.worker = w
    if sim.config.role != fl.DECODE or fleet.kv_transfers[r].state == fl.NO_TRANSFER:
        fleet.sent_to[r] = m
    sim.workers[w].requests += 1
    flow.join(fleet, m, r)
    engine_calls.call_engine(sim.config.engine_entry, sim, Op.RECEIVE, w, r, now)
    if sim.config.scheduler_kind == la.LOCKSTEP:
        schedulers.wake_group(sim, w, now)
    pools.update_next_event(fleet, member.pool)


@kernel
def arrive(fleet, r, is_open, now):
    """Handle the arrival of request ``r`` at the router."""
    if is_open:
        fleet.counters[fl.NEXT_OPEN] += 1
    else:
        flow.pending_pop(fleet)
    if _fits_nowhere(fleet, r):
        _refuse(fleet, r, la.TOO_LARGE, now)
    elif not admission.admits(fleet, r, now):
        _refuse(fleet, r, la.SHED, now)
    else:
        _dispatch(fleet, r, now)


@kernel
def _dispatch(fleet, r, now):
    """Dispatch request ``r`` to the workers of its model; if none is up it is retried."""
    front = flow.front_of(fleet, r)
    if _is_disaggregated(fleet, front):
        _dispatch_disaggregated(fleet, front, r, now)
        return
    m = router.route(fleet, front, r, now)
    if m < 0:
        losses.try_again(fleet, r, now)
    else:
        _send(fleet, m, r, now)


@kernel
def _prefills_locally(fleet, d, r):
    """Whether decode member ``d`` computes ``r``'s prompt itself, with fewer than ``local_tokens`` uncached tokens."""
    if fleet.transfer.local_tokens == 0:
        return False
    member = fleet.members[d]
    sim = pools.at(fleet, member.pool)
    cached = 0
    if sim.config.prefix_caching:
        limit = tree.floor_page(sim, fleet.trace.input_tokens[r] - 1)
        for w in range(member.index * sim.config.schedulers, (member.index + 1) * sim.config.schedulers):
            tokens, _ = tree.match(sim, sim.workers[w].cache_id, fleet.trace.prompt_node[r], limit)
            cached = max(cached, tokens)
    return fleet.trace.input_tokens[r] - cached < fleet.transfer.local_tokens


@kernel
def _dispatch_disaggregated(fleet, front, r, now):
    """Dispatch request ``r`` to a prefill and a decode worker."""
    hand = fleet.kv_transfers[r]
    hand.state = fl.NO_TRANSFER
    hand.target = -1
    if fleet.transfer.reserve_first or fleet.transfer.local_tokens > 0:
        hand.target = router.route(fleet, front + fl.BACK, r, now)
        if hand.target >= 0 and _prefills_locally(fleet, hand.target, r):
            _send(fleet, hand.target, r, now)
            return
    hand.source = router.route(fleet, front, r, now)
    if hand.source < 0 or (fleet.transfer.reserve_first and hand.target < 0):
        losses.try_again(fleet, r, now)
        return
    fleet.sent_to[r] = hand.source
    if fleet.transfer.reserve_first and fleet.trace.output_tokens[r] > 1:
        hand.state = fl.RESERVING
        _send(fleet, hand.target, r, now)
    else:
        hand.state = fl.COMPUTING
        _send(fleet, hand.source, r, now)


@kernel
def act(fleet, r, now):
    """Carry out the scheduled action of ``r`` between its prefill and its decode worker."""
    action = fleet.kv_transfers[r].action
    if action == fl.RETRY:
        _dispatch(fleet, r, now)
    elif action == fl.TO_PREFILL:
        _to_prefill(fleet, r, now)
    elif action == fl.TO_DECODE:
        _to_decode(fleet, r, now)
    elif action == fl.ARRIVAL:
        _arrival(fleet, r, now)
    else:
        _give_up(fleet, r, now)
    for p in range(fleet.config.pools):
        pools.update_next_event(fleet, p)


@kernel
def _to_prefill(fleet, r, now):
    """Send ``r``, for which its decode worker has reserved pages, to its prefill worker."""
    hand = fleet.kv_transfers[r]
    if fleet.members[hand.target].died:
        losses.try_again(fleet, r, now)
        return
    if fleet.members[hand.source].state != fl.UP:
        hand.source = router.route(fleet, flow.front_of(fleet, r), r, now)
    if hand.source < 0:
        losses.drop(fleet, hand.target, r, now)
        losses.try_again(fleet, r, now)
        return
    _send(fleet, hand.source, r, now)


@kernel
def _to_decode(fleet, r, now):
    """Send ``r``, whose prompt has been computed, to a decode worker."""
    hand = fleet.kv_transfers[r]
    if fleet.members[hand.source].died:
        _give_up(fleet, r, now)
        return
    if hand.target < 0 or fleet.members[hand.target].state != fl.UP:
        hand.target = router.route(fleet, flow.front_of(fleet, r) + fl.BACK, r, now)
    if hand.target < 0:
        _give_up(fleet, r, now)
        return
    _send(fleet, hand.target, r, now)


@kernel
def _arrival(fleet, r, now):
    """Deliver the KV of ``r``, if both of its workers are still there."""
    hand = fleet.kv_transfers[r]
    if fleet.members[hand.target].died:
        _give_up(fleet, r, now)
    elif fleet.members[hand.source].died:
        losses.drop(fleet, hand.target, r, now)
        _give_up(fleet, r, now)
    else:
        hand.state = fl.ARRIVED
        flow.count_answers(fleet, r, 1)
        losses.tell(fleet, hand.source, Op.RELEASE_KV, r, now)
        losses.tell(fleet, hand.target, Op.RECEIVE_KV, r, now)


@kernel
def _give_up(fleet, r, now):
    """Free the KV that the prefill worker of ``r`` has computed, and retry ``r``: no decode worker takes it over."""
    losses.let_go(fleet, fleet.kv_transfers[r].source, r, now)
    losses.try_again(fleet, r, now)
