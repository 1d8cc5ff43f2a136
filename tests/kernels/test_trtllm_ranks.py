"""TensorRT-LLM's attention data parallelism: the kernels against the slow restatement, and what must hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hisearch.latency.step_cost import step_seconds
from hisearch.simulate import simulate
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.traces.compiled import TraceArrays
from tests.kernels.systems import LAW, TRTLLM_RELEASES, compiled, examples, trtllm_config
from tests.kernels.test_lockstep_steps import GRAPHS, SHAPE, lockstep_plan, shared_seconds
from tests.reference.cluster import requests_of
from tests.reference.random_traces import random_trace
from tests.reference.restatement.vllm_lockstep import Batch, Served
from tests.reference.trtllm_lockstep import serve
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
