"""The published Mooncake conversation trace: what an unlimited cache hits, simulated and counted; and a floor on speed.

Arithmetic. ``trace stats`` counts, for every prompt, the longest prefix h that it shares with any earlier prompt; it
may be the whole prompt: 37.36 % of the trace's input tokens, as published. An engine computes at least one token of
every prompt of p tokens, and caches whole pages of t tokens, so that it hits

    floor(min(h, p - 1) / t) * t

tokens, no more: the trace names prompts only, outputs are nobody's prefix. The replay is so slow that nothing overlaps.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

from hisearch.simulate import simulate
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.traces.compiled import CompiledTrace
from hisearch.traces.load import load_trace_file
from hisearch.traces.stats import ideal_hit_tokens
from tests.kernels.systems import plan

#: More than the trace's 145 million prompt tokens and all outputs.
UNLIMITED_TOKENS = 1 << 30
#: Arrivals 1e8 times further apart: the nearest two are then three hours apart.
SLOW = 1e-8


@pytest.fixture(scope="module")
def mooncake() -> CompiledTrace:
    root = Path(os.environ.get("HISEARCH_SHARED") or Path(__file__).parents[3] / "shared")
    path = root / "traces" / "mooncake" / "conversation_trace.jsonl.gz"
    if not path.is_file():
        pytest.skip(f"no Mooncake trace at {path}: set HISEARCH_SHARED to the folder that holds traces/mooncake")
    return load_trace_file(path)


def test_published_hit_rate_is_counted(mooncake: CompiledTrace) -> None:
    assert len(mooncake) == 12031
    assert round(100 * ideal_hit_tokens(mooncake).sum() / mooncake.prompt_tokens, 2) == 37.36


@pytest.mark.parametrize(("name", "page"), [("sglang", 1), ("vllm", 16), ("sglang", 64), ("vllm", 1)])
def test_unlimited_cache_hits_what_is_counted(mooncake: CompiledTrace, name: str, page: int) -> None:
    engine = EngineSpec.model_validate({"name": name, "page_tokens": page})
    result = simulate(plan(engine, UNLIMITED_TOKENS), mooncake, load=SLOW)
    table = result.requests
    assert table.finished.all()
    assert (table.finish_s[:-1] < table.arrival_s[1:]).all(), "requests overlap"
    assert not result.workers.evicted_tokens.any()
    counted = ideal_hit_tokens(mooncake)
    np.testing.assert_array_equal(table.hit_tokens, np.minimum(counted, table.input_tokens - 1) // page * page)
    if page == 1:
        # All that separates the simulated rate from the published one: a token of each prompt that is cached in full.
        repeated = int((counted == table.input_tokens).sum())
        assert table.hit_tokens.sum() + repeated == counted.sum()
        assert round(100 * result.hit_rate, 2) == 37.36
    assert result.workers.prefill_tokens.sum() == (table.input_tokens - table.hit_tokens).sum()


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_simulation_is_not_slow(mooncake: CompiledTrace, name: str) -> None:
    """A floor well below what docs/performance.md reports, for machines that are busy."""
    engine = EngineSpec.model_validate({"name": name})
    worker = plan(engine, 2_000_000)
    seconds = []
    for _ in range(4):
        start = time.perf_counter()
        result = simulate(worker, mooncake, replicas=8)
        seconds.append(time.perf_counter() - start)
        assert result.requests.finished.all()
    rate = len(mooncake) / min(seconds)
    assert rate > 50_000, f"{rate:.0f} requests/s"
