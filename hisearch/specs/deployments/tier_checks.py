"""Checks a pool's tiers against the media and the host that they name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from hisearch.base.policies import QUEUE_ORDERS
from hisearch.specs.deployments.deployment import PoolSpec
from hisearch.specs.deployments.tiers import TierSpec, kv_connector_title, not_shared, shares_memory
from hisearch.specs.machines.hardware import HostSpec, MediumSpec, ScopeName
from hisearch.specs.machines.parallelism import Parallelism, nodes_per_worker, workers_per_node
from hisearch.specs.models.model import ModelSpec
from hisearch.specs.wording import counted

_GIB = 1024.0**3

#: Kinds of media that an engine addresses as host memory.
HOST_MEMORY = ("dram", "cxl")

#: Scopes, by how many workers share a store.
_WIDTHS: tuple[ScopeName, ...] = ("worker", "node", "cluster")


@dataclass(frozen=True)
class TierProblem:
    """What is wrong with a tier. key: dotted, from the pool on."""

    key: str
    message: str

    def __str__(self) -> str:
        return f"{self.key}: {self.message}"


def scope_of(tier: TierSpec, medium: MediumSpec) -> ScopeName:
    """Who shares a store of the tier."""
    return tier.scope or medium.scope


def tier_problems(
    pool: PoolSpec, media: Mapping[str, MediumSpec], host_name: str | None, host: HostSpec | None
) -> list[TierProblem]:
    """Tiers that the KV connector cannot use, or that no node has.

    pool: valid. media: by the names that the tiers use. host_name, host: of its workers; None where unknown.
    """
    return [*_kv_connector_problems(pool, media), *_node_problems(pool, media, host_name, host)]


def _kv_connector_problems(pool: PoolSpec, media: Mapping[str, MediumSpec]) -> Iterator[TierProblem]:
    if not pool.tiers:
        return
    title = kv_connector_title(pool.engine.name, pool.kv_connector)
    if pool.engine.name == "vllm" and QUEUE_ORDERS[pool.engine.schedule].counts_service:
        yield TierProblem(
            "engine.schedule", f"{pool.engine.schedule} is not simulated with {title}; take fcfs or priority"
        )
    nearest, medium = pool.tiers[0], media[pool.tiers[0].medium]
    if medium.kind not in HOST_MEMORY:
        yield TierProblem(
            "tiers.0.medium", f"{title} needs host memory (dram or cxl) here, {nearest.medium} is {medium.kind}"
        )
    elif not shares_memory(pool.engine.name, pool.kv_connector) and scope_of(nearest, medium) != "worker":
        yield TierProblem("tiers.0.scope", not_shared(pool.engine.name, pool.kv_connector, scope_of(nearest, medium)))
    if pool.kv_connector == "lmcache":
        yield from _lmcache_problems(pool, media)
    if pool.kv_connector == "hicache" and len(pool.tiers) > 2:
        yield from _chain_problems(pool, media)


def _chain_problems(pool: PoolSpec, media: Mapping[str, MediumSpec]) -> Iterator[TierProblem]:
    """Refuse a farther store of narrower scope: a page leaving the nearer one could not tell which store to go to."""
    near, far = (scope_of(tier, media[tier.medium]) for tier in pool.tiers[1:3])
    widths = get_args(ScopeName)
    if widths.index(far) < widths.index(near):
        yield TierProblem("tiers.2.scope", f"{far}: narrower than that of the tier before it, {near}")


def _lmcache_problems(pool: PoolSpec, media: Mapping[str, MediumSpec]) -> Iterator[TierProblem]:
    """A worker's own LMCache has host memory, a disk (local_disk) and a shared store (remote_url) behind it.

    A node's LMCache server has its host memory and stores behind it, and no tier of a single worker. A tier shared by
    fewer workers than the one before it could not tell which of them a chunk is for.
    """
    for index, tier in enumerate(pool.tiers[1:], 1):
        medium, before = media[tier.medium], pool.tiers[index - 1]
        scope, wider = scope_of(tier, medium), scope_of(before, media[before.medium])
        own_disk = scope == "worker" and medium.kind == "nvme"
        if _WIDTHS.index(scope) < _WIDTHS.index(wider):
            yield TierProblem(
                f"tiers.{index}.scope", f"{scope}: {tier.medium} lies behind {before.medium}, which is of scope {wider}"
            )
        elif scope == "worker" and not (own_disk and index == 1):
            yield TierProblem(
                f"tiers.{index}.medium",
                "LMCache has one memory and one disk (nvme) of a worker's own; what lies behind them is shared",
            )
        elif scope == "worker" and tier.eviction != pool.tiers[0].eviction:
            yield TierProblem(
                f"tiers.{index}.eviction",
                f"LMCache has one cache_policy for all tiers of a worker, here {pool.tiers[0].eviction}",
            )


def _node_problems(
    pool: PoolSpec, media: Mapping[str, MediumSpec], host_name: str | None, host: HostSpec | None
) -> Iterator[TierProblem]:
    for index, tier in enumerate(pool.tiers):
        medium = media[tier.medium]
        scope, at = scope_of(tier, medium), f"tiers.{index}"
        if medium.kind == "hbm" and index > 0:
            yield TierProblem(f"{at}.medium", f"{tier.medium} is device memory, which is above all tiers")
        elif medium.kind == "remote" and scope != "cluster":
            yield TierProblem(f"{at}.scope", f"{scope}: {tier.medium} is outside every node; its scope is cluster")
        elif scope != "worker" and host is None:
            yield TierProblem(f"{at}.scope", f"{scope}: nothing says what a node is; give the pool a host")
        elif scope == "node" and (nodes := nodes_per_worker(pool.parallelism, host)) > 1:
            yield TierProblem(f"{at}.scope", f"node: a worker lies in {nodes} hosts; what is theirs is of scope worker")
        elif scope == "cluster" and medium.kind != "cxl" and host is not None and host.network is None:
            yield TierProblem(f"{at}.scope", f"cluster: {host_name} has no network to a shared store")
        elif scope != "cluster" and medium.kind == "nvme" and host is not None and not (host.nvme and host.nvme_bytes):
            yield TierProblem(f"{at}.scope", f"{scope}: {host_name} has no disks")


def other_memory(
    tiers: Sequence[TierSpec], media: Mapping[str, MediumSpec], host_name: str, host: HostSpec
) -> list[TierProblem]:
    """Tiers in main memory of a kind that the host does not have."""
    return [
        TierProblem(f"tiers.{index}.medium", f"{tier.medium}: the main memory of {host_name} is {host.dram}")
        for index, tier in _other_memory(tiers, media, host).items()
    ]


def _other_memory(tiers: Sequence[TierSpec], media: Mapping[str, MediumSpec], host: HostSpec) -> dict[int, TierSpec]:
    """Tiers in main memory of a kind that the host does not have, by index."""
    return {
        index: tier
        for index, tier in enumerate(tiers)
        if media[tier.medium].kind == "dram"
        and scope_of(tier, media[tier.medium]) != "cluster"
        and tier.medium != host.dram
    }


def of_another_host(
    tiers: Sequence[TierSpec], media: Mapping[str, MediumSpec], host_name: str, hosts: Mapping[str, HostSpec]
) -> bool:
    """Whether a tier is the main memory of another of the hosts. Memory that no host has counts as each host's own."""
    elsewhere = {host.dram for host in hosts.values()}
    return any(tier.medium in elsewhere for tier in _other_memory(tiers, media, hosts[host_name]).values())


def storing_ranks(pool: PoolSpec, index: int, model: ModelSpec) -> int:
    """Ranks that write to the tier: each its shard. Under MLA all ranks have the same KV, which is kept once.

    Tiers that keep it once: HiCache's storage (``backup_skip`` in SGLang's ``cache_controller.py``) and all of LMCache
    (``save_only_first_rank``). Host pools are each rank's own.
    """
    kept_once = model.mla is not None and (index > 0 or pool.kv_connector == "lmcache")
    return 1 if kept_once else pool.tensor_parallel


def storing_hosts(pool: PoolSpec, index: int, model: ModelSpec, nodes: int) -> int:
    """How many of a worker's ``nodes`` hosts have ranks that write to the tier."""
    return min(nodes, storing_ranks(pool, index, model) * pool.attention_data_parallel)


def spread_of(pool: PoolSpec, model: ModelSpec, host: HostSpec | None) -> list[int]:
    """For each of a pool's tiers, how many hosts of a worker it is spread over."""
    nodes = nodes_per_worker(pool.parallelism, host)
    return [storing_hosts(pool, index, model, nodes) for index in range(len(pool.tiers))]


def capacity_problems(
    tiers: Sequence[TierSpec],
    split: Parallelism,
    media: Mapping[str, MediumSpec],
    host_name: str,
    host: HostSpec,
    spread: Sequence[int] | None = None,
) -> list[TierProblem]:
    """Main memory or disks too small for the tiers of all workers, in a full host or in all hosts of a worker.

    tiers, split: of each worker. spread: of each tier, hosts of a worker that it is spread over (``spread_of``); all of
    them where None.
    """
    problems = []
    workers, nodes = workers_per_node(split, host), nodes_per_worker(split, host)
    sizes = {"dram": (host.dram_bytes, "host memory"), "nvme": (host.nvme_bytes, "disk")}
    for kind, (has_bytes, what) in sizes.items():
        has_gib, host_gib = has_bytes / _GIB, 0.0
        parts, last, singular = [], 0, False
        over = set[int]()
        for index, tier in enumerate(tiers):
            medium = media[tier.medium]
            scope = scope_of(tier, medium)
            if medium.kind != kind or scope == "cluster":
                continue
            hosts = nodes if spread is None else spread[index]
            over.add(hosts)
            host_gib += tier.gib * (workers if scope == "worker" else 1) / hosts
            each = f"{counted(workers, 'worker')} of {split} with {tier.gib:g} GiB{' each' if workers > 1 else ''}"
            parts.append(each if scope == "worker" else f"{tier.gib:g} GiB of the node")
            last, singular = index, scope == "worker" and workers == 1
        if host_gib > has_gib:
            hosts, store = (over.pop(), what) if len(over) == 1 else (1, f"{what} in one host")
            owner = f"{host_name} has" if hosts == 1 else f"{hosts} {host_name} have"
            need = "needs" if len(parts) == 1 and singular else "need"
            message = (
                f"{' and '.join(parts)} {need} {hosts * host_gib:g} GiB of {store}; {owner} {hosts * has_gib:g} GiB"
            )
            problems.append(TierProblem(f"tiers.{last}.gib", message))
    return problems
