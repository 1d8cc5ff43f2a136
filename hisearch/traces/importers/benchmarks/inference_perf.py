"""Results of inference-perf."""

from __future__ import annotations

import math

from hisearch.base.policies import TraceFormat
from hisearch.traces.importers.measurement import Measurement
from hisearch.traces.importers.results import (
    RequestRows,
    ResultObject,
    Results,
    check_latencies,
    measurement_of,
    names_of,
)

FORMAT = TraceFormat(
    "Results of inference-perf.",
    json_fields=(
        ("start_time", "end_time", "info.input_tokens"),
        ("start_time", "end_time", "info.request_metrics.text.input_tokens"),
        ("start_time", "end_time", "request", "response", "error"),
        ("load_summary.count", "successes.count"),
    ),
    times="start_time holds seconds",
)

_STEMS = {
    "ttft": "time_to_first_token", "tpot": "time_per_output_token", "itl": "inter_token_latency",
    "e2e": "request_latency",
}  # fmt: skip


def measurements(results: Results) -> list[Measurement]:
    """``per_request_lifecycle_metrics.json``, or ``summary_`` and ``stage_N_lifecycle_metrics.json``.

    Read in the tool's source (github.com/kubernetes-sigs/inference-perf, inference_perf/apis/base.py and
    reportgen/base.py, 0.1 to 2026). Times are seconds of one clock; E2E ends with the last token, not with the end of
    the stream. ``time_per_output_token`` is TPOT as here; ``normalized_time_per_output_token`` is E2E over tokens and
    is not used. The summary's latencies are seconds.
    """
    objects = list(results.objects())
    if any(item.get("start_time") is not None for item in objects):
        return [_of_requests(results, objects)]
    return [_summary(item) for item in objects]


def _of_requests(results: Results, objects: list[ResultObject]) -> Measurement:
    rows = RequestRows()
    for item in objects:
        start_s = item.number("start_time")
        inputs = item.first("info.request_metrics.text.input_tokens", "info.input_tokens")
        outputs = item.first("info.response_metrics.output_tokens", "info.output_tokens")
        if item.get("error") or outputs is None or item.count(outputs) < 1:
            rows.failed_s.append(start_s)
            continue
        times = item.first(
            "info.response_metrics.output_token_times", "info.output_token_times", "info.response_metrics.chunk_times"
        )
        tokens_s = item.checked(times, item.get(times)) if times else []
        end_s = tokens_s[-1] if tokens_s else item.number("end_time")
        first_s = tokens_s[0] if tokens_s else math.nan
        if end_s < start_s or first_s < start_s:
            raise item.refuse("start_time", "expected a time before the tokens'")
        count = item.count(inputs) if inputs else 0
        rows.add(start_s, first_s - start_s, end_s - start_s, count, item.count(outputs))
    return measurement_of(rows, results, "inference-perf", "error")


def _summary(item: ResultObject) -> Measurement:
    good = item.inner("successes")
    keys: dict[str, str] = {}
    for stem, name in _STEMS.items():
        keys |= names_of(stem, f"latency.{name}.", "mean", "p{}", median="median")
    figures = good.seconds(keys, 1.0)
    check_latencies(good, figures, tuple(f"latency.{name}" for name in _STEMS.values()))
    rates = {
        "throughput_rps": "throughput.requests_per_sec", "output_tokens_per_s": "throughput.output_tokens_per_sec"
    }  # fmt: skip
    figures |= {figure: good.number(key) for figure, key in rates.items() if good.get(key) is not None}
    completed = good.count("count")
    failed = item.count("failures.count") if item.get("failures.count") is not None else 0
    length = good.first("prompt_tokens.mean", "prompt_len.mean")
    rate = item.get("load_summary.requested_rate")
    return item.measurement(
        "inference-perf",
        sent=completed + failed,
        failed=failed,
        figures=figures,
        rate_rps=item.number("load_summary.requested_rate") or None if rate is not None else None,
        input_tokens=int(good.number(length) * completed) if length else None,
    )
