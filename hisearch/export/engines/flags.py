"""One table per engine: command-line flag -> its value for a deployment.

Flags and their values were read in the engines' own sources: SGLang 0.5.9 ``server_args.py``, vLLM 0.19.1
``arg_utils.py`` and ``config/cache.py``, TensorRT-LLM 1.1 ``commands/serve.py``, sglang-router 0.3.2
``router_args.py``. TensorRT-LLM's settings without a flag go into a file, see ``trtllm_options``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from hisearch.base.policies import QUEUE_ORDERS
from hisearch.export.engines import agents
from hisearch.export.engines.cache_tiers import (
    has_hicache_tree,
    hicache_gb_per_rank,
    is_moved_by,
    offloading_backend,
    offloading_gib,
    offloading_settings,
    storage_backend,
    storage_settings,
    storage_tier,
)
from hisearch.latency.device_memory.loading import FullLoad, full_load
from hisearch.specs.base import EngineName
from hisearch.specs.deployments.deployment import SCHEDULES, EngineSpec, PoolSpec
from hisearch.specs.deployments.routing import RouterName, RouterSpec
from hisearch.specs.machines.hardware import AcceleratorSpec
from hisearch.specs.models.model import ModelSpec, names_weights

#: The versions whose flags are written.
ENGINE_VERSIONS: dict[EngineName, str] = {"sglang": "0.5.9", "vllm": "0.19.1", "trtllm": "1.1.0"}
ROUTER_VERSION = "0.3.2"

_HALF_OR_FULL = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


class ExportError(ValueError):
    """A deployment that the engine's command line cannot express."""


class Launch(NamedTuple):
    """The inputs of one replica's flags. kv_capacity_tokens: the simulated KV pool of one replica."""

    pool: PoolSpec
    model: ModelSpec
    accelerator: AcceleratorSpec
    kv_capacity_tokens: int


#: A flag's value; True writes the flag alone, None leaves it out.
Value = str | bool | None
Table = tuple[tuple[str, Callable[[Launch], Value]], ...]


class Checkpoint(NamedTuple):
    """Weights that the user has to supply: their format, and why the published ones do not suffice."""

    dtype: str
    reason: str


def loading(launch: Launch) -> FullLoad | None:
    """A rank's memory while its weights are quantised; None where they are never all held (vLLM), or not quantised."""
    pool = launch.pool
    return full_load(
        launch.model,
        launch.accelerator,
        engine=pool.engine.name,
        tensor_parallel=pool.tensor_parallel,
        parallelism=pool.parallelism,
        weight_dtype=pool.weight_dtype,
    )


def needs_checkpoint(launch: Launch) -> Checkpoint | None:
    """The weights that need a separately quantized checkpoint, or None.

    vLLM and SGLang quantize 16-bit weights to fp8 while loading, SGLang only where the 16-bit weights fit. Every other
    change of format needs a separate checkpoint, as does any change on TensorRT-LLM.
    """
    pool, stored = launch.pool, launch.model.weight_dtype
    weight_dtype = pool.weight_dtype or stored
    if weight_dtype == stored or (stored in _HALF_OR_FULL and weight_dtype in _HALF_OR_FULL):
        return None
    if weight_dtype != "fp8" or stored not in _HALF_OR_FULL or pool.engine.name == "trtllm":
        return Checkpoint(
            weight_dtype, f"the published ones have {stored}, and the engine cannot convert them while loading"
        )
    held = loading(launch)
    return None if held is None or held.fits else Checkpoint(weight_dtype, held.sentence(stored, pool.accelerator))


def weights_to_bring(launch: Launch) -> Checkpoint | None:
    """The weights that the user has to name, or None where the published ones are known and suffice."""
    needed = needs_checkpoint(launch)
    if needed is not None or names_weights(launch.model.huggingface_id):
        return needed
    stored = launch.model.weight_dtype
    return Checkpoint(stored, f"{launch.model.huggingface_id} is the name of a file, no Hugging Face id")


def weights_notice(launches: Iterable[Launch]) -> str:
    """A notice where the export does not know the weights' Hugging Face id; "" where it does."""
    unknown = [launch.model.huggingface_id for launch in launches if not names_weights(launch.model.huggingface_id)]
    if not unknown:
        return ""
    return (
        f"REPLACE THE MODEL'S NAME: {unknown[0]} is what its file is called, and no Hugging Face id. Set MODEL to "
        "the id or folder of the weights wherever this export asks for it; clients ask for that name too. To have it "
        "written here, run the study with --set spec.huggingface_id=ORGANISATION/MODEL."
    )


def dtype(launch: Launch) -> str:
    """The compute format where weights are 16 or 32 bits wide; else "auto", from the checkpoint."""
    weight_dtype = launch.pool.weight_dtype or launch.model.weight_dtype
    return _HALF_OR_FULL.get(weight_dtype, "auto")


def _quantization(launch: Launch) -> Value:
    """fp8 where the engine quantizes while loading; an fp8 checkpoint declares it itself."""
    weight_dtype = launch.pool.weight_dtype or launch.model.weight_dtype
    online = weight_dtype == "fp8" and launch.model.weight_dtype in _HALF_OR_FULL and needs_checkpoint(launch) is None
    return "fp8" if online else None


def _fp8_format(launch: Launch) -> str:
    """e4m3 where the accelerator computes in fp8; e5m2 before that (no e4m3 conversion in hardware)."""
    return "fp8_e4m3" if "fp8" in launch.accelerator.peak_flops else "fp8_e5m2"


def _kv_dtype(engine: EngineName) -> Callable[[Launch], Value]:
    def value(launch: Launch) -> Value:
        kv_dtype = launch.pool.kv_dtype
        if kv_dtype == "fp8":
            return _fp8_format(launch)
        formats = {"bf16": "bf16" if engine == "sglang" else "auto", "fp16": "auto"}
        if engine == "sglang":
            formats["fp4"] = "fp4_e2m1"
        if kv_dtype not in formats:
            raise ExportError(f"{engine} {ENGINE_VERSIONS[engine]} has no KV cache format {kv_dtype}")
        return formats[kv_dtype]

    return value


def _beyond_one(degree: int) -> Value:
    """A degree of parallelism, left out where it is the engine's default of 1."""
    return str(degree) if degree > 1 else None


def _vllm_copies(launch: Launch) -> Value:
    """VLLM's settings of redundant experts, as JSON."""
    redundant = launch.pool.engine.experts.redundant
    return json.dumps({"num_redundant_experts": redundant}) if redundant else None


def _vllm_passes(launch: Launch) -> Value:
    """VLLM's compiler passes where stated, as JSON."""
    fused = launch.pool.engine.fused_all_reduce
    return None if fused is None else json.dumps({"pass_config": {"fuse_allreduce_rms": fused}})


def _of_all_groups(launch: Launch, limit: int) -> str:
    """A per-attention-group limit for SGLang, which divides its value by ``--dp-size``."""
    return str(limit * launch.pool.attention_data_parallel)


#: Characters per token of English text, as the router measures its trees in characters. Assumed.
CHARACTERS_PER_TOKEN = 4

#: Eviction policies that SGLang's command line accepts (RADIX_EVICTION_POLICY_CHOICES).
SGLANG_EVICTIONS = ("lru", "lfu")


def _radix_eviction(launch: Launch) -> Value:
    eviction = launch.pool.engine.eviction
    if launch.pool.engine.prefix_caching and eviction not in SGLANG_EVICTIONS:
        raise ExportError(
            f"the command line of sglang {ENGINE_VERSIONS['sglang']} has no --radix-eviction-policy {eviction}; "
            f"it takes {' or '.join(SGLANG_EVICTIONS)}"
        )
    return eviction if launch.pool.engine.prefix_caching else None


def _schedule_policy(launch: Launch) -> str:
    """Under priority SGLang orders by fcfs what has the same value."""
    if _by_priority(launch):
        return "fcfs"
    name = launch.pool.engine.schedule
    if not QUEUE_ORDERS[name].flag:
        known = " or ".join(order.flag for order in QUEUE_ORDERS.values() if order.flag and "sglang" in order.engines)
        raise ExportError(
            f"sglang {ENGINE_VERSIONS['sglang']} has no --schedule-policy {name}, which is simulated alone; "
            f"it takes {known}"
        )
    return QUEUE_ORDERS[name].flag


def vllm_blocks(launch: Launch) -> str | None:
    """Number of simulated blocks, including the one that vLLM reserves.

    None for a model with linear attention or a sliding window: vLLM's blocks then do not cover all layers.
    """
    model = launch.model
    if model.linear_attention is not None or model.sliding_window_tokens:
        return None
    return str(launch.kv_capacity_tokens // launch.pool.engine.page_size)


def _by_priority(launch: Launch) -> bool:
    return launch.pool.engine.schedule == "priority"


SGLANG: Table = (
    ("--tp-size", lambda c: str(c.pool.parallelism.stage_ranks)),
    ("--pp-size", lambda c: _beyond_one(c.pool.pipeline_parallel)),
    ("--dp-size", lambda c: _beyond_one(c.pool.attention_data_parallel)),
    ("--enable-dp-attention", lambda c: True if c.pool.attention_data_parallel > 1 else None),
    ("--ep-size", lambda c: _beyond_one(c.pool.expert_parallel)),
    ("--ep-num-redundant-experts", lambda c: str(c.pool.engine.experts.redundant or "") or None),
    ("--dtype", dtype),
    ("--quantization", _quantization),
    ("--kv-cache-dtype", _kv_dtype("sglang")),
    ("--mem-fraction-static", lambda c: f"{c.pool.engine.memory_fraction:g}"),
    ("--max-total-tokens", lambda c: str(c.kv_capacity_tokens)),
    ("--page-size", lambda c: str(c.pool.engine.page_size)),
    (
        "--chunked-prefill-size",
        lambda c: _of_all_groups(c, c.pool.engine.chunk_tokens) if c.pool.engine.chunked_prefill else "-1",
    ),
    ("--enable-mixed-chunk", lambda c: True if c.pool.engine.mixed_chunk else None),
    ("--max-prefill-tokens", lambda c: str(c.pool.engine.max_prefill_tokens)),
    ("--enable-flashinfer-allreduce-fusion", lambda c: c.pool.engine.fused_all_reduce or None),
    ("--scheduler-recv-interval", lambda c: _beyond_one(c.pool.engine.receive_interval)),
    ("--max-running-requests", lambda c: _of_all_groups(c, c.pool.engine.max_running_requests)),
    ("--schedule-policy", _schedule_policy),
    ("--enable-priority-scheduling", lambda c: True if _by_priority(c) else None),
    ("--schedule-low-priority-values-first", lambda c: True if _by_priority(c) else None),
    ("--disable-overlap-schedule", lambda c: None if c.pool.engine.overlap else True),
    ("--schedule-conservativeness", lambda c: f"{c.pool.engine.schedule_conservativeness:g}"),
    ("--radix-eviction-policy", _radix_eviction),
    ("--disable-radix-cache", lambda c: True if not c.pool.engine.prefix_caching else None),
    ("--enable-lora", lambda c: agents.enable_lora(c.pool)),
    ("--max-lora-rank", lambda c: agents.max_lora_rank(c.pool)),
    ("--lora-target-modules", lambda c: agents.lora_targets(c.pool)),
    ("--max-loras-per-batch", lambda c: agents.max_loras_per_batch(c.pool)),
    ("--lora-eviction-policy", lambda c: agents.lora_eviction_policy(c.pool)),
    ("--enable-lora-overlap-loading", lambda c: agents.overlap_loading(c.pool)),
    ("--enable-hierarchical-cache", lambda c: True if has_hicache_tree(c.pool) else None),
    ("--hicache-size", lambda c: str(hicache_gb_per_rank(c.pool)) if is_moved_by(c.pool, "hicache") else None),
    ("--hicache-write-policy", lambda c: c.pool.movement.write_policy if has_hicache_tree(c.pool) else None),
    ("--hicache-storage-backend", lambda c: storage_backend(c.pool)),
    ("--hicache-storage-prefetch-policy", lambda c: c.pool.movement.prefetch if storage_tier(c.pool) else None),
    ("--hicache-storage-backend-extra-config", lambda c: storage_settings(c.pool)),
    ("--enable-lmcache", lambda c: True if is_moved_by(c.pool, "lmcache") else None),
)

VLLM: Table = (
    ("--tensor-parallel-size", lambda c: str(c.pool.tensor_parallel)),
    ("--pipeline-parallel-size", lambda c: _beyond_one(c.pool.pipeline_parallel)),
    ("--data-parallel-size", lambda c: _beyond_one(c.pool.attention_data_parallel)),
    ("--enable-expert-parallel", lambda c: True if c.pool.expert_parallel > 1 else None),
    ("--enable-eplb", lambda c: True if c.pool.engine.experts.redundant else None),
    ("--eplb-config", _vllm_copies),
    ("--dtype", dtype),
    ("--quantization", _quantization),
    ("--kv-cache-dtype", _kv_dtype("vllm")),
    ("--gpu-memory-utilization", lambda c: f"{c.pool.engine.memory_fraction:g}"),
    ("--block-size", lambda c: str(c.pool.engine.page_size)),
    ("--num-gpu-blocks-override", vllm_blocks),
    ("--max-model-len", lambda c: str(min(c.model.max_context_tokens, c.kv_capacity_tokens - c.pool.engine.page_size))),
    ("--max-num-batched-tokens", lambda c: str(c.pool.engine.chunk_tokens)),
    ("--max-num-seqs", lambda c: str(c.pool.engine.max_running_requests)),
    ("--scheduling-policy", lambda c: "priority" if _by_priority(c) else None),
    ("--async-scheduling", lambda c: True if c.pool.engine.overlap else None),
    ("--no-async-scheduling", lambda c: None if c.pool.engine.overlap else True),
    ("--no-enable-chunked-prefill", lambda c: None if c.pool.engine.chunked_prefill else True),
    ("--long-prefill-token-threshold", lambda c: str(c.pool.engine.long_prefill_tokens or "") or None),
    ("--no-scheduler-reserve-full-isl", lambda c: None if c.pool.engine.reserve_full_prompt else True),
    ("--enable-prefix-caching", lambda c: True if c.pool.engine.prefix_caching else None),
    ("--no-enable-prefix-caching", lambda c: None if c.pool.engine.prefix_caching else True),
    ("--compilation-config", _vllm_passes),
    ("--enable-lora", lambda c: agents.enable_lora(c.pool)),
    ("--max-loras", lambda c: agents.max_loras_per_batch(c.pool)),
    ("--max-lora-rank", lambda c: agents.vllm_lora_rank(c.pool)),
    ("--kv-offloading-backend", lambda c: offloading_backend(c.pool)),
    ("--kv-offloading-size", lambda c: offloading_gib(c.pool)),
    ("--kv-transfer-config", lambda c: offloading_settings(c.pool)),
)

TRTLLM: Table = (
    ("--backend", lambda c: "pytorch"),
    ("--tp_size", lambda c: str(c.pool.parallelism.stage_ranks)),
    ("--pp_size", lambda c: _beyond_one(c.pool.pipeline_parallel)),
    ("--ep_size", lambda c: _beyond_one(c.pool.expert_parallel)),
    ("--max_batch_size", lambda c: str(c.pool.engine.max_running_requests)),
    ("--max_num_tokens", lambda c: str(c.pool.engine.chunk_tokens)),
    ("--max_seq_len", lambda c: str(min(c.model.max_context_tokens, c.kv_capacity_tokens))),
)

TABLES: dict[EngineName, Table] = {"sglang": SGLANG, "vllm": VLLM, "trtllm": TRTLLM}


def engine_flags(launch: Launch) -> list[tuple[str, ...]]:
    """Flags of one replica of ``launch.pool``, as (flag,) or (flag, value), unquoted.

    Raises:
        ExportError: the engine lacks a setting of the deployment.
    """
    engine = launch.pool.engine
    if engine.watermark > 0:
        raise ExportError(f"{engine.name} {ENGINE_VERSIONS[engine.name]} has no watermark; set engine.watermark to 0")
    flags: list[tuple[str, ...]] = []
    for flag, value_of in TABLES[launch.pool.engine.name]:
        value = value_of(launch)
        if value is True:
            flags.append((flag,))
        elif isinstance(value, str):
            flags.append((flag, value))
    return flags


#: Simulated policies that the router's command line accepts.
ROUTER_POLICIES: tuple[RouterName, ...] = ("random", "round_robin", "power_of_two", "cache_aware")


def router_flags(router: RouterSpec) -> list[tuple[str, ...]]:
    """Flags of the router's policy; only cache_aware has thresholds.

    Raises:
        ExportError: the router has no such policy.
    """
    if router.policy not in ROUTER_POLICIES:
        raise ExportError(
            f"sglang-router {ROUTER_VERSION} has no policy {router.policy}; it takes {', '.join(ROUTER_POLICIES)}"
        )
    flags: list[tuple[str, ...]] = [("--policy", router.policy)]
    if router.policy == "cache_aware":
        flags += [
            ("--cache-threshold", f"{router.cache_threshold:g}"),
            ("--balance-abs-threshold", str(router.balance_abs_threshold)),
            ("--balance-rel-threshold", f"{router.balance_rel_threshold:g}"),
        ]
        if router.max_tree_tokens is not None:
            flags += [
                ("--max-tree-size", str(router.max_tree_tokens * CHARACTERS_PER_TOKEN)),
                ("--eviction-interval-secs", f"{max(round(router.eviction_interval_s), 1)}"),
            ]
    return flags


#: Settings that only one engine has, and their values without an effect.
_VLLM_ALONE = {"long_prefill_tokens": 0, "reserve_full_prompt": True, "watermark": 0.0}
_SGLANG_ALONE = {"mixed_chunk": False, "receive_interval": 1}


def _left_behind(engine: EngineSpec, alone: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    """Settings that the other engine lacks, reset; adds a note for each that had an effect."""
    for name, neutral in alone.items():
        if getattr(engine, name) != neutral:
            notes.append(f"{name} {getattr(engine, name)} has no counterpart and is left out.")
    return dict(alone)


def other_engine(engine: EngineSpec) -> tuple[EngineSpec, tuple[str, ...]]:
    """The nearest settings of another engine (SGLang for vLLM, else vLLM), and notes on dropped settings."""
    notes: list[str] = []
    if engine.name == "vllm":
        update = {"name": "sglang", "page_tokens": engine.page_size} | _left_behind(engine, _VLLM_ALONE, notes)
        notes.append("SGLang runs prefill batches before decode batches; vLLM mixes them in one step.")
        return EngineSpec.model_validate(engine.model_dump() | update), tuple(notes)
    if engine.name == "sglang":
        notes.append("vLLM mixes prefill and decode in one step; SGLang runs prefill batches first.")
    elif engine.capacity_policy == "guaranteed_no_evict":
        notes.append("vLLM admits a request once its prompt fits, and preempts where outputs outgrow the memory.")
    chunk_tokens = engine.chunk_tokens
    if chunk_tokens < engine.max_running_requests:
        chunk_tokens = engine.max_running_requests
        notes.append(f"The step's token budget is raised to {chunk_tokens}: one token for each running request.")
    if engine.eviction != "lru":
        notes.append(f"vLLM evicts by lru alone; the simulated policy is {engine.eviction}.")
    page_tokens = engine.page_tokens if engine.page_tokens is not None and engine.page_tokens % 16 == 0 else 16
    if page_tokens != engine.page_size:
        notes.append(f"KV pages of {page_tokens} tokens; simulated with {engine.page_size}.")
    if engine.schedule not in SCHEDULES["vllm"]:
        notes.append(f"vLLM has no schedule {engine.schedule}: requests are served first come first served.")
        engine = engine.model_copy(update={"schedule": "fcfs"})
    update = _left_behind(engine, _SGLANG_ALONE, notes)
    update |= {
        "name": "vllm",
        "eviction": "lru",
        "capacity_policy": "guaranteed_no_evict",
        "chunk_tokens": chunk_tokens,
        "page_tokens": page_tokens,
    }
    return EngineSpec.model_validate(engine.model_dump() | update), tuple(notes)
