"""One worker, compiled: its step costs, its KV memory, its tiers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from hisearch.hardware.power import PowerPlan
from hisearch.latency.costs import CompiledCosts
from hisearch.latency.device_memory import state_pools, window_pools
from hisearch.latency.device_memory.kv_groups import KvGroups, kv_groups_of, retained_tokens
from hisearch.latency.device_memory.plan import Elsewhere, MemoryPlan, plan_memory
from hisearch.latency.devices.build import WorkerDevices
from hisearch.latency.devices.fitted import profile_at_hand
from hisearch.latency.devices.memory import devices_memory
from hisearch.latency.drafting.drafter import with_drafter
from hisearch.latency.estimator import compile_costs
from hisearch.latency.host import kernel_compile_s
from hisearch.latency.sharding import Parallelism
from hisearch.simulate.plans import lora as lora_plans
from hisearch.simulate.plans.agent_memory import plan_agents, with_adapters, with_disk
from hisearch.simulate.plans.agent_plan import AgentPlan
from hisearch.simulate.plans.draw import SharedDraw, WorkerHardware, idle_draw, shared_draws, worker_devices
from hisearch.simulate.plans.grammar_plan import GrammarPlan, plan_grammars
from hisearch.simulate.plans.groups_plan import GroupsPlan, StatesPlan, WindowsPlan
from hisearch.simulate.plans.lora_plan import LoraPlan
from hisearch.simulate.plans.refusals import check_formats, check_simulated, check_split
from hisearch.simulate.plans.speculation_plan import SpeculationPlan, plan_speculation
from hisearch.simulate.plans.tier_plan import MovementPlan, SharedLink, TierPlan
from hisearch.simulate.plans.tiers import Tiers, plan_tiers, shared_links
from hisearch.specs.deployments.deployment import EngineSpec, PoolSpec
from hisearch.specs.machines.devices import DeviceSpec
from hisearch.specs.machines.hardware import AcceleratorSpec, HostSpec, MediumSpec
from hisearch.specs.machines.profile import LatencyProfileSpec
from hisearch.specs.models.model import ModelSpec

#: A worker of one accelerator.
UNSPLIT = Parallelism()

#: A window that no request exceeds.
NO_WINDOW = 2**62


@dataclass(frozen=True)
class WorkerPlan:
    """Everything a simulation needs to know about a worker.

    kv_capacity_tokens: of HBM, in full pages; with groups, blocks of any group times the tokens of a page.
    max_request_tokens: of prompt and declared output; more is refused: the model's longest, or the groups' pool's.
    ignore_eos: whether requests make exactly as many tokens as they declare, as in benchmarks: all, or by request.
    limits_stated: outputs that fill their limit end by it; False: an end-of-sequence token ends them all.
    tiers: below HBM, nearest first. movement: how KV moves between them; None without tiers.
    workers_per_node: workers that share stores of node scope.
    split: parallelism of the worker's copy of the model. power: draw besides that of its steps.
    agents: memory that they need besides KV, and its policy; None: no agents. lora, grammars: how they are served.
    groups: of KV blocks, under vLLM; None: a single group without a window.
    windows, states: SGLang's second pool. speculation: drafted tokens. kernel_compile_s: see ``latency.host``.
    slot_bytes_per_s: of each accelerator's slot, one direction, as its host link attains it. peer_bytes_per_s: of its
    links to accelerators of other workers, likewise. shared_draws: of hardware that the pool's workers share.
    ports: what they share on the way to the network.
    """

    engine: EngineSpec
    costs: CompiledCosts
    memory: MemoryPlan
    kv_capacity_tokens: int
    max_request_tokens: int = NO_WINDOW
    ignore_eos: bool | tuple[bool, ...] = False
    limits_stated: bool = True
    tiers: tuple[TierPlan, ...] = ()
    movement: MovementPlan | None = None
    workers_per_node: int = 1
    agents: AgentPlan | None = None
    lora: LoraPlan | None = None
    grammars: GrammarPlan | None = None
    split: Parallelism = UNSPLIT
    power: PowerPlan = PowerPlan()  # noqa: RUF009  (frozen)
    groups: GroupsPlan | None = None
    windows: WindowsPlan | None = None
    states: StatesPlan | None = None
    speculation: SpeculationPlan | None = None
    kernel_compile_s: float = 0.0
    slot_bytes_per_s: float = math.inf
    peer_bytes_per_s: float = math.inf
    shared_draws: tuple[SharedDraw, ...] = ()
    ports: tuple[SharedLink, ...] = ()

    @property
    def ranks(self) -> int:
        """Accelerators of the worker."""
        return self.split.ranks

    @property
    def least_kv_tokens(self) -> int:
        """KV tokens that fit whatever their requests; see ``MemoryPlan``."""
        return self.kv_capacity_tokens // (1 if self.groups is None else self.groups.count)

    @property
    def schedulers(self) -> int:
        """Schedulers of a worker: DP ranks, or micro-batches of a pipeline."""
        return self.split.attention_data * self.split.pipeline

    @property
    def scheduler_kind(self) -> Literal["alone", "lockstep", "pipe"]:
        """What they share: nothing (a single one), steps (DP ranks) or stages (see ``kernels.engine.schedulers``)."""
        if self.split.attention_data > 1:
            return "lockstep"
        return "pipe" if self.split.pipeline > 1 else "alone"

    @property
    def scheduler_running_requests(self) -> int:
        """Batch limit of a scheduler. SGLang divides it among micro-batches (``pp_max_micro_batch_size``, 0.5)."""
        if self.scheduler_kind == "pipe" and self.engine.name == "sglang":
            return max(self.engine.max_running_requests // self.split.pipeline, 1)
        return self.engine.max_running_requests

    @property
    def writes_back_output(self) -> bool:
        """Whether a decode worker writes its output to the storage of the prefill workers."""
        enabled = self.movement is not None and self.movement.writes_back_output
        return enabled and self.host_capacity_tokens >= self.engine.page_size

    @property
    def idle_w(self) -> float:
        """Idle watts of the worker's accelerators and attached devices; costs state those of one DP rank."""
        return self.costs.idle_w * self.split.attention_data

    @property
    def attached_idle_w(self) -> float:
        """Of ``idle_w``, that of attached devices."""
        return self.costs.attached_idle_w * self.split.attention_data

    @property
    def host_capacity_tokens(self) -> int:
        """Tokens of the nearest tier, in full pages; 0 without one."""
        return self.tiers[0].capacity_tokens if self.tiers else 0

    @property
    def schedulers_per_node(self) -> int:
        """Schedulers of all workers that share stores of node scope."""
        return self.workers_per_node * self.schedulers

    def schedulers_sharing(self, tier: TierPlan, schedulers: int) -> int:
        """Most schedulers, of ``schedulers`` in all, that a store of ``tier`` serves.

        A store of worker scope serves one DP rank. Exception: the storage behind HiCache's host pools. SGLang's DP
        ranks share pages there, as their keys name only the rank within the attention group (``cache_controller.py``).
        """
        is_storage = self.movement is not None and self.movement.kv_connector == "hicache" and tier is not self.tiers[0]
        worker_sharing = self.schedulers if is_storage else 1
        return {"worker": worker_sharing, "node": self.schedulers_per_node, "cluster": schedulers}[tier.scope]


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
    ffn_host: HostSpec | None = None,
) -> WorkerPlan:
    """Compile a pool's worker.

    host: the machine of the workers; None if unspecified. media: of the pool's tiers, and devices: of its devices
    block, by the names used there. profile_name: in results. ffn_accelerator, ffn_host: that the block names, if
    attention and FFN are disaggregated, and what carries the FFN accelerators.

    Raises:
        DoesNotFit: the model leaves no memory for KV; says how many bytes are short.
        InvalidParallelism: the model cannot be split over that many ranks.
        AgentsRefused: objects of agents that the model does not have, or that leave no memory for KV.
        TierRefused: a tier that the KV connector cannot use, that no node has, or that is not simulated.
        DevicesRefused, ValueError: devices that the pool's operators cannot run on, an unknown medium.
    """
    engine = pool.engine
    check_split(pool, model)
    attached = worker_devices(pool, devices, ffn_accelerator, host)
    memory, tiers = plan_kv_memory(
        pool, model=model, accelerator=accelerator, host=host, media=media, profile=profile, devices=attached
    )
    if memory.state_pools is not None:
        engine = memory.state_pools.engine(engine)
    agents = with_disk(plan_agents(pool, model, memory, accelerator, host), pool, tiers.plans, media)
    price = partial(
        compile_costs, profile_name, profile, accelerator=accelerator, tensor_parallel=pool.tensor_parallel,
        parallelism=pool.parallelism, kv_dtype=pool.kv_dtype, engine=engine,
        max_tokens=max(engine.chunk_tokens, engine.max_running_requests), max_sequences=engine.max_running_requests,
        max_context_tokens=memory.kv_capacity_tokens, devices=attached,
    )  # fmt: skip
    costs = with_adapters(price(model=model, weight_dtype=pool.weight_dtype), pool, model, accelerator)
    costs = with_drafter(costs, model, pool.weight_dtype or model.weight_dtype, engine, price)
    hardware = WorkerHardware(accelerator, host, ffn_accelerator, ffn_host)
    costs, power = idle_draw(costs, pool, model, hardware, attached)
    kv = memory.kv_groups
    longest = model.max_context_tokens
    if kv is not None:
        engine = kv.engine(engine)
        longest = kv.longest_request_tokens(memory.kv_capacity_tokens // engine.page_size, engine, longest)
    if pool.decode_context_parallel > 1:
        engine = engine.model_copy(update={"page_tokens": pool.block_tokens})
    speculation = plan_speculation(engine, model)
    if speculation is not None:
        # The engine starts with a window that its memory holds, behind which it drafts nothing.
        longest = min(longest, memory.kv_capacity_tokens)
    return WorkerPlan(
        engine,
        costs,
        memory,
        memory.kv_capacity_tokens - _tokens_of_objects(pool, agents),
        max_request_tokens=longest,
        tiers=tiers.plans,
        movement=tiers.movement,
        workers_per_node=tiers.workers_per_node,
        split=pool.parallelism,
        power=power,
        agents=agents,
        lora=lora_plans.plan_lora(pool, model, accelerator, host, media),
        grammars=plan_grammars(pool, memory, host),
        groups=None if kv is None else _groups(kv, engine),
        windows=_windows(pool, model, memory),
        states=_states(pool, model, memory),
        speculation=speculation,
        kernel_compile_s=kernel_compile_s(model, engine),
        slot_bytes_per_s=accelerator.host_link.bandwidth_bytes_per_s,
        peer_bytes_per_s=accelerator.worker_link.bandwidth_bytes_per_s,
        shared_draws=shared_draws(pool, hardware, attached),
        ports=tuple(link for link in shared_links(pool, memory, host) if link.ports),
    )


def _windows(pool: PoolSpec, model: ModelSpec, memory: MemoryPlan) -> WindowsPlan | None:
    pools = memory.window_pools
    if pools is None or not window_pools.simulated(pool, model):
        return None
    return WindowsPlan(pools.window_tokens, pools.windowed)


def _states(pool: PoolSpec, model: ModelSpec, memory: MemoryPlan) -> StatesPlan | None:
    pools, engine = memory.state_pools, pool.engine
    if pools is None or not window_pools.forms_batches_alone(pool):
        return None
    sizes = engine.page_size, state_pools.kernel_chunk(model)
    return StatesPlan(pools.states, pools.slots, state_pools.grid_tokens(*sizes), state_pools.interval_tokens(*sizes))


def _groups(kv: KvGroups, engine: EngineSpec) -> GroupsPlan:
    return GroupsPlan(
        kv.full, kv.windowed, kv.window_tokens, retained_tokens(engine), states=kv.states, checkpoints=kv.checkpoints
    )


def plan_pool_memory(
    pool: PoolSpec,
    model: ModelSpec,
    accelerator: AcceleratorSpec,
    profile: LatencyProfileSpec,
    devices: WorkerDevices | None,
) -> MemoryPlan:
    """Memory of a pool's worker, less what attached devices hold and slots take; errors as of ``plan_worker``."""
    check_formats(pool, model, accelerator)
    state_pools.check_pages(pool, model)
    elsewhere = Elsewhere()
    if devices is not None:
        # Fitted as for step costs: policies that map operators use the same laws.
        _, fitted = profile_at_hand("profile", profile, accelerator, pool.engine.name)
        elsewhere = devices_memory(
            devices, model, accelerator, fitted, pool.parallelism, pool.weight_dtype, pool.kv_dtype, pool.engine.name
        )
    memory = plan_memory(
        model,
        accelerator,
        tensor_parallel=pool.tensor_parallel,
        parallelism=pool.parallelism,
        weight_dtype=pool.weight_dtype,
        kv_dtype=pool.kv_dtype,
        engine=pool.engine,
        accelerator_name=pool.accelerator,
        elsewhere=elsewhere,
        kv_groups=kv_groups_of(pool, model, accelerator),
    )
    return lora_plans.without_slots(memory, pool, model)


def plan_kv_memory(
    pool: PoolSpec,
    *,
    model: ModelSpec,
    accelerator: AcceleratorSpec,
    host: HostSpec | None,
    media: Mapping[str, MediumSpec],
    profile: LatencyProfileSpec,
    devices: WorkerDevices | None = None,
) -> tuple[MemoryPlan, Tiers]:
    """A worker's KV memory: its device memory and its tiers; arguments and errors as of ``plan_worker``."""
    memory = plan_pool_memory(pool, model, accelerator, profile, devices)
    check_simulated(pool)
    # A separate pool of objects holds no KV; the tiers need not exceed it.
    agents = plan_agents(pool, model, memory, accelerator, host)
    objects_tokens = _tokens_of_objects(pool, agents)
    kv_memory = replace(memory, kv_capacity_tokens=memory.kv_capacity_tokens - objects_tokens)
    return memory, plan_tiers(pool, model=model, memory=kv_memory, accelerator=accelerator, host=host, media=media)


def _tokens_of_objects(pool: PoolSpec, agents: AgentPlan | None) -> int:
    """Device memory that agents' objects take from KV, in tokens."""
    return agents.pool_pages * pool.engine.page_size if agents is not None else 0
