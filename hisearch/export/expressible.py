"""Checks whether a deployment can be exported, without writing; can restrict a search."""

from __future__ import annotations

from collections.abc import Sequence

from hisearch.export.engines.flags import ROUTER_POLICIES
from hisearch.export.engines.launch import ExportError, Launch
from hisearch.export.servers.containers import container
from hisearch.export.servers.exported import export_of
from hisearch.export.servers.fronts import FRONT_POLICIES, PLATFORM_POLICIES, front_config, front_words
from hisearch.export.servers.placement import nodes_of
from hisearch.export.servers.roles import check_spanning
from hisearch.specs.deployments.deployment import DeploymentSpec
from hisearch.specs.deployments.routing import RouterName
from hisearch.specs.errors import KeyedError
from hisearch.specs.studies.search_space import SearchSpaceSpec


def check_worker(launch: Launch, accelerators_per_host: int, reach: int | None = None) -> None:
    """Refuse a worker that cannot be exported, with any router.

    Args:
        launch: its pool.
        accelerators_per_host: accelerator slots of its hosts.
        reach: number of accelerators joined by peer links, over several hosts; those of one host where None.

    Raises:
        ExportError: the engine's command line cannot express it.
    """
    pool = launch.pool
    if pool.devices is not None:
        raise ExportError(f"pool {pool.name}: no engine has settings for attached devices")
    nodes = nodes_of(pool, accelerators_per_host, reach)
    if nodes > 1:
        check_spanning(pool)
    container(launch, 0, nodes=nodes)


def check_deployment(
    deployment: DeploymentSpec, launches: Sequence[Launch], slots: Sequence[int], reaches: Sequence[int]
) -> None:
    """Refuse a deployment that cannot be exported unchanged.

    Args:
        deployment: the deployment.
        launches: of each pool.
        slots: accelerator slots of a host of each pool.
        reaches: number of accelerators joined by peer links of each pool's hosts.

    Raises:
        ExportError: names the setting that cannot be expressed.
    """
    for launch, count, reach in zip(launches, slots, reaches, strict=True):
        check_worker(launch, count, reach)
    if deployment.admission.policy != "none":
        raise ExportError(f"no router here has the admission {deployment.admission.policy}")
    export = export_of(deployment, launches, slots, reaches)
    if export.routed:
        front_words(deployment, export.leaders, lambda server: str(server.number), "", "")
        front_config(deployment, export.leaders, lambda server: str(server.number), "")


def narrowed(space: SearchSpaceSpec) -> SearchSpaceSpec:
    """The space without router policies that no exported router has, and without admission control.

    Raises:
        KeyedError: a list becomes empty.
    """
    routing = space.routing
    unified = FRONT_POLICIES if space.pools.disaggregated is None else ()
    updates = {"policies": _kept(routing.policies, ("routing", "policies"), unified)}
    admission = [admission_spec for admission_spec in routing.admission if admission_spec.policy == "none"]
    if not admission:
        raise KeyedError(("routing", "admission"), "exportable: no router has any of these; list {policy: none}")
    pools, shapes = space.pools, {}
    if pools.mixed is not None:
        kept = _kept(pools.mixed.policies, ("pools", "mixed", "policies"), FRONT_POLICIES)
        shapes["mixed"] = pools.mixed.model_copy(update={"policies": kept})
    if pools.disaggregated is not None:
        kept = _kept(pools.disaggregated.decode_policies, ("pools", "disaggregated", "decode_policies"))
        shapes["disaggregated"] = pools.disaggregated.model_copy(update={"decode_policies": kept})  # type: ignore[assignment]
    return space.model_copy(
        update={
            "routing": routing.model_copy(update=updates | {"admission": admission}),
            "pools": pools.model_copy(update=shapes),
        }
    )


def _kept(policies: Sequence[RouterName], key: tuple[str, ...], more: Sequence[RouterName] = ()) -> list[RouterName]:
    exported = (*ROUTER_POLICIES, *PLATFORM_POLICIES, *more)
    kept = [policy for policy in policies if policy in exported]
    if not kept:
        known = ", ".join(exported)
        raise KeyedError(key, f"exportable: no router that is exported has {', '.join(policies)}; it takes {known}")
    return kept
