"""TensorRT-LLM's server.

``/metrics`` holds the statistics of the iterations since it was last asked, as JSON (docs: trtllm-serve, metrics
endpoint; ``enable_iter_perf_stats``): whoever asks takes them from others. Request figures are in
``/prometheus/metrics`` where ``return_perf_metrics`` is on (tensorrt_llm/metrics/collector.py). Settings come from
launch arguments, but for the KV pages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hisearch.base.policies import ServerPolicy
from hisearch.observe.prometheus import Metrics, MetricsError, parse_metrics
from hisearch.observe.reading import (
    Answer,
    Answers,
    Facts,
    Moment,
    Step,
    Value,
    first_text,
    histograms_of,
    present,
    settings_of,
)

SERVER = ServerPolicy(
    "TensorRT-LLM's statistics of iterations, /version, and /prometheus/metrics.",
    settings=("/version", "/v1/models"),
    figures=("/metrics", "/prometheus/metrics"),
    needs="set enable_iter_perf_stats: true in its options",
)

TABLE = {
    "max_batch_size": "engine.max_running_requests",
    "max_num_tokens": "engine.chunk_tokens",
    "tokens_per_block": "engine.page_tokens",
    "kv_cache_free_gpu_memory_fraction": "engine.memory_fraction",
    "free_gpu_memory_fraction": "engine.memory_fraction",
    "tp_size": "tensor_parallel",
    "pp_size": "pipeline_parallel",
    "ep_size": "expert_parallel",
    "num_postprocess_workers": "engine.api_servers",
}
_PROMETHEUS = "/prometheus/metrics"


def recognises(metrics: Answer) -> bool:
    """By a list of iterations; an empty list is that of an idle server."""
    rows = metrics.json()
    return isinstance(rows, list) and all(isinstance(row, dict) and "iter" in row for row in rows)


def facts(answers: Answers, arguments: Mapping[str, Value]) -> Facts:
    """Launch arguments, and the KV pages of the last iteration."""
    rows = answers["/metrics"].json() or []
    last: dict[str, Any] = rows[-1] if rows else {}
    pages = last.get("kvCacheStats") or {}
    merged = dict(arguments)
    for ours, theirs in (("tokens_per_block", "tokensPerBlock"),):
        if isinstance(pages.get(theirs), int):
            merged[ours] = pages[theirs]
    if isinstance(last.get("maxBatchSizeRuntime"), int):
        merged.setdefault("max_batch_size", last["maxBatchSizeRuntime"])
    if isinstance(last.get("maxNumTokensRuntime"), int):
        merged.setdefault("max_num_tokens", last["maxNumTokensRuntime"])
    blocks, block = pages.get("maxNumBlocks"), pages.get("tokensPerBlock")
    models = (answers["/v1/models"].json() or {}).get("data") or [{}]
    notes = [] if arguments else ["The server does not tell its settings: name a file of its launch arguments."]
    if not rows:
        notes.append("It told no iteration yet: it is idle, or enable_iter_perf_stats is off.")
    return Facts(
        engine="trtllm",
        version=str((answers["/version"].json() or {}).get("version", "")),
        model=first_text((models[0].get("root"), models[0].get("id"))),
        settings=settings_of(merged, TABLE),
        kv_tokens=int(blocks) * int(block) if isinstance(blocks, int) and isinstance(block, int) else None,
        notes=tuple(notes),
    )


def moment(answers: Answers, at_s: float) -> Moment:
    """Gauges of the last iteration, its steps, and request figures where ``/prometheus/metrics`` has them."""
    rows = [row for row in answers["/metrics"].json() or [] if isinstance(row, dict)]
    last: dict[str, Any] = rows[-1] if rows else {}
    pages = last.get("kvCacheStats") or {}
    used, most = pages.get("usedNumBlocks"), pages.get("maxNumBlocks")
    gauges = {
        "running": last.get("numActiveRequests"),
        "waiting": last.get("numQueuedRequests"),
        "kv_usage": used / most if most and used is not None else None,
    }
    metrics = _prometheus(answers)
    histograms = {
        "ttft_s": metrics.histogram("trtllm_time_to_first_token_seconds"),
        "tpot_s": metrics.histogram("trtllm_time_per_output_token_seconds"),
        "e2e_s": metrics.histogram("trtllm_e2e_request_latency_seconds"),
        "queue_s": metrics.histogram("trtllm_request_queue_time_seconds"),
    }
    counters = {"requests": metrics.total("trtllm_request_success")}
    return Moment(
        at_s, present(counters), present(gauges), histograms_of(histograms), tuple(_step(row) for row in rows)
    )


def _prometheus(answers: Answers) -> Metrics:
    answer = answers.get(_PROMETHEUS)
    try:
        return parse_metrics(answer.text) if answer is not None and answer.is_good else Metrics({})
    except MetricsError:  # the endpoint is there, and has no samples yet
        return Metrics({})


def _step(row: Mapping[str, Any]) -> Step:
    batch = row.get("inflightBatchingStats") or {}

    def count(name: str) -> int:
        value = batch.get(name)
        return int(value) if isinstance(value, int | float) else 0

    latency_ms = row.get("iterLatencyMS")
    return Step(
        number=int(row["iter"]),
        latency_s=1e-3 * float(latency_ms) if isinstance(latency_ms, int | float) else 0.0,
        prompts=count("numContextRequests"),
        prompt_tokens=count("numCtxTokens"),
        decodes=count("numGenRequests"),
        paused=count("numPausedRequests"),
    )
