"""From a fleet's plan and a compiled trace to kernel arrays, and back to a ``Result``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from hisearch.kernels import fleet_layout as fl
from hisearch.kernels import layout as la
from hisearch.simulate import agent_arrays, fleet_arrays, offload_arrays, pool_arrays, tier_arrays, tier_use
from hisearch.simulate.fleet import NEVER, FleetPlan, GiveUp, PoolPlan
from hisearch.simulate.plan import WorkerPlan
from hisearch.simulate.result import PoolUse, RequestTable, Result, StepLog, WorkerTable
from hisearch.specs.base import EngineName
from hisearch.specs.routing import RouterSpec
from hisearch.specs.tiers import MoverName
from hisearch.traces.compiled import CompiledTrace

__all__ = [
    "NEVER",
    "EngineOutOfMemory",
    "EngineStuck",
    "GiveUp",
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


#: An engine, and who moves KV between its tiers; None: it has none.
Variant = tuple[EngineName, MoverName | None]


def _doors(variants: Iterable[Variant]) -> list[int]:
    """The doors that they need, each once."""
    return list(dict.fromkeys(offload_arrays.door(pool_arrays.ENGINES[name], mover) for name, mover in variants))


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
        ValueError: if ``replicas`` or ``load`` is not positive, or priorities would make SGLang preempt.
        EngineOutOfMemory: an engine itself would fail on this load with these settings, or (``EngineStuck``) get
            nowhere.
    """
    from hisearch.kernels import cluster

    for pool in plan.pools:
        _check_priorities(pool.plan, trace)
        if pool.plan.agents is not None and len(plan.pools) > 1:
            raise ValueError(f"pool {pool.name}: agents' objects are simulated in deployments of one pool")
        if pool.replicas < 1:
            raise ValueError(f"replicas must be at least 1, not {pool.replicas}")
    if not (load > 0 and math.isfinite(load)):
        raise ValueError(f"load must be a positive number, not {load}")
    rooms = [node_room(pool, trace) for pool in plan.pools]
    log_room = 4096 if log else 0
    while True:
        fleet, sims = allocate(
            plan, trace, rooms, load=load, seed=seed, horizon_s=horizon_s, give_up=give_up, log_room=log_room
        )
        end_s, horizon_reached, faulty = cluster.run(fleet)
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
    return _result(plan, trace, fleet, sims, end_s, bool(horizon_reached))


def node_room(pool: PoolPlan, trace: CompiledTrace) -> int:
    """Cache-tree nodes with which a run is tried first."""
    return 6 * len(trace) + 2 * la.NODES_PER_REQUEST * (pool.plan.engine.max_running_requests + 2)


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
    """
    arrays = trace.arrays
    fleet = fleet_arrays.allocate(
        plan, arrays, load=load, seed=seed, horizon_s=horizon_s, give_up=give_up, agents=trace.agents
    )
    requests = pool_arrays.request_records(len(trace))
    first = fleet_arrays.first_members(plan)
    sims = []
    for p, pool in enumerate(plan.pools):
        settings = pool_arrays.config_of(pool.plan, pool.replicas)
        settings.pool = p
        settings.role = fleet_arrays.ROLES[pool.role]
        settings.first_member = first[p]
        settings.log = log_room > 0
        sims.append(
            pool_arrays.allocate(
                pool.plan,
                arrays,
                settings,
                fleet=fleet,
                requests=requests,
                seed=seed,
                node_room=rooms[p],
                log_room=log_room,
                agents=agent_arrays.agents_of(trace, pool.plan.agents),
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
        raise AssertionError("the simulation ended with requests in flight")


def _check_priorities(plan: WorkerPlan, trace: CompiledTrace) -> None:
    """Refuse priorities so far apart that SGLang would preempt running requests for waiting ones: not simulated."""
    if plan.engine.name != "sglang" or plan.engine.schedule != "priority" or len(trace) == 0:
        return
    spread = int(np.ptp(trace.arrays.priority))
    if spread > SGLANG_PREEMPTION_THRESHOLD:
        raise ValueError(
            f"the trace's priorities differ by up to {spread}: SGLang preempts a running request for one "
            f"whose priority differs by more than {SGLANG_PREEMPTION_THRESHOLD}, which is not simulated"
        )


def _result(
    plan: FleetPlan, trace: CompiledTrace, fleet: fl.Fleet, sims: Sequence[la.Sim], end_s: float, horizon_reached: bool
) -> Result:
    table = _request_table(trace, fleet, sims)
    pools = _pool_uses(plan)
    first = float(np.nanmin(table.arrival_s)) if np.isfinite(table.arrival_s).any() else 0.0
    plans = [pool.plan for pool in plan.pools]
    return Result(
        requests=table,
        workers=_worker_table(plan, sims),
        makespan_s=max(end_s - first, 0.0),
        kv_capacity_tokens=plans[0].kv_capacity_tokens,
        idle_w=plans[0].costs.idle_w,
        horizon_reached=horizon_reached,
        warnings=tuple(dict.fromkeys(warning for each in plans for warning in each.costs.warnings)),
        events=int(fleet.counters[fl.EVENTS]),
        gap_counts=np.asarray(sum(sim.gaps for sim in sims)),
        log=_logs(pools, sims) if sims[0].config.log else None,
        far_hit_tokens=sum(int(sim.workers["far_hit_tokens"].sum()) for sim in sims),
        stores=tuple(use for p, sim in enumerate(sims) for use in tier_use.store_uses(plans[p], sim)),
        links=tuple(use for p, sim in enumerate(sims) for use in tier_use.link_uses(plans[p], sim)),
        fetches_ahead=any(tier_arrays.storage_of(each) for each in plans),
        pools=pools,
        objects=tuple(use for p, sim in enumerate(sims) for use in agent_arrays.object_uses(plans[p].agents, sim)),
    )


def _pool_uses(plan: FleetPlan) -> tuple[PoolUse, ...]:
    return tuple(
        PoolUse(
            pool.name,
            pool.role,
            first,
            pool.replicas,
            pool.plan.kv_capacity_tokens,
            pool.plan.costs.idle_w,
        )
        for pool, first in zip(plan.pools, fleet_arrays.first_members(plan), strict=True)
    )


def _request_table(trace: CompiledTrace, fleet: fl.Fleet, sims: Sequence[la.Sim]) -> RequestTable:
    requests = sims[0].requests
    columns = {
        name: requests[name].copy()
        for name in (
            "scheduled_s", "first_token_s", "finish_s", "hit_tokens", "host_hit_tokens", "storage_hit_tokens",
            "preemptions", "outcome",
        )
    }  # fmt: skip
    return RequestTable(
        arrival_s=fleet.arrival_s.copy(),
        worker=fleet.sent_to.copy(),
        input_tokens=trace.arrays.input_tokens,
        output_tokens=trace.arrays.output_tokens,
        **columns,
    )


def _worker_table(plan: FleetPlan, sims: Sequence[la.Sim]) -> WorkerTable:
    """The workers of all pools, in the order of the fleet's members."""
    order = [p for p, _ in fleet_arrays.in_order(plan)]
    columns = {
        name: np.concatenate([sims[p].workers[name] for p in order])
        for name in (
            "steps", "requests", "preemptions", "busy_s", "energy_j", "prefill_tokens", "decode_tokens",
            "host_hit_tokens",
        )
    }  # fmt: skip
    return WorkerTable(
        peak_kv_tokens=np.concatenate([sims[p].workers["peak_pages"] * sims[p].config.page_tokens for p in order]),
        evicted_tokens=np.concatenate(
            [sims[p].trees["evicted_tokens"][: sims[p].config.workers] for p in order],
        ),
        **columns,
    )


def _log(sim: la.Sim) -> StepLog:
    steps, entries, lost, fetches = (
        np.asarray(array[: sim.counters[used]]).copy()
        for array, used in (
            (sim.log_steps, la.LOG_STEPS),
            (sim.log_entries, la.LOG_ENTRIES),
            (sim.log_lost, la.LOG_LOST),
            (sim.log_fetches, la.LOG_FETCHES),
        )
    )
    return StepLog(steps, entries, lost, fetches)


def _logs(pools: Sequence[PoolUse], sims: Sequence[la.Sim]) -> StepLog:
    """The logs of all pools as one, workers by their number in the fleet, steps by when they were formed."""
    logs = [_log(sim) for sim in sims]
    if len(logs) == 1:
        return logs[0]
    entries = lost = 0
    for pool, log in zip(pools, logs, strict=True):
        log.steps["worker"] += pool.first_worker
        log.steps["first_entry"] += entries
        log.steps["first_lost"] += lost
        entries += len(log.entries)
        lost += len(log.lost)
    steps = np.concatenate([log.steps for log in logs])
    return StepLog(
        steps[np.argsort(steps["scheduled_s"], kind="stable")],
        np.concatenate([log.entries for log in logs]),
        np.concatenate([log.lost for log in logs]),
        np.concatenate([log.fetches for log in logs]),
    )
