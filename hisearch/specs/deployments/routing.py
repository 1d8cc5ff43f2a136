"""Routers and admission: which worker a request goes to, and whether it is let in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from pydantic import Field

from hisearch.base.policies import ADMISSIONS, ROUTERS
from hisearch.specs.base import Strict
from hisearch.specs.policies import name_type, parameters_model

if TYPE_CHECKING:
    RouterName: TypeAlias = str

    class _RouterModel(Strict):
        policy: str = ""

        def __getattr__(self, name: str) -> Any: ...

    class _AdmissionModel(Strict):
        policy: str = ""

        def __getattr__(self, name: str) -> Any: ...

else:
    RouterName = name_type(ROUTERS)
    _RouterModel = parameters_model("_RouterModel", ROUTERS, default="round_robin")
    _AdmissionModel = parameters_model("_AdmissionModel", ADMISSIONS, default="none")

#: Policies of no use in front of decode workers.
PROMPT_POLICIES = tuple(name for name, policy in ROUTERS.items() if policy.reads_prompts)


class RouterSpec(_RouterModel):
    """Policy of a router; SGLang router's names, defaults and meanings where it has the policy."""

    def parameters(self) -> dict[str, Any]:
        """Values of what its policy reads; without those that another one's value leaves without effect."""
        declared = ROUTERS[self.policy].parameters
        values = {parameter.name: getattr(self, parameter.name) for parameter in declared}
        effective = {parameter.name: values[parameter.name] for parameter in declared if parameter.has_effect(values)}
        return {name: value for name, value in effective.items() if value is not None}


class ModelRoutersSpec(Strict):
    """Routers of one of several models, in place of the deployment's."""

    router: RouterSpec | None = Field(None, description="As the deployment's router, which it replaces.")
    decode_router: RouterSpec | None = Field(None, description="As the deployment's decode_router, which it replaces.")


class AdmissionSpec(_AdmissionModel):
    """Which arriving requests are let in; the others are shed at once, and count as rejected."""

    def parameters(self) -> dict[str, Any]:
        """Values of what its policy reads."""
        return {parameter.name: getattr(self, parameter.name) for parameter in ADMISSIONS[self.policy].parameters}
