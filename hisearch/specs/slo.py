"""Kind ``SLO``: what the service promises."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from hisearch.specs.base import Positive, Strict

#: Per-request latency metrics, in seconds.
LatencyMetric = Literal["ttft_s", "tpot_s", "e2e_s"]


class SloTerm(Strict):
    """``percentile`` of ``metric`` over all requests is at most ``at_most_s``."""

    metric: LatencyMetric = Field(description="Time to first token, time per output token, or the whole request.")
    percentile: Annotated[float, Field(gt=0, le=100, description="99: the bound holds for 99 of 100 requests.")]
    at_most_s: Positive = Field(description="Upper bound.")

    @property
    def label(self) -> str:
        """Short name, for example ``ttft_p99``."""
        return f"{self.metric.removesuffix('_s')}_p{self.percentile:g}"


class SloSpec(Strict):
    """Terms that must all hold. A request is *good* when each of its own latencies is within every term's bound."""

    terms: list[SloTerm] = Field(min_length=1, description="At most one for each metric and percentile.")
    max_rejected_fraction: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="Share of the arrived requests that may be rejected as too large."
    )

    @model_validator(mode="after")
    def _check(self) -> SloSpec:
        labels = [term.label for term in self.terms]
        if len(set(labels)) < len(labels):
            raise ValueError(f"a term is given twice: {', '.join(labels)}")
        return self
