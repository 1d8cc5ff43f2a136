"""A pool of a deployment: identical workers, with their engine and its settings."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, model_validator

from hisearch.base.policies import QUEUE_ORDERS
from hisearch.specs.base import (
    ENGINE_TITLES,
    Count,
    DType,
    Strict,
)
from hisearch.specs.deployments.agent_memory import AgentMemorySpec, check_agents
from hisearch.specs.deployments.cluster import AutoscaleSpec, ReplicasSpec, RoleName
from hisearch.specs.deployments.engine import EngineSpec
from hisearch.specs.deployments.graphs import graph_mode
from hisearch.specs.deployments.lora import LoraSpec, check_lora
from hisearch.specs.deployments.speculation import check_speculation
from hisearch.specs.deployments.structured_output import StructuredOutputSpec, check_structured_output
from hisearch.specs.deployments.tiers import (
    KV_CONNECTOR_TITLES,
    KvConnectorName,
    MovementSpec,
    TierSpec,
    check_tiers,
    kv_connector_of,
)
from hisearch.specs.errors import KeyedError
from hisearch.specs.machines.devices import DevicesSpec
from hisearch.specs.machines.parallelism import Parallelism, engine_problem
from hisearch.specs.versions import precedes

#: Formats of the KV cache that each engine has.
KV_DTYPES: dict[str, tuple[DType, ...]] = {
    "vllm": ("bf16", "fp16", "fp8"),
    "sglang": ("bf16", "fp16", "fp8", "fp4"),
    "trtllm": ("bf16", "fp16", "fp8"),
}


#: First release of each engine whose decode context parallelism is simulated.
DECODE_CONTEXT_SINCE: dict[str, str] = {"vllm": "0.19.1", "sglang": "0.5.23"}

#: Likewise of prefill context parallelism. vLLM 0.19.1 has the flag, and no attention that supports it.
PREFILL_CONTEXT_SINCE: dict[str, str] = {"vllm": "0.33.0", "sglang": "0.5.23"}


class PoolSpec(Strict):
    """Identical workers."""

    replaced: ClassVar[dict[str, str]] = {
        "host_tier": "replaced by tiers; write tiers: [{medium: ddr5, gib: 128}]",
        "prefill_context_parallel_size": "vLLM's flag; write prefill_context_parallel",
        "attn_cp_size": "SGLang's flag; write prefill_context_parallel, and tensor_parallel of one set of ranks",
    }

    name: str = Field("main", description="How messages call the pool.")
    role: RoleName = Field(
        "unified",
        description="unified: each worker prefills and decodes; prefill: it computes prompts, and hands over to the "
        "workers of decode pools; decode: it goes on from there.",
    )
    model: str | None = Field(
        None, description="Name or path of the Model that its workers serve; the deployment's where absent."
    )
    accelerator: str = Field(description="Name or path of an Accelerator.")
    host: str | None = Field(None, description="Name or path of a Host; the accelerator's usual one where absent.")
    engine: EngineSpec = Field(description="The serving engine and its settings.")
    tensor_parallel: Count = Field(
        1,
        description="Ranks that share heads and widths (TP), of one attention group: vLLM --tensor-parallel-size, "
        "SGLang --tp-size, TensorRT-LLM --tp_size, the latter two times attention_data_parallel.",
    )
    pipeline_parallel: Count = Field(
        1,
        description="Stages that share the layers (PP): vLLM --pipeline-parallel-size, SGLang --pp-size, TensorRT-LLM "
        "--pp_size.",
    )
    attention_data_parallel: Count = Field(
        1,
        description="Attention groups with sequences and KV of their own that share the FFNs (attention-DP): vLLM "
        "--data-parallel-size, SGLang --attn-dp-size, TensorRT-LLM enable_attention_dp.",
    )
    expert_parallel: Count = Field(
        1,
        description="Sets of a stage's ranks that hold different experts (EP): vLLM --enable-expert-parallel (all "
        "ranks or none), SGLang --ep-size, TensorRT-LLM --ep_size.",
    )
    decode_context_parallel: Count = Field(
        1,
        description="Ranks of an attention group over which each sequence's KV is spread, where they would hold copies "
        "of it (DCP): vLLM --decode-context-parallel-size, SGLang --dcp-size. It divides tensor_parallel.",
    )
    prefill_context_parallel: Count = Field(
        1,
        description="Sets of tensor_parallel ranks of an attention group that share the tokens of each prompt (PCP): "
        "vLLM --prefill-context-parallel-size, SGLang --attn-cp-size with --enable-prefill-cp. It multiplies a "
        "worker's accelerators.",
    )
    weight_dtype: DType | None = Field(
        None, description="Format of the weights; the model's own where absent. fp4 is MXFP4, nvfp4 NVFP4."
    )
    kv_dtype: DType = Field("bf16", description="Format of the KV cache.")
    replicas: Count = Field(1, description="Workers in the pool.")
    tiers: list[TierSpec] = Field(
        default_factory=list,
        max_length=3,
        description="KV cache below device memory, nearest first; none by default. Of decode workers, SGLang's alone: "
        "the host pool from which they write what they have made to the prefill pool's storage of scope cluster "
        "(--disaggregation-decode-enable-offload-kvcache).",
    )
    movement: MovementSpec = Field(MovementSpec(), description="How KV moves between them; of no effect without tiers.")
    agents: AgentMemorySpec | None = Field(
        None, description="What agents need in device memory beside KV, such as adapters; nothing by default."
    )
    lora: LoraSpec | None = Field(
        None, description="LoRA adapters that requests may name; none by default. Those of agents: see ``agents``."
    )
    structured_output: StructuredOutputSpec | None = Field(
        None, description="Grammars that outputs may follow; where absent the workload's are taken for free text."
    )
    devices: DevicesSpec | None = Field(
        None, description="Devices attached to the accelerators, and which operators, weights and experts are where."
    )
    schedule: list[ReplicasSpec] = Field(
        default_factory=list, description="Replicas over time, by time; ``replicas`` holds until the first."
    )
    autoscale: AutoscaleSpec | None = Field(None, description="Replicas by load; ``replicas`` are there at first.")

    @property
    def parallelism(self) -> Parallelism:
        """How a worker's copy of the model is split over its accelerators."""
        return Parallelism(
            self.tensor_parallel,
            self.attention_data_parallel,
            self.expert_parallel,
            self.pipeline_parallel,
            all_to_all=self.engine.experts.exchange == "all_to_all",
            decode_context=self.decode_context_parallel,
            prefill_context=self.prefill_context_parallel,
        ).under(self.engine.name)

    @property
    def block_tokens(self) -> int:
        """Tokens of a block as the scheduler counts them: each rank that shares a sequence's KV holds a page of it."""
        return self.engine.page_size * self.decode_context_parallel

    @property
    def accelerators(self) -> int:
        """Accelerators of all its workers."""
        return self.replicas * self.parallelism.ranks

    @property
    def most_replicas(self) -> int:
        """Most replicas that an autoscaler or a schedule may ask for."""
        limits = [self.autoscale.max_replicas] if self.autoscale is not None else []
        return max(self.replicas, *limits, *(step.replicas for step in self.schedule), 0)

    @property
    def kv_connector(self) -> KvConnectorName:
        """What moves KV between the tiers, with the engine's default filled in."""
        return kv_connector_of(self.engine.name, self.movement)

    @property
    def writes_back_output(self) -> bool:
        """Whether its decode workers write their output back to the storage of the prefill workers."""
        return self.role == "decode" and bool(self.tiers)

    @model_validator(mode="after")
    def _check(self) -> PoolSpec:
        known = KV_DTYPES[self.engine.name]
        if self.kv_dtype not in known:
            raise ValueError(f"{self.engine.name} has no KV cache format {self.kv_dtype}; known: {', '.join(known)}")
        problem = engine_problem(self.engine.name, self.parallelism)
        if problem is not None:
            raise KeyedError((problem.key,), problem.message)
        if self.engine.receive_interval > 1 and (
            self.role == "decode" or self.attention_data_parallel * self.pipeline_parallel > 1
        ):
            message = "simulated where a worker is one batch at a time: no decode role, attention groups or pipeline"
            raise KeyedError(("engine", "receive_interval"), message)
        if self.decode_context_parallel > 1:
            _check_decode_context(self)
        if self.prefill_context_parallel > 1:
            _check_prefill_context(self)
        if self.engine.experts.exchange == "all_to_all":
            _check_all_to_all(self)
        if QUEUE_ORDERS[self.engine.schedule].counts_service and self.pipeline_parallel > 1:
            message = f"{self.engine.schedule} counts a worker's own service; simulated without pipeline_parallel"
            raise KeyedError(("engine", "schedule"), message)
        several = self.attention_data_parallel * self.pipeline_parallel > 1
        if self.engine.name == "trtllm" and self.engine.schedule == "priority" and several:
            message = "TensorRT-LLM's priority is simulated without attention_data_parallel and pipeline_parallel"
            raise KeyedError(("engine", "schedule"), message)
        _check_gathering(self)
        _check_decode_tiers(self)
        if self.schedule and self.autoscale is not None:
            raise KeyedError(("autoscale",), "a pool follows its schedule or an autoscaler, not both")
        times = [step.at_s for step in self.schedule]
        if times != sorted(set(times)):
            raise KeyedError(("schedule",), "its times must ascend")
        if self.engine.experts.redundant % self.expert_parallel:
            message = (
                f"{self.engine.experts.redundant} copies do not come out even over expert_parallel "
                f"{self.expert_parallel}"
            )
            raise KeyedError(("engine", "experts", "redundant"), message)
        check_tiers(self.engine.name, self.engine.page_size, self.tiers, self.movement)
        engine, tiers = self.engine, len(self.tiers)
        check_agents(
            self.agents, engine=engine.name, caching=engine.prefix_caching, eviction=engine.eviction, tiers=tiers
        )
        others = {
            "role": self.role != "unified",
            "pipeline_parallel": self.pipeline_parallel > 1,
            "attention_data_parallel": self.attention_data_parallel > 1,
            "tiers": tiers > 0,
            "agents": self.agents is not None,
            "devices": self.devices is not None,
        }
        check_lora(self.lora, engine, others)
        others |= {
            "lora": self.lora is not None,
            "decode_context_parallel": self.decode_context_parallel > 1,
            "prefill_context_parallel": self.prefill_context_parallel > 1,
        }
        check_structured_output(self.structured_output, engine, others)
        check_speculation(
            engine,
            role=self.role,
            attention_data=self.attention_data_parallel,
            pipeline=self.pipeline_parallel,
            tiers=tiers > 0,
            agents=self.agents is not None,
            devices=self.devices is not None,
        )
        return self


def _check_decode_context(pool: PoolSpec) -> None:
    """Refuse what is not simulated where ranks share a sequence's KV.

    Raises:
        KeyedError: with a key below the pool.
    """
    key, engine = "decode_context_parallel", pool.engine
    _check_since(key, engine, DECODE_CONTEXT_SINCE)
    refused = {f"in {pool.role} workers": pool.role != "unified"} | _unsimulated_with_shared_context(pool)
    for where in (name for name, is_refused in refused.items() if is_refused):
        raise KeyedError((key,), f"{pool.decode_context_parallel} is not simulated {where}")


def _check_prefill_context(pool: PoolSpec) -> None:
    """Refuse what is not simulated where ranks share prompts.

    vLLM 0.33.0, ``v1/worker/gpu/pcp_manager.py``: no LoRA, and full CUDA graphs for decodes alone. A mixed batch of
    SGLang's is shared or not by its shortest request (``layers/cp/zigzag.py: can_apply``).

    Raises:
        KeyedError: with a key below the pool.
    """
    key, engine = "prefill_context_parallel", pool.engine
    _check_since(key, engine, PREFILL_CONTEXT_SINCE)
    refused = {
        "in decode workers, which compute no prompts": pool.role == "decode",
        "with adapters": pool.lora is not None,
        "with mixed_chunk": engine.mixed_chunk,
        "with cudagraph_mode full": graph_mode(engine) == "full",
    } | _unsimulated_with_shared_context(pool)
    for where in (name for name, is_refused in refused.items() if is_refused):
        raise KeyedError((key,), f"{pool.prefill_context_parallel} is not simulated {where}")


def _check_since(key: str, engine: EngineSpec, since: dict[str, str]) -> None:
    """Refuse a version of the engine before its first that is simulated with ``key``."""
    oldest = since.get(engine.name)
    if oldest is not None and precedes(engine.version, oldest):
        message = f"{key} is simulated from {ENGINE_TITLES[engine.name]} {oldest} on, not of {engine.version}"
        raise KeyedError(("engine", "version"), message)


def _unsimulated_with_shared_context(pool: PoolSpec) -> dict[str, bool]:
    """What is simulated neither with shared KV nor with shared prompts, and whether the pool has it."""
    return {
        "with cache tiers": bool(pool.tiers),
        "with agents' objects": pool.agents is not None,
        "with attached devices": pool.devices is not None,
        "with drafted tokens": pool.engine.speculation is not None,
    }


def _check_all_to_all(pool: PoolSpec) -> None:
    """Refuse splits and settings under which tokens are not sent to their experts.

    SGLang 0.5.23 deals experts to all ranks of a stage then (``arg_groups/moe_hook.py``). Its dense FFNs are whole on
    every rank, or shared by all (``moe_dense_tp_size``, 1 or ``tp_size``): groups of one rank keep them to themselves.

    Raises:
        KeyedError: with a key below the pool.
    """
    key, split, engine = ("engine", "experts", "exchange"), pool.parallelism, pool.engine
    if engine.name != "sglang":
        title = ENGINE_TITLES[engine.name]
        raise KeyedError(key, f"all_to_all is simulated under SGLang, not {title}")
    if split.attention_data == 1 or split.tensor > 1 or split.expert != split.stage_ranks:
        message = (
            "all_to_all needs attention groups of one rank, and experts on all of them: attention_data_parallel N, "
            f"expert_parallel N, tensor_parallel 1, not {split}"
        )
        raise KeyedError(key, message)
    if pool.devices is not None:
        raise KeyedError(key, "all_to_all is not simulated with attached devices")
    if engine.experts.two_batch_overlap:
        refused = {"mixed_chunk": engine.mixed_chunk, "drafted tokens": engine.speculation is not None}
        for what in (name for name, is_refused in refused.items() if is_refused):
            raise KeyedError(("engine", "experts", "two_batch_overlap"), f"is not simulated with {what}")


def _check_gathering(pool: PoolSpec) -> None:
    """Refuse where passes that wait for requests are not simulated.

    Raises:
        KeyedError: with a key below the pool.
    """
    if not pool.engine.batch_wait_timeout_ms:
        return
    refused = {
        "in decode workers": pool.role == "decode",
        f"with attention_data_parallel {pool.attention_data_parallel}": pool.attention_data_parallel > 1,
        f"with pipeline_parallel {pool.pipeline_parallel}": pool.pipeline_parallel > 1,
        "with drafted tokens": pool.engine.speculation is not None,
    }
    for where in (name for name, is_refused in refused.items() if is_refused):
        raise KeyedError(("engine", "batch_wait_timeout_ms"), f"is not simulated {where}")


def _check_decode_tiers(pool: PoolSpec) -> None:
    """Refuse tiers and movement that decode workers do not have, as far as the pool itself tells.

    SGLang 0.5.9, ``--disaggregation-decode-enable-offload-kvcache`` (``decode_kvcache_offload_manager.py``): a host
    pool, from which decode output is written back to the prefill workers' storage.

    Raises:
        KeyedError: with a key below the pool.
    """
    if not pool.writes_back_output:
        return
    if pool.engine.name != "sglang":
        if pool.engine.name == "vllm":
            message = "vLLM's offloading connector with NIXL's (MultiConnector) is not simulated"
        else:
            message = f"{ENGINE_TITLES[pool.engine.name]} has none there"
        raise KeyedError(("tiers",), f"tiers of decode workers are SGLang's: {message}; give them to the prefill pool")
    if pool.kv_connector != "hicache":
        title = KV_CONNECTOR_TITLES[pool.kv_connector]
        message = f"decode workers write to HiCache's storage; {title} is not simulated there"
        raise KeyedError(("movement", "kv_connector"), message)
    for key in ("attention_data_parallel", "pipeline_parallel"):
        if getattr(pool, key) > 1:
            raise KeyedError((key,), f"{getattr(pool, key)} is not simulated with tiers on decode workers")
    if len(pool.tiers) > 1:
        message = "a decode worker has a host pool alone; what lies behind it is said by the tiers of the prefill pool"
        raise KeyedError(("tiers", 1), message)
    if pool.tiers[0].eviction != "lru":
        raise KeyedError(("tiers", 0, "eviction"), "nothing is evicted from a decode worker's host pool; leave it out")
    for name, value in pool.movement:
        if name != "kv_connector" and value != MovementSpec.model_fields[name].default:
            message = "a decode worker copies what it has made of a request when that has finished; leave it out"
            raise KeyedError(("movement", name), message)
