"""What a deployment costs per hour.

Conventions
    * An accelerator's price includes its share of the host, as cloud prices do; shipped hosts cost nothing themselves.
    * A host (the pool's, else the accelerator's usual one) with a price above zero is added, shared by its accelerator
      slots: a pool pays ``price * accelerators used / slots``. Empty slots cost it nothing: whole hosts are not bought.
    * Attached devices are bought for each accelerator, as many as their count; shared ones whole, for each host or
      pool, and FFN accelerators apart for every group of attention workers, full or not (``hardware.whole``).
    * A cache tier adds ``gib * usd_per_gib_hour`` for each of its stores. Its scope says how many: one per worker, per
      node in use (workers fill nodes one after the other), or per cluster.
    * Workers that come and go are paid for by how long there were how many, each time with what they then share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from hisearch.hardware.whole import ffn_accelerators, shared_devices
from hisearch.specs.checks.checks import cpu_problem
from hisearch.specs.deployments.deployment import DeploymentSpec, PoolSpec
from hisearch.specs.deployments.tier_checks import scope_of
from hisearch.specs.deployments.tiers import TierSpec
from hisearch.specs.machines.devices import DeviceSpec, DevicesSpec
from hisearch.specs.machines.hardware import AcceleratorSpec, HostSpec, MediumSpec
from hisearch.specs.machines.parallelism import nodes_used, slots_problem

_Spec = TypeVar("_Spec")


@dataclass(frozen=True)
class TierCost:
    """Dollars per hour of one cache tier: ``stores`` of ``gib`` GiB each."""

    medium: str
    scope: str
    gib: float
    stores: int
    usd_per_hour: float


@dataclass(frozen=True)
class CostBreakdown:
    """Dollars per hour by item, and the number of accelerators bought (the mean under autoscaling)."""

    accelerator_usd_per_hour: float
    host_usd_per_hour: float
    accelerators: float
    tiers: tuple[TierCost, ...] = ()
    device_usd_per_hour: float = 0.0

    @property
    def total(self) -> float:
        """Dollars per hour of the whole deployment."""
        parts = (self.accelerator_usd_per_hour, self.host_usd_per_hour, self.device_usd_per_hour)
        return sum(parts) + sum(tier.usd_per_hour for tier in self.tiers)


#: Numbers of workers of a pool, and the share of the time with so many of each.
Presence = Sequence[tuple[int, float]]


@dataclass(frozen=True)
class PoolPrice:
    """What a pool costs, by its number of workers; ``cost_of``: of a pool."""

    pool: PoolSpec
    cost_of: Callable[[PoolSpec], CostBreakdown]

    @property
    def initial(self) -> CostBreakdown:
        """Cost with its replicas."""
        return self.cost_of(self.pool)

    def more(self, workers: int) -> CostBreakdown:
        """Cost with so many workers more than its replicas, or fewer, but not fewer than none."""
        return self.cost_of(self.pool.model_copy(update={"replicas": max(self.pool.replicas + workers, 0)}))


def mean_cost(prices: Sequence[PoolPrice], deployment: DeploymentSpec, present: Sequence[Presence]) -> CostBreakdown:
    """Cost of all pools, on average over a run.

    present: paid workers of each pool over the run. Replicas that ``deployment`` lacks, which are away, are paid for.
    """
    bought = accelerator_usd = host_usd = device_usd = 0.0
    tiers: list[TierCost] = []
    for price, pool, shares in zip(prices, deployment.pools, present, strict=True):
        parts = [(price.more(workers - pool.replicas), share) for workers, share in shares]
        bought += sum(part.accelerators * share for part, share in parts)
        accelerator_usd += sum(part.accelerator_usd_per_hour * share for part, share in parts)
        host_usd += sum(part.host_usd_per_hour * share for part, share in parts)
        device_usd += sum(part.device_usd_per_hour * share for part, share in parts)
        tiers += [
            replace(tier, usd_per_hour=sum(part.tiers[i].usd_per_hour * share for part, share in parts))
            for i, tier in enumerate(price.initial.tiers)
        ]
    count = int(bought) if bought == int(bought) else bought
    return CostBreakdown(accelerator_usd, host_usd, count, tuple(tiers), device_usd)


def deployment_cost(
    deployment: DeploymentSpec,
    accelerators: Mapping[str, AcceleratorSpec],
    hosts: Mapping[str, HostSpec],
    media: Mapping[str, MediumSpec],
    devices: Mapping[str, DeviceSpec] = {},
) -> CostBreakdown:
    """Cost of all pools.

    Catalogue entries are by name; only those that the deployment names matter.

    Raises:
        ValueError: a name is unknown, or a host has fewer accelerators than a stage, or fewer CPUs than attached ones.
    """
    parts = [pool_cost(pool, accelerators, hosts, media, devices) for pool in deployment.pools]
    for pool in deployment.pools:
        host_name = pool.host or accelerators[pool.accelerator].host
        if pool.devices is not None and host_name is not None:
            problem = cpu_problem(pool, pool.devices, devices, host_name, hosts[host_name])
            if problem:
                raise ValueError(f"pool {pool.name}: {problem}")
    return CostBreakdown(
        sum(part.accelerator_usd_per_hour for part in parts),
        sum(part.host_usd_per_hour for part in parts),
        sum(part.accelerators for part in parts),
        tuple(tier for part in parts for tier in part.tiers),
        sum(part.device_usd_per_hour for part in parts),
    )


def pool_cost(
    pool: PoolSpec,
    accelerators: Mapping[str, AcceleratorSpec],
    hosts: Mapping[str, HostSpec],
    media: Mapping[str, MediumSpec],
    devices: Mapping[str, DeviceSpec] = {},
) -> CostBreakdown:
    """Cost of one pool with its replicas.

    Raises:
        ValueError: a name is unknown, or a host has fewer accelerators than a stage.
    """
    accelerator = _find(accelerators, pool.accelerator, "accelerator")
    count = pool.accelerators
    accelerator_usd, host_usd, device_usd = count * accelerator.price.usd_per_hour, 0.0, 0.0
    host_name = pool.host or accelerator.host
    host = _find(hosts, host_name, "host") if host_name is not None else None
    if pool.devices is not None:
        for entry in pool.devices.attached.values():
            usd_each = _find(devices, entry.device, "device").price.usd_per_hour
            device_usd += shared_devices(pool, entry, host).bought(pool.replicas) * usd_each
        bought, usd, usd_of_hosts = _ffn_accelerators(pool, pool.devices, accelerators, hosts)
        count += bought
        accelerator_usd += usd
        host_usd += usd_of_hosts
    host_usd += _host_share(pool, host_name, pool.accelerators, hosts)
    tiers = [_tier_cost(pool, tier, _find(media, tier.medium, "medium"), host) for tier in pool.tiers]
    return CostBreakdown(accelerator_usd, host_usd, count, tuple(tiers), device_usd)


@dataclass(frozen=True)
class WholeHosts:
    """The hosts of a deployment, paid for whole.

    used, slots: accelerators of the deployment, and of all hosts that they are on. idle_usd_per_hour: of the others,
    with their share of the hosts.
    """

    used: int
    slots: int
    hosts: int
    idle_usd_per_hour: float


def whole_hosts(
    deployment: DeploymentSpec, accelerators: Mapping[str, AcceleratorSpec], hosts: Mapping[str, HostSpec]
) -> WholeHosts:
    """Hosts that the workers take, each pool on its own, filled one after the other.

    Pools without a host have no idle slots; attention-FFN disaggregation's own accelerators are not counted.

    Raises:
        ValueError: a name is unknown.
    """
    used = slots = count = 0
    idle_usd = 0.0
    for pool in deployment.pools:
        accelerator = _find(accelerators, pool.accelerator, "accelerator")
        used += pool.accelerators
        name = pool.host or accelerator.host
        if name is None:
            slots += pool.accelerators
            continue
        host = _find(hosts, name, "host")
        nodes = nodes_used(pool.parallelism, pool.replicas, host)
        idle = nodes * host.accelerators - pool.accelerators
        count += nodes
        slots += nodes * host.accelerators
        idle_usd += idle * accelerator.price.usd_per_hour + _share_of(host, idle)
    return WholeHosts(used, slots, count, idle_usd)


def _ffn_accelerators(
    pool: PoolSpec, spec: DevicesSpec, accelerators: Mapping[str, AcceleratorSpec], hosts: Mapping[str, HostSpec]
) -> tuple[int, float, float]:
    """(FFN accelerators, their dollars per hour, those of their hosts); zeros without attention-FFN disaggregation."""
    afd, shared = spec.attention_ffn, ffn_accelerators(pool)
    if afd is None or shared is None:
        return 0, 0.0, 0.0
    bought = shared.bought(pool.replicas)
    accelerator = _find(accelerators, afd.ffn_accelerator or pool.accelerator, "accelerator")
    name = ffn_host_name(pool, accelerator)
    host_usd = _share_of(_find(hosts, name, "host"), bought) if name is not None else 0.0
    return bought, bought * accelerator.price.usd_per_hour, host_usd


def ffn_host_name(pool: PoolSpec, ffn_accelerator: AcceleratorSpec) -> str | None:
    """Host of FFN accelerators: the pool's for the pool's own accelerator, else that which usually carries them."""
    afd = pool.devices.attention_ffn if pool.devices is not None else None
    others = afd is not None and afd.ffn_accelerator is not None
    return ffn_accelerator.host if others else pool.host or ffn_accelerator.host


def _tier_cost(pool: PoolSpec, tier: TierSpec, medium: MediumSpec, host: HostSpec | None) -> TierCost:
    scope = scope_of(tier, medium)
    nodes = nodes_used(pool.parallelism, pool.replicas, host)
    stores = {"worker": pool.replicas, "node": nodes, "cluster": 1}[scope]
    return TierCost(tier.medium, scope, tier.gib, stores, tier.gib * medium.usd_per_gib_hour * stores)


def _host_share(pool: PoolSpec, name: str | None, used: int, hosts: Mapping[str, HostSpec]) -> float:
    if name is None:
        return 0.0
    host = _find(hosts, name, "host")
    if problem := slots_problem(pool.parallelism, f"host {name}", host):
        raise ValueError(f"pool {pool.name}: {problem.message}; a stage must fit into its host")
    return _share_of(host, used)


def _share_of(host: HostSpec, accelerators: int) -> float:
    """Dollars per hour of so many slots."""
    return host.price.usd_per_hour * accelerators / host.accelerators


def _find(catalogue: Mapping[str, _Spec], name: str, kind: str) -> _Spec:
    try:
        return catalogue[name]
    except KeyError:
        raise ValueError(f"no {kind} named '{name}'; known: {', '.join(sorted(catalogue)) or 'none'}") from None
