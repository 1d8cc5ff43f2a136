"""One worker, compiled: its step costs, its KV room, its tiers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hisearch.latency.costs import CompiledCosts
from hisearch.latency.devices.build import DevicesRefused, WorkerDevices
from hisearch.latency.devices.fitted import profile_at_hand
from hisearch.latency.devices.memory import devices_memory
from hisearch.latency.estimator import compile_costs
from hisearch.latency.memory import Elsewhere, MemoryPlan, plan_memory
from hisearch.latency.sharding import Parallelism
from hisearch.simulate.tier_plan import MovementPlan, TierPlan, TransferLaw
from hisearch.simulate.tiers import TierRefused, Tiers, plan_tiers
from hisearch.specs.deployment import EngineSpec, PoolSpec
from hisearch.specs.devices import DeviceSpec
from hisearch.specs.hardware import AcceleratorSpec, HostSpec, MediumSpec
from hisearch.specs.model import ModelSpec
from hisearch.specs.profile import LatencyProfileSpec
from hisearch.specs.tier_checks import TierProblem
from hisearch.specs.tiers import MOVERS

__all__ = [
    "NO_WINDOW",
    "DevicesRefused",
    "MovementPlan",
    "TierPlan",
    "TierRefused",
    "TransferLaw",
    "WorkerPlan",
    "check_simulated",
    "ffn_accelerator_name",
    "plan_pool_memory",
    "plan_worker",
    "worker_devices",
]

#: A window that no request exceeds.
NO_WINDOW = 2**62


@dataclass(frozen=True)
class WorkerPlan:
    """Everything a simulation needs to know about a worker.

    kv_capacity_tokens: whole pages of HBM.
    max_request_tokens: the model's window: requests whose prompt and declared output exceed it are refused.
    ignore_eos: requests say that they make exactly as many tokens as they declare, as benchmarks do.
    tiers: below HBM, nearest first. movement: how KV moves between them; None without tiers.
    workers_per_node: that share what is of node scope.
    """

    engine: EngineSpec
    costs: CompiledCosts
    memory: MemoryPlan
    kv_capacity_tokens: int
    max_request_tokens: int = NO_WINDOW
    ignore_eos: bool = False
    tiers: tuple[TierPlan, ...] = ()
    movement: MovementPlan | None = None
    workers_per_node: int = 1

    @property
    def host_capacity_tokens(self) -> int:
        """Whole pages of the nearest tier, 0 without one."""
        return self.tiers[0].capacity_tokens if self.tiers else 0

    def workers_sharing(self, tier: TierPlan, workers: int) -> int:
        """Of ``workers`` in all, those that a store of ``tier`` serves at most."""
        return {"worker": 1, "node": self.workers_per_node, "cluster": workers}[tier.scope]


def plan_worker(
    pool: PoolSpec,
    *,
    model: ModelSpec,
    accelerator: AcceleratorSpec,
    host: HostSpec | None,
    media: Mapping[str, MediumSpec],
    profile: LatencyProfileSpec,
    profile_name: str = "roofline",
    devices: Mapping[str, DeviceSpec] = {},
    ffn_accelerator: AcceleratorSpec | None = None,
) -> WorkerPlan:
    """Compile a pool's worker.

    Args:
        pool: engine settings, parallelism, formats, tiers.
        model: architecture.
        accelerator: what each rank runs on.
        host: what carries the workers; None where nothing says so.
        media: of the pool's tiers, by the names that they call them.
        profile: constants of the latency estimator.
        profile_name: how results name the profile.
        devices: beside the accelerators, by the names that the pool's devices block calls them.
        ffn_accelerator: that the block names, where attention and FFN are apart.

    Raises:
        DoesNotFit: the model leaves no room for KV; says how many bytes are short.
        InvalidParallelism: the model cannot be split over that many ranks.
        TierRefused: a tier that the mover cannot use, that no node has, or that is not simulated yet.
        DevicesRefused: devices that the pool's operators cannot run on.
        ValueError: a medium that is not known.
    """
    engine = pool.engine
    beside = worker_devices(pool, devices, ffn_accelerator)
    memory = plan_pool_memory(pool, model, accelerator, profile, beside)
    tiers = plan_tiers(pool, model=model, memory=memory, accelerator=accelerator, host=host, media=media)
    check_simulated(pool, tiers)
    costs = compile_costs(
        profile_name,
        profile,
        model,
        accelerator,
        tensor_parallel=pool.tensor_parallel,
        weight_dtype=pool.weight_dtype,
        kv_dtype=pool.kv_dtype,
        engine=engine,
        max_tokens=max(engine.chunk_tokens, engine.max_running_requests),
        max_sequences=engine.max_running_requests,
        max_context_tokens=memory.kv_capacity_tokens,
        devices=beside,
    )
    return WorkerPlan(
        engine,
        costs,
        memory,
        memory.kv_capacity_tokens,
        max_request_tokens=model.max_context_tokens,
        tiers=tiers.plans,
        movement=tiers.movement,
        workers_per_node=tiers.workers_per_node,
    )


def ffn_accelerator_name(pool: PoolSpec) -> str | None:
    """The accelerator that a pool names for its FFNs, or None."""
    apart = pool.devices.attention_ffn if pool.devices is not None else None
    return apart.ffn_accelerator if apart is not None else None


def worker_devices(
    pool: PoolSpec, devices: Mapping[str, DeviceSpec], ffn_accelerator: AcceleratorSpec | None = None
) -> WorkerDevices | None:
    """The pool's devices by the names of its block; None without one."""
    if pool.devices is None:
        return None
    named = {name: devices[entry.device] for name, entry in pool.devices.beside.items()}
    return WorkerDevices(pool.devices, named, ffn_accelerator)


def plan_pool_memory(
    pool: PoolSpec,
    model: ModelSpec,
    accelerator: AcceleratorSpec,
    profile: LatencyProfileSpec,
    devices: WorkerDevices | None,
) -> MemoryPlan:
    """Memory of a pool's worker, with what its devices hold of it; errors as of ``plan_worker``."""
    elsewhere = Elsewhere()
    if devices is not None:
        split = Parallelism(tensor=pool.tensor_parallel)
        # As steps are priced: policies that map operators look at the same laws.
        _, own = profile_at_hand("profile", profile, accelerator, pool.engine.name)
        elsewhere = devices_memory(
            devices, model, accelerator, own, split, pool.weight_dtype, pool.kv_dtype, pool.engine.name
        )
    return plan_memory(
        model,
        accelerator,
        tensor_parallel=pool.tensor_parallel,
        weight_dtype=pool.weight_dtype,
        kv_dtype=pool.kv_dtype,
        engine=pool.engine,
        accelerator_name=pool.accelerator,
        elsewhere=elsewhere,
    )


def check_simulated(pool: PoolSpec, tiers: Tiers) -> None:
    """Refuse what the kernels do not know yet.

    HiCache, vLLM's offloading connector, and LMCache under vLLM are simulated whole; of other movers one tier of each
    worker's own, under lru.

    Raises:
        TierRefused: with the key.
    """
    key = _not_simulated(pool)
    if tiers.plans and key:
        raise TierRefused(pool.name, TierProblem(key, "not simulated yet"))


def _not_simulated(pool: PoolSpec) -> str:
    """The first key that is not simulated, or nothing."""
    if pool.mover == "hicache":
        return ""
    for index, tier in enumerate(pool.tiers):
        if tier.ttl_s is not None:
            return f"tiers.{index}.ttl_s"
    if pool.engine.name == "vllm":
        return ""
    if len(pool.tiers) > 1:
        return "tiers.1"
    return "" if pool.mover == MOVERS[pool.engine.name][0] else "movement.mover"
