"""Calls that wait for several others, and calls that several joins wait for: a random graph replayed slowly."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hisearch.latency.step_cost import law_costs
from hisearch.simulate import simulate
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.traces.agents import frozen, joined, reordered, without_hints
from hisearch.traces.compiler import compile_trace
from hisearch.traces.trace import make_trace
from tests.kernels.systems import compiled_costs, examples, plan

#: A step of any kind takes 10 ms.
WORKER = plan(
    EngineSpec.model_validate({"name": "sglang", "chunk_tokens": 8192}),
    400_000,
    costs=compiled_costs(law_costs(0.01, 0.0, 0.0)),
)


@st.composite
def graphs(draw: st.DrawFn) -> list[list[int]]:
    """Earlier calls that each call waits for."""
    count = draw(st.integers(2, 14))
    return [sorted(draw(st.sets(st.integers(0, call - 1), max_size=4))) if call else [] for call in range(count)]


def trace_of(waits_for: list[list[int]], think_s: np.ndarray, outputs: np.ndarray):
    count = len(waits_for)
    gate, behind, request, further = joined(waits_for)
    agents = without_hints(np.arange(count) % 3, np.full(3, -1), gate=gate, behind=behind)
    previous = np.array([before[-1] if before else -1 for before in waits_for])
    return make_trace(
        arrival_s=np.where(previous < 0, 0.0, np.nan),
        input_tokens=np.full(count, 50),
        output_tokens=outputs,
        previous=previous,
        think_s=np.where(previous < 0, 0.0, think_s),
        open_loop=False,
        agents=frozen(agents._replace(further_request=request, further_gate=further)),
    )


@examples(60)
@given(graphs(), st.integers(0, 2**32 - 1))
def test_a_call_comes_when_the_last_that_it_waits_for_has_ended(waits_for, seed):  # law L4
    rng = np.random.default_rng(seed)
    count = len(waits_for)
    think_s = rng.random(count)
    trace = trace_of(waits_for, think_s, rng.integers(1, 30, count))
    compiled = compile_trace(trace, "graph", "graph")
    requests = simulate(WORKER, compiled).requests
    place = [compiled.request_ids.index(name) for name in trace.request_ids]
    came_s, ended_s = requests.arrival_s[place], requests.finish_s[place]
    for call, before in enumerate(waits_for):
        due_s = max(ended_s[other] for other in before) + think_s[call] if before else 0.0
        np.testing.assert_allclose(came_s[call], due_s, rtol=1e-9)


def test_what_is_left_of_joins_when_calls_go():
    gate, behind, request, further = joined([[], [], [0, 1], [0, 1], [0, 2], [1, 2]])
    assert gate.tolist() == [0, 0, 1, -1, -1, -1]
    assert behind.tolist() == [-1, -1, 0, 0, 1, 2]
    assert list(zip(request.tolist(), further.tolist(), strict=True)) == [(0, 1), (1, 2), (2, 2)]
    agents = without_hints(np.zeros(6), np.array([-1]), gate=gate, behind=behind)
    kept = reordered(agents._replace(further_request=request, further_gate=further), np.array([2, 0]))
    assert list(zip(kept.further_request.tolist(), kept.further_gate.tolist(), strict=True)) == [(0, 2), (1, 1)]
