"""Drafted tokens in attention groups that step together: the kernels against ``vllm_lockstep`` over ``vllm_drafts``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisearch.latency.step_cost import law_costs
from hisearch.simulate import simulate
from hisearch.simulate.engine import EngineStuck
from hisearch.simulate.plans.speculation_plan import SpeculationPlan
from hisearch.specs.deployments.deployment import EngineSpec
from tests.kernels.systems import compiled, draft_costs, examples, vllm_config
from tests.kernels.test_lockstep_steps import GRAPHS, SHAPE, SHARED_S, lockstep_plan, shared_seconds
from tests.reference.cluster import requests_of
from tests.reference.random_traces import random_trace
from tests.reference.restatement.recording import BatchEntry
from tests.reference.restatement.vllm import StuckError
from tests.reference.restatement.vllm_drafts import DraftsConfig, DraftsWorker
from tests.reference.restatement.vllm_lockstep import Batch, serve_by
from tests.reference.restatement.vllm_state import LiveRequest
from tests.simulate.logged import assert_first_visible

#: Without attention a batch costs the same whatever of it is prompt, decode or draft.
LAW = law_costs(0.005, 2e-5, 0.0)


class Worker(DraftsWorker):
    """Its shares are all told as chunks, whose tokens count."""

    def _entry(self, live: LiveRequest, share: int) -> BatchEntry:
        return replace(super()._entry(live, share), decode=False)


@examples(25)
@given(
    seed=st.integers(0, 10_000), groups=st.integers(2, 4), capacity=st.integers(70, 130), overlap=st.booleans(),
    chunk=st.sampled_from([16, 64, 256]), padded=st.booleans(), count=st.integers(1, 4),
    share=st.sampled_from([0.0, 0.02, 0.3]),
)  # fmt: skip
def test_the_kernels_equal_the_slow_restatement(
    seed: int, groups: int, capacity: int, overlap: bool, chunk: int, padded: bool, count: int, share: float
) -> None:
    engine = EngineSpec(
        name="vllm", max_running_requests=8, chunk_tokens=chunk, page_tokens=8, overlap=overlap, watermark=0.0
    )
    accepted = tuple(0.7 ** (place + 1) for place in range(count))
    graphs, tokens = (GRAPHS if padded else ()), 8 * capacity
    arrays = random_trace(seed, SHAPE)

    def cost(batches: Sequence[Batch]) -> float:
        sizes = [sum(new for new, _ in chunks) for chunks, _, _ in batches]
        parts = [0.005 + 2e-5 * size for size in sizes if size]
        sequences = [len(chunks) for chunks, _, _ in batches]
        if share:
            drafting = zip(sizes, sequences, strict=True)
            own = [share * (2e-5 * size + (count - 1) * 2e-5 * some) for size, some in drafting if size]
            parts = [part + extra for part, extra in zip(parts, own, strict=True)]
        if graphs and max(sizes) <= graphs[-1]:
            sizes = [next(size for size in graphs if size >= max(sizes))] * len(sizes)
        shared = shared_seconds(sum(sizes), groups)
        return max(parts) + shared + share * (shared + (count - 1) * shared_seconds(sum(sequences), groups))

    config = DraftsConfig(
        **vars(vllm_config(engine, tokens)), draft_tokens=count, accepted=accepted, max_model_len=tokens
    )
    places = {row: row for row in range(len(arrays.arrival_s))}
    workers = [Worker(config, lambda _c, _d, _s, _n: 0.0, places) for _ in range(groups)]
    law = LAW._replace(draft=draft_costs(LAW, count, share, SHARED_S) if share else None)
    speculation = SpeculationPlan(count, count, True, accepted, 0)
    planned = replace(
        lockstep_plan(engine, tokens, groups, graphs, law), speculation=speculation, max_request_tokens=tokens
    )
    try:
        served = serve_by(workers, requests_of(arrays), cost)
    except StuckError:
        with pytest.raises(EngineStuck):
            simulate(planned, compiled(arrays))
        return
    result = simulate(planned, compiled(arrays))
    finished = result.requests.finished
    assert finished.sum() == len(served.finish_s)
    for k in np.flatnonzero(finished):
        assert result.requests.first_token_s[k] == pytest.approx(served.first_token_s[k], abs=1e-12)
        assert result.requests.finish_s[k] == pytest.approx(served.finish_s[k], abs=1e-12)
    assert_first_visible(result, served.token_s, atol=1e-12)
