"""One table per engine: command-line flag -> its value for a deployment.

Flags and their values were read in the engines' own sources: SGLang 0.5.9 and 0.5.23 ``server_args.py``, vLLM 0.19.1
and 0.33.0 ``arg_utils.py`` and ``config``, TensorRT-LLM 1.1 ``commands/serve.py``, sglang-router 0.3.2
``router_args.py``. What differs from release to release is named in ``releases``. TensorRT-LLM's settings without a
flag go into a file, see ``trtllm_options``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from hisearch.base.policies import PREFETCHES, QUEUE_ORDERS, WRITE_POLICIES, Registry
from hisearch.export.engines import agents, graphs, lora, speculation
from hisearch.export.engines.cache_tiers import (
    has_hicache_tree,
    hicache_gb_per_rank,
    is_moved_by,
    offloading_backend,
    offloading_gib,
    storage_backend,
    storage_settings,
    storage_tier,
    transfer_settings,
)
from hisearch.export.engines.launch import ExportError, Launch
from hisearch.export.engines.releases import SGLANG_EVICTIONS, exported_release, release_title, says
from hisearch.export.engines.vllm_cache import (
    hybrid_manager,
    longest_request_tokens,
    vllm_block_size,
    vllm_blocks,
    watermark,
)
from hisearch.export.engines.weights import HALF_OR_FULL, needs_checkpoint
from hisearch.latency.device_memory.compressed_pools import compressed_ratio
from hisearch.latency.device_memory.state_pools import divides_states
from hisearch.latency.knots import LAYOUTS
from hisearch.latency.workers.prompts import layout_of
from hisearch.specs.base import EngineName
from hisearch.specs.deployments.routing import RouterName, RouterSpec
from hisearch.specs.models.windows import keeps_window_pool
from hisearch.specs.versions import precedes

ROUTER_VERSION = "0.3.2"

#: A flag's value: True writes the flag alone, None and False leave it out; mappings are JSON, lists words.
Value = str | float | bool | dict[str, Any] | list[int] | None
Table = tuple[tuple[str, Callable[[Launch], Value]], ...]


def dtype(launch: Launch) -> str:
    """The compute format where weights are 16 or 32 bits wide; else "auto", from the checkpoint."""
    weight_dtype = launch.pool.weight_dtype or launch.model.weight_dtype
    return HALF_OR_FULL.get(weight_dtype, "auto")


def _window_ratio(launch: Launch) -> Value:
    """Where SGLang keeps windows apart; as simulated for DeepSeek-V4, whose default is another."""
    if not keeps_window_pool("sglang", launch.model):
        return None
    stated = launch.pool.engine.swa_full_tokens_ratio
    return stated if launch.model.compressed_attention is None else compressed_ratio(stated)


def _quantization(launch: Launch) -> Value:
    """fp8, by its name in the release, where the engine quantizes while loading; a checkpoint declares it itself."""
    weight_dtype = launch.pool.weight_dtype or launch.model.weight_dtype
    online = weight_dtype == "fp8" and launch.model.weight_dtype in HALF_OR_FULL and needs_checkpoint(launch) is None
    return ("fp8_per_tensor" if says(launch, "names_online_formats") else "fp8") if online else None


def _kv_dtype(engine: EngineName) -> Callable[[Launch], Value]:
    def value(launch: Launch) -> Value:
        kv_dtype = launch.pool.kv_dtype
        if kv_dtype == "fp8":
            # No e4m3 conversion in hardware where the accelerator does not compute in fp8.
            return "fp8_e4m3" if "fp8" in launch.accelerator.peak_flops else "fp8_e5m2"
        formats = {"bf16": "bf16" if engine == "sglang" else "auto", "fp16": "auto"}
        if engine == "sglang":
            formats["fp4"] = "fp4_mx_block16" if says(launch, "names_fp4_recipes") else "fp4_e2m1"
        if kv_dtype not in formats:
            raise ExportError(f"{release_title(launch)} has no KV cache format {kv_dtype}")
        return formats[kv_dtype]

    return value


def _beyond_one(degree: int) -> Value:
    """A degree of parallelism, left out where it is the engine's default of 1."""
    return degree if degree > 1 else None


def _grammar_backend(launch: Launch) -> Value:
    """What compiles grammars, where the deployment says that it serves structured output."""
    structured = launch.pool.structured_output
    return None if structured is None else structured.backend


def _shared_context_backend(launch: Launch) -> Value:
    """SGLang's attention where ranks share each sequence's KV: its default on Hopper, FlashAttention 3, cannot."""
    capability = launch.accelerator.compute_capability
    shares = launch.pool.decode_context_parallel > 1 and capability is not None and int(capability) == 9
    return "flashinfer" if shares else None


def _sends_tokens(launch: Launch) -> bool:
    """Whether tokens go to the ranks of their experts alone, and dense FFNs stay with each group."""
    return launch.pool.engine.experts.exchange == "all_to_all"


def _prompt_layout(launch: Launch) -> Value:
    """How SGLang's sets of ranks share prompts; None where none do."""
    layout = LAYOUTS[layout_of("sglang", launch.model)]
    return layout if launch.pool.prefill_context_parallel > 1 else None


def _of_all_groups(launch: Launch, limit: int) -> int:
    """A per-attention-group limit for SGLang, which divides its value by ``--dp-size``."""
    return limit * launch.pool.attention_data_parallel


def _attention_groups(launch: Launch, *, is_named: bool) -> Value:
    """SGLang's attention groups; None where the release counts them by another flag. is_named: by one of their own."""
    if says(launch, "has_attention_groups") is not is_named:
        return None
    return _beyond_one(launch.pool.attention_data_parallel)


def _of_adapters(value_of: Callable[[Any, Any], Value]) -> Callable[[Launch], Value]:
    """A value of the section agents; None without adapters."""
    return lambda c: (
        value_of(c.pool.agents, c.pool.agents.adapters) if c.pool.agents and c.pool.agents.adapters else None
    )


def _vllm_copies(launch: Launch) -> Value:
    """VLLM's settings of redundant experts."""
    redundant = launch.pool.engine.experts.redundant
    return {"num_redundant_experts": redundant} if redundant else None


def _radix_eviction(launch: Launch) -> Value:
    eviction, release = launch.pool.engine.eviction, exported_release(launch.pool.engine)
    known = [name for name, since in SGLANG_EVICTIONS.items() if not precedes(release, since)]
    if launch.pool.engine.prefix_caching and eviction not in known:
        raise ExportError(
            f"the command line of sglang {release} has no --radix-eviction-policy {eviction}; "
            f"it takes {', '.join(known[:-1])} or {known[-1]}"
        )
    return eviction if launch.pool.engine.prefix_caching else None


def _schedule_policy(launch: Launch) -> str:
    """Schedule priority is fcfs by priority, which is a switch."""
    name = launch.pool.engine.schedule
    if name == "priority":
        return "fcfs"
    return _policy_flag(launch, QUEUE_ORDERS.subset(lambda order: "sglang" in order.engines), name, "--schedule-policy")


def _scheduling_policy(launch: Launch) -> Value:
    orders = QUEUE_ORDERS.subset(lambda order: "vllm" in order.engines)
    flag = _policy_flag(launch, orders, launch.pool.engine.schedule, "--scheduling-policy")
    return flag if flag != "fcfs" else None


def _policy_flag(launch: Launch, policies: Registry[Any], name: str, flag: str) -> str:
    """The engine's own name of a policy; refused where it has none."""
    value: str = policies[name].flag
    if not value:
        known = " or ".join(policy.flag for policy in policies.values() if policy.flag)
        raise ExportError(f"{release_title(launch)} has no {flag} {name}, which is simulated alone; it takes {known}")
    return value


def _write_policy(launch: Launch) -> Value:
    if not has_hicache_tree(launch.pool):
        return None
    return _policy_flag(launch, WRITE_POLICIES, launch.pool.movement.write_policy, "--hicache-write-policy")


def _prefetch_policy(launch: Launch) -> Value:
    if not storage_tier(launch.pool):
        return None
    return _policy_flag(launch, PREFETCHES, launch.pool.movement.prefetch, "--hicache-storage-prefetch-policy")


def _sglang_fusion(launch: Launch) -> Value:
    """All-reduce fusion by FlashInfer, where stated."""
    fused = launch.pool.engine.fused_all_reduce
    return "auto" if fused and says(launch, "names_fusion_backend") else None


def _sglang_lmcache(launch: Launch) -> Value:
    if is_moved_by(launch.pool, "lmcache") and says(launch, "lmcache_is_a_server"):
        raise ExportError(
            f"{release_title(launch)} has LMCache as a server, for which nothing is written here; set engine.version "
            "to one before 0.5.21, or movement.kv_connector: hicache"
        )
    return is_moved_by(launch.pool, "lmcache")


def _by_priority(launch: Launch) -> bool:
    return launch.pool.engine.by_priority


SGLANG: Table = (
    ("--tp-size", lambda c: c.pool.parallelism.stage_ranks),
    ("--pp-size", lambda c: _beyond_one(c.pool.pipeline_parallel)),
    ("--dp-size", lambda c: _attention_groups(c, is_named=False)),
    ("--enable-dp-attention", lambda c: bool(_attention_groups(c, is_named=False))),
    ("--attn-dp-size", lambda c: _attention_groups(c, is_named=True)),
    ("--ep-size", lambda c: _beyond_one(c.pool.expert_parallel)),
    ("--attn-cp-size", lambda c: _beyond_one(c.pool.prefill_context_parallel)),
    ("--enable-prefill-cp", lambda c: c.pool.prefill_context_parallel > 1),
    ("--cp-strategy", _prompt_layout),
    ("--dcp-size", lambda c: _beyond_one(c.pool.decode_context_parallel)),
    ("--dcp-comm-backend", lambda c: "a2a" if c.pool.decode_context_parallel > 1 else None),
    ("--attention-backend", _shared_context_backend),
    ("--moe-a2a-backend", lambda c: "deepep" if _sends_tokens(c) else None),
    ("--moe-dense-tp-size", lambda c: 1 if _sends_tokens(c) else None),
    ("--enable-two-batch-overlap", lambda c: c.pool.engine.experts.two_batch_overlap),
    ("--ep-num-redundant-experts", lambda c: c.pool.engine.experts.redundant or None),
    ("--dtype", dtype),
    ("--quantization", _quantization),
    ("--kv-cache-dtype", _kv_dtype("sglang")),
    ("--mem-fraction-static", lambda c: c.pool.engine.memory_fraction),
    # Of a rank, where ranks share each sequence's KV.
    ("--max-total-tokens", lambda c: c.kv_capacity_tokens // c.pool.decode_context_parallel),
    ("--page-size", lambda c: c.pool.engine.page_size),
    (
        "--chunked-prefill-size",
        lambda c: _of_all_groups(c, c.pool.engine.chunk_tokens) if c.pool.engine.chunked_prefill else "-1",
    ),
    ("--enable-mixed-chunk", lambda c: c.pool.engine.mixed_chunk),
    ("--max-prefill-tokens", lambda c: c.pool.engine.max_prefill_tokens),
    (
        "--enable-flashinfer-allreduce-fusion",
        lambda c: c.pool.engine.fused_all_reduce is True and not _sglang_fusion(c),
    ),
    ("--flashinfer-allreduce-fusion-backend", _sglang_fusion),
    ("--scheduler-recv-interval", lambda c: _beyond_one(c.pool.engine.receive_interval)),
    ("--stream-interval", lambda c: _beyond_one(c.pool.engine.stream_interval)),
    ("--tokenizer-worker-num", lambda c: c.pool.engine.api_servers),
    ("--max-running-requests", lambda c: _of_all_groups(c, c.pool.engine.max_running_requests)),
    ("--schedule-policy", _schedule_policy),
    ("--enable-priority-scheduling", _by_priority),
    ("--schedule-low-priority-values-first", lambda c: _by_priority(c) and not c.pool.engine.high_priority_first),
    (
        "--priority-scheduling-preemption-threshold",
        lambda c: c.pool.engine.preemption_threshold if _by_priority(c) else None,
    ),
    ("--prefill-max-requests", lambda c: c.pool.engine.prefill_max_requests),
    ("--disable-overlap-schedule", lambda c: not c.pool.engine.overlap),
    *graphs.SGLANG_TABLE,
    ("--schedule-conservativeness", lambda c: c.pool.engine.schedule_conservativeness),
    ("--swa-full-tokens-ratio", _window_ratio),
    (
        "--mamba-full-memory-ratio",
        lambda c: c.pool.engine.mamba_full_memory_ratio if divides_states(c.pool.engine, c.model) else None,
    ),
    ("--radix-eviction-policy", _radix_eviction),
    ("--disable-radix-cache", lambda c: not c.pool.engine.prefix_caching),
    *speculation.SGLANG_TABLE,
    *((flag, _of_adapters(value_of)) for flag, value_of in agents.TABLES["sglang"]),
    *lora.SGLANG_TABLE,
    ("--grammar-backend", _grammar_backend),
    ("--enable-hierarchical-cache", lambda c: has_hicache_tree(c.pool)),
    ("--hicache-size", lambda c: hicache_gb_per_rank(c.pool) if is_moved_by(c.pool, "hicache") else None),
    ("--hicache-write-policy", _write_policy),
    ("--hicache-storage-backend", lambda c: storage_backend(c.pool)),
    ("--hicache-storage-prefetch-policy", _prefetch_policy),
    ("--hicache-storage-backend-extra-config", lambda c: storage_settings(c.pool)),
    ("--enable-lmcache", _sglang_lmcache),
)

VLLM: Table = (
    ("--tensor-parallel-size", lambda c: c.pool.tensor_parallel),
    ("--pipeline-parallel-size", lambda c: _beyond_one(c.pool.pipeline_parallel)),
    ("--data-parallel-size", lambda c: _beyond_one(c.pool.attention_data_parallel)),
    ("--prefill-context-parallel-size", lambda c: _beyond_one(c.pool.prefill_context_parallel)),
    ("--decode-context-parallel-size", lambda c: _beyond_one(c.pool.decode_context_parallel)),
    ("--dcp-comm-backend", lambda c: "ag_rs" if c.pool.decode_context_parallel > 1 else None),
    ("--enable-expert-parallel", lambda c: c.pool.expert_parallel > 1),
    ("--enable-eplb", lambda c: c.pool.engine.experts.redundant > 0),
    ("--eplb-config", _vllm_copies),
    ("--dtype", dtype),
    ("--quantization", _quantization),
    ("--kv-cache-dtype", _kv_dtype("vllm")),
    ("--gpu-memory-utilization", lambda c: c.pool.engine.memory_fraction),
    ("--block-size", vllm_block_size),
    ("--num-gpu-blocks-override", vllm_blocks),
    ("--max-model-len", longest_request_tokens),
    ("--max-num-batched-tokens", lambda c: c.pool.engine.chunk_tokens),
    ("--max-num-seqs", lambda c: c.pool.engine.max_running_requests),
    ("--stream-interval", lambda c: _beyond_one(c.pool.engine.stream_interval)),
    ("--api-server-count", lambda c: c.pool.engine.api_servers),
    ("--scheduling-policy", _scheduling_policy),
    ("--async-scheduling", lambda c: c.pool.engine.overlap),
    ("--no-async-scheduling", lambda c: not c.pool.engine.overlap),
    (
        "--no-enable-chunked-prefill",
        lambda c: not c.pool.engine.chunked_prefill and not says(c, "has_opposites"),
    ),
    ("--disable-chunked-prefill", lambda c: not c.pool.engine.chunked_prefill and says(c, "has_opposites")),
    ("--long-prefill-token-threshold", lambda c: c.pool.engine.long_prefill_tokens or None),
    ("--long-prefill-token-threshold-adaptive", lambda c: c.pool.engine.long_prefill_adaptive),
    ("--no-scheduler-reserve-full-isl", lambda c: not c.pool.engine.reserve_full_prompt),
    ("--enable-prefix-caching", lambda c: c.pool.engine.prefix_caching),
    ("--no-enable-prefix-caching", lambda c: not c.pool.engine.prefix_caching and not says(c, "has_opposites")),
    ("--disable-prefix-caching", lambda c: not c.pool.engine.prefix_caching and says(c, "has_opposites")),
    ("--watermark", watermark),
    ("--enforce-eager", lambda c: c.pool.engine.enforce_eager),
    ("--compilation-config", graphs.vllm_compilation),
    ("--speculative-config", speculation.vllm_speculation),
    *((flag, _of_adapters(value_of)) for flag, value_of in agents.TABLES["vllm"]),
    *lora.VLLM_TABLE,
    ("--structured-outputs-config", lambda c: {"backend": of} if (of := _grammar_backend(c)) else None),
    ("--kv-offloading-backend", lambda c: offloading_backend(c.pool)),
    ("--kv-offloading-size", lambda c: offloading_gib(c.pool)),
    ("--kv-transfer-config", lambda c: transfer_settings(c.pool)),
    ("--disable-hybrid-kv-cache-manager", lambda c: hybrid_manager(c) is False),
    ("--no-disable-hybrid-kv-cache-manager", lambda c: hybrid_manager(c) is True),
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
    """Flags of one replica of ``launch.pool``, as (flag,) or (flag, value, …), unquoted.

    Raises:
        ExportError: the engine lacks a setting of the deployment.
    """
    flags: list[tuple[str, ...]] = []
    for flag, value_of in TABLES[launch.pool.engine.name]:
        value = value_of(launch)
        if value is True:
            flags.append((flag,))
        elif isinstance(value, dict):
            flags.append((flag, json.dumps(value)))
        elif isinstance(value, list):
            flags.append((flag, *map(str, value)))
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
    if router.version != ROUTER_VERSION:
        raise ExportError(f"sglang-router {ROUTER_VERSION} is exported, not {router.version}; leave router.version out")
    flags: list[tuple[str, ...]] = [("--policy", router.policy)]
    if router.policy == "cache_aware":
        flags += [
            ("--cache-threshold", f"{router.cache_threshold:g}"),
            ("--balance-abs-threshold", str(router.balance_abs_threshold)),
            ("--balance-rel-threshold", f"{router.balance_rel_threshold:g}"),
        ]
        trimming = f"{max(round(router.eviction_interval_s), 1)}" if router.max_tree_characters is not None else "0"
        flags.append(("--eviction-interval-secs", trimming))
        if router.max_tree_characters is not None:
            flags.append(("--max-tree-size", str(router.max_tree_characters)))
    return flags
