"""Events between and at the workers of a deployment: KV transfers, replicas over time, failures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from pydantic import Field, model_validator

from hisearch.base.policies import AUTOSCALERS
from hisearch.specs.base import Count, NonNegative, NonNegativeInt, Positive, Strict
from hisearch.specs.policies import name_type, summaries

RoleName = Literal["unified", "prefill", "decode"]
HandOverName = Literal["auto", "reserve_first", "prefill_first"]
GranularityName = Literal["auto", "whole", "chunk", "layer"]
IncidentName = Literal["drain", "down", "host_down"]
if TYPE_CHECKING:
    AutoscalerName: TypeAlias = str
else:
    AutoscalerName = name_type(AUTOSCALERS)


class TransferSpec(Strict):
    """How prefill workers transfer requests, and their KV, to decode workers."""

    fabric: str | None = Field(
        None,
        description="Name or path of the Fabric of which every accelerator has a port; a worker sends and receives "
        "over those of all its accelerators. Needed where there are decode pools.",
    )
    efficiency: Annotated[float, Field(gt=0, le=1)] = Field(
        0.8, description="Share of the port's bandwidth that transfers attain (assumed)."
    )
    order: HandOverName = Field(
        "auto",
        description="reserve_first: a prompt is computed once its decode worker has space (SGLang); prefill_first: the "
        "decode worker takes its KV afterwards (vLLM, TensorRT-LLM); auto: as the decode workers' engine does.",
    )
    granularity: GranularityName = Field(
        "auto",
        description="What is sent while the rest is computed, under reserve_first: nothing, chunk by chunk (SGLang), "
        "or layer by layer; auto: as the engine does.",
    )
    forward_s: NonNegative = Field(
        0.002, description="Between the end of a prompt and the decode worker's queue, under prefill_first (assumed)."
    )
    local_prefill_tokens: NonNegativeInt = Field(
        0, description="A prompt with fewer tokens to compute than this is computed by its decode worker; 0: none."
    )
    reserved_decode_tokens: Count = Field(
        512, description="SGLang num_reserved_decode_tokens: kept free for each request on a decode worker."
    )


class ReplicasSpec(Strict):
    """Number of workers of a pool from ``at_s`` on: added ones have cold caches, the newest are drained first."""

    at_s: NonNegative = Field(description="Seconds from the trace's start.")
    replicas: Count = Field(description="Workers.")


class AutoscaleSpec(Strict):
    """A simple autoscaler, after Kubernetes' HorizontalPodAutoscaler."""

    metric: AutoscalerName = Field(
        "requests_in_flight",
        description=f"What is brought to the target for each worker. {summaries(AUTOSCALERS)}",
    )
    target: Positive = Field(description="Of the metric, for each worker.")
    min_replicas: Count = Field(1, description="Fewest workers.")
    max_replicas: Count = Field(description="Most workers.")
    period_s: Positive = Field(15.0, description="Seconds between two looks.")
    startup_s: NonNegative = Field(120.0, description="From the decision to a worker's first request; it is paid for.")
    calm_s: NonNegative = Field(300.0, description="Workers are given up where they have been too many for so long.")

    @model_validator(mode="after")
    def _check(self) -> AutoscaleSpec:
        if self.min_replicas > self.max_replicas:
            raise ValueError(f"min_replicas {self.min_replicas} exceeds max_replicas {self.max_replicas}")
        return self


class IncidentSpec(Strict):
    """Something that befalls a worker."""

    pool: str = Field("main", description="Name of its pool.")
    worker: NonNegativeInt = Field(description="Its number in the pool, from 0.")
    at_s: NonNegative = Field(description="Seconds from the trace's start.")
    kind: IncidentName = Field(
        "down",
        description="down: it dies and loses what it has of its requests; host_down: so do all workers of its pool on "
        "its host, and what they share there is gone; drain: it takes no more requests.",
    )
    back_after_s: Positive | None = Field(
        None,
        description="It is back after so many seconds, on its host, its own caches cold; never where absent.",
    )


class RetrySpec(Strict):
    """What the router does for requests whose worker has died, or that have no worker."""

    retries: NonNegativeInt = Field(3, description="Times that a request is tried again; then it is lost.")
    after_s: Positive = Field(1.0, description="Seconds before it is.")
