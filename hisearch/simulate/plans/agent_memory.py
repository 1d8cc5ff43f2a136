"""A pool's section ``agents``, compiled: sizes in pages, loads in seconds, what adapters add to a step.

Notation
    t ranks of a worker (tensor parallel), r an adapter's rank, h hidden size, b bytes of its elements
Factors of q, k, v, gate and up are split by outputs, those of o and down by inputs, like the weight matrices. A rank
holds r (h + outputs / t) or r (inputs / t + h) elements of each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from hisearch.hardware.host_path import to_host
from hisearch.hardware.power import memory_power_share, worker_dynamic_w
from hisearch.latency.costs import CompiledCosts, StepCosts
from hisearch.latency.device_memory.plan import MemoryPlan
from hisearch.latency.sharding import dense_layers, shard
from hisearch.simulate.plans.agent_plan import AgentPlan, KindPlan
from hisearch.simulate.plans.tier_plan import TierPlan
from hisearch.simulate.plans.tiers import devices_of
from hisearch.specs.base import DTYPE_BYTES, rate_dtype
from hisearch.specs.deployments.agent_memory import AdaptersSpec, AgentMemorySpec
from hisearch.specs.deployments.deployment import PoolSpec
from hisearch.specs.machines.hardware import AcceleratorSpec, HostSpec, LinkSpec, MediumSpec
from hisearch.specs.models.model import ModelSpec

_MIB, _GIB = float(2**20), float(2**30)

#: Shares of peak bandwidth and arithmetic that kernels of gathered adapters attain. Assumed.
_BANDWIDTH_SHARE, _FLOPS_SHARE = 0.7, 0.3


class AgentsRefused(ValueError):  # noqa: N818
    """Objects that the model does not have or that do not fit into the worker."""


def adapter_elements(model: ModelSpec, adapters: AdaptersSpec, tensor_parallel: int) -> int:
    """Elements of one adapter on one rank (see the module's law).

    Raises:
        AgentsRefused: a target that the model does not have.
    """
    local = shard(model, tensor_parallel)
    if model.attention != "gqa":
        raise AgentsRefused(f"{model.huggingface_id}: adapters of {model.attention} attention are not known")
    feed_forward = [target for target in adapters.targets if target in ("gate", "up", "down")]
    if feed_forward and dense_layers(model) < model.layers:
        raise AgentsRefused(
            f"{model.huggingface_id}: {', '.join(feed_forward)}: not every layer has a dense feed-forward"
        )
    hidden, head = model.hidden_size, model.head_dim
    widths = {
        "q": local.heads * head, "k": local.kv_heads * head, "v": local.kv_heads * head, "o": local.heads * head,
        "gate": local.intermediate, "up": local.intermediate, "down": local.intermediate,
    }  # fmt: skip
    return adapters.rank * model.layers * sum(hidden + widths[target] for target in dict.fromkeys(adapters.targets))


def plan_agents(
    pool: PoolSpec, model: ModelSpec, memory: MemoryPlan, accelerator: AcceleratorSpec, host: HostSpec | None
) -> AgentPlan | None:
    """The plan of the pool's section ``agents``; None without one.

    Raises:
        AgentsRefused: see ``adapter_elements``; a pool of objects that leaves no KV page; or a pool whose workers are
            not simulated with objects.
    """
    spec = pool.agents
    if spec is None:
        return None
    if pool.role != "unified" or pool.pipeline_parallel * pool.attention_data_parallel > 1:
        raise AgentsRefused(
            f"pool {pool.name}: agents: objects are not simulated yet in pools of role prefill or decode, nor with "
            "attention groups or pipeline stages"
        )
    page_bytes = memory.kv_bytes_per_token_per_rank * pool.engine.page_size
    link = to_host(accelerator.host_link, host.shared if host is not None else (), pool.tensor_parallel)
    kinds = tuple(_kinds(spec, model, pool.tensor_parallel, page_bytes, link))
    each = sum(kind.pages for kind in kinds if kind.per != "all")
    common = sum(kind.pages for kind in kinds if kind.per == "all")
    pages = memory.kv_capacity_tokens // pool.engine.page_size
    pool_pages = 0 if spec.slots is None else spec.slots * each + common
    if pool_pages >= pages:
        gib = pool_pages * page_bytes / 2**30
        raise AgentsRefused(f"pool {pool.name}: agents.slots: {spec.slots} take {gib:.1f} GiB, and no KV is left")
    return AgentPlan(
        policy=spec.policy,
        source=spec.distance,
        kinds=kinds,
        pool_pages=pool_pages,
        ahead_s=spec.ahead_s,
        ahead_steps=spec.ahead_frames,
        budget_pages=int(spec.ahead_budget * (pool_pages or pages)),
        kv_share=spec.ahead_budget if spec.ahead_kv and pool.tiers else 0.0,
        preempt=spec.preempt,
        tested=spec.trust == "tested",
        noise=spec.noise,
        bias=spec.bias,
        link_latency_s=link.latency_s,
        link_bytes_per_s=link.bandwidth_bytes_per_s,
        in_tier=spec.host == "tier",
    )


def _kinds(
    spec: AgentMemorySpec, model: ModelSpec, ranks: int, page_bytes: float, link: LinkSpec
) -> Sequence[KindPlan]:
    sizes: list[tuple[str, str, float, float]] = [
        (objects.name, objects.per, objects.mib * _MIB / ranks, objects.mib * _MIB) for objects in spec.objects
    ]
    if spec.adapters is not None:
        own, whole = (adapter_elements(model, spec.adapters, parts) for parts in (ranks, 1))
        element_bytes = DTYPE_BYTES[spec.adapters.dtype]
        sizes.insert(0, ("adapters", "adapter", own * element_bytes, whole * element_bytes))
    return [
        KindPlan(
            name=name,
            per=per,
            pages=math.ceil(per_rank / page_bytes),
            # Every rank loads its own shard, all at once.
            load_s=link.latency_s + per_rank / link.bandwidth_bytes_per_s,
            bytes_per_rank=per_rank,
            rank=spec.adapters.rank if per == "adapter" and spec.adapters is not None else 0,
            whole_bytes=whole,
        )
        for name, per, per_rank, whole in sizes
    ]


def with_disk(
    plan: AgentPlan | None, pool: PoolSpec, tiers: Sequence[TierPlan], media: Mapping[str, MediumSpec]
) -> AgentPlan | None:
    """The plan with the pool's limit of host memory for objects; the second tier holds all of them.

    A read takes the medium's latency, plus the bytes of all ranks at the bandwidth of the store's devices.

    Raises:
        AgentsRefused: a second tier that several nodes share; a limit below the size of the slots.
    """
    if plan is None or pool.agents is None or pool.agents.host_gib is None:
        return plan
    host, disk, size = tiers[0], tiers[1], pool.agents.host_gib
    if disk.scope == "cluster":
        raise AgentsRefused(
            f"pool {pool.name}: agents.host_gib: objects are not simulated yet on a tier that several nodes share "
            f"({pool.tiers[1].medium})"
        )
    page_bytes = host.bytes_per_token * pool.engine.page_size
    host_pages = int(size * _GIB / page_bytes)
    if host_pages < plan.pool_pages:
        raise AgentsRefused(
            f"pool {pool.name}: agents.host_gib: {size:g} GiB are less than agents.slots take in device memory "
            f"({plan.pool_pages * page_bytes / _GIB:.1f} GiB)"
        )
    medium = media[pool.tiers[1].medium]
    bytes_per_s = medium.read_bytes_per_s * devices_of(pool.tiers[1], medium)
    kinds = tuple(
        replace(kind, read_s=medium.latency_s + kind.bytes_per_rank * pool.tensor_parallel / bytes_per_s)
        for kind in plan.kinds
    )
    return replace(
        plan, kinds=kinds, host_pages=host_pages, disk_latency_s=medium.latency_s, disk_bytes_per_s=bytes_per_s
    )


def with_adapters(
    costs: CompiledCosts, pool: PoolSpec, model: ModelSpec, accelerator: AcceleratorSpec
) -> CompiledCosts:
    """Step costs if every sequence has a separate adapter, read once a step; an upper bound if some share one.

    Joules by the law of ``hardware.power``, of reading and arithmetic one after the other.
    """
    adapters = pool.agents.adapters if pool.agents is not None else None
    if adapters is None:
        return costs
    elements = adapter_elements(model, adapters, pool.tensor_parallel)
    read_s = elements * DTYPE_BYTES[adapters.dtype] / (accelerator.memory_bandwidth_bytes_per_s * _BANDWIDTH_SHARE)
    compute_s = 2.0 * elements / (accelerator.peak_flops[rate_dtype(adapters.dtype)] * _FLOPS_SHARE)
    compute_w = worker_dynamic_w(accelerator, pool.tensor_parallel)
    read_w = compute_w * memory_power_share(accelerator)
    components = {}
    if costs.components:
        components["adapters"] = _add_costs(
            _zero_costs(len(costs.joules.token_s)), read_s * read_w, compute_s * compute_w
        )
    return replace(
        costs,
        seconds=_add_costs(costs.seconds, read_s, compute_s),
        joules=_add_costs(costs.joules, read_s * read_w, compute_s * compute_w),
        components={**costs.components, **components},
    )


def _zero_costs(tokens: int) -> StepCosts:
    """Zero step costs for up to ``tokens - 1`` tokens."""
    return StepCosts(0.0, 0.0, np.zeros(tokens), np.zeros(2), np.zeros((2, 2)), np.zeros((2, 2)))


def _add_costs(costs: StepCosts, per_sequence: float, per_token: float) -> StepCosts:
    """``costs`` plus ``per_sequence`` and ``per_token`` seconds or joules for each of a step."""
    return costs._replace(
        token_s=costs.token_s + per_token * np.arange(len(costs.token_s)),
        host_per_sequence_s=costs.host_per_sequence_s + per_sequence,
    )
