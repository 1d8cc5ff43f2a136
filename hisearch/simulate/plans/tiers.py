"""A worker's cache tiers, compiled: how many tokens a store holds, and how long transfers take.

Notation: b bytes of KV per token, p bytes of one operation, B bytes per second, l seconds per operation, q operations
in flight. A medium moves n tokens in ``l + max(n b / B, (n b / max(p, page_bytes)) l / q)``: the larger of what its
bandwidth and what its queue allow, after the first operation. A link moves them in ``l + n b / B``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from hisearch.base.policies import EVICTIONS, PREFETCHES, WRITE_POLICIES
from hisearch.latency.device_memory.plan import MemoryPlan
from hisearch.simulate.plans.tier_plan import MovementPlan, SharedLink, TierPlan, TransferLaw
from hisearch.specs.deployments.deployment import PoolSpec
from hisearch.specs.deployments.tier_checks import TierProblem, scope_of, storing_hosts, storing_ranks, tier_problems
from hisearch.specs.deployments.tiers import TierSpec
from hisearch.specs.machines.hardware import AcceleratorSpec, HostSpec, LinkSpec, MediumSpec
from hisearch.specs.machines.parallelism import nodes_per_worker, scheduler_ranks, workers_per_node
from hisearch.specs.models.model import ModelSpec

_GIB = float(2**30)
_GB = 1e9


class TierRefused(ValueError):  # noqa: N818
    """A tier that its KV connector cannot use, or that no node has; says which key and why."""

    def __init__(self, pool: str, problem: TierProblem) -> None:
        super().__init__(f"pool {pool}: {problem}")
        self.problem = problem


@dataclass(frozen=True)
class Tiers:
    """All of a worker's tiers, nearest first; movement: None without tiers."""

    plans: tuple[TierPlan, ...] = ()
    movement: MovementPlan | None = None
    workers_per_node: int = 1


def plan_tiers(
    pool: PoolSpec,
    *,
    model: ModelSpec,
    memory: MemoryPlan,
    accelerator: AcceleratorSpec,
    host: HostSpec | None,
    media: Mapping[str, MediumSpec],
) -> Tiers:
    """Compile the tiers of a pool's worker.

    memory: bytes of KV per token and rank, and tokens that device memory holds. host: the machine of the workers; None
    if unspecified. media: by the names that the tiers call them.

    Raises:
        TierRefused: see ``tier_problems``; a store that holds less than a page; for HiCache, a host pool that holds no
            more than the device pool.
        ValueError: a medium that is not known.
    """
    for tier in pool.tiers:
        if tier.medium not in media:
            raise ValueError(f"no medium named '{tier.medium}'; known: {', '.join(sorted(media)) or 'none'}")
    for problem in tier_problems(pool, media, pool.host or accelerator.host, host):
        raise TierRefused(pool.name, problem)
    sharing = workers_per_node(pool.parallelism, host)
    if not pool.tiers:
        return Tiers(workers_per_node=sharing)
    nodes = nodes_per_worker(pool.parallelism, host)
    plans = tuple(
        _tier_plan(pool, index, tier, media[tier.medium], model, memory, nodes) for index, tier in enumerate(pool.tiers)
    )
    if pool.kv_connector == "hicache" and plans[0].capacity_tokens <= memory.kv_capacity_tokens:
        raise TierRefused(pool.name, TierProblem("tiers.0.gib", _too_small_message(pool, plans[0], memory)))
    return Tiers(plans, _movement_plan(pool, plans, model, memory, accelerator, host), sharing)


def _too_small_message(pool: PoolSpec, host: TierPlan, memory: MemoryPlan) -> str:
    """Why HiCache refuses its host pool, and the smallest size that it accepts."""
    ranks = pool.parallelism.ranks
    enough_bytes = (memory.kv_capacity_tokens + host.page_tokens) * host.bytes_per_token
    enough_gb = math.ceil(enough_bytes / pool.tensor_parallel / _GB)
    per_group = " for each attention group" if pool.attention_data_parallel > 1 else ""
    enough_gib = math.ceil(enough_gb * _GB * ranks / _GIB)
    return (
        f"{pool.tiers[0].gib:g} GiB hold {host.capacity_tokens} tokens{per_group}; SGLang's host pool must exceed its "
        f"device pool of {memory.kv_capacity_tokens}, whatever the write policy: {enough_gib} GiB do"
    )


def medium_law(
    medium: MediumSpec, bytes_per_s: float, *, devices: int, bytes_per_token: float, operation_bytes: float
) -> TransferLaw:
    """Reads or writes of a store.

    bytes_per_s: of one device, in this direction. devices: that the store is spread over. bytes_per_token,
    operation_bytes: b and p above.
    """
    operations_per_token = bytes_per_token / max(operation_bytes, medium.page_bytes)
    queue_s = operations_per_token * medium.latency_s / (medium.queue_depth * devices)
    return TransferLaw(medium.latency_s, max(bytes_per_token / (bytes_per_s * devices), queue_s))


def link_law(link: LinkSpec, bytes_per_token: float) -> TransferLaw:
    """One direction of a link that carries ``bytes_per_token`` of every token."""
    return TransferLaw(link.latency_s, bytes_per_token / link.bandwidth_bytes_per_s)


def devices_of(tier: TierSpec, medium: MediumSpec, hosts: int = 1) -> int:
    """Devices of the medium that hold a store of the tier: at least one in each of a worker's ``hosts``."""
    least = hosts if scope_of(tier, medium) == "worker" else 1
    return max(math.ceil(tier.gib * _GIB / medium.capacity_bytes), least)


def _page_tokens(pool: PoolSpec) -> int:
    """Tokens of a tier's unit of storage and transfer: the engine's page, or LMCache's chunk."""
    return pool.movement.chunk_tokens if pool.kv_connector == "lmcache" else pool.engine.page_size


def _tier_plan(
    pool: PoolSpec,
    index: int,
    tier: TierSpec,
    medium: MediumSpec,
    model: ModelSpec,
    memory: MemoryPlan,
    nodes: int,
) -> TierPlan:
    per_rank = memory.kv_bytes_per_token_per_rank
    per_token = per_rank * storing_ranks(pool, index, model)
    page = _page_tokens(pool)
    scope = scope_of(tier, medium)
    devices = devices_of(tier, medium, storing_hosts(pool, index, model, nodes))
    read, write = (
        medium_law(medium, rate, devices=devices, bytes_per_token=per_token, operation_bytes=per_rank * page)
        for rate in (medium.read_bytes_per_s, medium.write_bytes_per_s)
    )
    return TierPlan(
        medium=tier.medium,
        scope=scope,
        capacity_tokens=_capacity_tokens(pool, index, tier, scope, per_token, page),
        page_tokens=page,
        eviction=tier.eviction,
        ttl_s=math.inf if tier.ttl_s is None else tier.ttl_s,
        reclaim=tier.reclaim,
        reclaim_period_s=tier.reclaim_period_s,
        parameters=tuple((name, getattr(tier, name)) for name in EVICTIONS.parameters()),
        read=read,
        write=write,
        query_s=medium.latency_s,
        networked=medium.kind != "cxl",
        bytes_per_token=per_token,
        energy_j_per_token=per_token * medium.energy_j_per_byte,
        usd_per_hour_per_store=tier.gib * medium.usd_per_gib_hour,
        kind=medium.kind,
    )


def _capacity_tokens(pool: PoolSpec, index: int, tier: TierSpec, scope: str, per_token: float, page: int) -> int:
    """KV tokens of one store, in full pages.

    A store of worker scope is divided equally among the DP ranks, except the storage behind HiCache's host pools (see
    ``WorkerPlan.schedulers_sharing``). SGLang takes the size of its host pool in whole gigabytes (10^9 bytes) for each
    rank: the remainder is paid for and not used.
    """
    size_bytes = tier.gib * _GIB
    if scope == "worker" and (index == 0 or pool.kv_connector != "hicache"):
        size_bytes /= pool.attention_data_parallel
    if index == 0 and pool.kv_connector == "hicache":
        size_bytes = size_bytes / pool.tensor_parallel // _GB * _GB * pool.tensor_parallel
    pages = int(size_bytes / (per_token * page))
    if pages < 1:
        unit = "chunk" if pool.kv_connector == "lmcache" else "page"
        message = f"{tier.gib:g} GiB are less than one {unit} of {page} tokens ({per_token * page / _GIB:.4g} GiB)"
        raise TierRefused(pool.name, TierProblem(f"tiers.{index}.gib", message))
    return pages * page


def _movement_plan(
    pool: PoolSpec,
    plans: tuple[TierPlan, ...],
    model: ModelSpec,
    memory: MemoryPlan,
    accelerator: AcceleratorSpec,
    host: HostSpec | None,
) -> MovementPlan:
    # Each rank moves its own shard over its own link, all at once.
    link = link_law(accelerator.host_link, memory.kv_bytes_per_token_per_rank)
    shared = next((i for i, plan in enumerate(plans) if plan.scope == "cluster" and plan.networked), None)
    # A decode worker writes to the storage of the prefill workers, whichever that is.
    index = 1 if pool.role == "decode" else shared
    network = None
    if index is not None and host is not None and host.network is not None:
        # A worker on several hosts uses all their networks, each for the share that its ranks store.
        per_token = memory.kv_bytes_per_token_per_rank * storing_ranks(pool, index, model)
        nodes = nodes_per_worker(pool.parallelism, host)
        network = link_law(host.network, per_token / storing_hosts(pool, index, model, nodes))
    own = {name for registry in (WRITE_POLICIES, PREFETCHES) for name in registry.parameters()}
    settings = pool.movement.model_dump(exclude={"kv_connector", *own})
    return MovementPlan(
        kv_connector=pool.kv_connector,
        **settings,
        parameters=tuple((name, getattr(pool.movement, name)) for name in sorted(own)),
        host_read=link,
        host_write=link,
        network_read=network,
        network_write=network,
        shared=shared_links(pool, memory, host),
        layers=model.layers,
        writes_back_output=pool.role == "decode",
        # A single rank runs in the scheduler's process (vLLM: config.parallel, v1.executor.uniproc_executor).
        own_processes=pool.parallelism.ranks > 1,
    )


def shared_links(pool: PoolSpec, memory: MemoryPlan, host: HostSpec | None) -> tuple[SharedLink, ...]:
    """The host's shared links; each carries what as many ranks of a scheduler as lie behind it move at once."""
    ranks = scheduler_ranks(pool.parallelism)
    return tuple(
        SharedLink(
            link.accelerators,
            TransferLaw(
                link.latency_s,
                memory.kv_bytes_per_token_per_rank * min(ranks, link.accelerators) / link.bandwidth_bytes_per_s,
            ),
            link.ports,
        )
        for link in (host.shared if host is not None else [])
    )
