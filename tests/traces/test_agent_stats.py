"""Statistics of agents: chains, joins, fan-out, shared beginnings, hints; against slow, obvious counts."""

from __future__ import annotations

import json

import numpy as np
import pytest

from hisearch.specs.workloads.agent_workload import AgentWorkloadSpec
from hisearch.specs.workloads.workload import TraceFileSpec
from hisearch.traces.agents import memberships
from hisearch.traces.compiler import compile_trace
from hisearch.traces.generators import generate_agents
from hisearch.traces.importers import read_trace
from hisearch.traces.stats import trace_stats
from hisearch.traces.trace import make_trace
from tests.traces.test_agent_form import FREE, HEADER, POPULATION, written

#: A plan, three readers, a join of two, one who reads on by itself.
ROWS = [
    {"id": "a", "arrival_s": 0, "agent": "plan", "adapter": "p", "adapter_rank": 16},
    {"id": "b", "agent": "left", "waits_for": ["a"], "think_s": 1.0, "shares_with": "a", "shared_tokens": 6},
    {"id": "c", "agent": "right", "waits_for": ["a"], "think_s": 2.0, "shares_with": "a", "shared_tokens": 6},
    {"id": "d", "agent": "last", "waits_for": ["a"], "shares_with": "a", "shared_tokens": 3, "next_call_s": 4.0},
    {"id": "e", "agent": "plan", "adapter": "p", "adapter_rank": 16, "waits_for": ["b", "c"], "think_s": 3.0},
    {"id": "f", "agent": "last", "waits_for": ["d"], "think_s": 5.0},
]


def graph(tmp_path, rows=ROWS, header=HEADER):
    path = written(tmp_path / "t.jsonl", [{"input_tokens": 10, "output_tokens": 4} | row for row in rows], header)
    return compile_trace(read_trace(path, TraceFileSpec(path=str(path))), "t")


def test_a_graph_is_described(tmp_path):
    stats = trace_stats(graph(tmp_path)).agents
    assert (stats.agents, stats.calls, stats.adapters, stats.adapter_ranks) == (4, 6, 1, (16,))
    assert (stats.calls_per_agent.p50, stats.calls_per_agent.max) == (1.5, 2.0)
    assert stats.depth == 3
    assert stats.waiting_fraction == pytest.approx(4 / 6)
    assert stats.joins == 1
    # a is waited for by three, b, c and d by one each.
    assert (stats.fan_out.mean, stats.fan_out.max) == (1.5, 3.0)
    assert (stats.tool_s.mean, stats.tool_s.max) == (pytest.approx(11 / 5), 5.0)
    assert stats.shared_prefixes == 2
    assert (stats.shared_prefix_tokens.min, stats.shared_prefix_tokens.max) == (3.0, 6.0)
    assert (stats.hints, stats.hint_unit, stats.hint_ahead.p50) == (1, "s", 4.0)
    assert stats.hinted_fraction == pytest.approx(1 / 6)
    assert [(caller.name, caller.calls, caller.adapter) for caller in stats.busiest] == [
        ("plan", 2, "p"), ("last", 2, None), ("left", 1, None), ("right", 1, None),
    ]  # fmt: skip
    assert json.loads(json.dumps(trace_stats(graph(tmp_path)).to_dict()))["agents"]["depth"] == 3


def test_no_agents_are_no_statistics_of_them():
    made = make_trace(arrival_s=[0.0], input_tokens=[5], output_tokens=[1])
    assert trace_stats(compile_trace(made, "chat")).agents is None


def waited_for(trace):
    """What each call waits for, as sets."""
    arrays, agents = trace.arrays, trace.agents
    members: dict[int, set[int]] = {}
    for request, gate in zip(*(column.tolist() for column in memberships(agents)), strict=True):
        members.setdefault(gate, set()).add(request)
    return [
        members[behind] if behind >= 0 else {previous} - {-1}
        for behind, previous in zip(agents.behind.tolist(), arrays.previous.tolist(), strict=True)
    ]


@pytest.mark.parametrize("kind", ["independent", "interaction", "diffusion"])
@pytest.mark.parametrize("pacing", [{}, FREE])
def test_counts_of_a_population_are_those_of_its_graph(kind, pacing):
    spec = AgentWorkloadSpec(kind=kind, **POPULATION, **pacing, adapter_ranks=[8, 64])
    trace = compile_trace(generate_agents(spec), "population")
    stats, before = trace_stats(trace).agents, waited_for(trace)
    agent = trace.agents.agent.tolist()
    level: dict[int, int] = {}

    def depth(call):
        if call not in level:
            level[call] = 1 + max(map(depth, before[call]), default=0)
        return level[call]

    assert stats.depth == max(map(depth, range(len(trace))))
    others = [any(agent[other] != agent[call] for other in before[call]) for call in range(len(trace))]
    assert stats.waiting_fraction == pytest.approx(np.mean(others))
    followers = np.bincount([other for calls in before for other in calls], minlength=len(trace))
    assert stats.fan_out.mean == pytest.approx(followers[followers > 0].mean())
    assert stats.fan_out.max == followers.max()
    assert stats.hint_unit == ("s" if pacing and kind == "independent" else stats.hint_unit)
    assert stats.adapter_ranks == (8, 64)
    assert not any("distances look wrong" in caution for caution in trace.cautions)


def test_calls_in_a_ring_are_refused(tmp_path):
    rows = [
        {"id": "a", "arrival_s": 0, "agent": "x", "behind": "g"},
        {"id": "b", "agent": "y", "previous": "a", "think_s": 0, "gate": "g"},
    ]
    with pytest.raises(ValueError, match="ring"):
        trace_stats(graph(tmp_path, rows))
