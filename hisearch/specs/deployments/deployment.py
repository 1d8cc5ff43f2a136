"""Kind ``Deployment``: pools of workers behind a router, and which pools cannot work together."""

from __future__ import annotations

from typing import Any

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from hisearch.specs.base import Strict
from hisearch.specs.deployments.cluster import IncidentSpec, RetrySpec, RoleName, TransferSpec
from hisearch.specs.deployments.engine import SCHEDULES, CapacityPolicyName, EngineSpec, EvictionName, ScheduleName
from hisearch.specs.deployments.pool import KV_DTYPES, PoolSpec
from hisearch.specs.deployments.routing import PROMPT_POLICIES, AdmissionSpec, ModelRoutersSpec, RouterSpec
from hisearch.specs.deployments.speculation import same_drafts
from hisearch.specs.errors import KeyedError
from hisearch.specs.machines.devices import DeviceSpec
from hisearch.specs.machines.hardware import AcceleratorSpec, FabricSpec, HostSpec, MediumSpec
from hisearch.specs.machines.profile import LatencyProfileSpec
from hisearch.specs.models.model import ModelSpec

#: A deployment and its pools are imported from here.
__all__ = [
    "DEFINITIONS",
    "KV_DTYPES",
    "MOST_POOLS",
    "SCHEDULES",
    "CapacityPolicyName",
    "DefinitionsSpec",
    "DeploymentSpec",
    "EngineSpec",
    "EvictionName",
    "PoolSpec",
    "ScheduleName",
    "check_pools",
]


#: Most pools of a deployment.
MOST_POOLS = 16


class DefinitionsSpec(Strict):
    """Specs of a deployment's own, by the name it calls them; they come before the catalogue's."""

    models: dict[str, ModelSpec] = Field(default_factory=dict, description="Models.")
    accelerators: dict[str, AcceleratorSpec] = Field(default_factory=dict, description="Accelerators.")
    hosts: dict[str, HostSpec] = Field(default_factory=dict, description="Hosts.")
    media: dict[str, MediumSpec] = Field(default_factory=dict, description="Media.")
    devices: dict[str, DeviceSpec] = Field(default_factory=dict, description="Devices.")
    profiles: dict[str, LatencyProfileSpec] = Field(default_factory=dict, description="Latency profiles.")
    fabrics: dict[str, FabricSpec] = Field(default_factory=dict, description="Fabrics.")


#: Kind -> the section of ``DefinitionsSpec`` that holds it.
DEFINITIONS: dict[str, str] = {
    "Model": "models",
    "Accelerator": "accelerators",
    "Host": "hosts",
    "Medium": "media",
    "Device": "devices",
    "LatencyProfile": "profiles",
    "Fabric": "fabrics",
}


class DeploymentSpec(Strict):
    """What is bought and how it is set."""

    model: str = Field(
        description="Name or path of a Model, or the path of a Hugging Face config.json: of all pools that name no "
        "other."
    )
    served_names: dict[str, list[str]] = Field(
        default_factory=dict,
        description="Model, as model or a pool names it -> other names by which requests of a trace ask for it.",
    )
    pools: list[PoolSpec] = Field(
        min_length=1,
        max_length=MOST_POOLS,
        description="Of each model unified ones, or prefill and decode ones; their names differ.",
    )
    router: RouterSpec = Field(
        RouterSpec(), description="In front of unified or prefill workers; of no effect where there is one alone."
    )
    decode_router: RouterSpec = Field(RouterSpec(), description="In front of decode workers.")
    routers: dict[str, ModelRoutersSpec] = Field(
        default_factory=dict, description="Model, as model or a pool names it -> routers of its own."
    )
    admission: AdmissionSpec = Field(AdmissionSpec(), description="Which arriving requests are let in.")
    transfer: TransferSpec = Field(TransferSpec(), description="From prefill to decode workers.")
    incidents: list[IncidentSpec] = Field(default_factory=list, description="What befalls workers.")
    retry: RetrySpec = Field(RetrySpec(), description="Of requests whose worker has died, or that find none.")
    profile: str = Field(
        "auto",
        description="Name or path of the LatencyProfile that prices its steps; auto takes that of accelerator and "
        "engine.",
    )
    definitions: DefinitionsSpec | None = Field(
        None,
        description="What it names and the catalogue does not have; `hisearch export` writes it, so that the file "
        "stands alone.",
    )

    @model_serializer(mode="wrap")
    def _without_empty_definitions(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = dump(self)
        if self.definitions is None:
            data.pop("definitions", None)
        for name in ("served_names", "routers"):
            if not getattr(self, name):
                data.pop(name, None)
        for pool in data.get("pools", ()):
            if isinstance(pool, dict) and pool.get("model") is None:
                pool.pop("model", None)
        return data

    @property
    def pool(self) -> PoolSpec:
        """The first pool."""
        return self.pools[0]

    def model_ref(self, pool: PoolSpec) -> str:
        """What the model that ``pool`` serves is called in this document."""
        return self.model if pool.model is None else pool.model

    def router_of(self, ref: str) -> RouterSpec:
        """What stands in front of the workers of the model called ``ref``."""
        own = self.routers.get(ref)
        return self.router if own is None or own.router is None else own.router

    def decode_router_of(self, ref: str) -> RouterSpec:
        """What stands in front of its decode workers."""
        own = self.routers.get(ref)
        return self.decode_router if own is None or own.decode_router is None else own.decode_router

    @property
    def model_refs(self) -> tuple[str, ...]:
        """What the models that its pools serve are called, each once, in the order of the pools."""
        return tuple(dict.fromkeys(self.model_ref(pool) for pool in self.pools))

    @model_validator(mode="after")
    def _check(self) -> DeploymentSpec:
        check_pools(self)
        return self


def check_pools(deployment: DeploymentSpec) -> None:
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
        _check_roles({pool.role for pool in pools if deployment.model_ref(pool) == ref})
    if any(pool.role == "decode" for pool in pools):
        _check_disaggregated(deployment)
    for index, incident in enumerate(deployment.incidents):
        _check_incident(deployment, index, incident)


def _check_models(deployment: DeploymentSpec) -> None:
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


def _check_disaggregated(deployment: DeploymentSpec) -> None:
    pools = deployment.pools
    if deployment.transfer.fabric is None:
        raise KeyedError(("transfer", "fabric"), "needed: KV goes from prefill to decode workers over it")
    _check_decode_router(deployment.decode_router, ("decode_router",))
    for ref, routers in deployment.routers.items():
        if routers.decode_router is not None:
            _check_decode_router(routers.decode_router, ("routers", ref, "decode_router"))
    first: dict[str, PoolSpec] = {}
    for index, pool in enumerate(pools):
        like = first.setdefault(deployment.model_ref(pool), pool)
        if pool.role != "unified" and pool.kv_dtype != like.kv_dtype:
            raise KeyedError(
                ("pools", index, "kv_dtype"),
                f"{pool.kv_dtype}, but pool {like.name} has {like.kv_dtype}: KV is transferred as it is",
            )
        if pool.role != "unified" and not same_drafts(pool.engine.speculation, like.engine.speculation):
            raise KeyedError(
                ("pools", index, "engine", "speculation"),
                f"pool {like.name} drafts otherwise: a head's KV of the prompt comes with the model's",
            )


def _check_decode_router(router: RouterSpec, key: tuple[str, ...]) -> None:
    if router.policy in PROMPT_POLICIES:
        message = "looks at prompts, which decode workers do not compute; name another policy"
        raise KeyedError((*key, "policy"), message)


def _check_incident(deployment: DeploymentSpec, index: int, incident: IncidentSpec) -> None:
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
