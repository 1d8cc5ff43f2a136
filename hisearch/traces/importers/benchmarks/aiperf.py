"""Results of AIPerf, and summaries of its predecessor GenAI-Perf."""

from __future__ import annotations

import math

from hisearch.base.policies import TraceFormat
from hisearch.traces.importers.measurement import Measurement
from hisearch.traces.importers.results import (
    UNITS_S,
    RequestRows,
    ResultObject,
    Results,
    check_latencies,
    measurement_of,
    names_of,
)

FORMAT = TraceFormat(
    "Results of AIPerf.",
    json_fields=(
        ("metadata.request_start_ns",),
        ("request_latency.avg", "request_latency.unit"),
        ("time_to_first_token.avg", "time_to_first_token.unit"),
    ),
    times="request_start_ns holds nanoseconds",
)

_NOTE = "AIPerf's inter_token_latency is (last token - first token) / (tokens - 1) of a request: TPOT"
#: Nanoseconds since 1970, at most.
_LATEST_NS = 1e19
_STEMS = {"ttft": "time_to_first_token", "tpot": "inter_token_latency", "e2e": "request_latency"}


def measurements(results: Results) -> list[Measurement]:
    """``profile_export.jsonl`` or ``profile_export_aiperf.json`` of AIPerf 0.2 to 0.13.

    Read in its documentation (github.com/ai-dynamo/aiperf, docs/tutorials/working-with-profile-exports.md and
    docs/reference/json-export-schema.md). The first has a line for each request, with its times; rows of warm-up
    phases are left out. The second sums them up, as ``profile_export_genai_perf.json`` did. A request's
    ``inter_token_latency`` is TPOT as here, and gaps between messages are ``inter_chunk_latency``.
    """
    objects = list(results.objects())
    if any(item.get("metadata.request_start_ns") is not None for item in objects):
        return [_of_requests(results, objects)]
    return [_summary(item) for item in objects]


def _of_requests(results: Results, objects: list[ResultObject]) -> Measurement:
    rows = RequestRows()
    origin_ns = None
    for item in objects:
        phase = item.get("metadata.benchmark_phase") or item.get("metadata.credit_phase")
        if phase not in (None, "profiling"):
            continue
        start_ns = item.number("metadata.request_start_ns", _LATEST_NS)
        origin_ns = start_ns if origin_ns is None else origin_ns
        start_s = (start_ns - origin_ns) / 1e9
        if item.get("error") or item.get("metadata.was_cancelled"):
            rows.failed_s.append(start_s)
            continue
        rows.add(start_s, *_request(item))
    return measurement_of(rows, results, "aiperf", "metrics", (_NOTE,))


def _request(item: ResultObject) -> tuple[float, float, float, float, float]:
    """TTFT, E2E, and tokens of a prompt, an output, and of the output's reasoning; 0 where they were not counted."""
    metrics = item.inner("metrics")
    streamed = metrics.get("time_to_first_token.value") is not None
    inputs = metrics.first("input_sequence_length.value", "usage_prompt_tokens.value")
    outputs = metrics.first("output_sequence_length.value", "output_token_count.value")
    thinking = metrics.first("reasoning_token_count.value", "usage_reasoning_tokens.value")
    return (
        _seconds(metrics, "time_to_first_token") if streamed else math.nan,
        _seconds(metrics, "request_latency"),
        metrics.number(inputs) if inputs else 0,
        metrics.number(outputs) if outputs else 0,
        metrics.number(thinking) if thinking and outputs == "output_sequence_length.value" else 0,
    )


def _seconds(metrics: ResultObject, name: str) -> float:
    return metrics.number(f"{name}.value") * _unit_s(metrics, name)


def _unit_s(item: ResultObject, name: str) -> float:
    unit = item.get(f"{name}.unit")
    if not isinstance(unit, str) or unit not in UNITS_S:
        raise item.refuse(f"{name}.unit", f"expected one of {', '.join(UNITS_S)}, got {unit!r:.60}")
    return UNITS_S[unit]


def _summary(item: ResultObject) -> Measurement:
    figures: dict[str, float] = {}
    for stem, name in _STEMS.items():
        if item.get(name) is not None:
            figures |= item.seconds(names_of(stem, f"{name}.", "avg", "p{}"), _unit_s(item, name))
    check_latencies(item, figures, tuple(_STEMS.values()))
    rates = {"throughput_rps": "request_throughput.avg", "output_tokens_per_s": "output_token_throughput.avg"}
    figures |= {figure: item.number(key) for figure, key in rates.items() if item.get(key) is not None}
    counts = item.first("request_count.avg", "request_latency.count")
    completed = item.count(counts) if counts else 1
    failed = item.count("error_request_count.avg") if item.get("error_request_count.avg") is not None else 0
    length = item.get("input_sequence_length.avg")
    return item.measurement(
        "aiperf",
        sent=completed + failed,
        failed=failed,
        figures=figures,
        input_tokens=None if length is None else int(item.number("input_sequence_length.avg") * completed),
        concurrency=_loadgen(item, "concurrency"),
        rate_rps=_loadgen(item, "request_rate"),
        notes=(_NOTE,),
    )


def _loadgen(item: ResultObject, name: str) -> int | None:
    """A setting of the run's load, where its configuration is kept as the summary usually keeps it."""
    key = f"input_config.loadgen.{name}"
    value = item.get(key)
    return max(item.count(key), 1) if isinstance(value, int | float) and value > 0 else None
