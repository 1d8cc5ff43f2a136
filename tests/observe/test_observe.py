"""Servers watched from outside: recorded answers of a real vLLM 0.32.0, and answers in the forms of the others."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hisearch.api.observe import Observation, observe_servers
from hisearch.observe import sglang_drafts
from hisearch.observe.client import ServerError
from hisearch.observe.prometheus import parse_metrics
from hisearch.observe.vllm_drafts import drafts_of
from hisearch.specs.deployments.speculation import SpeculationSpec
from hisearch.specs.documents.resolve import load_deployment
from tests.observe.mock_server import Reply, recorded, served, vllm

BEFORE, AFTER = "vllm-0.32.0-before.txt", "vllm-0.32.0-after.txt"
SGLANG = """\
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="m",tp_rank="0"} 4.0
sglang:num_running_reqs{model_name="m",tp_rank="1"} 4.0
sglang:num_running_reqs{model_name="m",tp_rank="0",priority="7"} 3.0
sglang:num_queue_reqs{model_name="m",tp_rank="0"} 2.0
sglang:token_usage{model_name="m",tp_rank="0"} 0.5
sglang:prompt_tokens_total{model_name="m"} PROMPT
sglang:generation_tokens_total{model_name="m"} 400.0
sglang:cached_tokens_total{model_name="m",cache_source="device"} CACHED
sglang:num_requests_total{model_name="m"} REQUESTS
sglang:time_to_first_token_seconds_bucket{le="0.1",model_name="m"} REQUESTS
sglang:time_to_first_token_seconds_bucket{le="+Inf",model_name="m"} REQUESTS
sglang:time_to_first_token_seconds_sum{model_name="m"} 2.0
"""
SGLANG_INFO = {
    "version": "0.5.23", "model_path": "Qwen/Qwen3-32B", "tp_size": 4, "attn_dp_size": 2, "chunked_prefill_size": 8192,
    "max_running_requests": 128, "page_size": 1, "mem_fraction_static": 0.87, "disable_radix_cache": False,
    "disable_overlap_schedule": True, "schedule_policy": "fcfs", "kv_cache_dtype": "fp8_e4m3",
    "max_total_num_tokens": 300000, "api_key": "secret-of-the-server",
}  # fmt: skip
ITERATION = {
    "iter": 7, "iterLatencyMS": 25.0, "numActiveRequests": 3, "numQueuedRequests": 1,
    "kvCacheStats": {"usedNumBlocks": 10, "maxNumBlocks": 100, "tokensPerBlock": 32},
    "inflightBatchingStats": {"numContextRequests": 1, "numCtxTokens": 256, "numGenRequests": 2},
}  # fmt: skip


def watched(replies: dict[str, list[Reply]], seconds: float = 0.6, **settings: object) -> Observation:
    with served(replies) as server:
        return observe_servers([server.url], seconds=seconds, interval_s=0.2, **settings)  # type: ignore[arg-type]


def vllm_metrics(*names: str) -> list[Reply]:
    return [recorded(name) for name in names]


def falling() -> str:
    """The recorded end, with half of every count: of a server that began anew."""
    return re.sub(r"^(vllm:\S*(?:_total|_bucket|_count|_sum)\S*) (\S+)$", _halved, recorded(AFTER), flags=re.M)


def _halved(match: re.Match[str]) -> str:
    return f"{match[1]} {float(match[2]) / 2}"


def test_a_recorded_vllm_is_told_exactly(tmp_path: Path) -> None:
    replies = vllm(*vllm_metrics(BEFORE, BEFORE, AFTER))
    seen = watched(replies, model="llama-3.1-8b", accelerator="h100-sxm")
    # Those of the recorded benchmark.
    assert seen.window.counters["requests"] == 30
    inputs = seen.window.histograms["input_tokens"]
    assert inputs.count == 30
    assert seen.window.counters["prompt_tokens"] == inputs.total
    assert seen.figures["ttft_mean_s"] == pytest.approx(seen.window.histograms["ttft_s"].total / 30)
    assert seen.servers[0].kv_tokens == 1355 * 32
    assert any("Asynchronous scheduling is off" in text for text in seen.odd)
    assert any("CUDA graphs are off" in text for text in seen.odd)
    files = seen.write(tmp_path / "out")
    assert [path.name for path in files] == ["observation.json", "deployment.yaml", "workload.yaml"]
    pool = load_deployment(tmp_path / "out/deployment.yaml").deployment.pool
    assert (pool.engine.chunk_tokens, pool.engine.max_running_requests, pool.engine.page_size) == (1024, 16, 32)
    assert (pool.engine.overlap, pool.engine.version, pool.engine.enforce_eager) == (False, "0.32.0", True)


def split_so(**degrees: int) -> Observation:
    """A server of vLLM with these degrees, by its own names."""
    replies = vllm(*vllm_metrics(BEFORE, BEFORE, AFTER))
    for degree, number in degrees.items():
        replies = {
            path: [text.replace(f'"{degree}": 1,', f'"{degree}": {number},') for text in texts if isinstance(text, str)]
            for path, texts in replies.items()
        }
    return watched(replies, model="deepseek-v3", accelerator="h200")


def test_ranks_that_share_kv_hold_blocks_together() -> None:
    seen = split_so(decode_context_parallel_size=4, tensor_parallel_size=8)
    assert seen.deployment is not None
    pool = seen.deployment["pools"][0]
    assert (pool["tensor_parallel"], pool["decode_context_parallel"]) == (8, 4)
    assert seen.servers[0].kv_tokens == 1355 * 32 * 4


def test_ranks_that_share_prompts_hold_copies() -> None:
    seen = split_so(prefill_context_parallel_size=4, tensor_parallel_size=2)
    assert seen.deployment is not None
    pool = seen.deployment["pools"][0]
    assert (pool["tensor_parallel"], pool["prefill_context_parallel"]) == (2, 4)
    assert seen.servers[0].kv_tokens == 1355 * 32


DRAFTS = """\
vllm:spec_decode_num_drafts_total{engine="0"} 1000.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 800.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 600.0
"""


@pytest.mark.parametrize(
    ("config", "metrics", "speculation", "note"),
    [
        (None, DRAFTS, None, ""),
        ('{"method": "mtp", "num_speculative_tokens": 2}', DRAFTS, ("mtp", [0.8, 0.75], None), ""),
        (
            {"method": "eagle3", "num_speculative_tokens": 2, "model": "acme/head"},
            DRAFTS, ("eagle3", [0.8, 0.75], "acme/head"), "",
        ),
        ({"method": "suffix", "num_speculative_tokens": 2}, DRAFTS, None, r"drafts tokens \(suffix\), which is not"),
        ({"method": "mtp", "num_speculative_tokens": 2}, "up 1", None, "has accepted none so far"),
    ],
)  # fmt: skip
def test_drafted_tokens_are_told_with_what_was_accepted(
    config: object, metrics: str, speculation: tuple[str, list[float], str | None] | None, note: str
) -> None:
    drafts, caveat = drafts_of(config, parse_metrics(metrics))
    assert re.search(note, caveat)
    assert bool(note) == bool(caveat)
    spec = None if drafts is None else SpeculationSpec.model_validate(drafts)
    assert (None if spec is None else (spec.method, spec.acceptance, spec.draft_weights)) == speculation


SGLANG_DRAFTS = {"speculative_eagle_topk": 1, "speculative_num_draft_tokens": 3, "version": "0.5.23", "model_path": "m"}
MEAN = "sglang:spec_accept_length 2.44\n"


@pytest.mark.parametrize(
    ("arguments", "metrics", "speculation", "note"),
    [
        ({}, MEAN, None, ""),
        # 1 + 0.8 + 0.64
        ({"speculative_algorithm": "EAGLE"}, MEAN, ("mtp", [0.8, 0.8], None), r"tells 2\.44 tokens a step"),
        (
            {"speculative_algorithm": "EAGLE3", "speculative_draft_model_path": "acme/head"},
            MEAN, ("eagle3", [0.8, 0.8], "acme/head"), "positions are taken to be accepted alike",
        ),
        ({"speculative_algorithm": "NGRAM"}, MEAN, ("ngram", [0.8, 0.8], None), "on average"),
        (
            {"speculative_algorithm": "NGRAM", "speculative_ngram_max_bfs_breadth": 10},
            MEAN, None, "speculative_ngram_max_bfs_breadth 10",
        ),
        ({"speculative_algorithm": "EAGLE", "speculative_eagle_topk": 4}, MEAN, None, "drafts trees of tokens"),
        ({"speculative_algorithm": "DFLASH"}, MEAN, None, r"drafts tokens \(DFLASH\), which is not"),
        ({"speculative_algorithm": "EAGLE"}, "up 1", None, "tells of none accepted"),
        ({"speculative_algorithm": "EAGLE", "version": "0.5.9"}, MEAN, None, r"of release 0\.5\.9 is not simulated"),
        ({"speculative_algorithm": "EAGLE", "enable_dp_attention": True}, MEAN, None, "beside enable_dp_attention"),
    ],
)  # fmt: skip
def test_sglangs_drafts_are_told_by_their_mean(
    arguments: dict[str, object], metrics: str, speculation: tuple[str, list[float], str | None] | None, note: str
) -> None:
    drafts, caveat = sglang_drafts.drafts_of(SGLANG_DRAFTS | arguments, parse_metrics(metrics))
    assert re.search(note, caveat)
    assert bool(note) == bool(caveat)
    spec = None if drafts is None else SpeculationSpec.model_validate(drafts)
    assert (None if spec is None else (spec.method, spec.acceptance, spec.draft_weights)) == speculation


def test_the_observed_deployment_drafts_as_the_server_does(tmp_path: Path) -> None:
    replies = vllm(*(f"{recorded(name)}\n{DRAFTS}" for name in (BEFORE, AFTER)))
    text = '--no-async-scheduling --speculative-config \'{"method": "ngram", "num_speculative_tokens": 2}\''
    file = tmp_path / "arguments"
    file.write_text(text)
    seen = watched(replies, model="llama-3.1-8b", accelerator="h100-sxm", arguments=file)
    seen.write(tmp_path / "out")
    engine = load_deployment(tmp_path / "out/deployment.yaml").deployment.pool.engine
    assert engine.speculation == SpeculationSpec(method="ngram", draft_tokens=2, acceptance=[0.8, 0.75])


def test_lengths_of_the_fitted_load_have_the_exact_mean(tmp_path: Path) -> None:
    from hisearch.api.deployments.workload import load_trace

    seen = watched(vllm(*vllm_metrics(BEFORE, BEFORE, AFTER)), model="llama-3.1-8b", accelerator="h100-sxm")
    seen.write(tmp_path / "out")
    trace = load_trace(tmp_path / "out/workload.yaml")
    for name in ("input_tokens", "output_tokens"):
        generated, reported = getattr(trace.arrays, name).mean(), seen.window.histograms[name].mean
        assert generated == pytest.approx(reported, rel=0.04), name


def test_only_gets_are_sent_and_no_secret_is_written(tmp_path: Path) -> None:
    info = [json.dumps(SGLANG_INFO)]
    text = [SGLANG.replace("PROMPT", "9").replace("CACHED", "1").replace("REQUESTS", count) for count in ("9", "40")]
    with served({"/metrics": [text[0], *text], "/server_info": info}) as server:
        seen = observe_servers(
            [server.url], seconds=0.2, interval_s=0.2, token="my-token", headers=["X-Team: blue"],
            model="qwen3-32b", accelerator="h200",
        )  # fmt: skip
        assert {method for method, _, _ in server.seen} == {"GET"}
        assert all(headers["Authorization"] == "Bearer my-token" for _, _, headers in server.seen)
        assert all(headers["X-Team"] == "blue" for _, _, headers in server.seen)
        written = "".join(path.read_text() for path in seen.write(tmp_path / "out"))
        for secret in ("my-token", "secret-of-the-server", server.url, "127.0.0.1"):
            assert secret not in written
            assert secret not in repr(seen)


def test_sglang_is_read_from_its_server_info() -> None:
    text = [
        SGLANG.replace("PROMPT", prompt).replace("CACHED", cached).replace("REQUESTS", count)
        for prompt, cached, count in (("1000", "100", "10"), ("5000", "2100", "50"))
    ]
    replies: dict[str, list[Reply]] = {"/metrics": [text[0], *text], "/server_info": [json.dumps(SGLANG_INFO)]}
    seen = watched(replies, seconds=0.2, accelerator="h200")
    assert seen.deployment is not None
    (pool,) = seen.deployment["pools"]
    # The server counts ranks and limits of all attention groups; a pool counts those of one.
    assert (pool["tensor_parallel"], pool["attention_data_parallel"], pool["kv_dtype"]) == (2, 2, "fp8")
    assert (pool["engine"]["chunk_tokens"], pool["engine"]["max_running_requests"]) == (4096, 64)
    assert seen.deployment["model"] == "qwen3-32b"
    # Ranks repeat each other, priorities stand beside their sum.
    assert seen.window.gauges["running"] == (4.0, 4.0)
    assert (seen.window.counters["requests"], seen.window.counters["hit_tokens"]) == (40, 2000)
    assert any("50 % of the prompt tokens" in text for text in seen.fares)


def test_sglang_tells_how_tokens_get_to_experts_and_who_shares_kv() -> None:
    experts = {"moe_a2a_backend": "deepep", "enable_two_batch_overlap": True, "tp_size": 8, "ep_size": 8}
    text = SGLANG.replace("PROMPT", "9").replace("CACHED", "1").replace("REQUESTS", "9")
    for stated, pool in (
        (experts | {"attn_dp_size": 8}, {"expert_parallel": 8, "attention_data_parallel": 8}),
        (
            {"tp_size": 8, "dcp_size": 4, "attn_dp_size": 1, "enable_dp_attention": False},
            {"decode_context_parallel": 4},
        ),
        (
            {"tp_size": 8, "attn_cp_size": 4, "attn_dp_size": 1, "enable_dp_attention": False},
            {"tensor_parallel": 2, "prefill_context_parallel": 4},
        ),
    ):
        info = json.dumps(SGLANG_INFO | stated)
        seen = watched({"/metrics": [text] * 3, "/server_info": [info]}, 0.2, model="deepseek-v3", accelerator="h200")
        assert seen.deployment is not None
        observed = seen.deployment["pools"][0]
        assert pool.items() <= observed.items()
        overlaps = observed["engine"].get("experts", {}).get("two_batch_overlap", False)
        assert overlaps == ("moe_a2a_backend" in stated)


def test_tensorrt_llm_tells_its_steps(tmp_path: Path) -> None:
    rows = [json.dumps([ITERATION | {"iter": number} for number in part]) for part in ((1,), (2, 3), (3, 4, 5))]
    arguments = tmp_path / "launch.sh"
    arguments.write_text("trtllm-serve serve m --tp_size 2 \\\n  --max_batch_size=32 --max_num_tokens 4096\n")
    replies: dict[str, list[Reply]] = {"/metrics": [rows[0], *rows], "/version": ['{"version": "1.1.0"}']}
    seen = watched(replies, seconds=0.4, model="qwen3-32b", accelerator="h200", arguments=arguments)
    # Each once, though an iteration may be told twice; those of the first look were before the window.
    assert [step.number for step in seen.window.steps] == [2, 3, 4, 5]
    assert seen.window.steps[0].latency_s == pytest.approx(0.025)
    assert seen.servers[0].kv_tokens == 3200
    assert seen.deployment is not None
    assert seen.deployment["pools"][0]["engine"]["max_running_requests"] == 32
    assert seen.generator is None
    assert any("tells no lengths" in note for note in seen.notes)
    names = [path.name for path in seen.write(tmp_path / "out")]
    assert names == ["observation.json", "deployment.yaml", "steps.csv"]


def test_a_server_that_begins_anew_loses_nothing_that_was_seen() -> None:
    replies = vllm(*vllm_metrics(BEFORE, BEFORE, AFTER), falling())
    seen = watched(replies, seconds=0.4, model="llama-3.1-8b", accelerator="h100-sxm")
    assert seen.window.counters["requests"] == 30 + 15
    assert seen.window.histograms["ttft_s"].count == 30 + 15
    assert any("began anew once" in note for note in seen.notes)


def test_a_server_that_dies_in_the_middle_is_told_up_to_then() -> None:
    replies = vllm(*vllm_metrics(BEFORE, BEFORE, AFTER), 503)
    seen = watched(replies, seconds=0.8, model="llama-3.1-8b", accelerator="h100-sxm")
    assert seen.window.counters["requests"] == 30
    assert any("3 of 5 looks at server 1 were not answered (last: HTTP 503" in note for note in seen.notes)


def test_two_replicas_are_one_pool() -> None:
    metrics = vllm_metrics(BEFORE, BEFORE, AFTER)
    with served(vllm(*metrics)) as first, served(vllm(*metrics)) as second:
        seen = observe_servers(
            [first.url, second.url], seconds=0.4, interval_s=0.2, model="llama-3.1-8b", accelerator="h100-sxm"
        )
    assert seen.window.counters["requests"] == 60
    assert seen.deployment is not None
    assert [pool["replicas"] for pool in seen.deployment["pools"]] == [2]


@pytest.mark.parametrize(
    ("replies", "expected"),
    [
        ({"/metrics": ["node_cpu_seconds_total 1\n"]}, "other metrics; expected those of sglang, trtllm and vllm"),
        ({"/metrics": [401]}, "HTTP 401: expected a token"),
        ({"/metrics": [302]}, "HTTP 302"),
        ({"/metrics": [404], "/server_info": ["{}"]}, "start it with --enable-metrics"),
        ({"/metrics": ["vllm:a b c\n"]}, "line 1: expected 'name{labels} value'"),
    ],
)
def test_what_is_no_server_is_refused(replies: dict[str, list[Reply]], expected: str) -> None:
    with served(replies) as server, pytest.raises(ServerError, match=re.escape(expected)):
        observe_servers([server.url], seconds=0.2, interval_s=0.2)


def test_an_unreachable_server_is_named() -> None:
    with served({}) as server:
        url = server.url
    with pytest.raises(ServerError, match=f"{url}: no answer: .*refused"):
        observe_servers([url], seconds=0.2)


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "file:///etc/passwd", "http://me:secret@127.0.0.1:8000"])
def test_addresses_that_are_none_are_refused(url: str) -> None:
    with pytest.raises(ServerError, match="expected") as caught:
        observe_servers([url])
    assert "secret" not in str(caught.value)


def test_a_written_observation_is_kept(tmp_path: Path) -> None:
    seen = watched(vllm(*vllm_metrics(BEFORE, BEFORE, AFTER)), model="llama-3.1-8b", accelerator="h100-sxm")
    seen.write(tmp_path)
    with pytest.raises(FileExistsError, match="not overwritten"):
        seen.write(tmp_path)
