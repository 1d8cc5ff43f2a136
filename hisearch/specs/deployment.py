"""Kind ``Deployment``: pools of workers behind a router."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from hisearch.specs.base import Count, DType, EngineName, Fraction, NonNegative, NonNegativeInt, Positive, Strict

RouterName = Literal["random", "round_robin", "power_of_two", "cache_aware"]
EvictionName = Literal["lru", "lfu"]


class EngineSpec(Strict):
    """Settings of the serving engine, by what they mean; ``None`` takes the engine's own default."""

    name: EngineName
    max_running_requests: Count = 256
    chunk_tokens: Count = Field(8192, description="vLLM max_num_batched_tokens; SGLang chunked_prefill_size.")
    page_tokens: Count | None = Field(None, description="KV page: 16 for vLLM, 1 for SGLang where absent.")
    prefix_caching: bool = True
    memory_fraction: Fraction = Field(0.9, description="Share of device memory for weights, activations and KV.")
    max_prefill_tokens: Count = Field(16384, description="SGLang max_prefill_tokens.")
    schedule_conservativeness: Positive = Field(1.0, description="SGLang schedule_conservativeness.")
    eviction: EvictionName = Field("lru", description="SGLang radix_eviction_policy; vLLM has lru alone.")

    @property
    def page_size(self) -> int:
        """Tokens per KV page, with the engine's default filled in."""
        return self.page_tokens if self.page_tokens is not None else (16 if self.name == "vllm" else 1)

    @model_validator(mode="after")
    def _check(self) -> EngineSpec:
        if self.name == "vllm" and self.eviction != "lru":
            raise ValueError("vLLM evicts by lru alone; eviction: lfu needs engine sglang")
        if self.name == "vllm" and self.chunk_tokens < self.max_running_requests:
            raise ValueError(
                f"chunk_tokens {self.chunk_tokens} is less than max_running_requests {self.max_running_requests}: "
                "vLLM needs one token of the budget for each running request"
            )
        return self


class HostTierSpec(Strict):
    """Host-memory KV tier (L2) of each worker, evicting by lru; 0 GiB switches it off."""

    medium: str = "ddr5"
    gib_per_worker: NonNegative = 0.0


class PoolSpec(Strict):
    """Identical workers."""

    name: str = "main"
    role: Literal["unified"] = "unified"
    accelerator: str
    host: str | None = Field(None, description="Host kind; the accelerator's default host where absent.")
    engine: EngineSpec
    tensor_parallel: Count = 1
    weight_dtype: DType | None = Field(None, description="The model's own where absent.")
    kv_dtype: DType = "bf16"
    replicas: Count = 1
    host_tier: HostTierSpec = HostTierSpec()


class RouterSpec(Strict):
    """Policy of the router in front of the pool; SGLang router's names, defaults and meanings."""

    policy: RouterName = "round_robin"
    cache_threshold: Annotated[float, Field(ge=0, le=1)] = 0.3
    balance_abs_threshold: NonNegativeInt = 64
    balance_rel_threshold: Annotated[float, Field(ge=1)] = 1.5


class DeploymentSpec(Strict):
    """What is bought and how it is set."""

    model: str
    pools: list[PoolSpec] = Field(min_length=1, max_length=1)
    router: RouterSpec = RouterSpec()
    profile: str = "roofline"

    @property
    def pool(self) -> PoolSpec:
        """The only pool."""
        return self.pools[0]
