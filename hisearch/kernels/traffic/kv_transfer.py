"""KV transfer between prefill and decode workers: scheduled actions of requests, and their KV on the way.

Engines differ in the order. SGLang's decode worker first reserves pages for a request. Then its prompt is computed, and
computed KV is sent while the rest is computed. With vLLM and TensorRT-LLM the prompt is computed first. Then the
request goes to a decode worker, which fetches the KV once it has free pages.

KV is transferred over the networks of both workers, each of which serves one transfer after another. DP ranks hold the
KV of their own requests, and have networks of their own. On its way it passes the slots of both accelerators, and what
neighbouring slots share on the way to the network's ports, in turn with their copies to and from host memory.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.layout import fleet as fl
from hisearch.kernels.layout import sim as la
from hisearch.kernels.traffic import links, pools


@kernel
def _before(fleet, a, b):
    time_a = fleet.kv_transfers[a].action_s
    time_b = fleet.kv_transfers[b].action_s
    return time_a < time_b or (time_a == time_b and a < b)


@kernel
def schedule_action(fleet, r, what, at_s):
    """Schedule action ``what`` for request ``r`` at ``at_s``; it must have no other."""
    fleet.kv_transfers[r].action = what
    fleet.kv_transfers[r].action_s = at_s
    heap = fleet.action_heap
    slot = fleet.counters[fl.ACTIONS]
    fleet.counters[fl.ACTIONS] = slot + 1
    while slot > 0:
        up = (slot - 1) >> 1
        if not _before(fleet, r, heap[up]):
            break
        heap[slot] = heap[up]
        slot = up
    heap[slot] = r


@kernel
def pop(fleet):
    """Remove and return the request with the earliest scheduled action."""
    heap = fleet.action_heap
    top = heap[0]
    size = fleet.counters[fl.ACTIONS] - 1
    fleet.counters[fl.ACTIONS] = size
    r = heap[size]
    slot = 0
    while True:
        down = 2 * slot + 1
        if down >= size:
            break
        if down + 1 < size and _before(fleet, heap[down + 1], heap[down]):
            down += 1
        if not _before(fleet, heap[down], r):
            break
        heap[slot] = heap[down]
        slot = down
    heap[slot] = r
    return top


@kernel
def _nic(fleet, m, r):
    """First network row of member ``m``, or of its DP rank that has ``r``."""
    member = fleet.members[m]
    sim = pools.at(fleet, member.pool)
    if sim.config.scheduler_kind != la.LOCKSTEP:
        return member.nic
    return member.nic + 2 * (sim.requests[r].worker - member.index * sim.config.schedulers)


@kernel
def _over_slot(fleet, m, r, nic, back, begin_s, tokens):
    """Send KV of ``r`` over its accelerators' slots at member ``m`` (``back``: in), and behind them; returns its end.

    ``tokens``: as many as each accelerator moves its share of.
    """
    end = begin_s + tokens * nic.slot_s_per_token
    sim = pools.at(fleet, fleet.members[m].pool)
    if nic.copies:
        end = links.carry(sim, 2 * sim.requests[r].worker + back, begin_s, tokens * nic.slot_s_per_token, 0)
    if nic.shares:
        for level in range(sim.ports.shape[1]):
            k = sim.ports[sim.requests[r].worker, level] + back
            link = sim.links[k]
            end = max(end, links.carry(sim, k, begin_s, link.base_s + tokens * link.s_per_token, 0))
    return end


@kernel
def _move(fleet, r, now):
    """Send the KV of ``r``, the first of which has been ready since ``ready_s``, and all since ``now``."""
    hand = fleet.kv_transfers[r]
    transfer = fleet.transfer
    out = fleet.nics[_nic(fleet, hand.source, r)]
    into = fleet.nics[_nic(fleet, hand.target, r) + 1]
    # Every rank receives all that it will hold, replicas included: few senders serve many receivers in turn.
    times = max(1.0, into.ranks / out.ranks)
    pace = into.s_per_token * times
    base = max(out.base_s, into.base_s)
    seconds = base + hand.tokens * pace
    end = max(now, out.free_s, into.free_s) + seconds
    if transfer.pipelined:
        last = base + min(hand.tokens, out.last_tokens) * transfer.layer_share * pace
        end = max(max(hand.ready_s, out.free_s, into.free_s) + seconds, now + last)
    begin_s = hand.ready_s if transfer.pipelined else now
    end = max(end, _over_slot(fleet, hand.source, r, out, 0, begin_s, times * hand.tokens))
    end = max(end, _over_slot(fleet, hand.target, r, into, 1, begin_s, hand.tokens))
    for nic in (out, into):
        nic.free_s = end
        nic.busy_s += seconds
        nic.tokens += hand.tokens
        nic.transfers += 1
    hand.state = fl.MOVING
    schedule_action(fleet, r, fl.ARRIVAL, end)


@kernel
def reserved(fleet, r, tokens, now):
    """The decode worker of ``r`` has reserved pages for it at ``now``, and lacks the KV of ``tokens`` tokens."""
    hand = fleet.kv_transfers[r]
    hand.tokens = tokens
    if hand.state == fl.RESERVING:
        hand.state = fl.COMPUTING
        schedule_action(fleet, r, fl.TO_PREFILL, now)
    else:
        _move(fleet, r, now)


@kernel
def computed(fleet, r, began_s, now):
    """The prompt of ``r``, begun at ``began_s``, has been computed at ``now``."""
    hand = fleet.kv_transfers[r]
    hand.ready_s = began_s
    if fleet.transfer.reserve_first and fleet.members[hand.target].died:
        schedule_action(fleet, r, fl.ORPHANED, now)
    elif fleet.transfer.reserve_first:
        _move(fleet, r, now)
    else:
        hand.state = fl.COMPUTED
        schedule_action(fleet, r, fl.TO_DECODE, now + fleet.transfer.forward_s)
