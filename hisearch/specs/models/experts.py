"""How tokens spread over a model's routed experts."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from hisearch.specs.base import NonNegative, NonNegativeInt, Seed, Strict
from hisearch.specs.errors import KeyedError


class ExpertsSpec(Strict):
    """How tokens spread over routed experts, which sets how much the busiest rank has to do."""

    distribution: Literal["balanced", "routed", "zipf", "histogram"] = Field(
        "balanced",
        description="balanced: every rank has the mean; under fitted laws of experts, which know the busiest rank of "
        "tokens that draw by popularity, it has that. The others draw each token's experts: routed with even shares, "
        "zipf with shares of 1 / rank ** zipf_exponent in a seeded order, histogram with the given ones.",
    )
    zipf_exponent: Annotated[float, Field(ge=0)] = Field(0.5, description="zipf: 0 is even.")
    shares: list[NonNegative] = Field(
        default_factory=list, description="histogram: measured load of each expert, in any unit."
    )
    redundant: NonNegativeInt = Field(
        0,
        description="Copies of the busiest experts in addition to the first, in all: vLLM num_redundant_experts, "
        "SGLang --ep-num-redundant-experts.",
    )
    exchange: Literal["gather", "all_to_all"] = Field(
        "gather",
        description="How tokens of attention groups get to their experts' ranks: gather brings all of them to every "
        "rank, all_to_all sends each to its own (DeepEP): SGLang --moe-a2a-backend deepep.",
    )
    two_batch_overlap: bool = Field(
        False,
        description="SGLang --enable-two-batch-overlap: a step runs as two halves, so that the all-to-all of one hides "
        "behind the computing of the other.",
    )
    seed: Seed = Field(0, description="Of the draws.")

    @property
    def label(self) -> str:
        """What differs from a gather without copies, for people: ``all-to-all in two halves, 32 copies``, or ""."""
        parts = ["all-to-all" + " in two halves" * self.two_batch_overlap] if self.exchange == "all_to_all" else []
        return ", ".join(parts + ([f"{self.redundant} copies"] if self.redundant else []))

    @model_validator(mode="after")
    def _check(self) -> ExpertsSpec:
        if self.two_batch_overlap and self.exchange != "all_to_all":
            raise KeyedError(("two_batch_overlap",), "only an all-to-all is overlapped; write exchange: all_to_all")
        if self.distribution == "histogram" and sum(self.shares) <= 0:
            raise KeyedError(("shares",), "histogram needs a load above 0")
        if self.distribution != "histogram" and self.shares:
            raise KeyedError(("shares",), f"of no effect with distribution {self.distribution}; write histogram")
        return self
