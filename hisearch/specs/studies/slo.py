"""Kind ``SLO``: bounds on percentiles of request latencies."""

from __future__ import annotations

from collections.abc import Container
from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from hisearch.specs.base import NonNegativeInt, Positive, Strict

#: Fields of a trace by which requests are told apart.
CLASSES = ("priority", "tenant")

#: Per-request latency metrics, in seconds.
LatencyMetric = Literal["ttft_s", "ttfo_s", "tpot_s", "e2e_s"]


#: Between a term's metric and the class of requests that it is about: ``ttft_p99@priority=0``.
OF_CLASS = "@"


class SloTerm(Strict):
    """``percentile`` of ``metric`` over all requests, or those of a class, is at most ``at_most_s``."""

    metric: LatencyMetric = Field(
        description="Time to first token, to the first output token behind any thinking (TTFO), time per output token, "
        "or the whole request."
    )
    percentile: Annotated[float, Field(gt=0, le=100, description="99: the bound holds for 99 of 100 requests.")]
    at_most_s: Positive = Field(description="Upper bound.")
    priority: NonNegativeInt | None = Field(
        None, description="Only of requests with this priority in the trace; absent: whatever it is."
    )
    tenant: NonNegativeInt | None = Field(
        None, description="Only of requests of this tenant, by its number in the trace; absent: of all."
    )

    @property
    def label(self) -> str:
        """Short name, for example ``ttft_p99``, or ``ttft_p99@priority=0``."""
        of_class = f"{OF_CLASS}{self.class_label}" if self.class_label else ""
        return f"{self.metric.removesuffix('_s')}_p{self.percentile:g}{of_class}"

    @property
    def class_label(self) -> str:
        """The class that it is about: ``priority=0``, ``priority=0,tenant=3``; "" of all requests."""
        return ",".join(f"{name}={number}" for name, number in self.of_class.items())

    @property
    def of_class(self) -> dict[str, int]:
        """Fields of the trace and the number that its requests have there; {} where it is about all requests."""
        return {name: number for name in CLASSES if (number := getattr(self, name)) is not None}

    @model_serializer(mode="wrap")
    def _without_no_class(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = dump(self)
        return {name: value for name, value in data.items() if name not in CLASSES or value is not None}


class ModelSloSpec(Strict):
    """SLO of the requests for one model."""

    terms: list[SloTerm] = Field(min_length=1, description="At most one for each metric, percentile and class.")
    max_rejected_fraction: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="Share of the arrived requests that may be rejected as too large."
    )

    @property
    def common(self) -> list[SloTerm]:
        """The terms about all requests."""
        return [term for term in self.terms if not term.of_class]

    @property
    def ttft_targets_s(self) -> list[float | None]:
        """Tightest TTFT bound of requests with priority 0, 1, …; the last holds for further ones, None: no bound.

        [] where no term is about a priority, so that bounds tell no requests apart. Terms about tenants are left out.
        """
        terms = [term for term in self.terms if term.metric == "ttft_s" and term.tenant is None]
        most = max((term.priority for term in terms if term.priority is not None), default=None)
        if most is None:
            return []
        targets_s = [
            min((term.at_most_s for term in terms if term.priority in (None, priority)), default=None)
            for priority in range(most + 2)
        ]
        return targets_s if targets_s[-1] != targets_s[-2] else targets_s[:-1]

    @model_validator(mode="after")
    def _check(self) -> ModelSloSpec:
        labels = [term.label for term in self.terms]
        if len(set(labels)) < len(labels):
            raise ValueError(f"a term is given twice: {', '.join(labels)}")
        return self


class SloSpec(ModelSloSpec):
    """Terms that must all hold. A request is *good* when each of its own latencies is within every term's bound."""

    models: dict[str, ModelSloSpec] = Field(
        default_factory=dict,
        description="Of deployments of several models: SLOs of those that have one of their own, by any of their "
        "names. terms and max_rejected_fraction apply to each of the others, by itself.",
    )

    @model_serializer(mode="wrap")
    def _without_no_models(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = dump(self)
        if not self.models:
            data.pop("models", None)
        return data

    def of(self, names: Container[str]) -> SloSpec:
        """SLO of the requests for a model that is known by ``names``."""
        source = next((slo for name, slo in self.models.items() if name in names), self)
        # No validation: the SLO has passed it, and one without terms means that there is no SLO.
        return SloSpec.model_construct(
            terms=source.terms, max_rejected_fraction=source.max_rejected_fraction, models={}
        )

    def unserved(self, served: Container[str]) -> list[str]:
        """Models that it names and that are none of ``served``."""
        return [name for name in self.models if name not in served]
