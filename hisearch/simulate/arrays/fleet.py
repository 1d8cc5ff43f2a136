"""From a fleet's plan to the arrays that its pools share."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hisearch.base.dtypes import F8, I4
from hisearch.base.policies import ADMISSIONS, AUTOSCALERS, ROUTERS
from hisearch.kernels.layout import fleet as fl
from hisearch.simulate.arrays.pool import trace_of
from hisearch.simulate.arrays.records import record, records
from hisearch.simulate.arrays.routing import give_places, mixed, route_of, routing_arrays
from hisearch.simulate.plans.fleet import FleetPlan, GiveUp, PoolPlan
from hisearch.traces.agents import AgentArrays, gate_count, memberships
from hisearch.traces.compiled import TraceArrays

ROLES = {"unified": fl.UNIFIED, "prefill": fl.PREFILL, "decode": fl.DECODE}
_KINDS = {"up": fl.COMES_UP, "drain": fl.IS_DRAINED, "down": fl.DIES, "host_lost": fl.HOST_DIES}
#: The back's stream of random numbers begins apart from the front's: the first 64 bits of the square root of 3's
#: fraction.
_BACK_STREAM = 0xBB67AE8584CAA73B


def in_order(plan: FleetPlan) -> list[tuple[int, PoolPlan]]:
    """Pools by their index, in the order of their members: fronts, then backs, each by model."""
    return sorted(enumerate(plan.pools), key=lambda item: (item[1].role == "decode", plan.model_of(item[1])))


def first_members(plan: FleetPlan) -> list[int]:
    """Number of each pool's first member."""
    first = [0] * len(plan.pools)
    count = 0
    for p, pool in in_order(plan):
        first[p] = count
        count += pool.slots
    return first


def allocate(
    plan: FleetPlan,
    trace: TraceArrays,
    front_end_s: F8,
    *,
    load: float,
    seed: int,
    horizon_s: float,
    give_up: GiveUp,
    pooled: bool = False,
    agents: AgentArrays | None = None,
    models: I4 | None = None,
) -> Any:
    """The arrays that pools share; ``sims`` is filled in once they have been made.

    ``front_end_s``: of ``simulate.front_end.delayed``. ``pooled``: see ``simulate.engine.simulate_fleet``. ``models``:
    number of each request's model among the plan's, shape (N,); None where there is but one.
    """
    count = len(trace.arrival_s)
    members = _members(plan)
    routes = _routes(plan, members, models, count)
    first_turns = np.flatnonzero(trace.previous < 0).astype(np.int32)
    order = np.argsort(trace.arrival_s[first_turns], kind="stable")
    gates = _gates(agents)
    waits = trace.previous if agents is None else np.where(agents.behind < 0, trace.previous, -1)
    pool = np.flatnonzero(waits >= 0) if pooled else np.empty(0)
    head, after = _lines(np.full(count, -1, np.int32) if pooled else waits, count)
    return fl.Fleet(
        config=_settings(plan, horizon_s, give_up),
        trace=trace_of(trace),
        sims=np.zeros(len(plan.pools), np.int64),
        next_s=np.zeros(len(plan.pools)),
        next_kind=np.zeros(len(plan.pools), np.int64),
        front_of=np.empty(0, np.int32) if models is None else (fl.SIDES * models).astype(np.int32),
        arrival_s=np.where(trace.previous < 0, trace.arrival_s / load, np.nan),
        front_end_s=front_end_s,
        sent_to=np.full(count, -1, np.int32),
        pending=np.empty(count, fl.PENDING_FOLLOW_UP).view(np.recarray),
        open_loop=first_turns[order],
        follower_head=head,
        follower_next=after,
        pool=pool.astype(np.int32),
        **gates,
        **routing_arrays(plan.routers, routes, members, trace, models, seed=seed),
        transfer=_transfer(plan),
        kv_transfers=records(count if plan.transfers_kv or plan.may_lack_workers else 1, fl.KV_TRANSFER),
        action_heap=np.empty(count if plan.transfers_kv or plan.may_lack_workers else 1, np.int32),
        nics=_nics(plan),
        output_write_back=records(count if plan.writes_back_output else 1, fl.WRITE_BACK),
        incidents=_incidents(plan),
        scalers=_scalers(plan),
        rng=_streams(seed, len(plan.models)),
        counters=np.zeros(fl.COUNTERS, np.int64),
    )


def _settings(plan: FleetPlan, horizon_s: float, give_up: GiveUp) -> Any:
    return record(
        fl.FLEET,
        pools=len(plan.pools),
        horizon_s=horizon_s,
        late_s=give_up.ttft_s,
        late_requests=give_up.requests,
        scrape_s=0.0 if any("metrics" in ROUTERS[front.policy].sees for front, _ in plan.routers) else math.inf,
        admission=ADMISSIONS.code(plan.admission.policy),
        retry_s=plan.retry_s,
        retries=plan.retries,
        **ADMISSIONS.kernel_values(plan.admission),
    )


def _transfer(plan: FleetPlan) -> Any:
    transfer = plan.transfer
    return record(
        fl.TRANSFER,
        reserve_first=transfer.reserve_first,
        pipelined=transfer.pipelined,
        layer_share=transfer.layer_share,
        forward_s=transfer.forward_s,
        local_tokens=transfer.local_tokens,
        reserved_tokens=transfer.reserved_tokens,
    )


def _incidents(plan: FleetPlan) -> Any:
    """What befalls members, in order of time; of one time in the order of the plan."""
    first = first_members(plan)
    known = sorted(plan.incidents, key=lambda incident: incident.at_s)
    rows = records(len(known), fl.INCIDENT)
    for row, incident in zip(rows, known, strict=True):
        row["at_s"] = incident.at_s
        row["member"] = first[incident.pool] + incident.worker
        row["kind"] = _KINDS[incident.kind]
    return rows


def _scalers(plan: FleetPlan) -> Any:
    first = first_members(plan)
    scaled = [p for p, pool in enumerate(plan.pools) if pool.scaler is not None]
    rows = records(len(scaled), fl.SCALER)
    for row, p in zip(rows, scaled, strict=True):
        pool, scaler = plan.pools[p], plan.pools[p].scaler
        assert scaler is not None
        row["period_s"] = row["look_s"] = scaler.period_s
        row["target"] = scaler.target
        row["startup_s"] = scaler.startup_s
        row["calm_s"] = scaler.calm_s
        row["many_s"] = math.inf
        row["first"] = first[p]
        row["members"] = pool.slots
        row["used"] = row["ready"] = pool.replicas
        row["least"] = scaler.min_replicas
        row["most"] = scaler.max_replicas
        row["metric"] = AUTOSCALERS.code(scaler.metric)
    return rows


def _streams(seed: int, models: int) -> np.ndarray:
    """A random stream for each route, shape (2 models, 1): the first model's begin with the seed itself."""
    beyond = mixed(np.arange(models)) ^ mixed(np.zeros(models, np.int64))
    starts = np.array([[seed, seed ^ _BACK_STREAM]], np.uint64) ^ beyond[:, None]
    return np.ascontiguousarray(starts.reshape(-1, 1))


def _nics(plan: FleetPlan) -> Any:
    """Networks of the members, or of their attention groups: of the accelerators that hold one request's KV together.

    Out and in alternate; shape (2 per group of every member,).
    """
    transfer = plan.transfer
    rows = []
    for _, pool in in_order(plan):
        mine = records(2 * pool.slots * pool.networks, fl.NIC)
        moved = transfer.bytes_per_token if pool.kv_bytes_per_token is None else pool.kv_bytes_per_token
        mine["base_s"] = transfer.base_s
        mine["s_per_token"] = moved / transfer.bytes_per_s
        if transfer.over_slots:
            mine["slot_s_per_token"] = moved / pool.plan.slot_bytes_per_s
            mine["copies"] = pool.plan.movement is not None
            mine["shares"] = len(pool.plan.ports) > 0
        mine["ranks"] = pool.ranks / pool.networks
        mine["last_tokens"] = pool.plan.engine.chunk_tokens
        rows.append(mine)
    return np.concatenate(rows).view(np.recarray)


def _members(plan: FleetPlan) -> Any:
    fastest = [max(p.prefill_tokens_per_s for p in plan.pools if p.model == model) for model in plan.models]
    members = records(sum(pool.slots for pool in plan.pools), fl.MEMBER)
    at = nic = 0
    for p, pool in in_order(plan):
        mine = members[at : at + pool.slots]
        model = plan.model_of(pool)
        mine["pool"] = p
        mine["index"] = np.arange(pool.slots)
        mine["prefill_tokens_per_s"] = pool.prefill_tokens_per_s
        mine["weight"] = pool.prefill_tokens_per_s / fastest[model]
        mine["price"] = pool.usd_per_hour
        mine["starts"] = np.arange(pool.slots) < pool.replicas
        mine["route"] = fl.SIDES * model + (fl.BACK if pool.role == "decode" else fl.FRONT)
        mine["nic"] = nic + 2 * pool.networks * np.arange(pool.slots)
        at += pool.slots
        nic += 2 * pool.slots * pool.networks
    return members


def _routes(plan: FleetPlan, members: Any, models: I4 | None, requests: int) -> Any:
    """Both routes of every model; its back is empty where it has no decode workers."""
    counts = np.bincount(members["route"], minlength=fl.SIDES * len(plan.models)).tolist()
    sent = [requests] if models is None else np.bincount(models, minlength=len(plan.models)).tolist()
    rows: list[Any] = []
    for k, count in enumerate(counts):
        model, side = divmod(k, fl.SIDES)
        first = int(np.flatnonzero(members["route"] == k)[0]) if count else 0
        worker = plan.pools[int(members["pool"][first])].plan if count else None
        row = route_of(plan.routers[model][side], first, count, worker)
        row["disaggregated"] = counts[fl.SIDES * model + fl.BACK] > 0
        if side == fl.FRONT:
            give_places(row, rows, _most_routed(plan) * sent[model])
        rows.append(row)
    return np.concatenate(rows).view(np.recarray)


def _most_routed(plan: FleetPlan) -> int:
    """How often a request may be sent to a front worker: at each try, and where that one goes while it waits for it."""
    if not plan.may_lack_workers:
        return 1
    return (1 + plan.retries) * (2 if plan.transfers_kv else 1)


def _gates(agents: AgentArrays | None) -> dict[str, Any]:
    """Requests that gates wait for, and those behind them, as linked lists."""
    if agents is None or gate_count(agents) == 0:
        none = np.empty(0, np.int32)
        return {"gate": none, "gate_next": none, "gates": records(0, fl.GATE), "behind_next": none}
    gates = records(gate_count(agents), fl.GATE)
    gates["left"] = np.bincount(memberships(agents)[1], minlength=len(gates))
    gates["head"], behind_next = _lines(agents.behind, len(gates))
    count = len(agents.gate)
    first, after = _lines(agents.further_request, count)
    gate_next = np.concatenate([first, after])
    gate_next[gate_next >= 0] += count
    gate = np.concatenate([agents.gate, agents.further_gate])
    return {"gate": gate, "gate_next": gate_next, "gates": gates, "behind_next": behind_next}


def _lines(behind: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Linked lists of who waits for what, in order of index.

    Args:
        behind: of each request, which of ``count`` it waits for, or -1.
        count: requests, or gates.

    Returns:
        The head of each one's list, shape (count,), and who is next in the same list, shape as ``behind``; or -1.
    """
    head = np.full(count, -1, np.int32)
    after = np.full(len(behind), -1, np.int32)
    waiting = np.flatnonzero(behind >= 0)
    order = waiting[np.argsort(behind[waiting], kind="stable")]
    owner = behind[order]
    first = np.ones(len(order), bool)
    first[1:] = owner[1:] != owner[:-1]
    head[owner[first]] = order[first]
    same = np.flatnonzero(~first)
    after[order[same - 1]] = order[same]
    return head, after
