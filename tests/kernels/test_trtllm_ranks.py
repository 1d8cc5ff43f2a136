"""TensorRT-LLM's attention data parallelism: the kernels against the slow restatement, and what must hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisearch.latency.step_cost import law_costs, step_seconds
from hisearch.simulate import simulate
from hisearch.simulate.engine import EngineOutOfMemory
from hisearch.simulate.plans.speculation_plan import SpeculationPlan
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.traces.compiled import TraceArrays
from tests.kernels.systems import LAW, TRTLLM_RELEASES, compiled, examples, trtllm_config
from tests.kernels.test_lockstep_steps import GRAPHS, SHAPE, lockstep_plan, shared_seconds
from tests.reference.cluster import requests_of
from tests.reference.random_traces import random_trace
from tests.reference.restatement.sglang_cache import OutOfMemoryError
from tests.reference.restatement.vllm_lockstep import Batch, Served
from tests.reference.trtllm import TrtllmWorker
from tests.reference.trtllm_drafts import DraftsConfig, DraftsWorker
from tests.reference.trtllm_lockstep import serve, serve_by
from tests.simulate.logged import assert_first_visible


def _reference(
    engine: EngineSpec, capacity_tokens: int, ranks: int, graphs: tuple[int, ...], arrays: TraceArrays
) -> Served:
    def cost(batches: Sequence[Batch]) -> float:
        tokens = [sum(new for new, _ in chunks) + len(decodes) for chunks, decodes, _ in batches]
        total = sum(tokens)
        if not any(chunks for chunks, _, _ in batches):
            total = ranks * next((size for size in graphs if size >= max(tokens)), max(tokens))
        parts = [
            step_seconds(LAW, chunks, [context + 1 for context in decodes], sampling)
            for chunks, decodes, sampling in batches
            if chunks or decodes
        ]
        return max(parts) + shared_seconds(total, ranks)

    return serve(trtllm_config(engine, capacity_tokens, 0, None), ranks, requests_of(arrays), cost)


@examples(120)
@given(
    seed=st.integers(0, 10_000),
    ranks=st.integers(2, 4),
    pages=st.integers(40, 120),
    rate_rps=st.sampled_from([10.0, 40.0, 400.0]),
    version=st.sampled_from(TRTLLM_RELEASES),
    max_running=st.sampled_from([1, 3, 8]),
    chunk=st.sampled_from([16, 64, 256]),
    overlap=st.booleans(),
    graphs=st.sampled_from([(), GRAPHS]),
    policy=st.sampled_from(["guaranteed_no_evict", "max_utilization"]),
    balance=st.sampled_from([None, (0, 0), (3, 1), (50, 10)]),
)
def test_the_kernels_equal_the_slow_restatement(
    seed: int,
    ranks: int,
    pages: int,
    rate_rps: float,
    version: str,
    max_running: int,
    chunk: int,
    overlap: bool,
    graphs: tuple[int, ...],
    policy: str,
    balance: tuple[int, int] | None,
) -> None:
    engine = EngineSpec.model_validate(
        {"name": "trtllm", "version": version, "max_running_requests": max_running, "chunk_tokens": chunk}
        | {"page_tokens": 8, "overlap": overlap, "capacity_policy": policy}
        | (
            {}
            if balance is None
            else {
                "attention_dp_balance": True,
                "attention_dp_timeout_iters": balance[0],
                "attention_dp_batching_wait_iters": balance[1],
            }
        )
    )
    arrays = random_trace(seed, replace(SHAPE, rate_rps=rate_rps, slack=1.5))
    served = _reference(engine, 8 * pages, ranks, graphs, arrays)
    result = simulate(lockstep_plan(engine, 8 * pages, ranks, graphs), compiled(arrays))
    finished = result.requests.finished
    assert finished.sum() == len(served.finish_s)
    for k in np.flatnonzero(finished):
        assert result.requests.first_token_s[k] == served.first_token_s[k]
        assert result.requests.finish_s[k] == served.finish_s[k]
    assert_first_visible(result, served.token_s)


@examples(120)
@given(
    seed=st.integers(0, 10_000), ranks=st.integers(2, 4), pages=st.integers(40, 120),
    rate_rps=st.sampled_from([10.0, 40.0, 400.0]), version=st.sampled_from(TRTLLM_RELEASES),
    max_running=st.sampled_from([1, 3, 8]), chunk=st.sampled_from([16, 64, 256]), overlap=st.booleans(),
    balance=st.sampled_from([None, (0, 0), (3, 1), (50, 10)]), count=st.integers(1, 4), extended=st.booleans(),
    chance=st.sampled_from([0.0, 0.7, 1.0]), graphs=st.sampled_from([(), GRAPHS]),
)  # fmt: skip
def test_ranks_with_drafts_equal_the_slow_restatement(
    seed: int, ranks: int, pages: int, rate_rps: float, version: str, max_running: int, chunk: int, overlap: bool,
    balance: tuple[int, int] | None, count: int, extended: bool, chance: float,
    graphs: tuple[int, ...],
) -> None:  # fmt: skip
    """Without attention a batch costs the same whatever of it is prompt, decode or draft."""
    names = ("attention_dp_timeout_iters", "attention_dp_batching_wait_iters")
    held = {} if balance is None else {"attention_dp_balance": True} | dict(zip(names, balance, strict=True))
    engine = EngineSpec.model_validate(
        {"name": "trtllm", "version": version, "max_running_requests": max_running, "chunk_tokens": chunk}
        | {"page_tokens": 8, "overlap": overlap} | held
    )  # fmt: skip
    accepted = tuple(chance ** (place + 1) for place in range(count))
    drafts = SpeculationPlan(count, count - 1 if extended else 0, False, accepted)
    arrays = random_trace(seed, replace(SHAPE, rate_rps=rate_rps, slack=1.5))
    config = DraftsConfig(
        **vars(trtllm_config(engine, 8 * pages, 0, None)), draft_tokens=count, accepted=drafts.accepted,
        extra_kv_tokens=drafts.lookahead_tokens,
    )  # fmt: skip
    places = {row: row for row in range(len(arrays.arrival_s))}

    def cost(batches: Sequence[Batch]) -> float:
        sizes = [sum(new for new, _ in chunks) + (1 + count) * len(decodes) for chunks, decodes, _ in batches]
        total = sum(sizes)
        if not any(chunks for chunks, _, _ in batches):
            decodes = max(len(decodes) for _, decodes, _ in batches)
            total = ranks * (1 + count) * next((size for size in graphs if size >= decodes), decodes)
        return max(0.005 + 2e-5 * size for size in sizes if size) + shared_seconds(total, ranks)

    workers: list[TrtllmWorker] = [DraftsWorker(config, lambda *_: 0.0, places) for _ in range(ranks)]
    planned = replace(lockstep_plan(engine, 8 * pages, ranks, graphs, law_costs(0.005, 2e-5, 0.0)), speculation=drafts)
    served_of = [request for request in requests_of(arrays) if workers[0].rejection(request) is None]
    try:
        served = serve_by(workers, served_of, cost)
    except OutOfMemoryError:
        with pytest.raises(EngineOutOfMemory):
            simulate(planned, compiled(arrays))
        return
    result = simulate(planned, compiled(arrays))
    finished = result.requests.finished
    assert finished.sum() == len(served.finish_s)
    for k in np.flatnonzero(finished):
        assert result.requests.first_token_s[k] == pytest.approx(served.first_token_s[k], abs=1e-12)
        assert result.requests.finish_s[k] == pytest.approx(served.finish_s[k], abs=1e-12)
    assert_first_visible(result, served.token_s, atol=1e-12)
