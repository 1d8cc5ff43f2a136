"""Routers and admission: which worker a request goes to, and whether it is let in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from pydantic import Field

from hisearch.base.policies import ROUTERS
from hisearch.specs.base import Count, Positive, Strict
from hisearch.specs.policies import name_type, parameters_model

if TYPE_CHECKING:
    RouterName: TypeAlias = str

    class _RouterModel(Strict):
        policy: str = ""

        def __getattr__(self, name: str) -> Any: ...

else:
    RouterName = name_type(ROUTERS)
    _RouterModel = parameters_model("_RouterModel", ROUTERS, default="round_robin")

AdmissionName = Literal["none", "queue_cap", "token_bucket", "slo_shedding"]

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


class AdmissionSpec(Strict):
    """Which arriving requests are let in; the others are shed at once, and count as rejected."""

    policy: AdmissionName = Field(
        "none",
        description="none: all; queue_cap: as long as fewer than so many are in flight; token_bucket: at a rate; "
        "slo_shedding: where a first token is to be expected in time.",
    )
    requests_per_worker: Count = Field(256, description="queue_cap: in flight, for each worker that takes requests.")
    rate_rps: Positive = Field(10.0, description="token_bucket: requests a second.")
    burst_requests: Positive = Field(20.0, description="token_bucket: requests at once.")
    max_wait_s: Positive = Field(
        10.0,
        description="slo_shedding: prompt tokens waiting for their first token on the least loaded worker, over the "
        "tokens it computes a second, must not exceed this.",
    )

    def parameters(self) -> dict[str, Any]:
        """Values of what its policy reads."""
        return {name: getattr(self, name) for name in _ADMISSION_PARAMETERS[self.policy]}


_ADMISSION_PARAMETERS: dict[AdmissionName, tuple[str, ...]] = {
    "none": (),
    "queue_cap": ("requests_per_worker",),
    "token_bucket": ("rate_rps", "burst_requests"),
    "slo_shedding": ("max_wait_s",),
}
