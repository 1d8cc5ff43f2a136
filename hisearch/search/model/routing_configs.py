"""Routing configurations: what stage 2 compares, with the workers held fixed."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, fields, replace
from typing import Any

from hisearch.search.model.deployments import configs_most_promising_first, router_configs
from hisearch.specs.deployments.cluster import TransferSpec
from hisearch.specs.deployments.deployment import DeploymentSpec
from hisearch.specs.deployments.routing import AdmissionSpec, RouterSpec
from hisearch.specs.studies.pool_space import DisaggregatedSpace, MixedSpace
from hisearch.specs.studies.search_space import RoutingSpace, SearchSpaceSpec


@dataclass(frozen=True)
class RoutingConfig:
    """Settings of a deployment other than its pools; fields as in ``DeploymentSpec``."""

    router: RouterSpec
    admission: AdmissionSpec = field(default_factory=AdmissionSpec)
    decode_router: RouterSpec = field(default_factory=RouterSpec)
    transfer: TransferSpec = field(default_factory=TransferSpec)

    @property
    def settings(self) -> dict[str, Any]:
        """Settings by field name of ``DeploymentSpec``."""
        return {setting.name: getattr(self, setting.name) for setting in fields(self)}

    def of(self, deployment: DeploymentSpec) -> DeploymentSpec:
        """The same pools, with these settings."""
        return deployment.model_copy(update=self.settings)


def unified_configs(space: SearchSpaceSpec) -> list[RoutingConfig]:
    """For equal workers: every router, most promising policies first, then the first one with each other admission."""
    return _with_admissions(
        [RoutingConfig(router) for router in configs_most_promising_first(space.routing)], space.routing
    )


def lone(space: SearchSpaceSpec, deployment: DeploymentSpec) -> DeploymentSpec:
    """The deployment; a single worker's with the first router: every policy gives the same run, which is recognised."""
    if len(deployment.pools) > 1 or deployment.pool.replicas > 1:
        return deployment
    return RoutingConfig(router_configs(space.routing)[0], deployment.admission).of(deployment)


def mixed_routing(space: SearchSpaceSpec, mixed: MixedSpace) -> RoutingSpace:
    """The space's routing with the policies of unequal workers."""
    return space.routing.model_copy(update={"policies": mixed.policies})


def mixed_configs(space: SearchSpaceSpec, mixed: MixedSpace) -> list[RoutingConfig]:
    """For unequal workers: every router, the first one of each policy first, then other admissions."""
    return _with_admissions(
        [RoutingConfig(router) for router in configs_most_promising_first(mixed_routing(space, mixed))], space.routing
    )


def decode_routers(space: SearchSpaceSpec, disaggregated: DisaggregatedSpace) -> list[RouterSpec]:
    """Routers of decode workers: every policy with every combination of its parameters."""
    return [router for policy in disaggregated.decode_policies for router in space.routing.routers(policy)]


def transfers(disaggregated: DisaggregatedSpace) -> list[TransferSpec]:
    """Every fabric with every threshold of local prefill."""
    return [
        disaggregated.transfer.model_copy(update={"fabric": fabric, "local_prefill_tokens": tokens})
        for fabric, tokens in itertools.product(disaggregated.fabrics, disaggregated.local_prefill_tokens)
    ]


def pd_configs(space: SearchSpaceSpec, disaggregated: DisaggregatedSpace) -> list[RoutingConfig]:
    """For prefill/decode disaggregation: the most promising settings, then those that differ in a single one.

    Every combination would be too many to race; the winner's neighbours are tried later.
    """
    routers, at_decode, kv_transfers = (
        configs_most_promising_first(space.routing),
        decode_routers(space, disaggregated),
        transfers(disaggregated),
    )
    first = RoutingConfig(routers[0], space.routing.admission[0], at_decode[0], kv_transfers[0])
    configs = [first, *(replace(first, decode_router=router) for router in at_decode[1:])]
    configs += [replace(first, transfer=transfer) for transfer in kv_transfers[1:]]
    configs += [replace(first, router=router) for router in routers[1:]]
    return configs + [replace(first, admission=admission) for admission in space.routing.admission[1:]]


def other_configs(space: SearchSpaceSpec, deployment: DeploymentSpec) -> list[RoutingConfig]:
    """Settings of the space that differ from a deployment's in a single one, such as a parameter of its router."""
    ours = RoutingConfig(deployment.router, deployment.admission, deployment.decode_router, deployment.transfer)
    front, configs = _front_routing(space, deployment), list[RoutingConfig]()
    if sum(pool.replicas for pool in deployment.pools if pool.role != "decode") > 1:
        configs += [replace(ours, router=router) for router in other_routers(router_configs(front), ours.router)]
    disaggregated = space.pools.disaggregated
    if disaggregated is not None and any(pool.role == "decode" for pool in deployment.pools):
        if sum(pool.replicas for pool in deployment.pools if pool.role == "decode") > 1:
            at_decode = other_routers(decode_routers(space, disaggregated), ours.decode_router)
            configs += [replace(ours, decode_router=router) for router in at_decode]
        configs += [
            replace(ours, transfer=transfer) for transfer in transfers(disaggregated) if _differs_in_one(transfer, ours)
        ]
    others = (admission for admission in space.routing.admission if admission != ours.admission)
    return configs + [replace(ours, admission=admission) for admission in others]


def other_routers(routing_configs: list[RouterSpec], router: RouterSpec) -> list[RouterSpec]:
    """Routing configurations that differ in one parameter, and the first of every other policy."""
    firsts = {routing_config.policy: routing_config for routing_config in reversed(routing_configs)}
    others = [routing_config for policy, routing_config in firsts.items() if policy != router.policy]
    ours = router.model_dump()
    one_change = [
        routing_config
        for routing_config in routing_configs
        if routing_config.policy == router.policy
        and sum(ours[name] != value for name, value in routing_config.model_dump().items()) == 1
    ]
    return one_change + others


def _front_routing(space: SearchSpaceSpec, deployment: DeploymentSpec) -> RoutingSpace:
    mixed = space.pools.mixed
    if mixed is not None and len(deployment.pools) > 1 and deployment.pool.role == "unified":
        return mixed_routing(space, mixed)
    return space.routing


def _differs_in_one(transfer: TransferSpec, ours: RoutingConfig) -> bool:
    """True if a KV transfer differs from ours in a single setting."""
    known = ours.transfer.model_dump()
    differ = [name for name, value in transfer.model_dump().items() if known[name] != value]
    return len(differ) == 1


def _with_admissions(routing_configs: list[RoutingConfig], routing: RoutingSpace) -> list[RoutingConfig]:
    first, *others = routing.admission
    configs = [replace(routing_config, admission=first) for routing_config in routing_configs]
    return configs + [replace(configs[0], admission=admission) for admission in others]
