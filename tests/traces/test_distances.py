"""Distances of the user's own: what a function says of each call becomes the trace's hints."""

from __future__ import annotations

import numpy as np
import pytest

import hisearch
from hisearch.specs.workloads.agent_workload import AgentWorkloadSpec
from hisearch.traces.compiler import compile_trace
from hisearch.traces.generators import generate_agents
from hisearch.traces.trace import make_trace

LENGTHS = {"distribution": "constant", "scale_tokens": 20}


def population():
    spec = AgentWorkloadSpec(kind="independent", agents=30, calls=300, new_input=LENGTHS, output=LENGTHS)
    return compile_trace(generate_agents(spec), "population")


def test_a_function_says_what_hints_did_before():
    trace = population()
    own = (trace.agents.hint_trigger >= 0) & (trace.agents.hint_trigger < len(trace))
    said = dict(zip(trace.agents.hint_trigger[own].tolist(), trace.agents.hint_steps[own].tolist(), strict=True))
    index = {name: k for k, name in enumerate(trace.request_ids)}
    given = hisearch.with_distances(trace, lambda call: said.get(index[call.request_id]), frames=True)
    np.testing.assert_array_equal(given.agents.hint_trigger, sorted(said))
    np.testing.assert_array_equal(given.agents.hint_steps, [said[k] for k in sorted(said)])
    np.testing.assert_array_equal(given.agents.hint_agent, trace.agents.agent[sorted(said)])
    assert given.digest != trace.digest
    again = hisearch.with_distances(given, lambda call: said.get(index[call.request_id]), frames=True)
    assert again.digest == given.digest


def test_sessions_are_agents_and_numbers_count_their_calls():
    made = make_trace(
        arrival_s=[0.0, 1.0, 2.0], input_tokens=[5, 6, 7], output_tokens=[1, 2, 3], previous=[-1, -1, 0],
        think_s=[0.0, 0.0, 1.0], session=[0, 1, 0],
    )  # fmt: skip
    seen = []
    given = hisearch.with_distances(compile_trace(made, "chat"), lambda call: seen.append(call) or 2.5 * call.number)
    assert [(call.agent, call.number, call.input_tokens) for call in seen] == [(0, 0, 5), (1, 0, 6), (0, 1, 7)]
    assert given.agents.hint_s.tolist() == [0.0, 0.0, 2.5]
    assert (given.agents.adapter == -1).all()


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_what_is_no_distance_is_refused(value):
    with pytest.raises(ValueError, match="at least 0"):
        hisearch.with_distances(population(), lambda call: value)


def test_frames_of_a_trace_without_are_refused():
    made = make_trace(arrival_s=[0.0], input_tokens=[5], output_tokens=[1])
    with pytest.raises(ValueError, match="no frames"):
        hisearch.with_distances(compile_trace(made, "chat"), lambda call: 1.0, frames=True)
