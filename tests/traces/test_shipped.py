"""The workloads that ship: every one loads, and has the statistics it claims, within the stated tolerances."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from hisearch.specs.workloads.workload import WorkloadSpec
from hisearch.traces.load import load_workload
from hisearch.traces.reading.errors import TraceError
from hisearch.traces.stats import trace_stats

FOLDER = Path(__file__).parents[2] / "traces"


def spec_of(name) -> WorkloadSpec:
    document = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    assert document["apiVersion"] == "hisearch/v1"
    assert document["kind"] == "Workload"
    assert document["metadata"]["name"] == name
    return WorkloadSpec.model_validate(document["spec"])


def stats_of(name, *, block_tokens=16, capacities=(10**6,), **changes):
    spec = spec_of(name)
    generator = spec.generator.model_copy(update=changes)
    compiled = load_workload(spec.model_copy(update={"generator": generator}), FOLDER, name=name)
    return trace_stats(compiled, capacities_tokens=capacities, block_tokens=block_tokens)


def about(target, tolerance):
    return pytest.approx(target, rel=tolerance)


def test_every_shipped_workload_is_tested_here():
    assert sorted(path.stem for path in FOLDER.glob("*.yaml")) == [
        "agent-society", "agent-society-plain", "agents-10k",
        "azure-conv-like", "chat-multiturn", "cluster-1m", "coder-6h", "coding-agent", "gpt3-10k", "million",
        "mooncake-conversation", "mooncake-like", "sharegpt-closed-loop", "weka-agents",
    ]  # fmt: skip
    for path in FOLDER.glob("*.yaml"):
        assert spec_of(path.stem).provenance is not None


def test_chat_multiturn_over_two_hours_is_like_bailian_a():
    # Published statistics of the Qwen-Bailian trace A (its owners and an audit of the file), two hours.
    stats = stats_of("chat-multiturn", requests=None, duration_s=7200.0)
    assert stats.input_tokens.mean == about(2331, 0.05)
    assert stats.input_tokens.p50 == about(1046, 0.05)
    assert stats.input_tokens.p95 == about(8808, 0.05)
    assert stats.input_tokens.p99 == about(14359, 0.05)
    assert stats.output_tokens.mean == about(430, 0.03)
    assert stats.output_tokens.p50 == about(375, 0.03)
    assert stats.output_tokens.p99 == about(1641, 0.03)
    assert stats.follow_ups / stats.requests == about(0.463, 0.03)
    assert stats.single_turn_fraction == about(0.61, 0.05)
    assert stats.think_s.p50 == about(110.6, 0.05)
    assert stats.think_s.p90 == about(718.5, 0.08)
    assert 0.579 - 0.02 < stats.ideal_hit_rate < 0.62 + 0.02  # an audit's figure, the owners' figure


def test_chat_multiturn_as_shipped():
    stats = stats_of("chat-multiturn")
    assert stats.requests == 14_000
    assert 600 < stats.span_s < 900
    assert stats.rate_rps == about(19.2, 0.05)
    assert stats.input_tokens.mean == about(2331, 0.1)
    # Twelve minutes: what was said before them has to be computed again.
    assert 0.47 < stats.ideal_hit_rate < 0.579


def test_coding_agent_is_like_recorded_sessions_up_to_its_window():
    # Recorded: outputs of 216 tokens (p50) and 898 (p90), 10 s (p50) and 168 s (p90) between turns, 96 % repeats.
    stats = stats_of("coding-agent")
    assert stats.output_tokens.p50 == about(216, 0.03)
    assert stats.output_tokens.p90 == about(898, 0.03)
    assert stats.think_s.p50 == about(10, 0.06)
    assert stats.think_s.p90 == about(168, 0.2)
    assert stats.input_tokens.max <= 122_880
    assert stats.ideal_hit_rate == pytest.approx(0.94, abs=0.01)


def test_coder_6h():
    # Qwen-Bailian coder trace's lengths, turns and gaps, at the size of the six-hour coder workload of HiSim's paper.
    stats = stats_of("coder-6h")
    assert stats.requests == 40_520
    assert stats.span_s == about(21_602, 0.005)
    assert stats.follow_ups / stats.requests == about(0.39, 0.005)
    assert stats.think_s.p50 == about(118, 0.005)
    assert stats.think_s.p90 == about(942, 0.02)
    assert stats.input_tokens.mean == about(5750, 0.015)
    assert stats.input_tokens.p50 == about(4540, 0.01)
    assert stats.input_tokens.p99 == about(14_400, 0.005)
    assert stats.output_tokens.mean == about(800, 0.005)
    assert stats.output_tokens.p50 == about(470, 0.01)
    assert stats.output_tokens.p99 == about(5835, 0.005)
    assert stats.ideal_hit_rate == pytest.approx(0.664, abs=0.03)


def test_million_is_chat_multiturn_at_its_own_rate():
    # As shipped but for its size, which takes seconds: a hundredth of it lies at the mean of the day's rate.
    stats = stats_of("million", requests=10_000)
    assert stats.rate_rps == about(11.6, 0.05)
    assert stats.input_tokens.mean == about(2331, 0.1)
    assert stats.input_tokens.p50 == about(1046, 0.1)
    assert stats.output_tokens.mean == about(430, 0.03)
    assert stats.follow_ups / stats.requests > 0.3
    generator = spec_of("million").generator
    assert generator.requests == 1_000_000
    like = spec_of("chat-multiturn").generator
    for field in ("first_input", "output", "sessions", "shared_prefixes", "max_input_tokens", "max_context_tokens"):
        assert getattr(generator, field) == getattr(like, field)


def test_mooncake_like():
    # Computed from Mooncake's conversation trace; hit rates of LRU caches of 512-token blocks.
    stats = stats_of("mooncake-like", block_tokens=512, capacities=[10**6, 5 * 10**6, 10**7, 2 * 10**7])
    assert stats.requests == 12_031
    assert stats.span_s == about(3537, 0.04)
    assert stats.input_tokens.mean == about(12_035, 0.04)
    assert stats.input_tokens.p10 == about(964, 0.06)
    assert stats.input_tokens.p50 == about(6909, 0.04)
    assert stats.input_tokens.p90 == about(27_367, 0.05)
    assert stats.input_tokens.p99 == about(85_400, 0.07)
    assert stats.output_tokens.mean == about(343, 0.02)
    assert stats.fano_10s == about(2.1, 0.25)
    assert stats.ideal_hit_rate == pytest.approx(0.3736, abs=0.02)
    assert [point.hit_rate for point in stats.lru] == pytest.approx([0.054, 0.211, 0.291, 0.358], abs=0.03)
    assert stats.think_s.p50 == about(123, 0.06)
    assert stats.think_s.p90 == about(480, 0.1)


def test_azure_conv_like():
    # Computed from the Azure LLM inference trace 2023, conversation.
    stats = stats_of("azure-conv-like")
    assert stats.requests == about(19_366, 0.02)
    assert stats.rate_rps == about(5.53, 0.02)
    assert stats.interarrival_cv == about(1.09, 0.06)
    assert stats.fano_10s == about(3.86, 0.25)
    assert stats.fano_60s == about(16.1, 0.2)
    assert stats.input_tokens.mean == about(1155, 0.02)
    assert stats.input_tokens.p50 == about(1020, 0.03)
    assert stats.input_tokens.p90 == about(2734, 0.03)
    assert stats.input_tokens.p99 == about(4142, 0.03)
    assert stats.output_tokens.mean == about(211, 0.03)
    assert stats.output_tokens.p50 == about(129, 0.03)
    assert stats.ideal_hit_rate == 0.0


def test_sharegpt_closed_loop():
    # Computed from the ShareGPT lengths of sarathi-serve (8k tokens at most).
    stats = stats_of("sharegpt-closed-loop")
    assert stats.requests == 6000
    assert stats.known_arrivals == 64
    assert stats.input_tokens.mean == about(2340, 0.03)
    assert stats.input_tokens.p50 == about(1730, 0.04)
    assert stats.input_tokens.p90 == about(5696, 0.04)
    assert stats.input_tokens.p99 == about(7434, 0.02)
    assert stats.output_tokens.mean == about(439, 0.02)
    assert stats.output_tokens.p50 == about(415, 0.03)
    assert stats.turns.p50 == 4
    assert stats.single_turn_fraction == about(0.206, 0.1)


def test_mooncake_conversation_says_where_to_get_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        TraceError,
        match=r"no trace file conversation_trace\.jsonl\.gz in .*; download it from https://github\.com/kvcache-ai",
    ):
        load_workload(spec_of("mooncake-conversation"), tmp_path)


def test_mooncake_conversation_from_the_working_directory(shared_traces, monkeypatch):
    monkeypatch.chdir(shared_traces / "mooncake")
    compiled = load_workload(spec_of("mooncake-conversation"), FOLDER)
    assert len(compiled) == 12_031


@pytest.mark.parametrize(
    ("name", "agents", "calls", "per_frame", "adapters"),
    [("agent-society", 500, 5000, 100, 500), ("agent-society-plain", 500, 5000, 100, 0)],
)
def test_societies_are_as_they_say(name, agents, calls, per_frame, adapters):
    trace = load_workload(spec_of(name), FOLDER, name=name)
    assert len(trace) == calls
    assert len(trace.agents.adapter) == agents
    assert (trace.agents.adapter >= 0).sum() == adapters
    assert calls / (int(trace.agents.gate.max()) + 1) == about(per_frame, 0.1)
