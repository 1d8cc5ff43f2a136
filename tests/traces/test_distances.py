"""Distances of the user's own: what a function says of each call becomes the trace's hints."""

from __future__ import annotations

import json

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
    assert [call.name for call in seen] == ["0", "1", "0"]
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


def free_population():
    spec = AgentWorkloadSpec(
        kind="independent", agents=30, calls=300, new_input=LENGTHS, output=LENGTHS, pacing="free",
        action={"p50_s": 20.0, "p90_s": 60.0},
    )  # fmt: skip
    return compile_trace(generate_agents(spec), "population")


def said_by(trace, column):
    """A function of what the trace's own hints say at the ends of calls."""
    agents = trace.agents
    said = dict(zip(agents.hint_trigger.tolist(), getattr(agents, column).tolist(), strict=True))
    index = {name: k for k, name in enumerate(trace.request_ids)}
    return lambda call: said.get(index[call.request_id])


def wrong(trace):
    return [caution for caution in trace.cautions if caution.startswith("distances look wrong")]


@pytest.mark.parametrize(
    ("factor", "supposed"), [(1.0, None), (5.0, None), (0.05, None), (1e3, "milliseconds"), (1e-3, "0.001 times")]
)
def test_seconds_in_another_unit_are_cautioned(factor, supposed):  # law L8
    trace = free_population()
    predict = said_by(trace, "hint_s")
    given = hisearch.with_distances(trace, lambda call: factor * predict(call) if predict(call) is not None else None)
    if supposed is None:
        assert wrong(given) == []
        return
    (caution,) = wrong(given)
    assert supposed in caution
    assert "understood as s" in caution
    again = hisearch.with_distances(given, predict)
    assert wrong(again) == []


@pytest.mark.parametrize(("frame_s", "factor"), [(10.0, 10.0), (0.05, 0.05), (0.0, 500.0)])
def test_seconds_for_frames_are_cautioned(frame_s, factor):  # law L8
    spec = AgentWorkloadSpec(
        kind="independent", agents=30, calls=300, new_input=LENGTHS, output=LENGTHS, frame_s=frame_s
    )
    trace = compile_trace(generate_agents(spec), "population")
    predict = said_by(trace, "hint_steps")
    assert wrong(hisearch.with_distances(trace, predict, frames=True)) == []
    given = hisearch.with_distances(trace, lambda call: factor * (predict(call) or 0), frames=True)
    (caution,) = wrong(given)
    assert "understood as frames" in caution
    assert (f"a frame takes {frame_s:g} s" in caution or f"of which one takes {frame_s:g} s" in caution) == (
        frame_s > 0
    )


def test_seconds_in_a_world_of_frames_are_refused():
    with pytest.raises(ValueError, match=r"goes by frames.*predict said 30.*frames=True"):
        hisearch.with_distances(population(), lambda call: 30.0)


def test_a_column_of_distances_is_held_against_the_trace_too(tmp_path):
    path = tmp_path / "t.jsonl"

    def cautions(header, **said):
        rows = [{"format": "hisearch-trace", "version": 1, **header}]
        for k in range(12):
            row = {"id": f"{k}", "input_tokens": 9, "output_tokens": 2, "agent": "a"}
            link = {"previous": f"{k - 1}", "think_s": 3.0} if k else {"arrival_s": 0}
            if header:
                link = ({"behind": f"g{k - 1}", "previous": f"{k - 1}", "think_s": 3.0} if k else {"arrival_s": 0}) | {
                    "gate": f"g{k}"
                }
            rows.append(row | link | said)
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        return wrong(hisearch.load_trace(path))

    by_frames = {"agents": {"by_frames": True}}
    assert cautions({}, next_call_s=3.5) == []
    (caution,) = cautions({}, next_call_s=3000.0)
    assert "3,000 s where the agent's next call comes after 3 s" in caution
    assert cautions(by_frames, next_call_steps=1) == []
    (caution,) = cautions(by_frames, next_call_steps=3)
    assert "of which one takes 3 s" in caution
    (caution,) = cautions(by_frames, next_call_s=3.0)
    assert "next_call_steps" in caution
