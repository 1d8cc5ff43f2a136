"""From a worker plan and a compiled trace to kernel arrays, and back to a ``Result``."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hisearch.kernels import agents_layout as al
from hisearch.kernels import hicache_layout as hl
from hisearch.kernels import layout as la
from hisearch.kernels import owners
from hisearch.kernels.gap_bins import BINS
from hisearch.latency.costs import StepCosts
from hisearch.simulate import agent_arrays, offload_arrays, tier_arrays, tier_use
from hisearch.simulate.plan import WorkerPlan
from hisearch.simulate.result import RequestTable, Result, StepLog, WorkerTable
from hisearch.specs.base import EngineName
from hisearch.specs.deployment import RouterSpec
from hisearch.specs.tiers import MoverName
from hisearch.traces.agents import AgentArrays
from hisearch.traces.compiled import CompiledTrace, TraceArrays


class EngineOutOfMemory(ValueError):  # noqa: N818
    """The simulated engine runs out of KV memory in a way from which the real one does not recover."""


class EngineStuck(EngineOutOfMemory):
    """The simulated engine's requests keep taking each other's memory, so that none gets on."""


#: SGLang's default of --priority-scheduling-preemption-threshold.
SGLANG_PREEMPTION_THRESHOLD = 10
#: Tells the seed of the shuffle streams from that of the router: the first 64 bits of the square root of 2's fraction.
_SHUFFLE_STREAMS = 0x6A09E667F3BCC908

_ENGINES = {"vllm": la.VLLM, "sglang": la.SGLANG, "trtllm": la.TRTLLM}
_CAPACITY_POLICIES = {"guaranteed_no_evict": la.GUARANTEED_NO_EVICT, "max_utilization": la.MAX_UTILIZATION}
_ROUTERS = {
    "random": la.RANDOM,
    "round_robin": la.ROUND_ROBIN,
    "power_of_two": la.POWER_OF_TWO,
    "cache_aware": la.CACHE_AWARE,
}
_SCHEDULES = {
    "fcfs": la.FCFS, "priority": la.PRIORITY, "lpm": la.LPM, "lof": la.LOF, "dfs-weight": la.DFS_WEIGHT,
    "random": la.SHUFFLED,
}  # fmt: skip


def _records(count: int, dtype: np.dtype[Any]) -> Any:
    return np.zeros(count, dtype).view(np.recarray)


def _followers(previous: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Linked lists of who waits for whom, in order of index: head of each request's list, and next in the same list."""
    head = np.full(len(previous), -1, np.int32)
    after = np.full(len(previous), -1, np.int32)
    waiting = np.flatnonzero(previous >= 0)
    order = waiting[np.argsort(previous[waiting], kind="stable")]
    owner = previous[order]
    first = np.ones(len(order), bool)
    first[1:] = owner[1:] != owner[:-1]
    head[owner[first]] = order[first]
    same = np.flatnonzero(~first)
    after[order[same - 1]] = order[same]
    return head, after


def _record(dtype: np.dtype[Any], **values: float) -> Any:
    record = _records(1, dtype)
    for name in dtype.names or ():
        record[name] = values.pop(name)
    if values:
        raise TypeError(f"unknown fields {sorted(values)}")
    return record


@dataclass(frozen=True)
class GiveUp:
    """When a run is no longer worth finishing: once more than ``requests`` have waited over ``ttft_s`` for a token."""

    ttft_s: float = math.inf
    requests: int = 2**62


NEVER = GiveUp()


def _config(
    plan: WorkerPlan, replicas: int, router: RouterSpec, horizon_s: float = math.inf, give_up: GiveUp = NEVER
) -> Any:
    from hisearch.kernels import doors

    engine = plan.engine
    page = engine.page_size
    return _record(
        la.CONFIG,
        engine=_ENGINES[engine.name],
        door=doors.address(offload_arrays.door(_ENGINES[engine.name], offload_arrays.mover_of(plan))),
        objects=doors.address(la.AGENTS) if plan.agents is not None else 0,
        router=_ROUTERS[router.policy],
        workers=replicas,
        page_tokens=page,
        capacity_pages=plan.kv_capacity_tokens // page,
        host_pages=_host_pages(plan),
        hicache=plan.movement is not None and plan.movement.mover == "hicache",
        prefix_caching=engine.prefix_caching,
        max_running=engine.max_running_requests,
        chunk_tokens=engine.chunk_tokens,
        max_prefill_tokens=engine.max_prefill_tokens,
        max_request_tokens=plan.max_request_tokens,
        conservativeness=engine.schedule_conservativeness,
        eviction=la.DISTANCE if agent_arrays.evicts_by_due(plan.agents) else tier_arrays.EVICTIONS[engine.eviction],
        schedule=_SCHEDULES[engine.schedule],
        overlap=engine.overlap,
        chunked_prefill=engine.chunked_prefill,
        long_prefill_tokens=engine.long_prefill_tokens,
        reserve_full_prompt=engine.reserve_full_prompt,
        watermark_pages=int(engine.watermark * (plan.kv_capacity_tokens // page)),
        capacity_policy=_CAPACITY_POLICIES[engine.capacity_policy],
        mixed_chunk=engine.mixed_chunk and engine.chunked_prefill,
        ignore_eos=plan.ignore_eos,
        shared_outputs=0,
        log=0,
        cache_threshold=router.cache_threshold,
        balance_abs=router.balance_abs_threshold,
        balance_rel=router.balance_rel_threshold,
        horizon_s=horizon_s,
        late_s=give_up.ttft_s,
        late_requests=give_up.requests,
    )


def _host_pages(plan: WorkerPlan) -> int:
    """Pages of the first tier, where it is kept as pages are kept in HBM."""
    if plan.engine.name == "vllm":
        return 0
    return plan.host_capacity_tokens // plan.engine.page_size


def _costs(costs: StepCosts) -> la.Costs:
    skewed = costs.skew_s is not None or costs.late is not None
    even = np.zeros(1)
    beside = np.zeros((0, 0, 0, 0)) if costs.beside_s is None else costs.beside_s
    prompts, befores, sequences, means = beside.shape
    return la.Costs(
        host=_record(
            la.HOST_COST,
            step_s=costs.host_s,
            per_sequence_s=costs.host_per_sequence_s,
            skewed=skewed,
            beside_prompts=prompts,
            beside_befores=befores,
            beside_sequences=sequences,
            beside_means=means,
        ),
        token_s=costs.token_s,
        sequence_s=costs.sequence_s,
        chunk_rate=costs.chunk_rate,
        decode_s=costs.decode_s,
        beside_s=np.ascontiguousarray(beside).ravel(),
        skew_s=even if costs.skew_s is None else costs.skew_s,
        late=even if costs.late is None else costs.late,
    )


def _requests(trace: TraceArrays, load: float) -> Any:
    requests = _records(len(trace.arrival_s), la.REQUEST)
    open_loop = trace.previous < 0
    requests["arrival_s"] = np.where(open_loop, trace.arrival_s / load, np.nan)
    for name in ("scheduled_s", "first_token_s", "finish_s"):
        requests[name] = np.nan
    requests["outcome"] = la.UNREACHED
    requests["worker"] = -1
    requests["heap_slot"] = -1
    requests["fetch"] = -1
    return requests


def _shuffle_streams(seed: int, workers: int) -> np.ndarray:
    """States of the workers' own streams, by which SGLang's random schedule shuffles (``kernels.rng``)."""
    from hisearch.kernels import rng

    # Apart from the router's stream, whose state is the seed itself.
    state = np.array([seed], np.uint64) ^ np.uint64(_SHUFFLE_STREAMS)
    return np.array([rng.next_u64(state) for _ in range(workers)], np.uint64)


def _allocate(
    plan: WorkerPlan,
    trace: TraceArrays,
    settings: Any,
    load: float,
    seed: int,
    node_room: int,
    log_room: int = 0,
    agents: AgentArrays | None = None,
) -> la.Sim:
    """All arrays of one simulation; ``node_room``: cache-tree nodes to reserve; ``log_room``: steps to log."""
    config = settings[0]
    count = len(trace.arrival_s)
    workers = int(config.workers)
    stores = tier_arrays.store_trees(plan, workers)
    pools = workers if plan.agents is not None and plan.agents.pool_pages else 0
    trees = workers * (2 if config.host_pages > 0 else 1) + stores + pools
    # Host pools hold nodes of the workers' trees, pools of objects none.
    covers = workers + stores
    nodes = node_room + trees + workers * agent_arrays.object_count(agents, plan.agents)
    servers = hl.SERVERS * workers + (al.AGENT_SERVERS * workers if plan.agents is not None else 0)
    tree_records = _records(trees, la.TREE)
    if plan.agents is not None and pools:
        tree_records["capacity_pages"][covers : covers + pools] = plan.agents.pool_pages
    radix = config.engine == la.SGLANG
    sorts = radix and config.schedule in (la.LPM, la.DFS_WEIGHT, la.SHUFFLED)
    priorities = config.eviction == la.BY_PRIORITY or tier_arrays.by_priority(plan)
    stands = radix and (priorities or config.schedule == la.DFS_WEIGHT)
    ends = radix and config.ignore_eos and not config.prefix_caching
    words = (workers + 63) // 64 if config.router == la.CACHE_AWARE else 1
    first_turns = np.flatnonzero(trace.previous < 0).astype(np.int32)
    order = np.argsort(trace.arrival_s[first_turns], kind="stable")
    behind = None if agents is None else agents.behind
    head, after = _followers(trace.previous if behind is None else np.where(behind < 0, trace.previous, -1))
    owner_head, owner, next_owner = owners.find(trace) if config.engine == la.VLLM else (np.empty(0, np.int32),) * 3
    settings.shared_outputs = len(owner) > 0
    return la.Sim(
        config=settings,
        trace=la.Trace(**{name: getattr(trace, name) for name in la.Trace.FIELDS}),
        seconds=_costs(plan.costs.seconds),
        joules=_costs(plan.costs.joules),
        requests=_requests(trace, load),
        workers=_records(workers, la.WORKER),
        trees=tree_records,
        agents=agent_arrays.handle(trace, agents, plan.agents, covers, workers, nodes, seed),
        nodes=np.empty(nodes, la.NODE).view(np.recarray),
        standings=np.empty(nodes if stands else 1, la.STANDING).view(np.recarray),
        queued=np.empty(count if radix and config.schedule != la.FCFS else 1, la.QUEUED).view(np.recarray),
        **tier_arrays.arrays(plan, trace, workers, node_room),
        hosted=np.empty(nodes if config.hicache else 1, hl.HOSTED).view(np.recarray),
        hosts=_records(workers if config.hicache else 1, hl.HOST),
        servers=_records(servers, hl.SERVER),
        server_heap=np.empty(servers, np.int32),
        log_fetches=_records(log_room, hl.FETCH_LOG),
        **offload_arrays.arrays(plan, trace, workers, node_room),
        cover=np.empty((covers, len(trace.parent)), np.int32),
        ways=np.empty((workers, owners.depth(trace.parent) + 1), np.int32),
        residue=np.zeros((workers, config.page_tokens), np.int64),
        finish_heap=np.empty((workers, config.max_running), np.int32),
        batch=np.empty((workers, config.max_running), np.int32),
        launches=_records(2 * workers, la.LAUNCH),
        joins=np.empty((workers, config.max_running if radix else 1), la.JOIN).view(np.recarray),
        prompts=np.empty((2 * workers, config.max_running) if radix else (1, 1), np.int32),
        ends=np.empty((2 * workers, config.max_running + 1) if ends else (1, 1), np.int64),
        queue_order=np.empty((2, count if sorts else 1), np.int32),
        shuffle_rng=_shuffle_streams(seed, workers),
        evict_heap=np.empty((trees, nodes if radix else 1), np.int32),
        pending=np.empty(count, np.int32),
        open_loop=first_turns[order],
        follower_head=head,
        follower_next=after,
        owner_head=owner_head,
        owner=owner,
        next_owner=next_owner,
        pledged=np.zeros(len(trace.parent) if config.engine == la.TRTLLM else 0, np.int64),
        event_heap=np.empty(workers, np.int32),
        belief=np.zeros((len(trace.parent) if config.router == la.CACHE_AWARE else 1, words), np.uint64),
        rng=np.array([seed], np.uint64),
        counters=np.zeros(la.COUNTERS, np.int64),
        gaps=np.zeros(BINS, np.int64),
        log_steps=np.empty(log_room, la.STEP_LOG).view(np.recarray),
        log_entries=np.empty(8 * log_room, la.ENTRY_LOG).view(np.recarray),
        log_lost=np.empty(log_room, np.int32),
    )


#: An engine, and who moves KV between its tiers; None: it has none.
Variant = tuple[EngineName, MoverName | None]


def _doors(variants: Iterable[Variant]) -> list[int]:
    """The doors that they need, each once."""
    return list(dict.fromkeys(offload_arrays.door(_ENGINES[name], mover) for name, mover in variants))


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
    """Replay ``trace`` on ``replicas`` identical workers behind ``router``.

    Args:
        plan: one worker, compiled (see ``plan_worker``).
        trace: a compiled trace; shared between threads, never written.
        replicas: workers, >= 1.
        router: policy and parameters.
        seed: of the router's random stream.
        horizon_s: simulated seconds after which the run stops; unfinished requests stay ``IN_FLIGHT``.
        load: factor on the arrival rate of first turns; think times are not scaled.
        give_up: when to stop a run that is lost; it is then as if the horizon had been reached.
        log: keep every step, its batch and what it preempted (``Result.log``).

    Raises:
        ValueError: if ``replicas`` or ``load`` is not positive, or priorities would make SGLang preempt.
        EngineOutOfMemory: the engine itself would fail on this load with these settings, or (``EngineStuck``) get
            nowhere.
    """
    from hisearch.kernels import cluster

    _check_priorities(plan, trace)
    if replicas < 1:
        raise ValueError(f"replicas must be at least 1, not {replicas}")
    if not (load > 0 and math.isfinite(load)):
        raise ValueError(f"load must be a positive number, not {load}")
    settings = _config(plan, replicas, router, horizon_s, give_up)
    room = 6 * len(trace) + 2 * la.NODES_PER_REQUEST * (plan.engine.max_running_requests + 2)
    settings.log = log
    log_room = 4096 if log else 0
    agents = agent_arrays.agents_of(trace, plan.agents)
    while True:
        sim = _allocate(plan, trace.arrays, settings, load, seed, room, log_room, agents)
        end_s, horizon_reached = cluster.run(sim)
        fault = sim.counters[la.FAULT]
        if fault == la.OUT_OF_MEMORY:
            raise EngineOutOfMemory(
                f"{plan.engine.name} would stop for want of memory at {end_s:.3f} s: its admission rule let in more "
                f"than {plan.kv_capacity_tokens} KV tokens hold; lower chunk_tokens or max_running_requests"
            )
        if fault == la.STUCK:
            raise EngineStuck(
                f"{plan.engine.name} would make no token any more from {end_s:.3f} s on, its requests preempting each "
                f"other or waiting for memory: {plan.kv_capacity_tokens} KV tokens are too few for these settings"
            )
        if fault == la.NODE_POOL_FULL:
            room *= 2
        elif fault == la.LOG_FULL:
            log_room *= 4
        else:
            break
    if not horizon_reached and (sim.requests["outcome"] == la.IN_FLIGHT).any():
        if offload_arrays.mover_of(plan) == "offload":
            raise EngineStuck(
                f"{plan.engine.name} would come to a halt at {end_s:.3f} s: requests that have been loaded from host "
                f"memory hold pages that others wait for; {plan.kv_capacity_tokens} KV tokens are too few"
            )
        raise AssertionError("the simulation ended with requests in flight")
    return _result(plan, trace.arrays, sim, end_s, bool(horizon_reached))


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


def _result(plan: WorkerPlan, trace: TraceArrays, sim: la.Sim, end_s: float, horizon_reached: bool) -> Result:
    requests, workers, trees = sim.requests, sim.workers, sim.trees
    table = RequestTable(
        **{
            name: requests[name].copy()
            for name in (
                "arrival_s", "scheduled_s", "first_token_s", "finish_s", "worker", "hit_tokens", "host_hit_tokens",
                "storage_hit_tokens", "preemptions", "outcome",
            )
        },
        input_tokens=trace.input_tokens,
        output_tokens=trace.output_tokens,
    )  # fmt: skip
    per_worker = WorkerTable(
        **{
            name: workers[name].copy()
            for name in (
                "steps", "requests", "preemptions", "busy_s", "energy_j", "prefill_tokens", "decode_tokens",
                "host_hit_tokens",
            )
        },
        peak_kv_tokens=workers["peak_pages"] * sim.config.page_tokens,
        evicted_tokens=trees["evicted_tokens"][: sim.config.workers].copy(),
    )  # fmt: skip
    first = float(np.nanmin(table.arrival_s)) if np.isfinite(table.arrival_s).any() else 0.0
    return Result(
        requests=table,
        workers=per_worker,
        makespan_s=max(end_s - first, 0.0),
        kv_capacity_tokens=plan.kv_capacity_tokens,
        idle_w=plan.costs.idle_w,
        horizon_reached=horizon_reached,
        warnings=plan.costs.warnings,
        events=int(sim.counters[la.EVENTS]),
        gap_counts=sim.gaps,
        log=_log(sim) if sim.config.log else None,
        far_hit_tokens=int(workers["far_hit_tokens"].sum()),
        stores=tier_use.store_uses(plan, sim),
        links=tier_use.link_uses(plan, sim),
        fetches_ahead=bool(tier_arrays.storage_of(plan)),
        objects=agent_arrays.object_uses(sim) if plan.agents is not None and plan.agents.kinds else (),
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
