"""Shapes of a deployment's pools: equal workers, prefill/decode disaggregation, or unequal workers behind a router.

Part of the kind ``SearchSpace``. A side or a mix takes what it does not state from section ``execution``.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field, model_validator

from hisearch.specs.base import Count, DType, NonNegativeInt, Strict
from hisearch.specs.deployments.cluster import TransferSpec
from hisearch.specs.deployments.routing import PROMPT_POLICIES, RouterName
from hisearch.specs.errors import KeyedError


class SideSpace(Strict):
    """Stage 1 of prefill or of decode workers: lists in place of those of section execution."""

    accelerators: list[str] | None = Field(None, min_length=1, description="Names or paths of Accelerators.")
    tensor_parallel: list[Count] | None = Field(None, min_length=1, description="Ranks of a worker.")
    expert_parallel: list[Count] | None = Field(
        None, min_length=1, description="Sets of its ranks that hold different experts."
    )
    weight_dtypes: list[DType] | None = Field(
        None, description="Formats of the weights; an empty list: the model's own."
    )
    chunk_tokens: list[Count] | None = Field(None, min_length=1, description="Token budgets of a step.")
    max_running_requests: list[Count] | None = Field(None, min_length=1, description="Batch limits of a worker.")
    max_replicas: Count | None = Field(None, description="Most workers of this side.")

    def lists(self) -> dict[str, Any]:
        """The lists that are stated, by the names of section execution."""
        return self.model_dump(exclude_none=True)


class DisaggregatedSpace(Strict):
    """Prefill/decode disaggregation: M workers compute prompts and transfer their KV to N workers that decode.

    Both sides have the same engine and the same format of the KV cache, of those of section execution, which also lists
    their attention groups, and ranks that share prompts. The search leaves out pipelines and shared KV there.
    """

    prefill: SideSpace = Field(SideSpace(), description="Workers that compute prompts; cache tiers are theirs.")
    decode: SideSpace = Field(SideSpace(), description="Workers that decode.")
    fabrics: list[str] = Field(
        min_length=1, description="Names or paths of Fabrics, as a Transfer's; no price is put on them."
    )
    local_prefill_tokens: list[NonNegativeInt] = Field(default=[0], min_length=1, description="As a Transfer's.")
    decode_policies: list[RouterName] = Field(
        default=["round_robin", "least_outstanding_tokens"],
        min_length=1,
        description="As the policy of a Deployment's decode_router; the first one is tried first.",
    )
    transfer: TransferSpec = Field(
        TransferSpec(),
        description="Other settings of the KV transfer; fabric and local_prefill_tokens are not set here.",
    )

    @model_validator(mode="after")
    def _check(self) -> DisaggregatedSpace:
        for index, policy in enumerate(self.decode_policies):
            if policy in PROMPT_POLICIES:
                message = "looks at prompts, which decode workers do not compute; name another policy"
                raise KeyedError(("decode_policies", index), message)
        if self.transfer.fabric is not None:
            raise KeyedError(("transfer", "fabric"), "list it among fabrics")
        if self.transfer.local_prefill_tokens:
            raise KeyedError(("transfer", "local_prefill_tokens"), "list it next to transfer, as local_prefill_tokens")
        return self


class MixedSpace(Strict):
    """Unequal unified workers behind one router: two pools that differ in accelerator or split, of one engine."""

    policies: list[RouterName] = Field(
        default=["weighted", "cost_aware", "bucket", "least_outstanding_tokens"],
        min_length=1,
        description="As a Router's policy, in place of those of section routing; its parameters are those there.",
    )
    workers_of_each: Count = Field(
        2, description="Of each accelerator so many of stage 1's workers are paired with those of the others."
    )


class PoolsSpace(Strict):
    """Which shapes a deployment may have."""

    renamed: ClassVar[dict[str, str]] = {"apart": "disaggregated"}

    unified: bool = Field(True, description="One pool of equal workers.")
    disaggregated: DisaggregatedSpace | None = Field(
        None, description="Prefill/decode disaggregation; not tried where absent."
    )
    mixed: MixedSpace | None = Field(None, description="Unequal unified workers; not tried where absent.")

    @model_validator(mode="after")
    def _check(self) -> PoolsSpace:
        if not self.unified and self.disaggregated is None and self.mixed is None:
            raise KeyedError(
                ("unified",), "nothing is left to try: allow disaggregated or mixed, or leave unified at true"
            )
        return self
