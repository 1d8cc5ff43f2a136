"""Results of benchmark tools: what was measured, and what was sent as a trace."""

from __future__ import annotations

import json
import math
from importlib import import_module

import numpy as np
import pytest
from benchmark_files import AIPERF, GUIDELLM, K6, K6_SUMMARY, REQUESTS, SGLANG, SUMMARIES, VLLM, jsonl
from hypothesis import given
from hypothesis import strategies as st
from test_importers import read, refused

from hisearch.base.policies import BENCHMARKS
from hisearch.traces.compiler import compile_trace
from hisearch.traces.importers import detect_format, read_measurements
from hisearch.traces.reading.errors import TraceError


def measured(write, text: str, name: str = "results"):
    """The only run of a file."""
    (run,) = read_measurements(write(name, text))
    return run


def test_every_tool_has_samples_and_says_what_it_reads():
    # An observation knows no requests one by one.
    assert set(REQUESTS) == set(BENCHMARKS) - {"observation"}
    assert set(REQUESTS) | set(SUMMARIES) == set(BENCHMARKS)
    for name in BENCHMARKS:
        assert import_module(BENCHMARKS.modules[name]).measurements.__doc__


@pytest.mark.parametrize("name", REQUESTS)
def test_requests_come_one_by_one(write, name):
    run = measured(write, REQUESTS[name])
    failed = 0 if name == "sglang_bench" else 1
    assert (run.sent, run.failed, run.input_tokens) == (2 + failed, failed, 900)
    assert run.requests.rows.tolist() == [0, 1]
    assert run.requests.input_tokens.tolist() == [400, 500]
    assert run.requests.output_tokens.tolist() == [3, 5]
    np.testing.assert_allclose(run.requests.ttft_s, [0.1, 0.2])
    np.testing.assert_allclose(run.requests.e2e_s, [0.12, 0.28])
    assert run.figures["tpot_mean_s"] == pytest.approx(0.015)
    if name == "sglang_bench":
        assert run.requests.start_s is None
    else:
        np.testing.assert_allclose(run.requests.start_s, [0.0, 0.5], atol=1e-6)


@pytest.mark.parametrize("name", SUMMARIES)
def test_a_summary_gives_the_figures_it_has(write, name):
    run = measured(write, SUMMARIES[name])
    assert run.requests is None
    assert run.figures["ttft_mean_s"] == pytest.approx(0.15)
    if name not in ("vllm_bench", "sglang_bench"):
        assert (run.sent, run.failed) == (21, 1)
        assert run.figures["e2e_mean_s"] == pytest.approx(0.2)
        assert run.figures["tpot_mean_s"] == pytest.approx(0.015)
        if name != "observation":  # percentiles of its buckets are not compared
            assert run.figures["e2e_p50_s"] == pytest.approx(0.19)
            assert run.figures["ttft_p90_s"] == pytest.approx(0.19)
        assert run.figures["throughput_rps"] == 2.5
    with pytest.raises(TraceError, match=r"a summary of .* the requests themselves are needed"):
        read(write("t", SUMMARIES[name]))


@pytest.mark.parametrize(("name", "text"), [*REQUESTS.items(), *SUMMARIES.items()])
def test_the_tool_is_told_by_the_content_in_one_line_or_many(write, name, text):
    assert detect_format(write("whatever.txt", text)) == name
    if not text.startswith("[") and text.count("\n") != 1 and "\n" in text:
        return
    assert detect_format(write("x", json.dumps(json.loads(text), indent=1))) == name


@pytest.mark.parametrize("name", REQUESTS)
def test_requests_become_a_trace(write, name):
    trace = read(write("t", REQUESTS[name]))
    assert trace.input_tokens.tolist() == [400, 500]
    assert trace.output_tokens.tolist() == [3, 5]
    assert "prompts are not recorded: nothing is shared between them" in trace.warnings
    if name != "sglang_bench":
        np.testing.assert_allclose(trace.arrival_s, [0.0, 0.5], atol=1e-6)
        assert any("1 failed request left out, of 3" in text for text in trace.warnings)
    else:
        assert trace.arrival_s[0] == 0.0 < trace.arrival_s[1]
        assert any("Poisson arrivals at 2 requests/s; arrivals are drawn" in text for text in trace.warnings)


def test_how_a_client_paced_itself_is_said(write):
    for changes, pacing, closed in (
        ({}, "all at once", False),
        ({"max_concurrency": 2}, "closed loop, at most 2 requests in flight", True),
        ({"max_concurrency": 3}, "all at once, at most 3 requests in flight", False),
        ({"request_rate": 4.0}, "Poisson arrivals at 4 requests/s", False),
        ({"request_rate": 4.0, "burstiness": 0.5}, "gamma arrivals of shape 0.5 at 4 requests/s", False),
        ({"request_rate": "trace"}, "at recorded times", False),
    ):
        run = measured(write, json.dumps(VLLM | changes))
        assert (run.pacing, run.is_closed_loop) == (pacing, closed)
    looped = read(write("t", json.dumps(VLLM | {"max_concurrency": 2})))
    assert any("a faster deployment would have been sent its requests sooner" in text for text in looped.warnings)
    limited = read(write("t", json.dumps(VLLM | {"max_concurrency": 2, "request_rate": 5.0})))
    assert any("the client may have held requests back" in text for text in limited.warnings)


def test_a_closed_loop_without_times_is_a_loop_again(write):
    """Each request follows up the one as many places before it as were in flight."""
    details = {
        "input_lens": [10] * 5, "output_lens": [2] * 5, "ttfts": [0.1] * 5, "itls": [[0.01]] * 5, "errors": [""] * 5,
        "completed": 5, "max_concurrency": 2, "request_rate": float("inf"),
    }  # fmt: skip
    path = write("t", jsonl([SGLANG | details]))
    trace = read(path)
    assert trace.previous.tolist() == [-1, -1, 0, 1, 2]
    assert not trace.open_loop
    assert any("requests follow each other up as in the loop" in text for text in trace.warnings)
    assert len(compile_trace(trace, "loop")) == 5


def test_runs_of_one_file_follow_one_another(write):
    path = write("t", jsonl([VLLM, VLLM]))
    assert [run.source for run in read_measurements(path)] == [f"{path}:1", f"{path}:2"]
    trace = read(path)
    np.testing.assert_allclose(trace.arrival_s, [0.0, 0.5, 0.78, 1.28])
    assert "2 runs of a benchmark follow one another" in trace.warnings


def test_guidellm_s_strategy_says_what_is_in_flight(write):
    run = measured(write, json.dumps(GUIDELLM))
    assert run.is_closed_loop
    assert run.source.endswith("results benchmarks[0]")
    benchmark = GUIDELLM["benchmarks"][0]
    for strategy, in_flight in (
        ({"type_": "synchronous"}, 1), ({"kind": "concurrent", "streams": 7}, 7), ({"type_": "poisson"}, None),
    ):  # fmt: skip
        changed = GUIDELLM | {"benchmarks": [benchmark | {"config": {"strategy": strategy}}]}
        assert measured(write, json.dumps(changed)).concurrency == in_flight


def test_responses_that_were_not_streamed_have_no_ttft(write):
    rows = [row | {"metrics": {k: v for k, v in row["metrics"].items() if "first" not in k}} for row in AIPERF]
    run = measured(write, jsonl(rows))
    assert {name.split("_")[0] for name in run.figures} == {"e2e", "throughput", "output"}
    assert np.isnan(run.requests.ttft_s).all()
    assert run.requests.growing_wait() is None


def test_k6_without_iterations_sums_up_each_metric(write):
    rows = json.loads(json.dumps(K6))
    for row in rows:
        row["data"].get("tags", {}).pop("vu", None)
    run = measured(write, jsonl(rows))
    assert run.requests is None
    assert (run.sent, run.failed, run.input_tokens) == (3, 1, 900)
    assert run.figures["ttft_mean_s"] == pytest.approx(0.15)
    assert run.figures["e2e_mean_s"] == pytest.approx(0.2)
    nested = {name: {"type": "trend", "values": values} for name, values in K6_SUMMARY["metrics"].items()}
    assert measured(write, json.dumps(K6_SUMMARY | {"metrics": nested})).figures["e2e_p95_s"] == pytest.approx(0.27)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (json.dumps(VLLM | {"ttfts": [0.1, None, 0.0]}), r"results: ttfts\[1\]: expected a number of at least 0"),
        (jsonl([VLLM, VLLM | {"itls": [3, [], []]}]), r"results:2: itls\[0\]: expected a list, got 3"),
        (json.dumps(VLLM | {"output_lens": [3]}), "input_lens: expected lists of one length"),
        (json.dumps(VLLM | {"request_rate": 0}), "request_rate: expected a rate above 0"),
        (json.dumps(VLLM | {"completed": 0}), "completed: no request succeeded"),
        (jsonl(AIPERF[:1]), "results: metrics: no request succeeded"),
        (jsonl([AIPERF[1] | {"metrics": {}}]), "metrics.request_latency.value: expected a number of at le"),
        (json.dumps({"benchmarks": [{"requests": {"successful": [{}]}}]}), r"successful\[0\].request_start_time"),
        (jsonl([*K6[:1], {"metric": "http_req_duration", "type": "Point", "data": {"time": "now", "value": 1}}]),
         "results:2: data.time: expected a date and time, got 'now'"),
        ('{"request_latency": {"avg": 1, "unit": "years"}}', "request_latency.unit: expected one of"),
        ('{"nothing": 1}', "expected results of AIPerf, guidellm, inference-perf, k6, hisearch observe"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_named(write, text, reason):
    with pytest.raises(TraceError, match=reason):
        read_measurements(write("results", text))


def test_the_requests_of_an_exported_benchmark_are_a_trace(write):
    """``benchmark/requests.jsonl`` does not say how large its blocks are: it follows from their number."""
    rows = [
        {"arrival_s": 0.0, "input_tokens": 70, "output_tokens": 5, "block_ids": [0, 1, 2]},
        {"arrival_s": 1.5, "input_tokens": 40, "output_tokens": 6, "block_ids": [0, 3]},
    ]
    trace = read(write("requests.jsonl", rows))
    assert trace.block_tokens == 32
    assert trace.shared_tokens.tolist() == [0, 32]
    assert trace.arrival_s.tolist() == [0.0, 1.5]
    rows[1]["block_ids"] = [0, 3, 4, 5, 6]
    assert "requests.jsonl:2: block_ids: expected as many ids as the prompt has blocks" in refused(
        write("requests.jsonl", rows)
    )


@given(
    power=st.integers(0, 5),
    lengths=st.lists(st.integers(1, 5000), min_size=1, max_size=20),
)
def test_the_inferred_block_size_fits_every_prompt(tmp_path_factory, power, lengths):
    tokens = 16 << power
    path = tmp_path_factory.mktemp("replay") / "requests.jsonl"
    rows = [
        {"arrival_s": at, "input_tokens": n, "output_tokens": 1, "block_ids": list(range(math.ceil(n / tokens)))}
        for at, n in enumerate(lengths)
    ]
    path.write_text(jsonl(rows))
    inferred = read(path).block_tokens
    assert [math.ceil(n / inferred) for n in lengths] == [len(row["block_ids"]) for row in rows]
    assert inferred <= tokens
