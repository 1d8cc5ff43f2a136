"""Options of ``trtllm-serve`` that have no flag, written to a file.

Names and values are those of ``TorchLlmArgs``, ``KvCacheConfig``, ``SchedulerConfig`` and ``AttentionDpConfig`` in
TensorRT-LLM's ``llmapi/llm_args.py`` (1.1); the file is passed as ``--extra_llm_api_options``, before the flags.
"""

from __future__ import annotations

from typing import Any

from hisearch.export.engines.cache_tiers import has_tiers
from hisearch.export.engines.flags import dtype
from hisearch.export.engines.launch import Launch
from hisearch.export.engines.speculation import trtllm_speculation

_BYTES_PER_GIB = 2**30


def llm_api_options(launch: Launch) -> dict[str, Any]:
    """Options of one replica.

    Only full blocks are reused, as simulated. The host tier's bytes are per rank, as each rank has its own cache.
    """
    pool, engine = launch.pool, launch.pool.engine
    cache: dict[str, Any] = {
        "free_gpu_memory_fraction": engine.memory_fraction,
        "max_tokens": launch.kv_capacity_tokens,
        "enable_block_reuse": engine.prefix_caching,
        "enable_partial_reuse": False,
        "tokens_per_block": engine.page_size,
        "dtype": "fp8" if pool.kv_dtype == "fp8" else "auto",
    }
    if has_tiers(pool):
        cache["host_cache_size"] = int(pool.tiers[0].gib * _BYTES_PER_GIB / pool.tensor_parallel)
    options: dict[str, Any] = {
        "dtype": dtype(launch),
        "enable_chunked_prefill": engine.chunked_prefill,
        "disable_overlap_scheduler": not engine.overlap,
        "scheduler_config": {
            "capacity_scheduler_policy": engine.capacity_policy.upper(),
            "context_chunking_policy": engine.chunking_policy.upper(),
            **({"waiting_queue_policy": "priority"} if engine.schedule == "priority" else {}),
        },
        "kv_cache_config": cache,
    }
    drafts = trtllm_speculation(launch)
    if drafts is not None:
        options["speculative_config"] = drafts
    if engine.batch_wait_timeout_ms:
        options["batch_wait_timeout_ms"] = engine.batch_wait_timeout_ms
    if engine.batch_wait_timeout_iters or engine.batch_wait_max_tokens_ratio:
        options["batch_wait_timeout_iters"] = engine.batch_wait_timeout_iters
        options["batch_wait_max_tokens_ratio"] = engine.batch_wait_max_tokens_ratio
    if engine.stream_interval > 1:
        options["stream_interval"] = engine.stream_interval
    if engine.api_servers is not None:
        options["num_postprocess_workers"] = engine.api_servers
    if engine.enforce_eager:
        options["cuda_graph_config"] = None
    elif engine.cudagraph_capture_sizes is not None:
        options["cuda_graph_config"] = {"batch_sizes": engine.cudagraph_capture_sizes}
    elif engine.max_cudagraph_capture_size is not None:
        options["cuda_graph_config"] = {"max_batch_size": engine.max_cudagraph_capture_size}
    if engine.cudagraph_mode == "full_and_piecewise":
        options["torch_compile_config"] = {"enable_piecewise_cuda_graph": True}
    if pool.attention_data_parallel > 1:
        options["enable_attention_dp"] = True
    if pool.attention_data_parallel > 1 and engine.attention_dp_balance:
        options["attention_dp_config"] = {
            "enable_balance": True,
            "timeout_iters": engine.attention_dp_timeout_iters,
            "batching_wait_iters": engine.attention_dp_batching_wait_iters,
        }
    return options
