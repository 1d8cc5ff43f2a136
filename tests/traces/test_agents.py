"""Populations of agents: properties of each kind, closed loops through gates, hints, prompts, determinism."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from hisearch.specs.workloads.agent_workload import AgentWorkloadSpec
from hisearch.specs.workloads.workload import WorkloadSpec
from hisearch.traces.agents import AT_START, AgentArrays, of_sessions, reordered
from hisearch.traces.changes.selection import head
from hisearch.traces.compiler import compile_trace
from hisearch.traces.generators import edge_list, generate_agents, resized
from hisearch.traces.load import load_workload
from hisearch.traces.reading.errors import TraceError

pytestmark = pytest.mark.slow

KINDS = ("independent", "interaction", "diffusion")
BASE = {
    "agents": 60,
    "calls": 900,
    "new_input": {"distribution": "lognormal", "mean_log": 4.0, "sigma_log": 0.5, "max_tokens": 400},
    "output": {"distribution": "lognormal", "mean_log": 3.0, "sigma_log": 0.5, "max_tokens": 200},
    "world_prompt_tokens": 40,
    "system_prompt_tokens": 100,
    "history_cap_tokens": 700,
    "summary_tokens": 50,
    "world": {"size_m": 100.0, "radius_m": 3.0, "tick_s": 2.0},
}
FREE = {"pacing": "free", "action": {"p50_s": 20.0, "p90_s": 60.0}}


def generate(kind, seed=0, edges=None, **changes):
    return generate_agents(AgentWorkloadSpec(**(BASE | {"kind": kind} | changes)), seed=seed, edges=edges)


def frames_of(trace):
    """The agents that call in each frame."""
    gate, agent = trace.agents.gate, trace.agents.agent
    return [agent[gate == g] for g in range(int(gate.max()) + 1)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pacing", [{}, FREE])
def test_same_seed_same_trace_other_seed_other_trace(kind, pacing):  # law L6
    digest = compile_trace(generate(kind, **pacing), "t").digest
    assert compile_trace(generate(kind, **pacing), "t").digest == digest
    assert compile_trace(generate(kind, seed=1, **pacing), "t").digest != digest
    assert compile_trace(generate(kind, **pacing, **{"seed": 1}), "t").digest != digest


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pacing", [{}, FREE])
def test_an_agent_calls_only_once_its_last_answer_is_there(kind, pacing):  # law L4
    trace = generate(kind, **pacing)
    known: list[set[int]] = []
    newest: dict[int, int] = {}
    members = [
        np.flatnonzero(trace.agents.gate == g).tolist() for g in range(int(trace.agents.gate.max(initial=-1)) + 1)
    ]
    after_gate: dict[int, set[int]] = {}
    for call in range(len(trace)):
        behind, previous = int(trace.agents.behind[call]), int(trace.previous[call])
        if behind >= 0:
            if behind not in after_gate:
                after_gate[behind] = set(members[behind]).union(*(known[m] for m in members[behind]))
            ended = after_gate[behind]
            assert previous in members[behind]
        else:
            ended = known[previous] | {previous} if previous >= 0 else set()
        known.append(ended)
        agent = int(trace.agents.agent[call])
        assert agent not in newest or newest[agent] in ended
        newest[agent] = call


def test_independent_agents_call_at_the_active_rate():
    frames = frames_of(generate("independent", agents=400, calls=12_000, active_rate=0.1))
    assert np.mean([len(frame) for frame in frames[5:-1]]) == pytest.approx(40, rel=0.1)
    steady = frames_of(generate("independent", agents=400, calls=12_000, active_rate=0.1, regularity=1.0))
    for earlier, later in zip(steady[2:-11], steady[12:-1], strict=False):
        assert sorted(earlier) == sorted(later)


def test_bursts_gather_calls_in_common_frames():
    def busiest(burst):
        sizes = [len(frame) for frame in frames_of(generate("independent", agents=200, calls=4000, burst=burst))]
        return max(sizes[5:-1]) / np.mean(sizes[5:-1])

    assert busiest(0.8) > 1.5 * busiest(0.0)


def test_who_meets_calls_before_the_plan_ends():
    """With a radius that nobody comes within, the plans alone decide; else there are more calls in as many frames."""
    isolated = generate("interaction", world={"size_m": 100.0, "radius_m": 1e-6, "tick_s": 2.0})
    close = generate("interaction", world={"size_m": 100.0, "radius_m": 6.0, "tick_s": 2.0})
    assert len(frames_of(close)) < 0.9 * len(frames_of(isolated))


def test_a_message_reaches_all_of_a_connected_graph_breadth_first(tmp_path):
    path = tmp_path / "line.txt"
    path.write_text("# a line of five\n0 1\n1, 2\n2 3\n3 4\n")
    edges = edge_list(path, 5)
    assert edges == [[1], [0, 2], [1, 3], [2, 4], [3]]
    spec = {"agents": 5, "calls": 40, "graph": {"model": "edges", "path": str(path)}}
    trace = generate("diffusion", edges=edges, **spec)
    hops: list[set[int]] = []
    informed: set[int] = set()
    for frame in frames_of(trace):
        if len(informed) == 5:
            informed = set()
        reached = set(frame.tolist())
        if informed:
            assert reached == {n for t in informed for n in edges[t]} - informed
        informed |= reached
        hops.append(reached)
    assert set().union(*hops) == set(range(5))


@pytest.mark.parametrize("graph", [{"model": "scale_free", "degree": 2}, {"model": "small_world", "degree": 4}])
def test_messages_take_known_paths(graph):
    """Every call but those of a message's seeds has a hint from the message's begin, by its number of hops."""
    trace = generate("diffusion", graph=graph)
    agents, frame = trace.agents, trace.agents.gate
    begin = {}
    for trigger, who, steps in zip(agents.hint_trigger, agents.hint_agent, agents.hint_steps, strict=True):
        at = 0 if trigger == AT_START else int(trigger) - len(trace) + 1
        begin[(int(who), at + int(steps))] = True
    hinted = sum((int(who), int(at)) in begin for who, at in zip(agents.agent, frame, strict=True))
    seeds = len(trace) - hinted
    assert 0 < seeds < len(trace) / 20


@pytest.mark.parametrize("kind", ["independent", "diffusion"])
def test_hints_by_frames_are_exact_where_nothing_interferes(kind):
    trace = generate(kind)
    agents = trace.agents
    at = {}
    for call in range(len(trace)):
        at.setdefault(int(agents.agent[call]), []).append(int(agents.gate[call]))
    last = int(agents.gate.max())
    for trigger, who, steps in zip(agents.hint_trigger, agents.hint_agent, agents.hint_steps, strict=True):
        trigger = int(trigger)
        if trigger == AT_START:
            now = 0
        else:
            now = int(agents.gate[trigger]) if trigger < len(trace) else trigger - len(trace) + 1
        assert now + steps > last or now + steps in at[int(who)]


def _foreseen(trace):
    """(frame of a hint, its agent, the frame that it names, the frame of the agent's next call or -1) of each hint."""
    agents = trace.agents
    calls = [np.sort(agents.gate[agents.agent == who]) for who in range(len(agents.adapter))]
    for trigger, who, steps in zip(
        agents.hint_trigger.tolist(), agents.hint_agent.tolist(), agents.hint_steps.tolist(), strict=True
    ):
        ended = trigger < len(trace) and trigger != AT_START
        now = int(agents.gate[trigger]) + 1 if ended else 0 if trigger == AT_START else trigger - len(trace) + 1
        later = calls[who][calls[who] >= now]
        yield now, who, (now - 1 if ended else now) + steps, int(later[0]) if len(later) else -1


def test_meetings_are_foreseen_by_headings_and_plans():
    """Wrong only where somebody in the way calls first: then the estimate is given anew."""
    trace = generate("interaction")
    assert (trace.agents.hint_trigger >= len(trace)).sum() > 20
    right = [named == true for _, _, named, true in _foreseen(trace) if true >= 0]
    assert len(right) > 800
    assert np.mean(right) > 0.9


def test_a_message_that_gets_lost_is_foreseen_by_the_graph_alone():  # law L5
    """Before a hop all neighbours of who has the message are due next, whether it will reach them or not."""
    graph = {"model": "small_world", "degree": 4}
    trace = generate("diffusion", graph=graph, spread=0.5, agents=100)
    assert len({who for now, who, _, _ in _foreseen(trace) if now == 0}) >= 99
    due = [(true, named) for now, _, named, true in _foreseen(trace) if named == now + 1]
    reached = np.mean([true == named for true, named in due])
    assert 0.3 < reached < 0.9
    early = [true < named for _, _, named, true in _foreseen(trace) if true >= 0]
    assert np.mean(early) < 0.05


def test_prompts_begin_like_the_agent_s_last_call_until_a_summary():
    trace = generate("independent")
    base = 140
    newest: dict[int, int] = {}
    summaries = 0
    for call in range(len(trace)):
        agent = int(trace.agents.agent[call])
        before = newest.get(agent)
        newest[agent] = call
        share, tokens = int(trace.shares_with[call]), int(trace.shared_tokens[call])
        if before is None:
            assert tokens == (40 if call else 0)
        elif share == before and tokens == trace.input_tokens[before] + trace.output_tokens[before]:
            assert trace.input_tokens[call] > tokens
        else:
            assert tokens == base
            assert trace.input_tokens[call] <= base + 50 + 400
            summaries += 1
    assert summaries > 20
    assert (generate("independent", history=False, history_cap_tokens=None).input_tokens <= base + 400).all()


def test_adapters_are_dealt_in_turn():
    assert generate("independent").agents.adapter.tolist() == list(range(60))
    assert generate("independent", adapters=4).agents.adapter[:6].tolist() == [0, 1, 2, 3, 0, 1]
    assert set(generate("independent", adapters=0).agents.adapter) == {-1}


def test_compiling_and_cutting_keep_what_belongs_together():
    trace = compile_trace(generate("interaction"), "t")
    short = head(trace, 333)
    assert len(short.agents.agent) == 333
    np.testing.assert_array_equal(short.agents.gate, trace.agents.gate[:333])
    assert (short.agents.hint_trigger < 333 + short.agents.gate.max() + 1).all()
    names = {int(who) for who in short.agents.hint_agent}
    assert names <= set(range(60))


def test_reordering_renames_triggers():
    agents = AgentArrays(
        agent=np.array([0, 1, 0]), adapter=np.array([5, -1]), gate=np.array([0, 0, 1]), behind=np.array([-1, -1, 0]),
        hint_trigger=np.array([AT_START, 0, 2, 3]), hint_agent=np.array([0, 1, 0, 1]), hint_after_s=np.zeros(4),
        hint_s=np.arange(4.0), hint_steps=np.zeros(4), by_frames=np.array([1]),
    )  # fmt: skip
    swapped = reordered(agents, np.array([1, 0]))
    assert swapped.agent.tolist() == [1, 0]
    assert swapped.gate.tolist() == [0, 0]
    # Request 0 is now 1, gate 0 now 2; request 2 is gone, with its hint.
    assert list(zip(swapped.hint_trigger.tolist(), swapped.hint_s.tolist(), strict=True)) == [
        (-1, 0.0),
        (1, 1.0),
        (2, 3.0),
    ]


def test_a_population_is_cached_completely(tmp_path, monkeypatch):
    monkeypatch.setenv("HISEARCH_CACHE_DIR", str(tmp_path))
    spec = WorkloadSpec(agents=AgentWorkloadSpec(kind="independent", **BASE))
    made, cached = load_workload(spec, tmp_path), load_workload(spec, tmp_path)
    assert made.digest == cached.digest
    np.testing.assert_array_equal(made.agents.hint_s, cached.agents.hint_s)


def test_sessions_of_a_recorded_trace_are_agents():
    agents = of_sessions(np.array([0, 1, 0], np.int32), adapters=True)
    assert agents.agent.tolist() == [0, 1, 0]
    assert agents.adapter.tolist() == [0, 1]
    assert of_sessions(np.array([0, 1], np.int32), adapters=False).adapter.tolist() == [-1, -1]


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [("0 1\n1 9\n", 2, "numbered from 0"), ("0 1\nx y\n", 2, "two agents"), ("# nothing\n", None, "no edges")],
)
def test_bad_edge_lists_are_refused_with_their_line(tmp_path, text, line, words):
    path = tmp_path / "edges.txt"
    path.write_text(text)
    with pytest.raises(TraceError, match=words) as caught:
        edge_list(path, 5)
    assert line is None or f":{line}" in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pacing": "free"}, "action is needed"),
        ({"action": {"p50_s": 1, "p90_s": 2}}, "and for no other"),
        ({"seeds": 2}, "diffusion alone"),
        ({"adapters": 61}, "exceed the 60 agents"),
        ({"adapters": 0, "adapter_ranks": [8]}, "no adapters"),
        ({"world": {"size_m": 10.0, "radius_m": 20.0, "tick_s": 1.0}}, "exceeds size_m"),
        ({"graph": {"model": "edges"}}, "path is needed"),
        ({"graph": {"model": "small_world", "degree": 3}}, "even number"),
        ({"summary_tokens": 800}, "exceed history_cap_tokens"),
        ({"world": {"size_m": 10.0, "tick_s": 60.0}}, "cross the world"),
    ],
)
def test_contradictions_are_refused(changes, words):
    with pytest.raises(ValidationError, match=words):
        AgentWorkloadSpec(**(BASE | {"kind": "independent"} | changes))


@pytest.mark.parametrize("kind", ["independent", "interaction", "diffusion"])
def test_a_larger_population_lives_as_the_smaller_one_does(kind):
    spec = AgentWorkloadSpec(**(BASE | {"kind": kind, "agents": 100, "calls": 4000}))
    small, large = generate_agents(spec), generate_agents(resized(spec, 400))
    assert len(large) == 4 * len(small)
    assert len(large.agents.adapter) == 400
    frames = [len(frames_of(trace)) for trace in (small, large)]
    assert frames[1] == pytest.approx(frames[0], rel=0.35)
    assert resized(spec, 100) == spec


def test_a_graph_from_a_file_has_one_size(tmp_path):
    path = tmp_path / "edges.txt"
    path.write_text("0 1\n")
    spec = AgentWorkloadSpec(**(BASE | {"kind": "diffusion", "graph": {"model": "edges", "path": str(path)}}))
    with pytest.raises(ValueError, match="the agents that it has"):
        resized(spec, 10)
