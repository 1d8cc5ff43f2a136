"""Attention groups that step together: the kernels against ``vllm_lockstep``, and their closed forms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisearch.base.dtypes import F8
from hisearch.latency.costs import LockstepCosts, StepCosts
from hisearch.latency.sharding import Parallelism
from hisearch.latency.step_cost import step_seconds
from hisearch.simulate import Result, WorkerPlan, simulate
from hisearch.simulate.engine import EngineStuck
from hisearch.specs.base import EngineName
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.traces.compiled import CompiledTrace
from tests.kernels.systems import LAW, compiled, compiled_costs, examples, pages, plan, vllm_config
from tests.reference.cluster import requests_of
from tests.reference.random_traces import TraceShape, random_trace
from tests.reference.restatement.vllm import StuckError
from tests.reference.restatement.vllm_lockstep import Batch, Served, serve
from tests.simulate.logged import assert_first_visible

SHAPE = TraceShape(requests=30, rate_rps=40.0, prompt_tokens=150, output_tokens=40, follow_up=0.0, slack=1.0)
#: Convex, so that it matters how tokens are spread.
SHARED_S = 1e-6 * np.arange(64.0) ** 2
GRAPHS = (4, 8, 16, 32)
#: Of steps in which all groups decode, all have prompts, and some have; neither line nor sign in common.
BY_KIND_S = np.array(
    [1e-4 * np.sin(np.arange(64.0)), 2e-4 * np.cos(np.arange(64.0)), 3e-4 * np.sin(1.0 + np.arange(64.0))]
)


def lockstep_plan(
    engine: EngineSpec,
    capacity_tokens: int,
    groups: int,
    graphs: tuple[int, ...],
    law: StepCosts = LAW,
    by_kind_s: F8 | None = None,
) -> WorkerPlan:
    costs = replace(compiled_costs(law), lockstep=LockstepCosts(law.token_s, SHARED_S, graphs, by_kind_s))
    return replace(plan(engine, capacity_tokens, costs=costs), split=Parallelism(1, attention_data=groups))


def shared_seconds(total: int, groups: int, table: F8 = SHARED_S) -> float:
    at = total / groups
    low = min(int(at), len(table) - 2)
    return float(table[low] + (table[low + 1] - table[low]) * (at - low))


def reference(
    engine: EngineSpec,
    capacity_tokens: int,
    groups: int,
    graphs: tuple[int, ...],
    seed: int,
    by_kind_s: F8 | None = None,
) -> Served:
    """The slow restatement, with the cost of a lockstep step written out."""
    arrays = random_trace(seed, SHAPE)
    requests = requests_of(arrays)

    def cost(batches: Sequence[Batch]) -> float:
        tokens = [sum(new for new, _ in chunks) + len(decodes) for chunks, decodes, _ in batches]
        if graphs and max(tokens) <= graphs[-1]:
            tokens = [next(size for size in graphs if size >= max(tokens))] * len(tokens)
        parts = [
            step_seconds(LAW, chunks, [context + 1 for context in decodes], sampling)
            for chunks, decodes, sampling in batches
            if chunks or decodes
        ]
        shared_s = shared_seconds(sum(tokens), groups)
        kinds = {bool(chunks) for chunks, decodes, _ in batches if chunks or decodes}
        if by_kind_s is not None:
            row = 2 if len(kinds) == 2 else int(kinds.pop())
            shared_s += shared_seconds(sum(tokens), groups, by_kind_s[row])
        return max(parts) + shared_s

    return serve(vllm_config(engine, capacity_tokens), groups, requests, cost)


@examples(25)
@given(
    seed=st.integers(0, 10_000),
    groups=st.integers(2, 4),
    capacity=st.integers(60, 120),
    chunk=st.sampled_from([16, 64, 256]),
    overlap=st.booleans(),
    padded=st.booleans(),
    by_kind_s=st.sampled_from([None, BY_KIND_S]),
)
def test_the_kernels_equal_the_slow_restatement(
    seed: int, groups: int, capacity: int, chunk: int, overlap: bool, padded: bool, by_kind_s: F8 | None
) -> None:
    engine = EngineSpec(
        name="vllm", max_running_requests=8, chunk_tokens=chunk, page_tokens=8, overlap=overlap, watermark=0.0
    )
    graphs = GRAPHS if padded else ()
    tokens = 8 * capacity
    trace = compiled(random_trace(seed, SHAPE))
    try:
        served = reference(engine, tokens, groups, graphs, seed, by_kind_s)
    except StuckError:
        with pytest.raises(EngineStuck):
            simulate(lockstep_plan(engine, tokens, groups, graphs, by_kind_s=by_kind_s), trace)
        return
    result = simulate(lockstep_plan(engine, tokens, groups, graphs, by_kind_s=by_kind_s), trace)
    finished = result.requests.finished
    assert finished.sum() == len(served.finish_s)
    for k in np.flatnonzero(finished):
        assert result.requests.first_token_s[k] == served.first_token_s[k]
        assert result.requests.finish_s[k] == served.finish_s[k]
    assert_first_visible(result, served.token_s)


def single_request(input_tokens: int, output_tokens: int) -> CompiledTrace:
    shape = TraceShape(requests=1, prompt_tokens=input_tokens, output_tokens=output_tokens, slack=1.0)
    return compiled(random_trace(1, shape))


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("overlap", [True, False])
def test_alone_a_request_takes_its_own_part_and_the_shared_one(engine: str, overlap: bool) -> None:
    """One DP rank works, the others idle: own seconds of each step, and experts for its tokens alone (law L7)."""
    spec = EngineSpec.model_validate(
        {
            "name": engine,
            "max_running_requests": 4,
            "chunk_tokens": 4096,
            "overlap": overlap,
            "page_tokens": pages(engine, 1),
        }
    )
    trace = single_request(30, 10)
    result = simulate(lockstep_plan(spec, 4096, 4, ()), trace)
    prompt, output = int(trace.arrays.input_tokens[0]), int(trace.arrays.output_tokens[0])
    # All groups' decodes run as long as the fullest's; vLLM pads to its graphs alone, of which there are none.
    decoding = 1 if engine == "vllm" else 4
    expected = step_seconds(LAW, [(prompt, 0)], []) + shared_seconds(prompt, 4)
    for k in range(output - 1):
        expected += step_seconds(LAW, [], [prompt + k + 1]) + shared_seconds(decoding, 4)
    assert result.requests.e2e_s[0] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_equal_dp_ranks_step_as_one_alone(engine: str) -> None:
    """As many equal requests as groups, all at once: each takes what one takes where all groups have its tokens."""
    spec = EngineSpec.model_validate(
        {"name": engine, "max_running_requests": 4, "chunk_tokens": 4096, "prefix_caching": False}
        | {"page_tokens": pages(engine, 1)}
    )
    shape = TraceShape(requests=1, prompt_tokens=60, output_tokens=20, slack=1.0)
    arrays = random_trace(3, shape)
    four = arrays._replace(**{name: np.repeat(getattr(arrays, name), 4) for name in PER_REQUEST})
    result: Result = simulate(lockstep_plan(spec, 4096, 4, ()), compiled(four))
    prompt, output = int(arrays.input_tokens[0]), int(arrays.output_tokens[0])
    expected = step_seconds(LAW, [(prompt, 0)], []) + shared_seconds(4 * prompt, 4)
    for k in range(output - 1):
        expected += step_seconds(LAW, [], [prompt + k + 1]) + shared_seconds(4, 4)
    np.testing.assert_allclose(result.requests.e2e_s, expected, rtol=1e-9)


PER_REQUEST = (
    "arrival_s", "input_tokens", "output_tokens", "max_output_tokens", "think_s", "priority", "prompt_node",
    "output_node", "previous",
)  # fmt: skip


@examples(15)
@given(
    seed=st.integers(0, 10_000),
    name=st.sampled_from(["sglang", "trtllm"]),
    groups=st.integers(2, 4),
    workers=st.integers(1, 2),
    overlap=st.booleans(),
)
def test_every_request_is_served_whatever_the_groups(
    seed: int, name: EngineName, groups: int, workers: int, overlap: bool
) -> None:
    """Conservation (L1) and causality (L4), follow-ups included."""
    spec = EngineSpec(name=name, max_running_requests=6, chunk_tokens=64, overlap=overlap)
    trace = compiled(random_trace(seed, replace(SHAPE, follow_up=0.4, slack=2.0)))
    result = simulate(lockstep_plan(spec, 4000, groups, GRAPHS), trace, replicas=workers)
    requests = result.requests
    assert requests.finished.all()
    assert (requests.first_token_s >= requests.scheduled_s).all()
    assert (requests.finish_s >= requests.first_token_s).all()
    assert result.workers.requests.sum() == len(requests.arrival_s)
    assert len(result.workers.steps) == workers
