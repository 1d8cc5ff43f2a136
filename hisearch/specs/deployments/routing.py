"""Routers and admission: which worker a request goes to, and whether it is let in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer, model_validator

from hisearch.base.policies import ADMISSIONS, ROUTERS
from hisearch.base.router_rules import MODELLED_ROUTERS, SGLANG_ROUTER
from hisearch.specs.base import Strict
from hisearch.specs.errors import KeyedError
from hisearch.specs.policies import check_parameters, effective, name_type, parameters_model, without_unread
from hisearch.specs.versions import precedes

if TYPE_CHECKING:
    RouterName: TypeAlias = str
    RouterProduct: TypeAlias = str

    class _RouterModel(Strict):
        policy: str = ""

        def __getattr__(self, name: str) -> Any: ...

    class _AdmissionModel(Strict):
        policy: str = ""

        def __getattr__(self, name: str) -> Any: ...

else:
    RouterName = name_type(ROUTERS)
    RouterProduct = Literal[tuple(MODELLED_ROUTERS)]
    _RouterModel = parameters_model("_RouterModel", ROUTERS, default="round_robin")
    _AdmissionModel = parameters_model("_AdmissionModel", ADMISSIONS, default="none")


def _newest(router: str) -> str:
    return MODELLED_ROUTERS[router][-1]


def _releases() -> str:
    return ", ".join(f"{router} {' to '.join(releases)}" for router, releases in MODELLED_ROUTERS.items())


#: Policies of no use in front of decode workers.
PROMPT_POLICIES = tuple(name for name, policy in ROUTERS.items() if policy.reads_prompts)


class RouterSpec(_RouterModel):
    """Policy of a router; names, meanings and the command line's defaults of sglang-router where it has the policy."""

    replaced: ClassVar[dict[str, str]] = {
        "max_tree_tokens": "max_tree_characters, which is characters_per_token times as much"
    }
    name: RouterProduct | None = Field(
        None,
        description="Router whose policy it is; null: the one that has the policy, or hisearch where none has.",
    )
    version: str = Field(
        _newest(SGLANG_ROUTER),
        pattern=r"^\d+(\.\d+)+$",
        description=f"Release of the router: {_releases()}. Where absent its newest.",
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_version(cls, data: Any) -> Any:
        product = ROUTERS[data["policy"]].product if isinstance(data, dict) and data.get("policy") in ROUTERS else ""
        return {"version": _newest(product)} | data if product else data

    @field_validator("policy", mode="before")
    @classmethod
    def _check_policy(cls, policy: Any) -> Any:
        if policy == "prefix_hash":
            raise ValueError(
                "sglang-router answers 503 to prefix_hash over HTTP: it hashes tokens, which gRPC workers alone give "
                "it; consistent_hash by prefix is near it"
            )
        return policy

    @model_validator(mode="after")
    def _check_release(self) -> RouterSpec:
        product = ROUTERS[self.policy].product
        if self.name is not None and self.name != product:
            known = ", ".join(name for name, policy in ROUTERS.items() if policy.product == self.name)
            raise KeyedError(("policy",), f"{self.name} has no policy {self.policy}; it has {known}")
        if not product:
            if self.version != _newest(SGLANG_ROUTER):
                raise KeyedError(
                    ("version",), f"no router that has releases has the policy {self.policy}; leave it out"
                )
            return self
        releases = MODELLED_ROUTERS[product]
        if precedes(self.version, releases[0]) or precedes(releases[-1], self.version):
            known = " to ".join(releases)
            if len(releases) == 1:
                raise KeyedError(
                    ("version",),
                    f"expected {known}, the one release of {product} whose rules are known; got {self.version}",
                )
            raise KeyedError(("version",), f"expected a release of {product} from {known}, not {self.version}")
        return self

    @model_validator(mode="after")
    def _check_parameters(self) -> RouterSpec:
        check_parameters(self, ROUTERS, self.policy, "policy")
        return self

    @model_serializer(mode="wrap")
    def _serialize(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return without_unread(dump(self), ROUTERS, self.policy)

    def parameters(self) -> dict[str, Any]:
        """Values of what its policy reads; without those that another one's value leaves without effect."""
        declared = ROUTERS[self.policy]
        values = {parameter.name: getattr(self, parameter.name) for parameter in declared.parameters}
        return {name: value for name, value in effective(declared, values).items() if value is not None}


class ModelRoutersSpec(Strict):
    """Routers of one of several models, in place of the deployment's."""

    router: RouterSpec | None = Field(None, description="As the deployment's router, which it replaces.")
    decode_router: RouterSpec | None = Field(None, description="As the deployment's decode_router, which it replaces.")


class AdmissionSpec(_AdmissionModel):
    """Which arriving requests are let in; the others are shed at once, and count as rejected."""

    @model_validator(mode="after")
    def _check_parameters(self) -> AdmissionSpec:
        check_parameters(self, ADMISSIONS, self.policy, "policy")
        return self

    @model_serializer(mode="wrap")
    def _serialize(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return without_unread(dump(self), ADMISSIONS, self.policy)

    def parameters(self) -> dict[str, Any]:
        """Values of what its policy reads."""
        return {parameter.name: getattr(self, parameter.name) for parameter in ADMISSIONS[self.policy].parameters}
