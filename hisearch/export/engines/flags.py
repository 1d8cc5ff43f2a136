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
from hisearch.specs.base import ENGINE_TITLES, EngineName
from hisearch.specs.deployments.deployment import PoolSpec
from hisearch.specs.deployments.engine_rules import rules_in_force, rules_version
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


#: A flag's value: True writes the flag alone, None and False leave it out, a mapping is written as JSON.
Value = str | float | bool | dict[str, Any] | None
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


def release_notice(launches: Iterable[Launch]) -> str:
    """A notice where the simulated rules are of another release than the flags; "" where they are not."""
    for launch in launches:
        engine = launch.pool.engine
        exported, simulated = ENGINE_VERSIONS[engine.name], rules_version(engine.name, engine.version)
        if simulated and rules_in_force(engine.name, simulated) != rules_in_force(engine.name, exported):
            title = ENGINE_TITLES[engine.name]
            return (
                f"These files run {title} {exported}; its decisions were simulated by the rules of {simulated}. Set "
                f"engine.version: {exported} to simulate what they run."
            )
    return ""


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
    return degree if degree > 1 else None


def _of_all_groups(launch: Launch, limit: int) -> int:
    """A per-attention-group limit for SGLang, which divides its value by ``--dp-size``."""
    return limit * launch.pool.attention_data_parallel


def _of_adapters(value_of: Callable[[Any, Any], Value]) -> Callable[[Launch], Value]:
    """A value of the section agents; None without adapters."""
    return lambda c: (
        value_of(c.pool.agents, c.pool.agents.adapters) if c.pool.agents and c.pool.agents.adapters else None
    )


def _vllm_copies(launch: Launch) -> Value:
    """VLLM's settings of redundant experts."""
    redundant = launch.pool.engine.experts.redundant
    return {"num_redundant_experts": redundant} if redundant else None


def _vllm_passes(launch: Launch) -> Value:
    """VLLM's compiler passes where stated."""
    fused = launch.pool.engine.fused_all_reduce
    return None if fused is None else {"pass_config": {"fuse_allreduce_rms": fused}}


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


def vllm_blocks(launch: Launch) -> int | None:
    """Number of simulated blocks, including the one that vLLM reserves.

    None for a model with linear attention or a sliding window: vLLM's blocks then do not cover all layers.
    """
    model = launch.model
    if model.linear_attention is not None or model.sliding_window_tokens:
        return None
    return launch.kv_capacity_tokens // launch.pool.engine.page_size


def _by_priority(launch: Launch) -> bool:
    return launch.pool.engine.schedule == "priority"


SGLANG: Table = (
    ("--tp-size", lambda c: c.pool.parallelism.stage_ranks),
    ("--pp-size", lambda c: _beyond_one(c.pool.pipeline_parallel)),
    ("--dp-size", lambda c: _beyond_one(c.pool.attention_data_parallel)),
    ("--enable-dp-attention", lambda c: c.pool.attention_data_parallel > 1),
    ("--ep-size", lambda c: _beyond_one(c.pool.expert_parallel)),
    ("--ep-num-redundant-experts", lambda c: c.pool.engine.experts.redundant or None),
    ("--dtype", dtype),
    ("--quantization", _quantization),
    ("--kv-cache-dtype", _kv_dtype("sglang")),
    ("--mem-fraction-static", lambda c: c.pool.engine.memory_fraction),
    ("--max-total-tokens", lambda c: c.kv_capacity_tokens),
    ("--page-size", lambda c: c.pool.engine.page_size),
    (
        "--chunked-prefill-size",
        lambda c: _of_all_groups(c, c.pool.engine.chunk_tokens) if c.pool.engine.chunked_prefill else "-1",
    ),
    ("--enable-mixed-chunk", lambda c: c.pool.engine.mixed_chunk),
    ("--max-prefill-tokens", lambda c: c.pool.engine.max_prefill_tokens),
    ("--enable-flashinfer-allreduce-fusion", lambda c: c.pool.engine.fused_all_reduce or None),
    ("--scheduler-recv-interval", lambda c: _beyond_one(c.pool.engine.receive_interval)),
    ("--max-running-requests", lambda c: _of_all_groups(c, c.pool.engine.max_running_requests)),
    ("--schedule-policy", _schedule_policy),
    ("--enable-priority-scheduling", _by_priority),
    ("--schedule-low-priority-values-first", _by_priority),
    ("--disable-overlap-schedule", lambda c: not c.pool.engine.overlap),
    ("--schedule-conservativeness", lambda c: c.pool.engine.schedule_conservativeness),
    ("--radix-eviction-policy", _radix_eviction),
    ("--disable-radix-cache", lambda c: not c.pool.engine.prefix_caching),
    *((flag, _of_adapters(value_of)) for flag, value_of in agents.TABLES["sglang"]),
    ("--enable-hierarchical-cache", lambda c: has_hicache_tree(c.pool)),
    ("--hicache-size", lambda c: hicache_gb_per_rank(c.pool) if is_moved_by(c.pool, "hicache") else None),
    ("--hicache-write-policy", lambda c: c.pool.movement.write_policy if has_hicache_tree(c.pool) else None),
    ("--hicache-storage-backend", lambda c: storage_backend(c.pool)),
    ("--hicache-storage-prefetch-policy", lambda c: c.pool.movement.prefetch if storage_tier(c.pool) else None),
    ("--hicache-storage-backend-extra-config", lambda c: storage_settings(c.pool)),
    ("--enable-lmcache", lambda c: is_moved_by(c.pool, "lmcache")),
)

VLLM: Table = (
    ("--tensor-parallel-size", lambda c: c.pool.tensor_parallel),
    ("--pipeline-parallel-size", lambda c: _beyond_one(c.pool.pipeline_parallel)),
    ("--data-parallel-size", lambda c: _beyond_one(c.pool.attention_data_parallel)),
    ("--enable-expert-parallel", lambda c: c.pool.expert_parallel > 1),
    ("--enable-eplb", lambda c: c.pool.engine.experts.redundant > 0),
    ("--eplb-config", _vllm_copies),
    ("--dtype", dtype),
    ("--quantization", _quantization),
    ("--kv-cache-dtype", _kv_dtype("vllm")),
    ("--gpu-memory-utilization", lambda c: c.pool.engine.memory_fraction),
    ("--block-size", lambda c: c.pool.engine.page_size),
    ("--num-gpu-blocks-override", vllm_blocks),
    ("--max-model-len", lambda c: min(c.model.max_context_tokens, c.kv_capacity_tokens - c.pool.engine.page_size)),
    ("--max-num-batched-tokens", lambda c: c.pool.engine.chunk_tokens),
    ("--max-num-seqs", lambda c: c.pool.engine.max_running_requests),
    ("--scheduling-policy", lambda c: "priority" if _by_priority(c) else None),
    ("--async-scheduling", lambda c: c.pool.engine.overlap),
    ("--no-async-scheduling", lambda c: not c.pool.engine.overlap),
    ("--no-enable-chunked-prefill", lambda c: not c.pool.engine.chunked_prefill),
    ("--long-prefill-token-threshold", lambda c: c.pool.engine.long_prefill_tokens or None),
    ("--no-scheduler-reserve-full-isl", lambda c: not c.pool.engine.reserve_full_prompt),
    ("--enable-prefix-caching", lambda c: c.pool.engine.prefix_caching),
    ("--no-enable-prefix-caching", lambda c: not c.pool.engine.prefix_caching),
    ("--compilation-config", _vllm_passes),
    *((flag, _of_adapters(value_of)) for flag, value_of in agents.TABLES["vllm"]),
    ("--kv-offloading-backend", lambda c: offloading_backend(c.pool)),
    ("--kv-offloading-size", lambda c: offloading_gib(c.pool)),
    ("--kv-transfer-config", lambda c: offloading_settings(c.pool)),
)

TRTLLM: Table = (
    ("--backend", lambda c: "pytorch"),
    ("--tp_size", lambda c: c.pool.parallelism.stage_ranks),
    ("--pp_size", lambda c: _beyond_one(c.pool.pipeline_parallel)),
    ("--ep_size", lambda c: _beyond_one(c.pool.expert_parallel)),
    ("--max_batch_size", lambda c: c.pool.engine.max_running_requests),
    ("--max_num_tokens", lambda c: c.pool.engine.chunk_tokens),
    ("--max_seq_len", lambda c: min(c.model.max_context_tokens, c.kv_capacity_tokens)),
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
        elif isinstance(value, dict):
            flags.append((flag, json.dumps(value)))
        elif value is not None and value is not False:
            flags.append((flag, f"{value:g}" if isinstance(value, float) else str(value)))
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
