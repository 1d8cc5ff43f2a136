"""Prices of catalogue entries, and costs of deployments at these or other prices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

from hisearch.hardware.prices import (
    CostBreakdown,
    PoolPrice,
    WholeHosts,
    deployment_cost,
    pool_cost,
    whole_hosts,
)
from hisearch.specs.base import Evidence, Price
from hisearch.specs.deployments.deployment import DeploymentSpec, PoolSpec
from hisearch.specs.machines.devices import DeviceSpec
from hisearch.specs.machines.hardware import AcceleratorSpec, HostSpec, MediumSpec

_Priced = TypeVar("_Priced", AcceleratorSpec, HostSpec, DeviceSpec)

#: Units of prices.
PER_HOUR = "USD/hour"
PER_GIB_HOUR = "USD/GiB/hour"


class Listed(NamedTuple):
    """A price. bounds: its stated range; None: no range."""

    item: str
    usd: float
    unit: str
    evidence: Evidence
    bounds: tuple[float, float] | None


@dataclass(frozen=True)
class PriceBook:
    """Catalogue entries by name; an item is any entry with a price above zero."""

    accelerators: Mapping[str, AcceleratorSpec]
    hosts: Mapping[str, HostSpec]
    media: Mapping[str, MediumSpec]
    devices: Mapping[str, DeviceSpec] = field(default_factory=dict)

    def cost(self, deployment: DeploymentSpec) -> float:
        """Dollars per hour, without electricity."""
        return self.breakdown(deployment).total

    def breakdown(self, deployment: DeploymentSpec) -> CostBreakdown:
        """The same, by what is bought.

        Raises:
            ValueError: see ``deployment_cost``.
        """
        return deployment_cost(deployment, self.accelerators, self.hosts, self.media, self.devices)

    def pool_prices(self, deployment: DeploymentSpec) -> list[PoolPrice]:
        """What each pool costs by its workers.

        Raises:
            ValueError: see ``deployment_cost``.
        """
        self.breakdown(deployment)
        return [PoolPrice(pool, self._pool_cost) for pool in deployment.pools]

    def _pool_cost(self, pool: PoolSpec) -> CostBreakdown:
        return pool_cost(pool, self.accelerators, self.hosts, self.media, self.devices)

    def whole_hosts(self, deployment: DeploymentSpec) -> WholeHosts:
        """The hosts that a deployment is on, and what their idle accelerators cost where whole hosts are paid for.

        Raises:
            ValueError: a name is unknown.
        """
        return whole_hosts(deployment, self.accelerators, self.hosts)

    def prices(self) -> Iterator[Listed]:
        """Every price above zero. Media's are assumptions: their documents state no evidence."""
        for kind in (self.accelerators, self.hosts, self.devices):
            for name, spec in kind.items():
                price: Price = spec.price
                if price.usd_per_hour > 0:
                    yield Listed(name, price.usd_per_hour, PER_HOUR, price.evidence, price.range_usd_per_hour)
        for name, medium in self.media.items():
            if medium.usd_per_gib_hour > 0:
                bounds = medium.range_usd_per_gib_hour
                yield Listed(name, medium.usd_per_gib_hour, PER_GIB_HOUR, "assumed", bounds)

    def at(self, prices: Mapping[str, float]) -> PriceBook:
        """The same book with other prices of some items; they may lie outside stated ranges."""
        return replace(
            self,
            accelerators={name: _at(spec, prices.get(name)) for name, spec in self.accelerators.items()},
            hosts={name: _at(spec, prices.get(name)) for name, spec in self.hosts.items()},
            devices={name: _at(spec, prices.get(name)) for name, spec in self.devices.items()},
            media={
                name: spec.model_copy(update={"usd_per_gib_hour": prices[name]}) if name in prices else spec
                for name, spec in self.media.items()
            },
        )


def _at(spec: _Priced, usd: float | None) -> _Priced:
    if usd is None:
        return spec
    return spec.model_copy(update={"price": spec.price.model_copy(update={"usd_per_hour": usd})})
