"""The serving engine of a pool's workers and its settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, TypeAlias

from pydantic import Field, model_validator

from hisearch.base.policies import EVICTIONS, QUEUE_ORDERS
from hisearch.specs.base import (
    ENGINE_TITLES,
    Count,
    EngineName,
    Fraction,
    NonNegativeInt,
    Positive,
    Strict,
)
from hisearch.specs.deployments.engine_settings import (
    MAMBA_FULL_MEMORY_RATIO,
    SWA_FULL_TOKENS_RATIO,
    check_order,
    check_release,
    check_sglang,
    check_trtllm,
    with_release_defaults,
)
from hisearch.specs.deployments.graphs import GraphMode, check_graphs
from hisearch.specs.deployments.speculation import SpeculationSpec
from hisearch.specs.models.experts import ExpertsSpec
from hisearch.specs.models.pages import PAGE_TOKENS
from hisearch.specs.policies import name_type, summaries

_ENGINE_EVICTIONS = {name: policy for name, policy in EVICTIONS.items() if policy.engine}
if TYPE_CHECKING:
    EvictionName: TypeAlias = str
    ScheduleName: TypeAlias = str
else:
    EvictionName = name_type(_ENGINE_EVICTIONS)
    ScheduleName = name_type(QUEUE_ORDERS)

CapacityPolicyName = Literal["guaranteed_no_evict", "max_utilization", "static_batch"]


ChunkingPolicyName = Literal["first_come_first_served", "equal_progress"]


#: Orders of the waiting queue that each engine has.
SCHEDULES: dict[str, tuple[ScheduleName, ...]] = {
    engine: tuple(name for name, order in QUEUE_ORDERS.items() if engine in order.engines) for engine in ENGINE_TITLES
}


class EngineSpec(Strict):
    """Settings of the serving engine, under one name for all engines; `hisearch export` turns them into flags."""

    renamed: ClassVar[dict[str, str]] = {
        "disable_cuda_graph": "enforce_eager",
        "cuda_graph_bs": "cudagraph_capture_sizes",
        "cuda_graph_max_bs": "max_cudagraph_capture_size",
    }

    name: EngineName = Field(description="Whose step rule is simulated.")
    version: str = Field(
        "",
        description="Release that runs, such as 0.19.1. Its rules decide where they are modelled (docs/engines.md), "
        "else the nearest release's, which is said; its host work and kernels count where the latency profile knows "
        "them. Where absent: the rules of the newest modelled release, and the profile's own host work.",
    )
    top_p: bool | None = Field(
        None,
        description="Requests bound sampling by top-p or top-k, for which vLLM before 0.17 sorts all logits; as the "
        "model's generation_config.json where absent.",
    )
    max_running_requests: Count = Field(
        256, description="vLLM max_num_seqs; SGLang max_running_requests; TensorRT-LLM max_batch_size."
    )
    chunk_tokens: Count = Field(
        8192,
        description="Token budget of a step: vLLM max_num_batched_tokens, SGLang chunked_prefill_size, TensorRT-LLM "
        "max_num_tokens.",
    )
    page_tokens: Count | None = Field(
        None,
        description="Tokens per KV page; where absent 64 for models with sparse attention, else 16 for vLLM, 1 for "
        "SGLang and 32 for TensorRT-LLM.",
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
    swa_full_tokens_ratio: Fraction = Field(
        SWA_FULL_TOKENS_RATIO,
        description="SGLang swa_full_tokens_ratio: tokens that each layer with a sliding window holds, as a share of "
        "those that each layer with full attention does, for models whose windows it keeps apart (gpt-oss, Llama 4).",
    )
    mamba_full_memory_ratio: Positive = Field(
        MAMBA_FULL_MEMORY_RATIO,
        description="SGLang mamba_full_memory_ratio: memory of linear attention's states, as a ratio to that of full "
        "attention's KV (Qwen3.5, Qwen3-Next).",
    )
    eviction: EvictionName = Field("lru", description="SGLang radix_eviction_policy; the others have lru alone.")
    schedule: ScheduleName = Field(
        "fcfs",
        description="Order of the waiting queue: vLLM scheduling_policy, SGLang schedule_policy; TensorRT-LLM: fcfs. "
        + summaries(QUEUE_ORDERS),
    )
    ttft_targets_s: list[Positive | None] = Field(
        default_factory=list,
        description="edf: seconds from arrival until the first token is due, of requests with priority 0, 1, …; the "
        "last value holds for further ones, null: no deadline. A search takes them from the SLO's TTFT terms.",
    )
    priority_scheduling: bool = Field(
        False,
        description="SGLang enable_priority_scheduling: order the queue by priority, then by schedule, fcfs or lof; "
        "schedule priority is fcfs with it.",
    )
    high_priority_first: bool = Field(
        False,
        description="SGLang by priority: higher values are more urgent, as without its "
        "schedule_low_priority_values_first.",
    )
    preemption_threshold: NonNegativeInt = Field(
        10,
        description="SGLang priority_scheduling_preemption_threshold: a waiting request preempts running ones whose "
        "priority differs by more than this.",
    )
    prefill_max_requests: Count | None = Field(
        None, description="SGLang prefill_max_requests: most prompts of a prefill batch; no limit where absent."
    )
    overlap: bool = Field(
        True,
        description="Form a batch while the one before it runs, as all engines do by default, vLLM since 0.14.0 and "
        "TensorRT-LLM since 1.0: vLLM async_scheduling, SGLang's overlap schedule, TensorRT-LLM's overlap scheduler.",
    )
    chunked_prefill: bool = Field(True, description="Cut prompts that exceed what is left of a step's token budget.")
    long_prefill_tokens: NonNegativeInt = Field(
        0, description="vLLM long_prefill_token_threshold: most tokens of one request in a step; 0 sets no limit."
    )
    long_prefill_adaptive: bool = Field(
        False,
        description="vLLM long_prefill_token_threshold_adaptive: the limit is at least an equal share of a step's "
        "tokens for each request that runs or waits.",
    )
    reserve_full_prompt: bool = Field(
        True, description="vLLM scheduler_reserve_full_isl: admit a prompt only where all of it has room."
    )
    watermark: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="vLLM: share of all KV pages that admission leaves free while requests run; none by default."
    )
    mixed_chunk: bool = Field(False, description="SGLang enable_mixed_chunk: decode along with prefills.")
    receive_interval: Count = Field(
        1,
        description="SGLang scheduler_recv_interval: decode steps between two looks at what has arrived; a prefill and "
        "an idle engine look at once.",
    )
    stream_interval: Count = Field(
        1,
        description="Tokens of a request that the front end sends in one message; the first is sent at once: vLLM and "
        "SGLang --stream-interval, TensorRT-LLM stream_interval. Less work in front; ITL stays between tokens as made.",
    )
    api_servers: Count | None = Field(
        None,
        description="Processes in front of a worker that read prompts and send tokens: vLLM --api-server-count, SGLang "
        "--tokenizer-worker-num, TensorRT-LLM num_postprocess_workers. As the engine has it where absent: vLLM one for "
        "each attention group, others one.",
    )
    fused_all_reduce: bool | None = Field(
        None,
        description="SGLang enable_flashinfer_allreduce_fusion, vLLM fuse_allreduce_rms of its pass_config: all-reduce "
        "and the norm behind it in one kernel, SGLang in steps of up to 2,048 tokens, vLLM up to so many bytes. As the "
        "engine has it where absent: vLLM on Hopper and Blackwell, SGLang not.",
    )
    enforce_eager: bool = Field(
        False,
        description="No CUDA graphs: vLLM enforce_eager (which does not compile either), SGLang disable_cuda_graph, "
        "TensorRT-LLM without cuda_graph_config. The host launches every kernel; steps shorter than that wait for it.",
    )
    cudagraph_mode: GraphMode | None = Field(
        None,
        description="vLLM compilation_config.cudagraph_mode: which steps are replayed whole (full: all, "
        "full_decode_only: those without prompts), in pieces around attention (piecewise), or both by kind "
        "(full_and_piecewise, as where absent). TensorRT-LLM: full_decode_only where absent, and full_and_piecewise, "
        "torch_compile_config.enable_piecewise_cuda_graph.",
    )
    cudagraph_capture_sizes: list[Count] | None = Field(
        None,
        description="Tokens of a step for which graphs are captured, rising: vLLM cudagraph_capture_sizes, SGLang "
        "cuda_graph_bs, TensorRT-LLM cuda_graph_config.batch_sizes. The profile's where absent.",
    )
    max_cudagraph_capture_size: Count | None = Field(
        None,
        description="The largest of them: vLLM max_cudagraph_capture_size, SGLang cuda_graph_max_bs, TensorRT-LLM "
        "cuda_graph_config.max_batch_size. Larger steps are launched kernel by kernel.",
    )
    capacity_policy: CapacityPolicyName = Field(
        "guaranteed_no_evict",
        description="TensorRT-LLM capacity_scheduler_policy: start a request only where all of its declared output has "
        "room, or as soon as its prompt has, and pause the last ones where memory runs out; static_batch starts none "
        "while others decode.",
    )
    chunking_policy: ChunkingPolicyName = Field(
        "first_come_first_served",
        description="TensorRT-LLM context_chunking_policy: prompts share a step's budget in order, or a page each in "
        "turn.",
    )
    batch_wait_timeout_ms: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        0.0,
        description="TensorRT-LLM batch_wait_timeout_ms: longest time for which every pass waits until "
        "max_running_requests have come since the pass before, also while others decode.",
    )
    batch_wait_timeout_iters: NonNegativeInt = Field(
        0, description="TensorRT-LLM batch_wait_timeout_iters: most steps for which prompts wait for more of them."
    )
    batch_wait_max_tokens_ratio: Annotated[float, Field(ge=0, le=1)] = Field(
        0.0,
        description="TensorRT-LLM batch_wait_max_tokens_ratio: share of chunk_tokens from which prompts do not wait.",
    )
    attention_dp_balance: bool = Field(
        False,
        description="TensorRT-LLM attention_dp_config.enable_balance: attention groups hold prompts back until each "
        "has one.",
    )
    attention_dp_timeout_iters: NonNegativeInt = Field(
        50, description="TensorRT-LLM attention_dp_config.timeout_iters: most steps for which they do."
    )
    attention_dp_batching_wait_iters: NonNegativeInt = Field(
        10,
        description="TensorRT-LLM attention_dp_config.batching_wait_iters: steps that they wait for more prompts once "
        "each has one.",
    )
    speculation: SpeculationSpec | None = Field(
        None, description="Drafted tokens that the model checks in one step; none by default."
    )

    experts: ExpertsSpec = Field(
        ExpertsSpec(), description="How tokens spread over routed experts; of no effect without expert_parallel."
    )

    @property
    def page_size(self) -> int:
        """Tokens per KV page, with the engine's default filled in."""
        return self.page_tokens if self.page_tokens is not None else PAGE_TOKENS[self.name]

    @property
    def title(self) -> str:
        """Its name for people, with the order of its queue unless it is that of arrivals: ``vLLM by priority``."""
        order = "priority" if self.by_priority else self.schedule
        return ENGINE_TITLES[self.name] + ("" if order == "fcfs" else f" by {order}")

    @property
    def by_priority(self) -> bool:
        """Whether the queue is ordered by priority."""
        return self.priority_scheduling or self.schedule == "priority"

    _of_release = model_validator(mode="before")(with_release_defaults)

    @model_validator(mode="after")
    def _check(self) -> EngineSpec:
        title = ENGINE_TITLES[self.name]
        check_release(self, self.model_fields_set)
        check_sglang(self)
        check_graphs(self)
        if self.name != "sglang" and self.eviction != "lru":
            raise ValueError(f"{title} evicts by lru alone; eviction: {self.eviction} needs engine sglang")
        if self.name != "sglang" and self.receive_interval != 1:
            raise ValueError(f"{title} has no receive_interval; {self.receive_interval} needs engine sglang")
        if self.name == "trtllm" and self.fused_all_reduce is not None:
            raise ValueError(f"fused_all_reduce is a setting of SGLang and vLLM; {title} always does so")
        if self.schedule not in SCHEDULES[self.name]:
            raise ValueError(f"{self.name} has no schedule {self.schedule}; known: {', '.join(SCHEDULES[self.name])}")
        if self.name != "sglang" and self.chunk_tokens < self.max_running_requests:
            raise ValueError(
                f"chunk_tokens {self.chunk_tokens} is less than max_running_requests {self.max_running_requests}: "
                f"{title} needs one token of the budget for each running request"
            )
        check_order(self)
        check_trtllm(self)
        return self
