"""What a deployment costs per hour.

Conventions
    * An accelerator's price includes its share of the host, as cloud prices do; shipped hosts cost nothing themselves.
    * A host (the pool's, else the accelerator's usual one) with a price above zero is added, shared by its accelerator
      slots: a pool pays ``price * accelerators used / slots``. Empty slots cost it nothing: whole hosts are not bought.
    * Attached devices are bought for each accelerator, as many as their count; shared ones whole, for each host or
      pool, and FFN accelerators apart for every group of attention workers, full or not (``hardware.whole``).
    * A cache tier adds ``gib * usd_per_gib_hour`` for each of its stores. Its scope says how many: one per worker, per
      node in use (workers fill nodes one after the other), or per cluster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from hisearch.hardware.whole import devices_bought, ffn_accelerators_bought
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


def mean_cost(
    parts: Sequence[CostBreakdown], deployment: DeploymentSpec, mean_workers: Sequence[float]
) -> CostBreakdown:
    """Cost of all pools at their mean numbers of workers.

    parts: cost of each pool at its initial replicas. mean_workers: of each pool.
    """
    shares = [workers / pool.replicas for workers, pool in zip(mean_workers, deployment.pools, strict=True)]
    bought = sum(part.accelerators * share for part, share in zip(parts, shares, strict=True))
    return CostBreakdown(
        sum(part.accelerator_usd_per_hour * share for part, share in zip(parts, shares, strict=True)),
        sum(part.host_usd_per_hour * share for part, share in zip(parts, shares, strict=True)),
        int(bought) if bought == int(bought) else bought,
        tuple(
            replace(tier, usd_per_hour=tier.usd_per_hour * share)
            for part, share in zip(parts, shares, strict=True)
            for tier in part.tiers
        ),
        sum(part.device_usd_per_hour * share for part, share in zip(parts, shares, strict=True)),
    )


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
    accelerator_usd = host_usd = device_usd = 0.0
    count, tiers = 0, []
    for pool in deployment.pools:
        used = pool.accelerators
        count += used
        accelerator = _find(accelerators, pool.accelerator, "accelerator")
        accelerator_usd += used * accelerator.price.usd_per_hour
        host_name = pool.host or accelerator.host
        host = _find(hosts, host_name, "host") if host_name is not None else None
        if pool.devices is not None:
            for entry in pool.devices.attached.values():
                usd_each = _find(devices, entry.device, "device").price.usd_per_hour
                device_usd += devices_bought(pool, entry, host) * usd_each
            bought, usd, usd_of_hosts = _ffn_accelerators(pool, pool.devices, accelerators, hosts)
            count += bought
            accelerator_usd += usd
            host_usd += usd_of_hosts
        host_usd += _host_share(pool, host_name, used, hosts)
        if pool.devices is not None and host_name is not None and host is not None:
            problem = cpu_problem(pool, pool.devices, devices, host_name, host)
            if problem:
                raise ValueError(f"pool {pool.name}: {problem}")
        tiers += [_tier_cost(pool, tier, _find(media, tier.medium, "medium"), host) for tier in pool.tiers]
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
    afd = spec.attention_ffn
    if afd is None:
        return 0, 0.0, 0.0
    bought = ffn_accelerators_bought(pool)
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
