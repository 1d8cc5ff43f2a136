"""Which pools of a deployment cannot work together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from hisearch.specs.deployments.cluster import IncidentSpec, RoleName, TransferSpec
from hisearch.specs.deployments.routing import PROMPT_POLICIES, ModelRoutersSpec, RouterSpec
from hisearch.specs.errors import KeyedError


class Pool(Protocol):
    """The properties of a pool (``specs.deployments.deployment.PoolSpec``) that the checks read."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def role(self) -> RoleName: ...  # noqa: D102
    @property
    def kv_dtype(self) -> str: ...  # noqa: D102
    @property
    def model(self) -> str | None: ...  # noqa: D102
    @property
    def replicas(self) -> int: ...  # noqa: D102
    @property
    def agents(self) -> object | None: ...  # noqa: D102
    @property
    def schedule(self) -> Sequence[object]: ...  # noqa: D102
    @property
    def autoscale(self) -> object | None: ...  # noqa: D102


class Deployment(Protocol):
    """The properties of a deployment (``specs.deployments.deployment.DeploymentSpec``) that the checks read."""

    @property
    def model(self) -> str: ...  # noqa: D102
    @property
    def pools(self) -> Sequence[Pool]: ...  # noqa: D102
    @property
    def model_refs(self) -> Sequence[str]: ...  # noqa: D102
    @property
    def served_names(self) -> Mapping[str, Sequence[str]]: ...  # noqa: D102
    @property
    def routers(self) -> Mapping[str, ModelRoutersSpec]: ...  # noqa: D102
    @property
    def decode_router(self) -> RouterSpec: ...  # noqa: D102
    @property
    def transfer(self) -> TransferSpec: ...  # noqa: D102
    @property
    def incidents(self) -> Sequence[IncidentSpec]: ...  # noqa: D102


def check_pools(deployment: Deployment) -> None:
    """Refuse pools that cannot work together.

    Raises:
        KeyedError: with the key.
    """
    pools = deployment.pools
    names = [pool.name for pool in pools]
    for index, pool in enumerate(pools):
        if pool.name in names[:index]:
            raise KeyedError(("pools", index, "name"), f"another pool is named '{pool.name}' too")
        if pool.agents is not None and len(pools) > 1:
            raise KeyedError(("pools", index, "agents"), "agents' objects are simulated in deployments of one pool")
    _check_models(deployment)
    for ref in deployment.model_refs:
        _check_roles({pool.role for pool in pools if _model_ref(deployment, pool) == ref})
    if any(pool.role == "decode" for pool in pools):
        _check_disaggregated(deployment)
    for index, incident in enumerate(deployment.incidents):
        _check_incident(deployment, index, incident)


def _model_ref(deployment: Deployment, pool: Pool) -> str:
    return deployment.model if pool.model is None else pool.model


def _check_models(deployment: Deployment) -> None:
    """Refuse models that no pool serves, and names that two models have."""
    refs = deployment.model_refs
    if deployment.model not in refs:
        raise KeyedError(("model",), f"every pool names another model: {', '.join(refs)}; name one of them here")
    taken = dict(zip(refs, refs, strict=True))
    for section in ("served_names", "routers"):
        for ref in getattr(deployment, section):
            if ref not in refs:
                raise KeyedError((section, ref), f"no pool serves it; served: {', '.join(refs)}")
    for ref, names in deployment.served_names.items():
        for index, name in enumerate(names):
            if taken.setdefault(name, ref) != ref:
                raise KeyedError(("served_names", ref, index), f"{name} is a name of {taken[name]} already")


def _check_roles(roles: set[RoleName]) -> None:
    """Refuse roles of one model's pools that do not go together."""
    if len(roles) > 1 and "unified" in roles:
        raise KeyedError(("pools",), "unified pools do not go with prefill and decode ones of one model")
    if len(roles) == 1 and roles != {"unified"}:
        missing = "decode" if "prefill" in roles else "prefill"
        raise KeyedError(("pools",), f"a pool of role {missing} is needed beside those of role {roles.pop()}")


def _check_disaggregated(deployment: Deployment) -> None:
    pools = deployment.pools
    if deployment.transfer.fabric is None:
        raise KeyedError(("transfer", "fabric"), "needed: KV goes from prefill to decode workers over it")
    _check_decode_router(deployment.decode_router, ("decode_router",))
    for ref, routers in deployment.routers.items():
        if routers.decode_router is not None:
            _check_decode_router(routers.decode_router, ("routers", ref, "decode_router"))
    first: dict[str, Pool] = {}
    for index, pool in enumerate(pools):
        like = first.setdefault(_model_ref(deployment, pool), pool)
        if pool.role != "unified" and pool.kv_dtype != like.kv_dtype:
            raise KeyedError(
                ("pools", index, "kv_dtype"),
                f"{pool.kv_dtype}, but pool {like.name} has {like.kv_dtype}: KV is transferred as it is",
            )


def _check_decode_router(router: RouterSpec, key: tuple[str, ...]) -> None:
    if router.policy in PROMPT_POLICIES:
        message = "looks at prompts, which decode workers do not compute; name another policy"
        raise KeyedError((*key, "policy"), message)


def _check_incident(deployment: Deployment, index: int, incident: IncidentSpec) -> None:
    matches = [pool for pool in deployment.pools if pool.name == incident.pool]
    if not matches:
        known = ", ".join(pool.name for pool in deployment.pools)
        raise KeyedError(("incidents", index, "pool"), f"no pool is named '{incident.pool}'; there are {known}")
    pool = matches[0]
    if pool.agents is not None:
        raise KeyedError(("incidents", index, "pool"), "incidents in pools with agents' objects are not simulated yet")
    if pool.schedule or pool.autoscale is not None:
        raise KeyedError(("incidents", index, "pool"), "its replicas change already; incidents are for fixed ones")
    if incident.worker >= pool.replicas:
        raise KeyedError(("incidents", index, "worker"), f"pool {pool.name} has workers 0 to {pool.replicas - 1}")
