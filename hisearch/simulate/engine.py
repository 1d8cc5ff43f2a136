"""From a fleet's plan and a compiled trace to kernel arrays, and back to a ``Result``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from hisearch.kernels import fleet_layout as fl
from hisearch.kernels import layout as la
from hisearch.simulate import agent_arrays, fleet_arrays, offload_arrays, pool_arrays, tier_arrays, tier_use
from hisearch.simulate.fleet import NEVER, FleetPlan, GiveUp, PoolPlan
from hisearch.simulate.models import ModelNotServed, asked_models
from hisearch.simulate.plan import WorkerPlan
from hisearch.simulate.pool_logs import merged_logs
from hisearch.simulate.result import (
    HandOverUse,
    PoolUse,
    RequestTable,
    Result,
    StepLog,
    StoreUse,
    TierEnergy,
    WorkerTable,
)
from hisearch.specs.base import EngineName
from hisearch.specs.routing import RouterSpec
from hisearch.specs.tiers import MoverName
from hisearch.traces.compiled import I4, CompiledTrace
from hisearch.traces.models import RequestModels

__all__ = [
    "NEVER",
    "EngineOutOfMemory",
    "EngineStuck",
    "GiveUp",
    "ModelNotServed",
    "is_prepared",
    "prepare",
    "simulate",
    "simulate_fleet",
]


class EngineOutOfMemory(ValueError):  # noqa: N818
    """The simulated engine runs out of KV memory in a way from which the real one does not recover."""


class EngineStuck(EngineOutOfMemory):
    """The simulated engine's requests keep taking each other's memory, so that none gets on."""


#: SGLang's default of --priority-scheduling-preemption-threshold.
SGLANG_PREEMPTION_THRESHOLD = 10


#: An engine, and who moves KV between its tiers, None where it has none; or the decode workers of any engine.
Variant = tuple[EngineName, MoverName | None] | Literal["decode"]


def _doors(variants: Iterable[Variant]) -> list[int]:
    """The doors that they need, each once."""
    return list(dict.fromkeys(_door(variant) for variant in variants))


def _door(variant: Variant) -> int:
    if variant == "decode":
        return pool_arrays.DECODE_DOOR
    name, mover = variant
    return offload_arrays.door(pool_arrays.ENGINES[name], mover)


def prepare(variants: Iterable[Variant]) -> None:
    """Compile the kernels of these engines now, side by side, where that has not been done yet."""
    from hisearch.kernels import doors

    doors.prepare(_doors(variants))


def is_prepared(variants: Iterable[Variant]) -> bool:
    """Whether the event loop and these engines have been compiled."""
    from hisearch.kernels import doors, jit

    return jit.is_compiled() and not doors.missing_of(_doors(variants))


def simulate(
    plan: WorkerPlan,
    trace: CompiledTrace,
    *,
    replicas: int = 1,
    router: RouterSpec = RouterSpec(),  # noqa: B008  (frozen)
    seed: int = 0,
    horizon_s: float = math.inf,
    load: float = 1.0,
    give_up: GiveUp = NEVER,
    log: bool = False,
) -> Result:
    """Replay ``trace`` on ``replicas`` identical workers behind ``router``: a fleet of one pool.

    Args:
        plan: one worker, compiled (see ``plan_worker``).
        trace: a compiled trace; shared between threads, never written.
        replicas: workers, >= 1.
        router: policy and parameters.
        seed: of the random streams.
        horizon_s: simulated seconds after which the run stops.
        load: factor on the arrival rate of first turns.
        give_up: when to stop a run that is lost.
        log: keep every step.

    Raises:
        ValueError, EngineOutOfMemory: see ``simulate_fleet``.
    """
    fleet = FleetPlan((PoolPlan(plan, replicas),), router)
    return simulate_fleet(fleet, trace, seed=seed, horizon_s=horizon_s, load=load, give_up=give_up, log=log)


def simulate_fleet(
    plan: FleetPlan,
    trace: CompiledTrace,
    *,
    seed: int = 0,
    horizon_s: float = math.inf,
    load: float = 1.0,
    give_up: GiveUp = NEVER,
    log: bool = False,
) -> Result:
    """Replay ``trace`` on a fleet.

    Args:
        plan: pools and routers.
        trace: a compiled trace; shared between threads, never written.
        seed: of the random streams.
        horizon_s: simulated seconds after which the run stops; unfinished requests stay ``IN_FLIGHT``.
        load: factor on the arrival rate of first turns; think times are not scaled.
        give_up: when to stop a run that is lost; it is then as if the horizon had been reached.
        log: keep every step, its batch and what it preempted (``Result.log``).

    Raises:
        ModelNotServed: a request asks for a model that no pool serves, or for none where there are several.
        ValueError: if ``replicas`` or ``load`` is not positive, or priorities would make SGLang preempt.
        EngineOutOfMemory: an engine itself would fail on this load with these settings, or (``EngineStuck``) get
            nowhere.
    """
    from hisearch.kernels import cluster

    asked = asked_models(plan, trace)
    for pool in plan.pools:
        _check_priorities(pool.plan, trace.arrays.priority[asked.model == plan.model_of(pool)])
        if pool.plan.agents is not None and len(plan.pools) > 1:
            raise ValueError(f"pool {pool.name}: agents' objects are simulated in deployments of one pool")
        if pool.replicas < 1:
            raise ValueError(f"replicas must be at least 1, not {pool.replicas}")
    if not (load > 0 and math.isfinite(load)):
        raise ValueError(f"load must be a positive number, not {load}")
    rooms = [node_room(pool, trace) for pool in plan.pools]
    log_room = _log_room(trace) if log else 0
    while True:
        fleet, sims = allocate(
            plan,
            trace,
            rooms,
            load=load,
            seed=seed,
            horizon_s=horizon_s,
            give_up=give_up,
            log_room=log_room,
            models=asked.model if len(asked.names) > 1 else None,
        )
        end_s, horizon_reached, faulty = cluster.run(fleet)
        if fleet.counters[fl.SHORT]:
            plan = _with_more_spare(plan)
            continue
        if faulty < 0:
            break
        fault = sims[faulty].counters[la.FAULT]
        if fault == la.NODE_POOL_FULL:
            rooms[faulty] *= 2
        elif fault == la.LOG_FULL:
            log_room *= 4
        else:
            raise _failure(plan.pools[faulty].plan, fault, end_s)
    if not horizon_reached:
        _check_all_ended(plan, sims, end_s)
    return _result(plan, trace, asked, fleet, sims, end_s, bool(horizon_reached))


def _log_room(trace: CompiledTrace) -> int:
    """Steps of a log with which a run is tried first; there is room for eight requests in each.

    All tokens of all requests then have a place, if not too many. Memory that is not written to is never taken.
    """
    tokens = int(trace.arrays.output_tokens.sum()) + 8 * len(trace)
    return min(max(tokens // 8, 4096), 1 << 22)


def _with_more_spare(plan: FleetPlan) -> FleetPlan:
    """Twice the workers that autoscalers may start, each of which is used once."""
    pools = (replace(pool, spare=2 * pool.spare + pool.scaler.most) if pool.scaler else pool for pool in plan.pools)
    return replace(plan, pools=tuple(pools))


def node_room(pool: PoolPlan, trace: CompiledTrace) -> int:
    """Cache-tree nodes with which a run is tried first."""
    return 6 * len(trace) + 2 * la.NODES_PER_REQUEST * (pool.plan.engine.max_running_requests + 2) * pool.plan.lanes


def allocate(
    plan: FleetPlan,
    trace: CompiledTrace,
    rooms: Sequence[int],
    *,
    load: float = 1.0,
    seed: int = 0,
    horizon_s: float = math.inf,
    give_up: GiveUp = NEVER,
    log_room: int = 0,
    models: I4 | None = None,
) -> tuple[fl.Fleet, list[la.Sim]]:
    """The arrays of a run, for ``kernels.cluster.run``: what pools share, and each pool's own.

    Args:
        plan: see ``simulate_fleet``.
        trace: likewise.
        rooms: cache-tree nodes of each pool.
        load: see ``simulate_fleet``.
        seed: likewise.
        horizon_s: likewise.
        give_up: likewise.
        log_room: steps to log; 0: none.
        models: number of each request's model among the plan's, shape (N,); None where there is but one.
    """
    arrays = trace.arrays
    fleet = fleet_arrays.allocate(
        plan, arrays, load=load, seed=seed, horizon_s=horizon_s, give_up=give_up, agents=trace.agents, models=models
    )
    one = np.ones(len(trace), np.int64)
    prompts = arrays._replace(output_tokens=one, max_output_tokens=one)
    first = fleet_arrays.first_members(plan)
    sims = []
    for p, pool in enumerate(plan.pools):
        settings = pool_arrays.config_of(pool.plan, pool.slots, fleet_arrays.ROLES[pool.role])
        settings.pool = p
        settings.first_member = first[p]
        settings.log = log_room > 0
        sims.append(
            pool_arrays.allocate(
                pool.plan,
                prompts if pool.role == "prefill" else arrays,
                settings,
                fleet=fleet,
                seed=seed,
                node_room=rooms[p],
                log_room=log_room,
                agents=agent_arrays.agents_of(trace, pool.plan.agents),
                places=pool.places,
            )
        )
        fleet.sims[p] = sims[p].address
    return fleet, sims


def _failure(plan: WorkerPlan, fault: int, end_s: float) -> EngineOutOfMemory:
    """How the engine failed."""
    if fault == la.OUT_OF_MEMORY:
        return EngineOutOfMemory(
            f"{plan.engine.name} would stop for want of memory at {end_s:.3f} s: its admission rule let in more "
            f"than {plan.kv_capacity_tokens} KV tokens hold; lower chunk_tokens or max_running_requests"
        )
    assert fault == la.STUCK
    return EngineStuck(
        f"{plan.engine.name} would make no token any more from {end_s:.3f} s on, its requests preempting each "
        f"other or waiting for memory: {plan.kv_capacity_tokens} KV tokens are too few for these settings"
    )


def _check_all_ended(plan: FleetPlan, sims: Sequence[la.Sim], end_s: float) -> None:
    """Nothing is left to happen: no request may be in flight (L1)."""
    for pool, sim in zip(plan.pools, sims, strict=True):
        if not (sim.requests["outcome"] == la.IN_FLIGHT).any():
            continue
        if offload_arrays.mover_of(pool.plan) == "offload":
            raise EngineStuck(
                f"{pool.plan.engine.name} would come to a halt at {end_s:.3f} s: requests that have been loaded from "
                f"host memory hold pages that others wait for; {pool.plan.kv_capacity_tokens} KV tokens are too few"
            )
        if pool.role != "unified":
            raise EngineStuck(
                f"pool {pool.name} would come to a halt at {end_s:.3f} s: prompts that have been computed hold pages "
                f"until decode workers have room for them; {pool.plan.kv_capacity_tokens} KV tokens are too few"
            )
        raise AssertionError("the simulation ended with requests in flight")


def _check_priorities(plan: WorkerPlan, priority: I4) -> None:
    """Refuse priorities so far apart that SGLang would preempt running requests for waiting ones: not simulated."""
    if plan.engine.name != "sglang" or plan.engine.schedule != "priority" or len(priority) == 0:
        return
    spread = int(np.ptp(priority))
    if spread > SGLANG_PREEMPTION_THRESHOLD:
        raise ValueError(
            f"the trace's priorities differ by up to {spread}: SGLang preempts a running request for one "
            f"whose priority differs by more than {SGLANG_PREEMPTION_THRESHOLD}, which is not simulated"
        )


def _result(
    plan: FleetPlan,
    trace: CompiledTrace,
    asked: RequestModels,
    fleet: fl.Fleet,
    sims: Sequence[la.Sim],
    end_s: float,
    horizon_reached: bool,
) -> Result:
    table = _request_table(plan, trace, fleet, sims)
    pools = _pool_uses(plan, sims)
    until_s = max(tier_use.end_of_run_s(sim, end_s, horizon_reached) for sim in sims)
    first = float(np.nanmin(table.arrival_s)) if np.isfinite(table.arrival_s).any() else 0.0
    plans = [pool.plan for pool in plan.pools]
    return Result(
        requests=table,
        workers=_worker_table(plan, fleet, sims, end_s),
        makespan_s=max(end_s - first, 0.0),
        kv_capacity_tokens=plans[0].kv_capacity_tokens,
        idle_w=plans[0].idle_w,
        horizon_reached=horizon_reached,
        warnings=tuple(dict.fromkeys(warning for each in plans for warning in each.costs.warnings)),
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
        hand_overs=_hand_overs(plan, fleet),
        fetches_ahead=any(pool.fetches_ahead for pool in pools),
        pools=pools,
        objects=tuple(
            use for p, sim in enumerate(sims) for use in agent_arrays.object_uses(plans[p].agents, sim, plans[p].ranks)
        ),
        asked=asked,
    )


def _stores(
    pools: Sequence[PoolUse], plans: Sequence[WorkerPlan], sims: Sequence[la.Sim], until_s: float
) -> tuple[StoreUse, ...]:
    return tuple(
        replace(use, pool=p, first_worker=pools[p].first_worker + use.first_worker)
        for p, sim in enumerate(sims)
        for use in tier_use.store_uses(plans[p], sim, until_s)
    )


def _hand_overs(plan: FleetPlan, fleet: fl.Fleet) -> tuple[HandOverUse, ...]:
    if not plan.hands_over:
        return ()
    rows = []
    for m, member in enumerate(fleet.members):
        networks = plan.pools[member.pool].networks
        first = int(member.nic) + (1 if member.route % fl.SIDES == fl.BACK else 0)
        mine = fleet.nics[first : first + 2 * networks : 2]
        used = HandOverUse(m, float(mine.busy_s.mean()), int(mine.tokens.sum()), int(mine.transfers.sum()))
        rows.append(used)
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
            tuple(TierEnergy(tier.energy_j_per_token, tier.bytes_per_token, tier.kind) for tier in pool.plan.tiers),
            int(sim.workers["far_hit_tokens"].sum()),
            bool(tier_arrays.storage_of(pool.plan)),
        )
        for pool, sim, first in zip(plan.pools, sims, fleet_arrays.first_members(plan), strict=True)
    )


#: Columns of a request's records that hold for it as a whole.
_COLUMNS = (
    "scheduled_s", "first_token_s", "finish_s", "hit_tokens", "host_hit_tokens", "storage_hit_tokens", "preemptions",
    "outcome",
)  # fmt: skip


def _request_table(plan: FleetPlan, trace: CompiledTrace, fleet: fl.Fleet, sims: Sequence[la.Sim]) -> RequestTable:
    """What became of requests; each pool has noted what its workers did."""
    prefill_worker = fleet.sent_to.copy()
    columns = _noted(fleet, sims, prefill_worker)
    worker, handed_s = prefill_worker, None
    if plan.hands_over:
        handed = (fleet.hands["state"] != fl.NOT_HANDED) & (fleet.trace.output_tokens > 1)
        worker = np.where(handed, fleet.hands["target"], prefill_worker).astype(np.int32)
        columns = _with_handed(columns, _noted(fleet, sims, worker), handed)
        came = fleet.hands["state"] == fl.ARRIVED
        handed_s = np.where(came, fleet.hands["due_s"], np.nan)
    return RequestTable(
        arrival_s=fleet.arrival_s.copy(),
        worker=worker,
        prefill_worker=prefill_worker,
        input_tokens=trace.arrays.input_tokens,
        output_tokens=trace.arrays.output_tokens,
        handed_s=handed_s,
        **columns,
    )


def _noted(fleet: fl.Fleet, sims: Sequence[la.Sim], member: np.ndarray) -> dict[str, np.ndarray]:
    """The records of each request that the pool of ``member`` has; -1: of the first pool that takes requests."""
    first = int(fleet.members[0].pool)
    pool = np.where(member >= 0, fleet.members["pool"][member], first)
    if (pool == first).all():
        return {name: sims[first].requests[name].copy() for name in _COLUMNS}
    return {name: np.choose(pool, [sim.requests[name] for sim in sims]) for name in _COLUMNS}


def _with_handed(
    front: dict[str, np.ndarray], back: dict[str, np.ndarray], handed: np.ndarray
) -> dict[str, np.ndarray]:
    """What holds for requests that a decode worker has taken over, or will, where ``handed``; its part is ``back``."""
    columns = dict(front)
    columns["preemptions"] = front["preemptions"] + np.where(handed, back["preemptions"], 0).astype(np.int32)
    for name in ("first_token_s", "finish_s"):
        columns[name] = np.where(handed, back[name], front[name])
    on_the_way = (back["outcome"] == la.UNREACHED) & (front["outcome"] == la.FINISHED)
    outcome = np.where(back["outcome"] == la.UNREACHED, front["outcome"], back["outcome"])
    outcome = np.where(on_the_way, la.IN_FLIGHT, outcome)
    columns["outcome"] = np.where(handed, outcome, front["outcome"]).astype(np.int32)
    return columns


def _worker_table(plan: FleetPlan, fleet: fl.Fleet, sims: Sequence[la.Sim], end_s: float) -> WorkerTable:
    """The workers of all pools, in the order of the fleet's members."""
    members, tables, firsts = fleet.members, [], fleet_arrays.first_members(plan)
    for p, pool in fleet_arrays.in_order(plan):
        mine = members[firsts[p] : firsts[p] + pool.slots]
        tables.append(_pool_workers(pool.plan, sims[p], mine, end_s))
    return WorkerTable(
        begun_s=members["begun_s"].copy(),
        gone_s=members["gone_s"].copy(),
        **{name: np.concatenate([table[name] for table in tables]) for name in tables[0]},
    )


def _pool_workers(plan: WorkerPlan, sim: la.Sim, members: np.ndarray, end_s: float) -> dict[str, np.ndarray]:
    """A pool's workers, each the sum of its lanes; their mean of the time that devices are busy."""
    lanes, workers = plan.lanes, sim.workers
    columns = {
        name: workers[name].reshape(-1, lanes).sum(axis=1)
        for name in (
            "steps", "requests", "preemptions", "energy_j", "prefill_tokens", "decode_tokens", "host_hit_tokens",
        )
    }  # fmt: skip
    # The first lane keeps it for all. A worker that has gone no longer sleeps, and one that never was did not.
    until_s = np.where(np.isnan(members["gone_s"]), end_s, members["gone_s"])
    after_last_s = until_s - workers["awake_until_s"][::lanes] - plan.power.standby_after_s
    asleep_s = workers["standby_s"][::lanes] + np.maximum(after_last_s, 0.0)
    evicted = sim.trees["evicted_tokens"][: len(workers)]
    return columns | {
        "busy_s": workers["busy_s"].reshape(-1, lanes).sum(axis=1) / lanes,
        "peak_kv_tokens": workers["peak_pages"].reshape(-1, lanes).max(axis=1) * sim.config.page_tokens,
        "evicted_tokens": evicted.reshape(-1, lanes).sum(axis=1),
        "standby_s": np.where(np.isnan(members["begun_s"]), 0.0, asleep_s),
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
    return StepLog(steps, entries, lost, fetches)


def _logs(pools: Sequence[PoolUse], sims: Sequence[la.Sim]) -> StepLog:
    """The logs of all pools as one, workers by their number in the fleet."""
    logs = [_log(sim) for sim in sims]
    for pool, sim, log in zip(pools, sims, logs, strict=True):
        log.steps["worker"] //= sim.config.lanes
        log.steps["worker"] += pool.first_worker
    return merged_logs(logs)
