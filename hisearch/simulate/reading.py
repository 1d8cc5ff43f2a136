"""From kernel arrays to a ``Result``: requests, workers, stores and links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hisearch.base.dtypes import I4
from hisearch.hardware.power import Standby
from hisearch.kernels.layout import client
from hisearch.kernels.layout import fleet as fl
from hisearch.kernels.layout import sim as la
from hisearch.simulate import agent_use, draft_use, front_end, grammar_use, lora_use, tier_use
from hisearch.simulate.arrays import fleet as fleet_arrays
from hisearch.simulate.arrays import tiers as tier_arrays
from hisearch.simulate.arrays.agents import agents_of
from hisearch.simulate.plans.draw import Draw, drawn_over_time
from hisearch.simulate.plans.fleet import FleetPlan, PoolPlan
from hisearch.simulate.plans.plan import WorkerPlan
from hisearch.simulate.plans.tier_plan import TierPlan
from hisearch.simulate.results.pool_logs import merged_logs
from hisearch.simulate.results.result import Result
from hisearch.simulate.results.tables import RequestTable, StepLog, WorkerTable
from hisearch.simulate.results.uses import KvTransferUse, PoolUse, StoreUse, TierEnergy
from hisearch.traces.compiled import CompiledTrace
from hisearch.traces.models import RequestModels


def result_of(
    plan: FleetPlan,
    trace: CompiledTrace,
    request_models: RequestModels,
    fleet: fl.Fleet,
    sims: Sequence[la.Sim],
    end_s: float,
    horizon_reached: bool,
    load: float,
) -> Result:
    """The result of a run that ended at ``end_s``, from the arrays of ``fleet`` and of its pools, ``sims``."""
    models = request_models.model if len(request_models.names) > 1 else np.zeros(len(trace), np.int32)
    table = _request_table(plan, trace, fleet, sims, models)
    pools = _pool_uses(plan, sims)
    until_s = max(tier_use.end_of_run_s(sim, end_s, horizon_reached) for sim in sims)
    first = float(np.nanmin(table.arrival_s)) if np.isfinite(table.arrival_s).any() else 0.0
    plans = [pool.plan for pool in plan.pools]
    result = Result(
        requests=table,
        workers=_worker_table(plan, fleet, sims, end_s),
        makespan_s=max(end_s - first, 0.0),
        kv_capacity_tokens=plans[0].kv_capacity_tokens,
        idle_w=plans[0].idle_w,
        horizon_reached=horizon_reached,
        warnings=tuple(
            dict.fromkeys(
                (
                    *agent_use.caveats(plans, trace),
                    *lora_use.caveats(plans, trace),
                    *grammar_use.caveats(plans, trace),
                    *(warning for worker in plans for warning in worker.costs.warnings),
                    *draft_use.notes([pool.plan for pool in plan.pools if pool.role != "prefill"], trace),
                )
            )
        ),
        front_end_busy=front_end.busy_share(plan, table, _pool_of(fleet, table.worker)),
        events=int(fleet.counters[fl.EVENTS]),
        gap_counts=np.sum([sim.gaps for sim in sims], axis=0),
        pool_gap_counts=tuple(sim.gaps.copy() for sim in sims),
        log=_logs(pools, sims) if sims[0].config.log else None,
        far_hit_tokens=sum(pool.far_hit_tokens for pool in pools),
        observed_s=max(until_s - first, 0.0),
        stores=_stores(pools, plans, sims, until_s),
        links=tuple(
            replace(use, pool=p) for p, sim in enumerate(sims) for use in tier_use.link_uses(plans[p], sim, until_s)
        ),
        kv_transfers=_hand_overs(plan, fleet),
        fetches_ahead=any(pool.fetches_ahead for pool in pools),
        pools=pools,
        objects=tuple(
            use
            for p, sim in enumerate(sims)
            for use in agent_use.object_uses(plans[p].agents, sim, plans[p].ranks, agents_of(trace, plans[p].agents))
        ),
        adapters=tuple(
            use
            for p, sim in enumerate(sims)
            for use in lora_use.adapter_uses(plans[p], sim, trace, table.prefill_worker, pools[p].first_worker)
        ),
        grammars=tuple(
            use
            for p, sim in enumerate(sims)
            for use in grammar_use.grammar_uses(plans[p], sim, trace, table.prefill_worker, pools[p].first_worker)
        ),
        hints=agent_use.hint_quality(plans[0].agents, sims[0]),
        asked=request_models,
    )
    return replace(result, pools=_drawn(result, plans))


def _drawn(result: Result, plans: Sequence[WorkerPlan]) -> tuple[PoolUse, ...]:
    """The result's pools with the draw of what their workers shared over the run."""
    pools = []
    for pool, plan, present in zip(result.pools, plans, result.present_workers, strict=True):
        draw = drawn_over_time(Draw(pool.idle_w, pool.attached_idle_w, pool.power), plan.shared_draws, present)
        pools.append(replace(pool, idle_w=draw.idle_w, attached_idle_w=draw.attached_idle_w, power=draw.power))
    return tuple(pools)


def _stores(
    pools: Sequence[PoolUse], plans: Sequence[WorkerPlan], sims: Sequence[la.Sim], until_s: float
) -> tuple[StoreUse, ...]:
    return tuple(
        replace(use, pool=p, first_worker=pools[p].first_worker + use.first_worker)
        for p, sim in enumerate(sims)
        for use in tier_use.store_uses(plans[p], sim, until_s)
    )


def _hand_overs(plan: FleetPlan, fleet: fl.Fleet) -> tuple[KvTransferUse, ...]:
    if not plan.transfers_kv:
        return ()
    rows = []
    for m, member in enumerate(fleet.members):
        networks = plan.pools[member.pool].networks
        first = int(member.nic) + (1 if member.route % fl.SIDES == fl.BACK else 0)
        mine = fleet.nics[first : first + 2 * networks : 2]
        use = KvTransferUse(m, float(mine.busy_s.mean()), int(mine.tokens.sum()), int(mine.transfers.sum()))
        rows.append(use)
    return tuple(rows)


def _pool_uses(plan: FleetPlan, sims: Sequence[la.Sim]) -> tuple[PoolUse, ...]:
    return tuple(
        PoolUse(
            pool.name,
            pool.role,
            first,
            pool.slots,
            pool.plan.kv_capacity_tokens,
            pool.plan.idle_w,
            pool.plan.power,
            pool.model.name,
            tuple(TierEnergy(tier.energy_j_per_token, tier.bytes_per_token, tier.kind) for tier in _tiers(plan, pool)),
            int(sim.workers["far_hit_tokens"].sum()),
            bool(tier_arrays.storage_of(pool.plan)),
            pool.plan.attached_idle_w,
        )
        for pool, sim, first in zip(plan.pools, sims, fleet_arrays.first_members(plan), strict=True)
    )


def _tiers(plan: FleetPlan, pool: PoolPlan) -> tuple[TierPlan, ...]:
    """The pool's tiers; for decode workers, followed by the other pool's storage that they write to."""
    if not pool.plan.writes_back_output:
        return pool.plan.tiers
    front, tier = plan.output_storage(pool)
    return (*pool.plan.tiers, plan.pools[front].plan.tiers[1 + tier])


#: Columns of which ``front_end.deliveries`` makes those of the table.
_FRONT_END = tuple(name for name, _ in client.REQUEST)

#: Columns of a request's records that enter its ``RequestTable`` row.
_COLUMNS = (
    "scheduled_s", "first_token_s", "finish_s", "hit_tokens", "host_hit_tokens", "storage_hit_tokens", "preemptions",
    "outcome", *_FRONT_END,
)  # fmt: skip


def _request_table(
    plan: FleetPlan, trace: CompiledTrace, fleet: fl.Fleet, sims: Sequence[la.Sim], models: I4
) -> RequestTable:
    """The requests' table, from the records of each pool."""
    prefill_worker = fleet.sent_to.copy()
    columns = _record_columns(fleet, sims, prefill_worker)
    worker, kv_arrived_s = prefill_worker, None
    if plan.transfers_kv:
        handed = (fleet.kv_transfers["state"] != fl.NO_TRANSFER) & (fleet.trace.output_tokens > 1)
        worker = np.where(handed, fleet.kv_transfers["target"], prefill_worker).astype(np.int32)
        columns = _with_decode_records(columns, _record_columns(fleet, sims, worker), handed)
        arrived = fleet.kv_transfers["state"] == fl.ARRIVED
        kv_arrived_s = np.where(arrived, fleet.kv_transfers["action_s"], np.nan)
    pool = _pool_of(fleet, worker)
    columns |= _visible_columns(trace, sims, pool, columns)
    columns_and_arrivals = {**columns, "arrival_s": fleet.arrival_s}
    delivery = front_end.deliveries(plan, models, pool, fleet.front_end_s, columns_and_arrivals)
    for name in {*_FRONT_END, "decoding_at_first_visible"} & columns.keys():
        del columns[name]
    return RequestTable(
        arrival_s=fleet.arrival_s.copy(),
        worker=worker,
        prefill_worker=prefill_worker,
        input_tokens=trace.arrays.input_tokens,
        output_tokens=trace.arrays.output_tokens,
        kv_arrived_s=kv_arrived_s,
        priority=trace.arrays.priority,
        tenant=trace.arrays.tenant,
        thinking_tokens=trace.arrays.thinking_tokens if "first_visible_s" in columns else None,
        **delivery,  # type: ignore[arg-type]
        **columns,
    )


def _record_columns(fleet: fl.Fleet, sims: Sequence[la.Sim], member: np.ndarray) -> dict[str, np.ndarray]:
    """Each request's record in the pool of ``member``; -1: in the first pool that takes requests."""
    first, pool = int(fleet.members[0].pool), _pool_of(fleet, member)
    if (pool == first).all():
        return {name: sims[first].requests[name].copy() for name in _COLUMNS}
    return {name: np.choose(pool, [sim.requests[name] for sim in sims]) for name in _COLUMNS}


def _visible_columns(
    trace: CompiledTrace, sims: Sequence[la.Sim], pool: np.ndarray, columns: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """When each request's first visible token was made, and how many others decoded then; {} if none thinks.

    ``pool``: of each request, that which made its tokens. The first token and the last are noted for all requests.
    """
    thinking, outputs = trace.arrays.thinking_tokens, trace.arrays.output_tokens
    if not thinking.any():
        return {}
    at_s, batch_mates = np.full(len(trace), np.nan), np.zeros(len(trace), np.int64)
    for p, sim in enumerate(sims):
        mine = np.flatnonzero(pool == p)
        if len(sim.thinking.tokens):
            at_s[mine] = sim.thinking.first_visible["at_s"][mine]
            batch_mates[mine] = sim.thinking.first_visible["batch_mates"][mine]
    at_s = np.where(thinking == outputs - 1, columns["finish_s"], at_s)
    at_s = np.where(thinking == 0, columns["first_token_s"], at_s)
    return {"first_visible_s": at_s, "decoding_at_first_visible": batch_mates}


def _pool_of(fleet: fl.Fleet, member: np.ndarray) -> np.ndarray:
    """Pool of each ``member``; -1: the first pool that takes requests."""
    return np.where(member >= 0, fleet.members["pool"][member], int(fleet.members[0].pool))


def _with_decode_records(
    prefill: dict[str, np.ndarray], decode: dict[str, np.ndarray], handed: np.ndarray
) -> dict[str, np.ndarray]:
    """Columns ``prefill``, with those of ``decode`` for requests that a decode worker takes over (``handed``)."""
    columns = dict(prefill)
    columns["preemptions"] = prefill["preemptions"] + np.where(handed, decode["preemptions"], 0).astype(np.int32)
    for name in ("first_token_s", "finish_s", *_FRONT_END):
        columns[name] = np.where(handed, decode[name], prefill[name])
    in_transfer = (decode["outcome"] == la.UNREACHED) & (prefill["outcome"] == la.FINISHED)
    outcome = np.where(decode["outcome"] == la.UNREACHED, prefill["outcome"], decode["outcome"])
    outcome = np.where(in_transfer, la.IN_FLIGHT, outcome)
    columns["outcome"] = np.where(handed, outcome, prefill["outcome"]).astype(np.int32)
    return columns


def _worker_table(plan: FleetPlan, fleet: fl.Fleet, sims: Sequence[la.Sim], end_s: float) -> WorkerTable:
    """The workers of all pools, in the order of the fleet's members."""
    members, tables, firsts = fleet.members, [], fleet_arrays.first_members(plan)
    for p, pool in fleet_arrays.in_order(plan):
        mine = members[firsts[p] : firsts[p] + pool.slots]
        tables.append(_pool_workers(pool.plan, sims[p], mine, end_s))
    columns = {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
    plans = [pool.plan for pool in plan.pools]
    if all(worker.power.ffn is None for worker in plans):
        columns.pop("ffn_standby_s")
    if all(worker.costs.link_joules is None for worker in plans):
        columns.pop("link_j")
    return WorkerTable(begun_s=members["begun_s"].copy(), gone_s=members["gone_s"].copy(), **columns)


def _pool_workers(plan: WorkerPlan, sim: la.Sim, members: np.ndarray, end_s: float) -> dict[str, np.ndarray]:
    """A pool's workers, each the sum of its schedulers; device busy time is their mean."""
    schedulers, workers = plan.schedulers, sim.workers
    columns = {
        name: workers[name].reshape(-1, schedulers).sum(axis=1)
        for name in (
            "steps", "requests", "preemptions", "energy_j", "attached_j", "link_j", "prefill_tokens", "decode_tokens",
            "host_hit_tokens",
        )
    }  # fmt: skip
    # The first scheduler keeps it for all. A worker that has gone, or never started, spends no standby time.
    until_s = np.where(np.isnan(members["gone_s"]), end_s, members["gone_s"])
    idle_s = until_s - workers["awake_until_s"][::schedulers]
    begun = ~np.isnan(members["begun_s"])
    asleep_s = {}
    for kind, standby in (("", plan.power.own), ("ffn_", plan.power.ffn or Standby())):
        slept_s = workers[f"{kind}standby_s"][::schedulers] + np.maximum(idle_s - standby.after_s, 0.0)
        asleep_s[f"{kind}standby_s"] = np.where(begun, slept_s, 0.0)
        columns["energy_j"] += workers[f"{kind}wakes"][::schedulers] * standby.wake_j
    evicted = sim.trees["evicted_tokens"][: len(workers)]
    busy_s = workers["busy_s"].reshape(-1, schedulers)
    mean_s = busy_s.sum(axis=1) / schedulers
    return columns | {
        "busy_s": mean_s,
        "busiest_s": busy_s.max(axis=1) if plan.scheduler_kind == "lockstep" else mean_s,
        "peak_kv_tokens": workers["peak_pages"].reshape(-1, schedulers).max(axis=1) * sim.config.page_tokens,
        "evicted_tokens": evicted.reshape(-1, schedulers).sum(axis=1),
        **asleep_s,
    }


def _log(sim: la.Sim) -> StepLog:
    steps, entries, lost, fetches = (
        np.asarray(array[: sim.counters[used]])
        for array, used in (
            (sim.log_steps, la.LOG_STEPS),
            (sim.log_entries, la.LOG_ENTRIES),
            (sim.log_lost, la.LOG_LOST),
            (sim.log_fetches, la.LOG_FETCHES),
        )
    )
    outputs = np.asarray(sim.log_outputs[: len(entries)]) if sim.config.draft_tokens else None
    return StepLog(steps, entries, lost, fetches, outputs)


def _logs(pools: Sequence[PoolUse], sims: Sequence[la.Sim]) -> StepLog:
    """The merged log of all pools, with workers by their number in the fleet."""
    logs = [_log(sim) for sim in sims]
    for pool, sim, log in zip(pools, sims, logs, strict=True):
        log.steps["worker"] //= sim.config.schedulers
        log.steps["worker"] += pool.first_worker
    return merged_logs(logs)
