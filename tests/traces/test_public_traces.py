"""Public traces, where they are at hand: figures counted without this package, or published."""

from __future__ import annotations

import numpy as np
import pytest

from hisearch.specs.workloads.workload import TraceFileSpec
from hisearch.traces.compiler import compile_trace
from hisearch.traces.importers import read_trace
from hisearch.traces.load import load_trace_file
from hisearch.traces.reading.canonical import write_trace
from hisearch.traces.stats import ideal_hit_tokens, lru_hit_curve, trace_stats


@pytest.fixture
def mooncake(shared_traces):
    return load_trace_file(shared_traces / "mooncake" / "conversation_trace.jsonl.gz")


def test_mooncake_hit_rates(mooncake):
    assert len(mooncake) == 12_031
    assert mooncake.prompt_tokens == 144_793_823
    # Counted over the file's block ids, token by token, partial last blocks included: 37.36 %.
    assert int(ideal_hit_tokens(mooncake).sum()) == 54_098_411
    sizes = [500_000, 1_000_000, 2_000_000, 5_000_000, 10_000_000, 20_000_000, 50_000_000]
    curve = lru_hit_curve(mooncake, sizes, block_tokens=512)
    rates = [round(point.hit_rate, 3) for point in curve]
    assert rates == [0.045, 0.054, 0.086, 0.211, 0.291, 0.358, 0.371]  # published with the trace's statistics


def test_mooncake_lengths_and_times(mooncake):
    stats = trace_stats(mooncake, capacities_tokens=[512], block_tokens=512)
    assert stats.input_tokens.mean == pytest.approx(12_035, abs=0.5)
    assert stats.input_tokens.p50 == 6909
    assert stats.output_tokens.mean == pytest.approx(343, abs=0.5)
    assert stats.fano_60s == pytest.approx(2.89, abs=0.2)
    assert 3530 < stats.span_s < 3540
    assert any("quantised to 3 s" in warning for warning in stats.warnings)


def test_mooncake_survives_our_own_form(shared_traces, tmp_path):
    path = shared_traces / "mooncake" / "conversation_trace.jsonl.gz"
    trace = read_trace(path, TraceFileSpec(path=str(path)))
    write_trace(trace, tmp_path / "t.parquet")
    again = load_trace_file(tmp_path / "t.parquet")
    original = compile_trace(trace, "t")
    assert again.digest == original.digest
    assert again.request_ids == original.request_ids
    assert load_trace_file(path, seed=1).digest != original.digest


def test_azure(shared_traces):
    path = shared_traces / "azure2023" / "AzureLLMInferenceTrace_conv.csv.gz"
    stats = trace_stats(load_trace_file(path), capacities_tokens=[16])
    assert stats.requests == 19_366
    assert stats.interarrival_cv == pytest.approx(1.09, abs=0.005)
    assert stats.fano_10s == pytest.approx(3.86, abs=0.005)
    assert stats.fano_60s == pytest.approx(16.1, abs=0.05)
    assert stats.input_tokens.p99 == 4142


def test_weka(shared_traces):
    compiled = load_trace_file(shared_traces / "weka_claude_code" / "sessions_compact.jsonl.gz")
    assert len(compiled) == 49_334 - 27  # as many have no output
    assert len(np.unique(compiled.arrays.session)) == 710
    hits = ideal_hit_tokens(compiled).sum() / compiled.prompt_tokens
    assert hits == pytest.approx(0.9636, abs=0.001)  # published, without subagents


def test_lmcache_and_sharegpt(shared_traces):
    mini = load_trace_file(shared_traces / "lmcache_agent" / "miniswe_hashed.jsonl.gz")
    assert len(np.unique(mini.arrays.session)) == 20
    sharegpt = shared_traces / "sharegpt_lengths" / "sharegpt_8k_filtered_stats_llama2_tokenizer.csv.gz"
    stats = trace_stats(load_trace_file(sharegpt), capacities_tokens=[16])
    assert stats.requests == 30_731
    assert stats.sessions == pytest.approx(5685, abs=10)
    assert stats.turns.mean == pytest.approx(5.41, abs=0.01)
