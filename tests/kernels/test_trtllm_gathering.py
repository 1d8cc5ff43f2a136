"""TensorRT-LLM's ``batch_wait_timeout_ms``: when tokens come out, and what it does to lone and to many requests."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from hisearch.kernels.core.gap_bins import BINS
from hisearch.kernels.engine.gaps import bin_of
from hisearch.simulate import Result, simulate
from hisearch.simulate.results.gaps import token_times
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.traces.compiled import TraceArrays
from tests.kernels.systems import System, compiled, examples, plan, systems, trtllm_engines
from tests.reference.random_traces import TraceShape, random_trace


@examples(120)
@given(system=systems(trtllm_engines(gathers=True), repeats=True))
def test_tokens_come_out_when_results_are_taken_in(system: System) -> None:
    """Bin by bin of the gaps, and token by token of the log."""
    outcome, result = system.reference(), system.simulate(log=True)
    first, times = token_times(result)
    counts = np.zeros(BINS, np.int64)
    for r, request in outcome.requests.items():
        assert times[first[r] : first[r] + len(request.token_s)].tolist() == request.token_s
        for gap in np.diff(request.token_s):
            counts[bin_of(gap)] += 1
    np.testing.assert_array_equal(result.gap_counts, counts)


def _alike(count: int, every_s: float, output_tokens: int) -> TraceArrays:
    """``count`` requests of 20 tokens that share nothing, ``every_s`` seconds apart."""
    shape = TraceShape(requests=count, follow_up=0.0, repeat=0.0, shared_prefixes=0, slack=1.0)
    arrays = random_trace(1, shape)
    path = np.arange(1, count + 1, dtype=np.int32)
    tokens = np.full(count, 20)
    made = np.full(count, output_tokens)
    return arrays._replace(
        arrival_s=every_s * np.arange(count), input_tokens=tokens, output_tokens=made, max_output_tokens=made,
        thinking_tokens=np.zeros(count, np.int64), parent=np.concatenate([[-1], np.zeros(count)]).astype(np.int32),
        start_tokens=np.zeros(count + 1, np.int64), end_tokens=np.concatenate([[0], tokens + made]),
        prompt_node=path, output_node=path,
    )  # fmt: skip


def _served(arrays: TraceArrays, *, most: int, wait_ms: float, overlap: bool) -> Result:
    engine = EngineSpec(
        name="trtllm", page_tokens=4, max_running_requests=most, batch_wait_timeout_ms=wait_ms, overlap=overlap
    )
    return simulate(plan(engine, 4000), compiled(arrays))


@pytest.mark.parametrize("overlap", [False, True])
def test_every_pass_of_a_lone_request_waits(overlap: bool) -> None:
    """With overlap a step's token comes out behind the next pass, which waits as long."""
    result = _served(_alike(1, 0.0, 4), most=2, wait_ms=50.0, overlap=overlap)
    step_s = 0.005  # of the law, and 20 us a token
    first_s = 0.1 if overlap else 0.05 + step_s
    each_s = 0.05 if overlap else 0.05 + step_s
    assert result.requests.first_token_s[0] == pytest.approx(first_s, abs=1e-3)
    assert result.requests.finish_s[0] == pytest.approx(first_s + 3 * each_s, abs=3e-3)


def test_as_many_as_may_run_are_not_waited_for_any_longer() -> None:
    waiting = _served(_alike(4, 0.01, 2), most=4, wait_ms=1000.0, overlap=False)
    assert waiting.requests.scheduled_s.tolist() == [pytest.approx(0.03)] * 4
    few = _served(_alike(3, 0.01, 2), most=4, wait_ms=1000.0, overlap=False)
    assert few.requests.scheduled_s.tolist() == [1.0] * 3
