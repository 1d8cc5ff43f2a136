"""Small files in the form of benchmark tools' results, written by hand after their documentation and source."""

from __future__ import annotations

import json
from typing import Any

#: Three requests at 0, 0.5 and 1.5 s; the last one fails.
VLLM: dict[str, Any] = {
    "date": "20261101-120000", "endpoint_type": "openai", "backend": "openai", "label": None, "model_id": "m",
    "tokenizer_id": "m", "num_prompts": 3, "request_rate": "inf", "burstiness": 1.0, "max_concurrency": None,
    "duration": 2.0, "completed": 2, "failed": 1, "total_input_tokens": 900, "total_output_tokens": 8,
    "request_throughput": 1.0, "output_throughput": 4.0, "mean_ttft_ms": 150.0, "median_ttft_ms": 150.0,
    "p99_ttft_ms": 199.0, "mean_tpot_ms": 15.0, "input_lens": [400, 500, 600], "output_lens": [3, 5, 0],
    "ttfts": [0.1, 0.2, 0.0], "itls": [[0.01, 0.01], [0.02, 0.02, 0.02, 0.02], []], "errors": ["", "", "timed out"],
    "start_times": [77.0, 77.5, 78.5], "generated_texts": ["a", "b", ""],
}  # fmt: skip
#: The same without when anything was sent.
SGLANG: dict[str, Any] = {
    "tag": None, "backend": "sglang", "dataset_name": "random", "request_rate": 2.0, "max_concurrency": None,
    "sharegpt_output_len": None, "random_input_len": 500, "server_info": {"tp_size": 1}, "duration": 2.0,
    "completed": 2, "total_input_tokens": 900, "request_throughput": 1.0, "output_throughput": 4.0,
    "mean_e2e_latency_ms": 200.0, "median_e2e_latency_ms": 200.0, "mean_ttft_ms": 150.0, "median_ttft_ms": 150.0,
    "mean_itl_ms": 16.0, "input_lens": [400, 500], "output_lens": [3, 5], "ttfts": [0.1, 0.2],
    "itls": [[0.01, 0.01], [0.02, 0.02, 0.02, 0.02]], "errors": ["", ""],
}  # fmt: skip


def _guided(start_s: float, ttft_ms: float, e2e_s: float, inputs: int, outputs: int) -> dict[str, Any]:
    return {
        "request_start_time": start_s, "time_to_first_token_ms": ttft_ms, "request_latency": e2e_s,
        "prompt_tokens": inputs, "output_tokens": outputs, "inter_token_latency_ms": 10.0,
    }  # fmt: skip


GUIDELLM: dict[str, Any] = {
    "metadata": {"version": 2},
    "benchmarks": [
        {
            "config": {"strategy": {"type_": "concurrent", "streams": 2}},
            "requests": {
                "successful": [_guided(1.7e9 + 0.5, 200.0, 0.28, 500, 5), _guided(1.7e9, 100.0, 0.12, 400, 3)],
                "errored": [{"request_start_time": 1.7e9 + 1.5}],
                "incomplete": [{"request_start_time": None}],
            },
        }
    ],
}


def _aiperf(start_s: float, ttft_ms: float, e2e_ms: float, inputs: int, outputs: int) -> dict[str, Any]:
    return {
        "metadata": {
            "session_num": 0, "request_start_ns": 1_759_813_207_000_000_000 + int(start_s * 1e9),
            "benchmark_phase": "profiling", "was_cancelled": False,
        },
        "metrics": {
            "input_sequence_length": {"value": inputs, "unit": "tokens"},
            "time_to_first_token": {"value": ttft_ms, "unit": "ms"},
            "request_latency": {"value": e2e_ms, "unit": "ms"},
            "output_sequence_length": {"value": outputs, "unit": "tokens"},
        },
        "error": None,
    }  # fmt: skip


AIPERF: list[dict[str, Any]] = [
    _aiperf(-9.0, 900.0, 950.0, 10, 2) | {"metadata": {"request_start_ns": 1, "benchmark_phase": "warmup"}},
    _aiperf(0.5, 200.0, 280.0, 500, 5),
    _aiperf(0.0, 100.0, 120.0, 400, 3),
    _aiperf(1.5, 0.0, 0.0, 600, 1) | {"error": {"code": 499, "type": "RequestCancellationError", "message": "late"}},
]
AIPERF_SUMMARY: dict[str, Any] = {
    "schema_version": "1.0",
    "input_config": {"loadgen": {"concurrency": 8}},
    "request_latency": {"unit": "ms", "avg": 200.0, "p50": 190.0, "p99": 280.0},
    "time_to_first_token": {"unit": "ms", "avg": 150.0, "p90": 190.0},
    "inter_token_latency": {"unit": "ms", "avg": 15.0},
    "input_sequence_length": {"unit": "tokens", "avg": 450.0},
    "request_count": {"unit": "requests", "avg": 20.0},
    "error_request_count": {"unit": "requests", "avg": 1.0},
    "request_throughput": {"unit": "requests/sec", "avg": 2.5},
}


def _perf(start_s: float, first_s: float, gap_s: float, inputs: int, outputs: int) -> dict[str, Any]:
    times = [start_s + first_s + gap_s * place for place in range(outputs)]
    return {
        "start_time": start_s, "end_time": times[-1] + 0.001, "request": "{}", "response": "x",
        "info": {"input_tokens": inputs, "output_tokens": outputs, "output_token_times": times}, "error": None,
    }  # fmt: skip


INFERENCE_PERF: list[dict[str, Any]] = [
    _perf(50.5, 0.2, 0.02, 500, 5),
    _perf(50.0, 0.1, 0.01, 400, 3),
    _perf(51.5, 0.1, 0.01, 600, 2) | {"error": {"error_type": "TimeoutError", "error_msg": "late"}},
]
INFERENCE_PERF_SUMMARY: dict[str, Any] = {
    "load_summary": {"count": 21, "requested_rate": 2.0, "achieved_rate": 1.9},
    "successes": {
        "count": 20,
        "latency": {
            "request_latency": {"mean": 0.2, "median": 0.19, "p99": 0.28},
            "time_to_first_token": {"mean": 0.15, "p90": 0.19},
            "time_per_output_token": {"mean": 0.015},
            "normalized_time_per_output_token": {"mean": 0.06},
        },
        "throughput": {"requests_per_sec": 2.5, "output_tokens_per_sec": 10.0},
        "prompt_len": {"mean": 450.0},
    },
    "failures": {"count": 1},
}


def _sampled(name: str, at: str, value: float, iteration: int, **tags: str) -> dict[str, Any]:
    tags = {"vu": "1", "iter": str(iteration), "status": "200", "expected_response": "true"} | tags
    return {"metric": name, "type": "Point", "data": {"time": at, "value": value, "tags": tags}}


def _declared(name: str, contains: str) -> dict[str, Any]:
    return {"type": "Metric", "data": {"name": name, "type": "trend", "contains": contains}, "metric": name}


_ENDS = ("2026-11-01T14:00:00.120+02:00", "2026-11-01T14:00:00.780+02:00", "2026-11-01T12:00:01.510Z")
K6: list[dict[str, Any]] = [
    _declared("http_req_duration", "time"), _sampled("http_req_duration", _ENDS[0], 120.0, 0),
    _declared("ttft", "time"), _sampled("ttft", _ENDS[0], 100.0, 0),
    _declared("input_tokens", "default"), _sampled("input_tokens", _ENDS[0], 400.0, 0),
    _declared("output_tokens", "default"), _sampled("output_tokens", _ENDS[0], 3.0, 0),
    _sampled("http_req_duration", _ENDS[1], 280.0, 1), _sampled("ttft", _ENDS[1], 200.0, 1),
    _sampled("input_tokens", _ENDS[1], 500.0, 1), _sampled("output_tokens", _ENDS[1], 5.0, 1),
    _declared("http_reqs", "default"), _sampled("http_reqs", _ENDS[1], 1.0, 1),
    _sampled("http_req_duration", _ENDS[2], 10.0, 2, status="503", expected_response="false"),
]  # fmt: skip
K6_SUMMARY: dict[str, Any] = {
    "root_group": {"name": "", "path": "", "id": "d41d8", "groups": [], "checks": []},
    "metrics": {
        "http_req_duration": {"avg": 200.0, "min": 120.0, "med": 190.0, "max": 280.0, "p(90)": 250.0, "p(95)": 270.0},
        "ttft": {"avg": 150.0, "p(90)": 190.0},
        "tpot_s": {"avg": 0.015},
        "http_reqs": {"count": 21, "rate": 2.5},
        "http_req_failed": {"passes": 1, "fails": 20, "value": 0.05},
        "vus": {"value": 4, "min": 4, "max": 4},
    },
}

OBSERVATION: dict[str, Any] = {
    "format": "hisearch-observation", "version": 1, "complete": True, "servers": [], "window_s": 8.0,
    "figures": {"ttft_mean_s": 0.15, "tpot_mean_s": 0.015, "e2e_mean_s": 0.2, "throughput_rps": 2.5},
    "counters": {"requests": 20.0, "failed": 1.0, "prompt_tokens": 9000.0}, "gauges": {}, "histograms": {},
}  # fmt: skip


def jsonl(rows: list[dict[str, Any]]) -> str:
    """A line for each object."""
    return "".join(json.dumps(row) + "\n" for row in rows)


#: By format: a file of requests one by one, and one that sums them up, where the tool has both.
REQUESTS = {
    "vllm_bench": json.dumps(VLLM),
    "sglang_bench": jsonl([SGLANG]),
    "guidellm": json.dumps(GUIDELLM, indent=2),
    "aiperf": jsonl(AIPERF),
    "inference_perf": json.dumps(INFERENCE_PERF, indent=2),
    "k6": jsonl(K6),
}
_DETAILS = ("input_lens", "output_lens", "ttfts", "itls", "errors", "start_times", "generated_texts")
SUMMARIES = {
    "vllm_bench": json.dumps({key: value for key, value in VLLM.items() if key not in _DETAILS}),
    "sglang_bench": jsonl([{key: value for key, value in SGLANG.items() if key not in _DETAILS}]),
    "aiperf": json.dumps(AIPERF_SUMMARY, indent=2),
    "inference_perf": json.dumps(INFERENCE_PERF_SUMMARY, indent=2),
    "k6": json.dumps(K6_SUMMARY, indent=2),
    "observation": json.dumps(OBSERVATION, indent=2),
}
