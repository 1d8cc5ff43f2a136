"""KV of an adapter is that adapter's alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisearch.simulate.arrays.agents import arrays_of
from hisearch.simulate.plans.agent_plan import AgentPlan, KindPlan
from hisearch.specs.base import EngineName
from hisearch.traces import adapter_tree
from hisearch.traces.agents import AgentArrays, of_sessions
from hisearch.traces.compiled import TraceArrays
from hisearch.traces.compiler import compile_trace
from hisearch.traces.stats import ideal_hit_tokens
from hisearch.traces.trace import make_trace
from tests.kernels.agent_systems import Population, adapters, population
from tests.kernels.systems import examples


def path_of(trace: TraceArrays, node: int) -> list[int]:
    """Nodes from the root's child down to ``node``."""
    nodes = []
    while node > 0:
        nodes.append(node)
        node = int(trace.parent[node])
    return nodes[::-1]


def runs(trace: TraceArrays, node: int) -> list[tuple[int, int]]:
    return [(int(trace.start_tokens[d]), int(trace.end_tokens[d])) for d in path_of(trace, node)]


@st.composite
def families(draw: st.DrawFn) -> tuple[TraceArrays, AgentArrays]:
    """Prompts that begin like earlier ones, for any length, of agents with any adapters."""
    count = draw(st.integers(1, 25))
    inputs, shares, shared = [], [], []
    for r in range(count):
        like = draw(st.integers(-1, r - 1))
        inputs.append(draw(st.integers(1, 60)))
        shares.append(like)
        shared.append(draw(st.integers(1, min(inputs[-1], inputs[like]))) if like >= 0 else 0)
    number = draw(st.integers(1, 6))
    agent = np.array(draw(st.lists(st.integers(0, number - 1), min_size=count, max_size=count)), np.int32)
    trace = make_trace(
        arrival_s=np.arange(count, dtype=float),
        input_tokens=np.array(inputs),
        output_tokens=np.ones(count, np.int64),
        shares_with=np.array(shares),
        shared_tokens=np.array(shared),
    )
    adapter = np.array(draw(st.lists(st.integers(-1, 3), min_size=number, max_size=number)), np.int32)
    nobody = of_sessions(agent, adapters=False)
    kept = nobody._replace(adapter=np.resize(adapter, len(nobody.adapter)))
    return compile_trace(trace, "family").arrays, kept


@examples(100)
@given(family=families())
def test_two_requests_share_what_they_did_under_one_adapter_and_nothing_under_two(
    family: tuple[TraceArrays, AgentArrays],
) -> None:
    before, agents = family
    after = adapter_tree.separate_adapters(before, agents.adapter[agents.agent])
    of = agents.adapter[agents.agent]
    assert (after.parent[1:] < np.arange(1, len(after.parent))).all()
    assert after.parent[0] == -1
    for r in range(len(of)):
        for column in ("prompt_node", "output_node"):
            assert runs(before, getattr(before, column)[r]) == runs(after, getattr(after, column)[r])
        for q in range(r):
            shared = set(path_of(before, before.output_node[r])) & set(path_of(before, before.output_node[q]))
            now = set(path_of(after, after.output_node[r])) & set(path_of(after, after.output_node[q]))
            assert len(now) == (len(shared) if of[r] == of[q] else 0)


def test_without_two_adapters_on_one_path_nothing_changes() -> None:
    trace = population(adapters=0)
    assert trace.agents is not None
    assert adapter_tree.separate_adapters(trace.arrays, trace.agents.adapter[trace.agents.agent]) is trace.arrays


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_the_world_s_prompt_is_computed_once_for_each_adapter(engine: EngineName) -> None:
    """With memory for everything: agents' first calls hit what others' have left under the same adapter alone."""

    def first_calls_that_hit(number: int | None) -> int:
        trace = population(agents=12, calls=80, adapters=number, world_prompt_tokens=16, system_prompt_tokens=16)
        plan = AgentPlan(policy="lru", kinds=(adapters(pages=4),), pool_pages=4 * 12)
        case = Population(trace, plan, engine, capacity_tokens=40_000, page_tokens=16 if engine == "vllm" else 1)
        assert trace.agents is not None
        first = [int(np.flatnonzero(trace.agents.agent == a)[0]) for a in range(12)]
        return int((case.simulate().requests.hit_tokens[first] >= 16).sum())

    assert first_calls_that_hit(None) == 0
    assert 0 < first_calls_that_hit(4) <= 8
    assert first_calls_that_hit(4) < first_calls_that_hit(0) <= 11


def test_objects_that_are_no_adapters_leave_the_tree_as_it_is() -> None:
    trace = population()
    plan = AgentPlan(policy="lru", kinds=(KindPlan("index", "agent", 4, 0.001, 1e6),), pool_pages=48)
    plain = Population(trace, replace(plan, kinds=(), pool_pages=0), capacity_tokens=40_000).simulate()
    with_objects = Population(trace, plan, capacity_tokens=40_000).simulate()
    keyed = Population(trace, replace(plan, kinds=(adapters(4),)), capacity_tokens=40_000).simulate()
    assert with_objects.requests.hit_tokens.sum() > keyed.requests.hit_tokens.sum()
    assert abs(int(with_objects.requests.hit_tokens.sum()) - int(plain.requests.hit_tokens.sum())) < 200


@pytest.mark.parametrize("number", [None, 4])
def test_an_endless_cache_hits_what_the_tree_of_its_adapters_has_in_common(number: int | None) -> None:
    """Of one call after another: the trace's ideal hits over that tree are what a worker finds."""
    trace = population(agents=10, calls=200, adapters=number, pacing="free", action={"p50_s": 20.0, "p90_s": 60.0})
    plan = AgentPlan(policy="lru", kinds=(adapters(4),), pool_pages=4 * 12)
    case = Population(trace, plan, capacity_tokens=200_000, max_running=1, overlap=False)
    separated = replace(trace, arrays=arrays_of(trace, [case.plan]))
    ideal = np.minimum(ideal_hit_tokens(separated, include_outputs=True), trace.arrays.input_tokens - 1)
    hits = case.simulate().requests.hit_tokens
    assert abs(int(hits.sum()) - int(ideal.sum())) <= 0.01 * ideal.sum()
    assert ideal.sum() < np.minimum(ideal_hit_tokens(trace, include_outputs=True), trace.arrays.input_tokens - 1).sum()
