"""How requests find their workers: what stage 2 compares with the workers held fixed."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, fields, replace
from typing import Any

from hisearch.search.model.deployments import arms_by_promise, router_arms
from hisearch.specs.deployments.cluster import TransferSpec
from hisearch.specs.deployments.deployment import DeploymentSpec
from hisearch.specs.deployments.routing import AdmissionSpec, RouterSpec
from hisearch.specs.studies.pool_space import ApartSpace, MixedSpace
from hisearch.specs.studies.search_space import RoutingSpace, SearchSpaceSpec


@dataclass(frozen=True)
class Arm:
    """Settings of a deployment beside its pools; fields as in ``DeploymentSpec``."""

    router: RouterSpec
    admission: AdmissionSpec = field(default_factory=AdmissionSpec)
    decode_router: RouterSpec = field(default_factory=RouterSpec)
    transfer: TransferSpec = field(default_factory=TransferSpec)

    @property
    def settings(self) -> dict[str, Any]:
        """By the names of a deployment's fields."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    def of(self, deployment: DeploymentSpec) -> DeploymentSpec:
        """The same pools, with these settings."""
        return deployment.model_copy(update=self.settings)


def arm_of(deployment: DeploymentSpec) -> Arm:
    """The settings of a deployment."""
    return Arm(deployment.router, deployment.admission, deployment.decode_router, deployment.transfer)


def unified_arms(space: SearchSpaceSpec) -> list[Arm]:
    """Of equal workers: every router, most promising policies first, then the first one with each other admission."""
    return _with_admissions([Arm(router) for router in arms_by_promise(space.routing)], space.routing)


def lone_arm(space: SearchSpaceSpec, admission: AdmissionSpec) -> Arm:
    """Of a single worker, which gets everything whatever the policy: the first router, so that equal runs are known."""
    return Arm(router_arms(space.routing)[0], admission)


def mixed_routing(space: SearchSpaceSpec, mixed: MixedSpace) -> RoutingSpace:
    """The space's routing with the policies of unequal workers."""
    return space.routing.model_copy(update={"policies": mixed.policies})


def mixed_arms(space: SearchSpaceSpec, mixed: MixedSpace) -> list[Arm]:
    """Of unequal workers: every router, the first one of each policy first, then other admissions."""
    return _with_admissions([Arm(router) for router in arms_by_promise(mixed_routing(space, mixed))], space.routing)


def decode_routers(space: SearchSpaceSpec, apart: ApartSpace) -> list[RouterSpec]:
    """In front of decode workers: every policy with every combination of its parameters."""
    return [router for policy in apart.decode_policies for router in space.routing.routers(policy)]


def transfers(apart: ApartSpace) -> list[TransferSpec]:
    """Every fabric with every threshold of local prefill."""
    return [
        apart.transfer.model_copy(update={"fabric": fabric, "local_prefill_tokens": tokens})
        for fabric, tokens in itertools.product(apart.fabrics, apart.local_prefill_tokens)
    ]


def apart_arms(space: SearchSpaceSpec, apart: ApartSpace) -> list[Arm]:
    """Of prefill and decode apart: the most promising settings, then what differs from them in one.

    Every combination would be too many to race; the neighbours of what wins are looked at later.
    """
    routers, behind, hand_overs = arms_by_promise(space.routing), decode_routers(space, apart), transfers(apart)
    first = Arm(routers[0], space.routing.admission[0], behind[0], hand_overs[0])
    found = [first, *(replace(first, decode_router=router) for router in behind[1:])]
    found += [replace(first, transfer=transfer) for transfer in hand_overs[1:]]
    found += [replace(first, router=router) for router in routers[1:]]
    return found + [replace(first, admission=admission) for admission in space.routing.admission[1:]]


def arms_beside(space: SearchSpaceSpec, deployment: DeploymentSpec) -> list[Arm]:
    """Settings of the space that differ from a deployment's in one, such as a parameter of its router."""
    ours = arm_of(deployment)
    front, found = _front_routing(space, deployment), list[Arm]()
    if sum(pool.replicas for pool in deployment.pools if pool.role != "decode") > 1:
        found += [replace(ours, router=router) for router in routers_beside(router_arms(front), ours.router)]
    apart = space.pools.apart
    if apart is not None and any(pool.role == "decode" for pool in deployment.pools):
        if sum(pool.replicas for pool in deployment.pools if pool.role == "decode") > 1:
            behind = routers_beside(decode_routers(space, apart), ours.decode_router)
            found += [replace(ours, decode_router=router) for router in behind]
        found += [replace(ours, transfer=transfer) for transfer in transfers(apart) if _one_apart(transfer, ours)]
    others = (admission for admission in space.routing.admission if admission != ours.admission)
    return found + [replace(ours, admission=admission) for admission in others]


def routers_beside(arms: list[RouterSpec], router: RouterSpec) -> list[RouterSpec]:
    """The arms that differ in one parameter, and the first arm of every other policy."""
    firsts = {arm.policy: arm for arm in reversed(arms)}
    others = [arm for policy, arm in firsts.items() if policy != router.policy]
    ours = router.model_dump()
    beside = [
        arm
        for arm in arms
        if arm.policy == router.policy and sum(ours[name] != value for name, value in arm.model_dump().items()) == 1
    ]
    return beside + others


def _front_routing(space: SearchSpaceSpec, deployment: DeploymentSpec) -> RoutingSpace:
    mixed = space.pools.mixed
    if mixed is not None and len(deployment.pools) > 1 and deployment.pool.role == "unified":
        return mixed_routing(space, mixed)
    return space.routing


def _one_apart(transfer: TransferSpec, ours: Arm) -> bool:
    """True where a hand-over differs from ours in one setting."""
    known = ours.transfer.model_dump()
    differ = [name for name, value in transfer.model_dump().items() if known[name] != value]
    return len(differ) == 1


def _with_admissions(arms: list[Arm], routing: RoutingSpace) -> list[Arm]:
    first, *others = routing.admission
    found = [replace(arm, admission=first) for arm in arms]
    return found + [replace(found[0], admission=admission) for admission in others]
