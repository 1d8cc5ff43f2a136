"""SGLang's server.

``/server_info`` (formerly ``/get_server_info``): its arguments as resolved, the scheduler's facts and ``version``
(srt/entrypoints/http_server.py, 0.5.9 and 0.5.23). ``/metrics`` where it was started with ``--enable-metrics``
(srt/metrics/collector.py, srt/observability/metrics_collector.py). Gauges of the ranks of one scheduler repeat each
other: the largest counts, summed over attention groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hisearch.base.policies import ServerPolicy
from hisearch.observe.lora import lora_of
from hisearch.observe.prometheus import Metrics, parse_metrics
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
from hisearch.observe.sglang_drafts import drafts_of

SERVER = ServerPolicy(
    "SGLang's /server_info or /get_server_info, and /metrics.",
    settings=("/server_info", "/get_server_info"),
    figures=("/metrics",),
    needs="start it with --enable-metrics",
)

#: Arguments, which ``/server_info`` calls alike -> key of a pool.
TABLE = {
    "chunked_prefill_size": "engine.chunk_tokens",
    "max_running_requests": "engine.max_running_requests",
    "page_size": "engine.page_tokens",
    "mem_fraction_static": "engine.memory_fraction",
    "disable_radix_cache": "!engine.prefix_caching",
    "disable_overlap_schedule": "!engine.overlap",
    "disable_cuda_graph": "engine.enforce_eager",
    "max_prefill_tokens": "engine.max_prefill_tokens",
    "schedule_policy": "engine.schedule",
    "schedule_conservativeness": "engine.schedule_conservativeness",
    "swa_full_tokens_ratio": "engine.swa_full_tokens_ratio",
    "mamba_full_memory_ratio": "engine.mamba_full_memory_ratio",
    "radix_eviction_policy": "engine.eviction",
    "enable_mixed_chunk": "engine.mixed_chunk",
    "enable_priority_scheduling": "engine.priority_scheduling",
    "scheduler_recv_interval": "engine.receive_interval",
    "stream_interval": "engine.stream_interval",
    "tokenizer_worker_num": "engine.api_servers",
    "prefill_max_requests": "engine.prefill_max_requests",
    "tp_size": "tensor_parallel",
    "tensor_parallel_size": "tensor_parallel",
    "pp_size": "pipeline_parallel",
    "ep_size": "expert_parallel",
    "dcp_size": "decode_context_parallel",
    "decode_context_parallel_size": "decode_context_parallel",
    "kv_cache_dtype": "kv_dtype",
}


def recognises(metrics: Answer) -> bool:
    """By the prefix of its metrics."""
    return metrics.is_good and "\nsglang:" in f"\n{metrics.text}"


def facts(answers: Answers, arguments: Mapping[str, Value]) -> Facts:
    """Settings as the server resolved them."""
    info = answers["/server_info"].json() or answers["/get_server_info"].json()
    stated: dict[str, Any] = info if isinstance(info, dict) else {}
    merged = dict(arguments) | {name: value for name, value in stated.items() if value is not None}
    settings = settings_of(merged, TABLE)
    settings["kv_dtype"] = kv_dtype_of(str(settings.get("kv_dtype", "auto")))
    groups = int(merged.get("attn_dp_size") or (merged.get("dp_size") if merged.get("enable_dp_attention") else 1) or 1)
    prompts = int(merged.get("attn_cp_size") or 1)
    if groups * prompts > 1:
        # ``--tp-size`` counts the ranks of all groups, and of all sets that share prompts.
        settings["tensor_parallel"] = int(settings.get("tensor_parallel", 1)) // (groups * prompts)
        settings |= {"prefill_context_parallel": prompts} if prompts > 1 else {}
    if groups > 1:
        # Limits are of all groups too.
        settings["attention_data_parallel"] = groups
        for key in ("engine.chunk_tokens", "engine.max_running_requests"):
            if key in settings:
                settings[key] = int(settings[key]) // groups
    if merged.get("moe_a2a_backend") == "deepep":
        settings["engine.experts.exchange"] = "all_to_all"
        if merged.get("enable_two_batch_overlap") in (True, "True"):
            settings["engine.experts.two_batch_overlap"] = True
    if int(settings.get("engine.chunk_tokens", 1)) < 1:
        settings |= {"engine.chunked_prefill": False}
        del settings["engine.chunk_tokens"]
    states = merged.get("internal_states")
    state = states[0] if isinstance(states, list) and states and isinstance(states[0], dict) else {}
    limit = state.get("effective_max_running_requests_per_dp")
    if "engine.max_running_requests" not in settings and isinstance(limit, int):
        settings["engine.max_running_requests"] = limit
    tokens = merged.get("max_total_num_tokens")
    drafts, caveat = drafts_of(merged, parse_metrics(answers["/metrics"].text))
    silent = () if stated else ("The server does not tell its settings: expected an answer of /server_info.",)
    return Facts(
        engine="sglang",
        version=str(merged.get("version", "")),
        model=first_text((merged.get("model_path"), merged.get("served_model_name"))),
        settings=settings,
        kv_tokens=int(tokens) if isinstance(tokens, int | float) else None,
        max_context_tokens=merged.get("context_length"),
        speculation=drafts,
        lora=lora_of("sglang", merged),
        notes=(*silent, *([caveat] if caveat else [])),
    )


def moment(answers: Answers, at_s: float) -> Moment:
    """Figures of ``/metrics``."""
    metrics = parse_metrics(answers["/metrics"].text)
    total, histogram = metrics.total, metrics.histogram
    usage = metrics.values("sglang:token_usage")
    ended, aborted = total("sglang:num_requests"), total("sglang:num_aborted_requests")
    counters = {
        "prompt_tokens": total("sglang:prompt_tokens"),
        "output_tokens": total("sglang:generation_tokens"),
        "requests": None if ended is None else ended - (aborted or 0.0),
        "failed": aborted if aborted is not None else (None if ended is None else 0.0),
        "queried_tokens": total("sglang:prompt_tokens"),
        "hit_tokens": total("sglang:cached_tokens"),
        "preemptions": _of_schedulers(metrics, "sglang:num_retracted_requests_total"),
    }
    gauges = {
        "running": _of_schedulers(metrics, "sglang:num_running_reqs"),
        "waiting": _of_schedulers(metrics, "sglang:num_queue_reqs"),
        "kv_usage": max(usage) if usage else None,
    }
    histograms = {
        "input_tokens": histogram("sglang:prompt_tokens_histogram"),
        "output_tokens": histogram("sglang:generation_tokens_histogram"),
        "ttft_s": histogram("sglang:time_to_first_token_seconds"),
        "itl_s": histogram("sglang:inter_token_latency_seconds"),
        "tpot_s": histogram("sglang:request_time_per_output_token_seconds"),
        "e2e_s": histogram("sglang:e2e_request_latency_seconds"),
        "queue_s": histogram("sglang:queue_time_seconds"),
    }
    return Moment(at_s, present(counters), present(gauges), histograms_of(histograms))


def _of_schedulers(metrics: Metrics, name: str) -> float | None:
    """Summed over attention groups, of which each rank repeats the value; priorities stand beside their sum."""
    groups: dict[str, float] = {}
    for labels, value in metrics.samples.get(name, ()):
        if not labels.get("priority"):
            group = labels.get("dp_rank", "")
            groups[group] = max(groups.get(group, 0.0), value)
    return sum(groups.values()) if groups else None
