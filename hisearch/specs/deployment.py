"""Kind ``Deployment``: pools of workers behind a router."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from hisearch.specs.agent_memory import AgentMemorySpec, check_agents
from hisearch.specs.base import (
    ENGINE_TITLES,
    Count,
    DType,
    EngineName,
    Fraction,
    NonNegativeInt,
    Positive,
    Strict,
)
from hisearch.specs.hardware import AcceleratorSpec, HostSpec, MediumSpec
from hisearch.specs.model import ModelSpec
from hisearch.specs.profile import LatencyProfileSpec
from hisearch.specs.routing import RouterSpec
from hisearch.specs.tiers import MovementSpec, MoverName, TierSpec, check_tiers, mover_of

EvictionName = Literal["lru", "lfu", "fifo", "mru", "filo", "slru", "priority"]
CapacityPolicyName = Literal["guaranteed_no_evict", "max_utilization"]
ScheduleName = Literal["fcfs", "priority", "lpm", "lof", "dfs-weight", "random"]
#: Orders of the waiting queue that each engine has.
SCHEDULES: dict[str, tuple[ScheduleName, ...]] = {
    "vllm": ("fcfs", "priority"),
    "sglang": ("fcfs", "priority", "lpm", "lof", "dfs-weight", "random"),
    "trtllm": ("fcfs",),
}
#: Tokens per KV page where nothing is said.
PAGE_TOKENS: dict[EngineName, int] = {"vllm": 16, "sglang": 1, "trtllm": 32}


class EngineSpec(Strict):
    """Settings of the serving engine, under one name for all engines; `hisearch export` turns them into flags."""

    name: EngineName = Field(description="Whose step rule is simulated.")
    max_running_requests: Count = Field(
        256, description="vLLM max_num_seqs; SGLang max_running_requests; TensorRT-LLM max_batch_size."
    )
    chunk_tokens: Count = Field(
        8192,
        description="Token budget of a step: vLLM max_num_batched_tokens, SGLang chunked_prefill_size, TensorRT-LLM "
        "max_num_tokens.",
    )
    page_tokens: Count | None = Field(
        None, description="Tokens per KV page; 16 for vLLM, 1 for SGLang and 32 for TensorRT-LLM where absent."
    )
    prefix_caching: bool = Field(True, description="Reuse the KV of shared prompt prefixes.")
    memory_fraction: Fraction = Field(
        0.9,
        description="Share of device memory: vLLM gpu_memory_utilization, SGLang mem_fraction_static; TensorRT-LLM "
        "kv_cache_config.free_gpu_memory_fraction, of what weights and activations leave.",
    )
    max_prefill_tokens: Count = Field(16384, description="SGLang max_prefill_tokens; the others have no such limit.")
    schedule_conservativeness: Positive = Field(
        1.0, description="SGLang schedule_conservativeness: how much room admission keeps for outputs to come."
    )
    eviction: EvictionName = Field("lru", description="SGLang radix_eviction_policy; the others have lru alone.")
    schedule: ScheduleName = Field(
        "fcfs",
        description="Order of the waiting queue: vLLM scheduling_policy, SGLang schedule_policy; TensorRT-LLM: fcfs.",
    )
    overlap: bool = Field(
        True,
        description="Form a batch while the one before it runs, as all engines do by default: vLLM async_scheduling, "
        "SGLang's overlap schedule, TensorRT-LLM's overlap scheduler.",
    )
    chunked_prefill: bool = Field(True, description="Cut prompts that exceed what is left of a step's token budget.")
    long_prefill_tokens: NonNegativeInt = Field(
        0, description="vLLM long_prefill_token_threshold: most tokens of one request in a step; 0 sets no limit."
    )
    reserve_full_prompt: bool = Field(
        True, description="vLLM scheduler_reserve_full_isl: admit a prompt only where all of it has room."
    )
    watermark: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="vLLM: share of the KV pages that admission leaves free; none by default."
    )
    mixed_chunk: bool = Field(False, description="SGLang enable_mixed_chunk: decode along with prefills.")
    capacity_policy: CapacityPolicyName = Field(
        "guaranteed_no_evict",
        description="TensorRT-LLM capacity_scheduler_policy: start a request only where all of its declared output has "
        "room, or as soon as its prompt has, and pause the last ones where memory runs out.",
    )

    @property
    def page_size(self) -> int:
        """Tokens per KV page, with the engine's default filled in."""
        return self.page_tokens if self.page_tokens is not None else PAGE_TOKENS[self.name]

    @model_validator(mode="after")
    def _check(self) -> EngineSpec:
        title = ENGINE_TITLES[self.name]
        if self.name != "sglang" and self.eviction != "lru":
            raise ValueError(f"{title} evicts by lru alone; eviction: {self.eviction} needs engine sglang")
        if self.schedule not in SCHEDULES[self.name]:
            raise ValueError(f"{self.name} has no schedule {self.schedule}; known: {', '.join(SCHEDULES[self.name])}")
        if self.name != "sglang" and self.chunk_tokens < self.max_running_requests:
            raise ValueError(
                f"chunk_tokens {self.chunk_tokens} is less than max_running_requests {self.max_running_requests}: "
                f"{title} needs one token of the budget for each running request"
            )
        if self.name == "trtllm":
            self._check_blocks()
        elif self.capacity_policy != "guaranteed_no_evict":
            raise ValueError(f"{title} has no capacity_policy; {self.capacity_policy} needs engine trtllm")
        return self

    def _check_blocks(self) -> None:
        """TensorRT-LLM: blocks have 2, 4, 8, … tokens, and a prompt is cut into whole blocks."""
        page = self.page_size
        if page < 2 or page & (page - 1):
            raise ValueError(f"page_tokens {page}: TensorRT-LLM needs a power of two greater than 1")
        if self.chunk_tokens < page:
            raise ValueError(f"chunk_tokens {self.chunk_tokens} is less than one page of {page} tokens")


#: Formats of the KV cache that each engine has.
KV_DTYPES: dict[str, tuple[DType, ...]] = {
    "vllm": ("bf16", "fp16", "fp8"),
    "sglang": ("bf16", "fp16", "fp8", "fp4"),
    "trtllm": ("bf16", "fp16", "fp8"),
}


class PoolSpec(Strict):
    """Identical workers."""

    replaced: ClassVar[dict[str, str]] = {"host_tier": "replaced by tiers; write tiers: [{medium: ddr5, gib: 128}]"}

    name: str = Field("main", description="How messages call the pool.")
    role: Literal["unified"] = Field("unified", description="unified: each worker prefills and decodes.")
    accelerator: str = Field(description="Name or path of an Accelerator.")
    host: str | None = Field(None, description="Name or path of a Host; the accelerator's usual one where absent.")
    engine: EngineSpec = Field(description="The serving engine and its settings.")
    tensor_parallel: Count = Field(1, description="Accelerators that one worker's copy of the model is split over.")
    weight_dtype: DType | None = Field(
        None, description="Format of the weights; the model's own where absent. fp4 is MXFP4, nvfp4 NVFP4."
    )
    kv_dtype: DType = Field("bf16", description="Format of the KV cache.")
    replicas: Count = Field(1, description="Workers in the pool.")
    tiers: list[TierSpec] = Field(
        default_factory=list, max_length=3, description="KV cache below device memory, nearest first; none by default."
    )
    movement: MovementSpec = Field(MovementSpec(), description="How KV moves between them; of no effect without tiers.")
    agents: AgentMemorySpec | None = Field(
        None, description="What agents need in device memory beside KV, such as adapters; nothing by default."
    )

    @property
    def mover(self) -> MoverName:
        """What moves KV between the tiers, with the engine's default filled in."""
        return mover_of(self.engine.name, self.movement)

    @model_validator(mode="after")
    def _check(self) -> PoolSpec:
        known = KV_DTYPES[self.engine.name]
        if self.kv_dtype not in known:
            raise ValueError(f"{self.engine.name} has no KV cache format {self.kv_dtype}; known: {', '.join(known)}")
        check_tiers(self.engine.name, self.engine.page_size, self.tiers, self.movement)
        engine = self.engine
        check_agents(
            self.agents,
            engine=engine.name,
            caching=engine.prefix_caching,
            eviction=engine.eviction,
            tiers=bool(self.tiers),
        )
        return self


class DefinitionsSpec(Strict):
    """Specs of a deployment's own, by the name it calls them; they come before the catalogue's."""

    models: dict[str, ModelSpec] = Field(default_factory=dict, description="Models.")
    accelerators: dict[str, AcceleratorSpec] = Field(default_factory=dict, description="Accelerators.")
    hosts: dict[str, HostSpec] = Field(default_factory=dict, description="Hosts.")
    media: dict[str, MediumSpec] = Field(default_factory=dict, description="Media.")
    profiles: dict[str, LatencyProfileSpec] = Field(default_factory=dict, description="Latency profiles.")


#: Kind -> the section of ``DefinitionsSpec`` that holds it.
DEFINITIONS: dict[str, str] = {
    "Model": "models",
    "Accelerator": "accelerators",
    "Host": "hosts",
    "Medium": "media",
    "LatencyProfile": "profiles",
}


class DeploymentSpec(Strict):
    """What is bought and how it is set."""

    model: str = Field(description="Name or path of a Model, or the path of a Hugging Face config.json.")
    pools: list[PoolSpec] = Field(min_length=1, max_length=1, description="Exactly one so far.")
    router: RouterSpec = Field(RouterSpec(), description="In front of the pool; of no effect with one replica.")
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
        return data

    @property
    def pool(self) -> PoolSpec:
        """The only pool."""
        return self.pools[0]
