"""vLLM's server.

``/metrics`` (v1/metrics/loggers.py, 0.19.1 and 0.32.0), ``/version``, ``/v1/models``, and ``/server_info`` where the
server runs with ``VLLM_SERVER_DEV_MODE=1`` (entrypoints/serve/instrumentator). Without the latter, what
``vllm:cache_config_info`` does not have comes from launch arguments.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hisearch.base.policies import ServerPolicy
from hisearch.observe.lora import lora_of
from hisearch.observe.prometheus import parse_metrics
from hisearch.observe.reading import (
    Answer,
    Answers,
    Facts,
    Moment,
    Value,
    first_text,
    histograms_of,
    kv_dtype_of,
    present,
    settings_of,
)
from hisearch.observe.vllm_drafts import drafts_of

SERVER = ServerPolicy(
    "vLLM's /metrics, /version, /v1/models; all settings in developer mode.",
    settings=("/version", "/v1/models", "/server_info?config_format=json"),
    figures=("/metrics",),
)
INFO = "/server_info?config_format=json"

#: Arguments, and fields of the configuration that are called alike -> key of a pool.
TABLE = {
    "max_num_batched_tokens": "engine.chunk_tokens",
    "max_num_seqs": "engine.max_running_requests",
    "block_size": "engine.page_tokens",
    "gpu_memory_utilization": "engine.memory_fraction",
    "enable_prefix_caching": "engine.prefix_caching",
    "disable_prefix_caching": "!engine.prefix_caching",
    "enable_chunked_prefill": "engine.chunked_prefill",
    "disable_chunked_prefill": "!engine.chunked_prefill",
    "async_scheduling": "engine.overlap",
    "policy": "engine.schedule",
    "scheduling_policy": "engine.schedule",
    "long_prefill_token_threshold": "engine.long_prefill_tokens",
    "long_prefill_token_threshold_adaptive": "engine.long_prefill_adaptive",
    "scheduler_reserve_full_isl": "engine.reserve_full_prompt",
    "watermark": "engine.watermark",
    "stream_interval": "engine.stream_interval",
    "api_server_count": "engine.api_servers",
    "_api_process_count": "engine.api_servers",
    "enforce_eager": "engine.enforce_eager",
    "tensor_parallel_size": "tensor_parallel",
    "pipeline_parallel_size": "pipeline_parallel",
    "data_parallel_size": "attention_data_parallel",
    "decode_context_parallel_size": "decode_context_parallel",
    "prefill_context_parallel_size": "prefill_context_parallel",
    "cache_dtype": "kv_dtype",
    "kv_cache_dtype": "kv_dtype",
}
_SECTIONS = ("model_config", "cache_config", "scheduler_config", "parallel_config")


def recognises(metrics: Answer) -> bool:
    """By the prefix of its metrics."""
    return metrics.is_good and "\nvllm:" in f"\n{metrics.text}"


def facts(answers: Answers, arguments: Mapping[str, Value]) -> Facts:
    """Settings: of ``/server_info``, else of ``vllm:cache_config_info`` and of launch arguments."""
    metrics = parse_metrics(answers["/metrics"].text)
    labels = dict(metrics.info("vllm:cache_config_info"))
    stated: dict[str, Any] = answers[INFO].json() or {}
    config = stated.get("vllm_config")
    config = config if isinstance(config, dict) else {}
    merged: dict[str, Any] = dict(arguments)
    for section in (labels, *(config.get(name) or {} for name in _SECTIONS)):
        merged |= {name: value for name, value in section.items() if value not in (None, "None")}
    settings = settings_of(merged, TABLE)
    settings["kv_dtype"] = kv_dtype_of(str(settings.get("kv_dtype", "auto")))
    widths = ("tensor_parallel", "attention_data_parallel", "prefill_context_parallel")
    ranks = math.prod(int(settings.get(width, 1)) for width in widths)
    if merged.get("enable_expert_parallel") in (True, "True"):
        settings["expert_parallel"] = ranks
    model_config = config.get("model_config") or {}
    context = int(settings.get("decode_context_parallel", 1))
    models = (answers["/v1/models"].json() or {}).get("data") or [{}]
    version = (answers["/version"].json() or {}).get("version", "")
    blocks, block = merged.get("num_gpu_blocks"), merged.get("block_size")
    drafts, caveat = drafts_of(config.get("speculative_config") or arguments.get("speculative_config"), metrics)
    notes = () if config else (
        "The server does not tell its settings: it does with VLLM_SERVER_DEV_MODE=1, or name a file of its launch "
        "arguments.",
    )  # fmt: skip
    return Facts(
        engine="vllm",
        version=str(version),
        model=first_text((model_config.get("model"), models[0].get("root"), models[0].get("id"))),
        settings=settings,
        # With the null block, as the engine counts its "GPU KV cache size" and a simulation its capacity.
        kv_tokens=int(blocks) * int(block) * context if blocks is not None and block is not None else None,
        gpu=first_text(((stated.get("system_env") or {}).get("nvidia_gpu_models"),)),
        max_context_tokens=models[0].get("max_model_len"),
        speculation=drafts,
        lora=lora_of("vllm", config.get("lora_config") or arguments),
        notes=(*(notes if not arguments else ()), *([caveat] if caveat else [])),
    )


def moment(answers: Answers, at_s: float) -> Moment:
    """Figures of ``/metrics``, over all engines of the server."""
    metrics = parse_metrics(answers["/metrics"].text)
    total, histogram = metrics.total, metrics.histogram
    usage = metrics.values("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
    failed = [metrics.total("vllm:request_success", finished_reason=reason) or 0.0 for reason in ("abort", "error")]
    ended = total("vllm:request_success")
    steps = histogram("vllm:iteration_tokens_total")
    counters = {
        "prompt_tokens": total("vllm:prompt_tokens"),
        "output_tokens": total("vllm:generation_tokens"),
        "requests": None if ended is None else ended - sum(failed),
        "failed": None if ended is None else sum(failed),
        "queried_tokens": total("vllm:prefix_cache_queries", "vllm:gpu_prefix_cache_queries"),
        "hit_tokens": total("vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits"),
        "preemptions": total("vllm:num_preemptions"),
        "steps": None if steps is None else steps.count,
    }
    gauges = {
        "running": total("vllm:num_requests_running"),
        "waiting": total("vllm:num_requests_waiting"),
        "kv_usage": max(usage) if usage else None,
    }
    histograms = {
        "input_tokens": histogram("vllm:request_prompt_tokens"),
        "output_tokens": histogram("vllm:request_generation_tokens"),
        "ttft_s": histogram("vllm:time_to_first_token_seconds"),
        "itl_s": histogram("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
        "tpot_s": histogram("vllm:request_time_per_output_token_seconds"),
        "e2e_s": histogram("vllm:e2e_request_latency_seconds"),
        "queue_s": histogram("vllm:request_queue_time_seconds"),
        "prefill_s": histogram("vllm:request_prefill_time_seconds"),
        "decode_s": histogram("vllm:request_decode_time_seconds"),
        "step_tokens": steps,
    }
    return Moment(at_s, present(counters), present(gauges), histograms_of(histograms))
