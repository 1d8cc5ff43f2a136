"""Run the kernels on a fleet's plan and a compiled trace; ``reading`` turns the arrays into a ``Result``."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal, TypedDict, Unpack

import numpy as np

from hisearch.base.dtypes import I4
from hisearch.kernels.layout import fleet as fl
from hisearch.kernels.layout import sim as la
from hisearch.simulate import front_end
from hisearch.simulate.arrays import agents as agent_arrays
from hisearch.simulate.arrays import fleet as fleet_arrays
from hisearch.simulate.arrays import lora as lora_arrays
from hisearch.simulate.arrays import offload as offload_arrays
from hisearch.simulate.arrays import pool as pool_arrays
from hisearch.simulate.arrays import settings as setting_arrays
from hisearch.simulate.arrays.agent_objects import ObjectsDoNotFit
from hisearch.simulate.plans.fleet import NEVER, FleetPlan, GiveUp, PoolPlan
from hisearch.simulate.plans.models import ModelNotServed, models_of_requests
from hisearch.simulate.plans.plan import WorkerPlan
from hisearch.simulate.reading import result_of
from hisearch.simulate.results.result import Result
from hisearch.specs.base import EngineName
from hisearch.specs.deployments.engine_rules import rules_in_force
from hisearch.specs.deployments.routing import RouterSpec
from hisearch.specs.deployments.tiers import KvConnectorName
from hisearch.traces.adapter_tree import requested_adapters
from hisearch.traces.compiled import CompiledTrace

__all__ = [
    "NEVER",
    "EngineOutOfMemory",
    "EngineStuck",
    "GiveUp",
    "ModelNotServed",
    "is_prepared",
    "on_compilation",
    "prepare",
    "simulate",
    "simulate_fleet",
]


class EngineOutOfMemory(ValueError):  # noqa: N818
    """The simulated engine runs out of KV memory in a state from which the real one does not recover."""


class ObjectsLeaveTooLittleMemory(EngineOutOfMemory):
    """Agents' objects leave too little shared host memory for KV."""


class EngineStuck(EngineOutOfMemory):
    """The simulated engine's requests keep preempting each other, so that none progresses."""


#: An engine, its release ("": the newest), and the KV connector of its tiers, None without tiers; or the decode workers
#: of any engine.
Variant = tuple[EngineName, str, KvConnectorName | None] | Literal["decode"]


def _engine_entry_of(variant: Variant) -> int:
    """Of a worker whose scheduler is alone; others are compiled when they are met."""
    if variant == "decode":
        return int(la.DECODE_WORKER)
    name, version, kv_connector = variant
    by_chunk = name == "vllm" and rules_in_force("vllm", version)["offloads_by_chunk"]
    return offload_arrays.engine_entry(setting_arrays.ENGINES[name], kv_connector, by_chunk)


#: Called with the entries of engines whose kernels, or the event loop's, are about to be compiled.
Listener = Callable[[Sequence[int]], None]

_listeners: list[Listener] = []
#: Engine entries that listeners have been notified of, or that need no compilation.
_notified: set[int] = set()
#: Engine entries that this process has prepared.
_prepared: set[int] = set()
_preparing = threading.Lock()


@contextmanager
def on_compilation(listener: Listener) -> Iterator[None]:
    """Call ``listener`` before kernels are compiled within; a simulation has read all its inputs by then."""
    _listeners.append(listener)
    _notified.clear()
    try:
        yield
    finally:
        _listeners.remove(listener)


def _notify(entries: Sequence[int]) -> None:
    """Notify listeners of new engine entries with kernels that are yet to be compiled."""
    if not _listeners or _notified.issuperset(entries):
        return
    _notified.update(entries)
    if not is_prepared(entries):
        for listener in _listeners:
            listener(entries)


def prepare(variants: Iterable[Variant]) -> None:
    """Compile the kernels of these engines now, in parallel, unless compiled already."""
    _prepare(list(dict.fromkeys(map(_engine_entry_of, variants))))


def _prepare(entries: Sequence[int]) -> None:
    from hisearch.kernels.fleet import compilation

    _notify(entries)
    with _preparing:
        if not _prepared.issuperset(entries):
            compilation.prepare(entries)
            _prepared.update(entries)


def is_prepared(entries: Sequence[int]) -> bool:
    """Whether the event loop and these engine entries have been compiled."""
    from hisearch.kernels.fleet import compilation

    return compilation.event_loop_is_compiled() and not compilation.missing_of(entries)


class RunOptions(TypedDict, total=False):
    """Options of a run; see ``simulate_fleet``."""

    seed: int
    horizon_s: float
    load: float
    give_up: GiveUp
    log: bool
    pooled: bool


def simulate(
    plan: WorkerPlan,
    trace: CompiledTrace,
    *,
    replicas: int = 1,
    router: RouterSpec = RouterSpec(),  # noqa: B008  (frozen)
    **options: Unpack[RunOptions],
) -> Result:
    """Replay ``trace`` on ``replicas`` identical workers behind ``router``: a fleet of one pool.

    Raises:
        ValueError, EngineOutOfMemory: see ``simulate_fleet``.
    """
    return simulate_fleet(FleetPlan((PoolPlan(plan, replicas),), router), trace, **options)


def simulate_fleet(
    plan: FleetPlan,
    trace: CompiledTrace,
    *,
    seed: int = 0,
    horizon_s: float = math.inf,
    load: float = 1.0,
    give_up: GiveUp = NEVER,
    log: bool = False,
    pooled: bool = False,
) -> Result:
    """Replay ``trace`` on a fleet.

    Args:
        plan: pools and routers.
        trace: a compiled trace; shared between threads, never written.
        seed: of the random streams.
        horizon_s: simulated seconds after which the run stops; unfinished requests stay ``IN_FLIGHT``.
        load: factor on the arrival rate of first turns; think times are not scaled.
        give_up: stop criterion of a hopeless run, which then counts as cut by the horizon.
        log: keep every step, its batch and what it preempted (``Result.log``).
        pooled: follow-ups wait for no particular request. The next one, in order of index, arrives ``think_s`` after
            any request has ended, as from a client with fixed concurrency. Prompts are as recorded: one may include an
            output still in progress, and hits as much of it as is cached by then.

    Raises:
        ModelNotServed: a request names a model that no pool serves, or none although several are served.
        AdaptersDoNotFit: see ``simulate.arrays.lora.check_adapters``.
        ValueError: if ``replicas`` or ``load`` is not positive, or priorities would make SGLang preempt.
        EngineOutOfMemory: the real engine would fail on this load with these settings, or (``EngineStuck``) make no
            progress; or (``ObjectsLeaveTooLittleMemory``) agents' objects leave too little host memory for KV.
    """
    from hisearch.kernels.fleet import cluster

    request_models = models_of_requests(plan, trace)
    lora_arrays.check_adapters(plan, trace, request_models)
    for pool in plan.pools:
        if pool.plan.agents is not None and len(plan.pools) > 1:
            raise ValueError(f"pool {pool.name}: agents' objects are simulated in deployments of one pool")
        if pool.replicas < 1:
            raise ValueError(f"replicas must be at least 1, not {pool.replicas}")
    if pooled and trace.agents is not None:
        raise ValueError("pooled: agents call in a loop of their own")
    plan = _with_endings(_with_objects(plan, trace), trace)
    if not (load > 0 and math.isfinite(load)):
        raise ValueError(f"load must be a positive number, not {load}")
    _prepare([setting_arrays.entry_of(pool.plan, fleet_arrays.ROLES[pool.role]) for pool in plan.pools])
    node_rooms = [node_limit(pool, trace) for pool in plan.pools]
    log_limit = _log_limit(trace) if log else 0
    while True:
        fleet, sims = allocate(
            plan,
            trace,
            node_rooms,
            load=load,
            seed=seed,
            horizon_s=horizon_s,
            give_up=give_up,
            log_limit=log_limit,
            pooled=pooled,
            models=request_models.model if len(request_models.names) > 1 else None,
        )
        end_s, horizon_reached, faulty = cluster.run(fleet)
        if fleet.counters[fl.SHORT]:
            plan = _with_more_spare(plan)
            continue
        if faulty < 0:
            break
        fault = sims[faulty].counters[la.FAULT]
        if fault == la.NODE_POOL_FULL:
            node_rooms[faulty] *= 2
        elif fault == la.LOG_FULL:
            log_limit *= 4
        else:
            raise _failure(plan.pools[faulty].plan, fault, end_s)
    if not horizon_reached:
        _check_all_ended(plan, sims, end_s)
    return result_of(plan, trace, request_models, fleet, sims, end_s, bool(horizon_reached), load)


def _with_objects(plan: FleetPlan, trace: CompiledTrace) -> FleetPlan:
    """The fleet with the capacity of its tiers reduced by agents' objects."""
    try:
        pools = tuple(replace(pool, plan=agent_arrays.with_objects(pool.plan, trace)) for pool in plan.pools)
    except ObjectsDoNotFit as error:
        raise ObjectsLeaveTooLittleMemory(str(error)) from error
    return replace(plan, pools=pools)


def _with_endings(plan: FleetPlan, trace: CompiledTrace) -> FleetPlan:
    """The fleet told how outputs end, as far as the workload says so and the plan does not."""
    if trace.ignore_eos is None:
        return plan
    arrays = trace.arrays
    stated = trace.ignore_eos or bool((arrays.max_output_tokens > arrays.output_tokens).any())

    def with_ending(worker: WorkerPlan) -> WorkerPlan:
        if worker.ignore_eos:
            return worker
        return replace(worker, ignore_eos=bool(trace.ignore_eos), limits_stated=stated)

    return replace(plan, pools=tuple(replace(pool, plan=with_ending(pool.plan)) for pool in plan.pools))


def _log_limit(trace: CompiledTrace) -> int:
    """Steps of the log in a run's first attempt; each has eight entries.

    All tokens of all requests then fit, unless too many. Memory that is never written is never allocated.
    """
    tokens = int(trace.arrays.output_tokens.sum()) + 8 * len(trace)
    return min(max(tokens // 8, 4096), 1 << 22)


def _with_more_spare(plan: FleetPlan) -> FleetPlan:
    """The fleet with twice the workers that autoscalers may start; each is used once."""
    return replace(plan, pools=tuple(
        pool if pool.scaler is None else replace(pool, spare=2 * pool.spare + pool.scaler.max_replicas)
        for pool in plan.pools
    ))  # fmt: skip


def node_limit(pool: PoolPlan, trace: CompiledTrace) -> int:
    """Cache-tree nodes in a run's first attempt."""
    return (
        6 * len(trace) + 2 * la.NODES_PER_REQUEST * (pool.plan.engine.max_running_requests + 2) * pool.plan.schedulers
    )


def allocate(
    plan: FleetPlan,
    trace: CompiledTrace,
    rooms: Sequence[int],
    *,
    load: float = 1.0,
    seed: int = 0,
    horizon_s: float = math.inf,
    give_up: GiveUp = NEVER,
    log_limit: int = 0,
    pooled: bool = False,
    models: I4 | None = None,
) -> tuple[fl.Fleet, list[la.Sim]]:
    """The arrays of a run for ``kernels.fleet.cluster.run``: shared ones and those of each pool.

    rooms: cache-tree nodes of each pool. log_limit: steps to log; 0: none. models: index of each request's model among
    the plan's, shape (N,); None for a single model. All else is that of ``simulate_fleet``.
    """
    model = np.zeros(len(trace), np.int32) if models is None else models
    in_memory = agent_arrays.arrays_of(trace, [pool.plan for pool in plan.pools])
    arrays, front_end_s = front_end.delayed(in_memory, plan, trace, load, model)
    fleet = fleet_arrays.allocate(
        plan,
        arrays,
        front_end_s,
        load=load,
        seed=seed,
        horizon_s=horizon_s,
        give_up=give_up,
        pooled=pooled,
        agents=trace.agents,
        models=models,
    )
    single_token = np.ones(len(trace), np.int64)
    prompts = arrays._replace(output_tokens=single_token, max_output_tokens=single_token)
    first = fleet_arrays.first_members(plan)
    sims = []
    for p, pool in enumerate(plan.pools):
        settings = setting_arrays.config_of(pool.plan, pool.slots, fleet_arrays.ROLES[pool.role])
        settings.pool = p
        settings.first_member = first[p]
        settings.log = log_limit > 0
        if trace.agents is None:
            front_end.set_queue(settings, pool.plan)
        if pool.plan.writes_back_output:
            settings.store_pool, settings.store_tier = plan.output_storage(pool)
        sims.append(
            pool_arrays.allocate(
                pool.plan,
                prompts if pool.role == "prefill" else arrays,
                settings,
                fleet=fleet,
                seed=seed,
                node_limit=rooms[p],
                log_limit=log_limit,
                agents=agent_arrays.agents_of(trace, pool.plan.agents),
                adapters=requested_adapters(trace),
                grammars=trace.grammars,
                places=pool.places,
                pooled=pooled,
            )
        )
        fleet.sims[p] = sims[p].address
    return fleet, sims


def _failure(plan: WorkerPlan, fault: int, end_s: float) -> EngineOutOfMemory:
    """The error for an engine's fault."""
    if fault == la.OUT_OF_MEMORY:
        return EngineOutOfMemory(
            f"{plan.engine.name} would stop for want of memory at {end_s:.3f} s: its admission rule let in more "
            f"than {plan.kv_capacity_tokens} KV tokens hold; lower chunk_tokens or max_running_requests"
        )
    if fault == la.OUT_OF_SLOTS:
        return EngineOutOfMemory(
            f"{plan.engine.name} {plan.engine.version} would stop at {end_s:.3f} s: a step has more adapters than "
            "lora.max_loras, which newer releases rule out"
        )
    assert fault == la.STUCK
    return EngineStuck(
        f"{plan.engine.name} would make no token any more from {end_s:.3f} s on, its requests preempting each "
        f"other or waiting for memory: {plan.kv_capacity_tokens} KV tokens are too few for these settings"
    )


def _check_all_ended(plan: FleetPlan, sims: Sequence[la.Sim], end_s: float) -> None:
    """Check at the end of all events that no request is in flight (L1)."""
    for pool, sim in zip(plan.pools, sims, strict=True):
        if not (sim.requests["outcome"] == la.IN_FLIGHT).any():
            continue
        if offload_arrays.kv_connector_of(pool.plan) == "offload":
            raise EngineStuck(
                f"{pool.plan.engine.name} would come to a halt at {end_s:.3f} s: requests that have been loaded from "
                f"host memory hold pages that others wait for; {pool.plan.kv_capacity_tokens} KV tokens are too few"
            )
        if pool.role != "unified":
            raise EngineStuck(
                f"pool {pool.name} would come to a halt at {end_s:.3f} s: prompts that have been computed hold pages "
                f"until decode workers have memory for them; {pool.plan.kv_capacity_tokens} KV tokens are too few"
            )
        if pool.plan.windows is not None:
            raise EngineStuck(
                f"sglang would come to a halt at {end_s:.3f} s: a prompt waits for ever for the pool of its layers "
                f"with a window, which has {pool.plan.windows.capacity_tokens} tokens, or for "
                f"{pool.plan.kv_capacity_tokens} KV tokens; raise swa_full_tokens_ratio or lower chunk_tokens"
            )
        if pool.plan.engine.name == "sglang":
            first = int(np.flatnonzero(sim.requests["outcome"] == la.IN_FLIGHT)[0])
            raise EngineStuck(
                f"sglang would come to a halt at {end_s:.3f} s: request {first} waits for ever; with its output limit "
                f"it reserves more than {pool.plan.kv_capacity_tokens} KV tokens leave"
            )
        raise AssertionError("the simulation ended with requests in flight")
