"""One worker, compiled: its step costs, its KV room, its tiers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hisearch.latency.costs import CompiledCosts
from hisearch.latency.estimator import compile_costs
from hisearch.latency.memory import MemoryPlan, plan_memory
from hisearch.simulate.agent_memory import AgentsRefused, plan_agents, with_adapters
from hisearch.simulate.agent_plan import AgentPlan
from hisearch.simulate.tier_plan import MovementPlan, TierPlan, TransferLaw
from hisearch.simulate.tiers import TierRefused, Tiers, plan_tiers
from hisearch.specs.deployment import EngineSpec, PoolSpec
from hisearch.specs.hardware import AcceleratorSpec, HostSpec, MediumSpec
from hisearch.specs.model import ModelSpec
from hisearch.specs.profile import LatencyProfileSpec
from hisearch.specs.tier_checks import TierProblem
from hisearch.specs.tiers import MOVERS

__all__ = [
    "NO_WINDOW",
    "AgentPlan",
    "AgentsRefused",
    "MovementPlan",
    "TierPlan",
    "TierRefused",
    "TransferLaw",
    "WorkerPlan",
    "check_simulated",
    "plan_worker",
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
    agents: what they need beside KV, and how it is kept; None: nothing.
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
    agents: AgentPlan | None = None

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

    Raises:
        DoesNotFit: the model leaves no room for KV; says how many bytes are short.
        InvalidParallelism: the model cannot be split over that many ranks.
        AgentsRefused: objects of agents that the model does not have, or that leave no room for KV.
        TierRefused: a tier that the mover cannot use, that no node has, or that is not simulated yet.
        ValueError: a medium that is not known.
    """
    engine = pool.engine
    memory = plan_memory(
        model,
        accelerator,
        tensor_parallel=pool.tensor_parallel,
        weight_dtype=pool.weight_dtype,
        kv_dtype=pool.kv_dtype,
        engine=engine,
        accelerator_name=pool.accelerator,
    )
    agents = plan_agents(pool, model, memory, accelerator)
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
    )
    objects_tokens = agents.pool_pages * engine.page_size if agents is not None else 0
    return WorkerPlan(
        engine,
        with_adapters(costs, pool, model, accelerator),
        memory,
        memory.kv_capacity_tokens - objects_tokens,
        max_request_tokens=model.max_context_tokens,
        tiers=tiers.plans,
        movement=tiers.movement,
        workers_per_node=tiers.workers_per_node,
        agents=agents,
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
