"""Workers whose ranks share each sequence's KV: the same work, and decisions of larger blocks."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hisearch.latency.sharding import Parallelism
from hisearch.simulate import Result, WorkerPlan, simulate
from hisearch.simulate.plans.plan import plan_worker
from hisearch.specs.deployments.pool import PoolSpec
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.traces.compiler import compile_trace
from hisearch.traces.trace import make_trace

CATALOGUE = Catalogue()


def planned(pool: PoolSpec, model: str) -> WorkerPlan:
    """A worker of ``pool`` on H200, priced by the roofline."""
    return plan_worker(
        pool,
        model=CATALOGUE.get("Model", model).spec,
        accelerator=CATALOGUE.get("Accelerator", "h200").spec,
        host=None,
        media={},
        profile=CATALOGUE.get("LatencyProfile", "roofline").spec,
    )


@cache
def worker(engine: str, ranks: int, page: int, model: str = "deepseek-v3") -> WorkerPlan:
    pool = PoolSpec.model_validate({
        "accelerator": "h200", "tensor_parallel": 8, "decode_context_parallel": ranks,
        "engine": {"name": engine, "page_tokens": page, "chunk_tokens": 1024, "max_running_requests": 16},
    })  # fmt: skip
    return planned(pool, model)


def served(plan: WorkerPlan, seed: int, longest: int = 900, capacity_tokens: int = 4096) -> Result:
    """Forty requests, of which most share a beginning with an earlier one, in a pool of some of them."""
    rng = np.random.default_rng(seed)
    inputs, outputs = rng.integers(40, longest, 40), rng.integers(1, 60, 40)
    shares = [-1] + [int(rng.integers(0, k)) for k in range(1, 40)]
    shared = [0] + [int(rng.integers(0, min(inputs[k], inputs[shares[k]]) + 1)) for k in range(1, 40)]
    trace = make_trace(
        arrival_s=np.sort(rng.uniform(0.0, 4.0, 40)), input_tokens=inputs, output_tokens=outputs,
        shares_with=shares, shared_tokens=shared,
    )  # fmt: skip
    return simulate(replace(plan, kv_capacity_tokens=capacity_tokens), compile_trace(trace, "some", "some"))


@settings(deadline=None)
@given(ranks=st.sampled_from([1, 2, 4, 8]), engine=st.sampled_from(["vllm", "sglang"]), seed=st.integers(0, 2**16))
def test_the_same_work_whatever_the_ranks(ranks: int, engine: str, seed: int) -> None:
    """L1 and L2: every request is served, and every prompt token is computed or found; hits end with a block."""
    requests = served(worker(engine, ranks, 16), seed).requests
    assert np.isfinite(requests.finish_s).all()
    assert (requests.hit_tokens < requests.input_tokens).all()
    assert (requests.hit_tokens % (16 * ranks) == 0).all()


@settings(deadline=None)
@given(ranks=st.sampled_from([2, 4, 8]), seed=st.integers(0, 2**16))
def test_vllm_decides_as_with_blocks_of_all_ranks(ranks: int, seed: int) -> None:
    plan = worker("vllm", ranks, 64 // ranks)
    alone = replace(worker("vllm", 1, 64), costs=plan.costs)
    assert plan.engine.page_size == alone.engine.page_size == 64
    for name in ("finish_s", "first_token_s", "hit_tokens"):
        ours, theirs = (getattr(served(either, seed).requests, name) for either in (plan, alone))
        assert np.array_equal(ours, theirs), name


def test_a_worker_holds_what_its_ranks_hold_together() -> None:
    for engine in ("vllm", "sglang"):
        shared, alone = worker(engine, 8, 64), worker(engine, 1, 64)
        assert shared.kv_capacity_tokens == 8 * alone.kv_capacity_tokens
        assert shared.split == Parallelism(8, decode_context=8)


@pytest.mark.parametrize(("model", "kind"), [("qwen3-30b-a3b", "grouped-query"), ("deepseek-v3.2", "sparse")])
def test_sglang_shares_latents_alone(model: str, kind: str) -> None:
    with pytest.raises(ValueError, match=f"decode_context_parallel 2 is not simulated for {kind} attention"):
        worker("sglang", 2, 64, model)
    assert worker("vllm", 2, 64, model).split.decode_context == 2


def test_keys_of_a_pool_reach_the_split() -> None:
    keys: dict[str, Any] = {"accelerator": "h200", "tensor_parallel": 8, "engine": {"name": "vllm"}}
    split = PoolSpec.model_validate(keys | {"decode_context_parallel": 4}).parallelism
    assert (split.short, str(split)) == ("TP 8, DCP 4", "tensor_parallel 8, decode_context_parallel 4")
    assert split.ranks == 8
