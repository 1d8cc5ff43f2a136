"""Floors that the host puts under steps: the kernels' bits, runs of decode steps, whole simulations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisearch.kernels.engine import cost
from hisearch.latency.costs import CompiledCosts, HostFloor, StepCosts
from hisearch.latency.many_steps import Stacked
from hisearch.latency.step_cost import decode_step_seconds, law_costs, step_seconds
from hisearch.simulate import simulate
from hisearch.simulate.arrays.costs import kernel_costs
from hisearch.specs.deployments.deployment import EngineSpec
from tests.kernels.systems import (
    LAW,
    System,
    compiled,
    compiled_costs,
    examples,
    plan,
    rugged_costs,
    sglang_engines,
    systems,
    trtllm_engines,
    vllm_config,
    vllm_engines,
)
from tests.kernels.test_against_reference import _assert_equal, _assert_same_without_log
from tests.kernels.test_cost import _contexts, _requests
from tests.kernels.test_lockstep_steps import SHAPE, lockstep_plan, shared_seconds
from tests.reference.cluster import requests_of
from tests.reference.random_traces import random_trace
from tests.reference.restatement.vllm_lockstep import Batch, serve
from tests.simulate.logged import assert_first_visible

NO_FLOOR = HostFloor()
#: From nothing at all to more than any step here takes.
SECONDS = st.sampled_from([0.0, 1e-3, 0.005, 0.0052, 0.02, 1.0])
FLOORS = st.builds(
    HostFloor, SECONDS, st.sampled_from([0.0, 1e-5, 1e-3]), SECONDS, SECONDS, st.sampled_from([0, 1, 8, 40, 500, 2**40])
)
TABLES = st.builds(
    lambda tables, floor: tables._replace(floor=floor), st.integers(0, 20).map(rugged_costs) | st.just(LAW), FLOORS
)
CHUNKS = st.lists(st.tuples(st.integers(1, 600), st.integers(0, 3000), st.booleans()), max_size=5)


@examples(300)
@given(
    tables=TABLES,
    chunks=CHUNKS,
    late=st.lists(st.integers(1, 5000), max_size=3),
    decodes=st.lists(st.integers(1, 5000), max_size=20),
)
def test_batch_costs_the_same_bits(
    tables: StepCosts, chunks: list[tuple[int, int, bool]], late: list[int], decodes: list[int]
) -> None:
    requests, batch = _requests(chunks, late)
    shape = (len(decodes), sum(decodes), max(decodes, default=0), sum(length * length for length in decodes))
    costs = kernel_costs(tables)
    sampling = len(late) + len(decodes) + sum(complete for _, _, complete in chunks)
    bare = [(new, cached) for new, cached, _ in chunks]
    expected = step_seconds(tables, bare, [*late, *decodes], sampling)
    device, host = cost.batch_cost(costs, requests, batch, len(batch), *shape)
    assert device == step_seconds(tables._replace(floor=None), bare, [*late, *decodes], sampling)
    assert max(device, host) == expected


@examples(100)
@given(tables=TABLES, sequences=st.integers(1, 40), context=st.integers(1, 30_000))
def test_a_decode_step_costs_the_same_bits(tables: StepCosts, sequences: int, context: int) -> None:
    expected = decode_step_seconds(tables, sequences, context)
    assert cost.decode_step_seconds(kernel_costs(tables), sequences, context, 0) == expected


@pytest.mark.parametrize(
    ("tokens", "chunks", "launched"), [(1, 0, 0.0), (8, 0, 0.0), (8, 1, 0.25), (9, 0, 0.5), (9, 1, 0.5)]
)
def test_launches_depend_on_what_graph_holds_the_step(tokens: int, chunks: int, launched: float) -> None:
    floor = HostFloor(1.0, 0.0, 0.25, 0.5, graph_tokens=8)
    assert cost.floor_seconds(kernel_costs(LAW._replace(floor=floor)).host, 3, tokens, chunks) == 1.0 + launched
    assert floor.seconds(3, tokens, prompts=chunks > 0) == 1.0 + launched


@examples(200)
@given(
    tables=TABLES,
    start=st.floats(0.0, 1e6),
    sequences=st.integers(1, 40),
    context=st.integers(1, 30_000),
    longest=st.integers(1, 9_000),
    limit=st.integers(1, 400),
    share=st.floats(0.0, 1.5),
    bound=st.floats(0.0, 1.0),
)
def test_fast_forward_equals_stepping_where_the_floor_binds_partly(
    tables: StepCosts, start: float, sequences: int, context: int, longest: int, limit: int, share: float, bound: float
) -> None:
    """The floor is put where the device's steps, which grow, pass it after the share ``bound`` of the run."""
    contexts, device = _contexts(sequences, context, longest), tables._replace(floor=None)
    crossing = step_seconds(device, [], [length + int(bound * limit) for length in contexts])
    tables = tables._replace(floor=HostFloor(crossing, 0.0, 0.0, 0.0, 2**40))
    steps_s = [step_seconds(tables, [], [length + step for length in contexts]) for step in range(limit)]
    ends = [start]
    for step_s in steps_s:
        ends.append(ends[-1] + step_s)
    assert min(steps_s) == crossing
    costs = kernel_costs(tables)
    batch = (sequences, sum(contexts), max(contexts) * sequences - sum(contexts))
    assert cost.fast_forward(costs, start, np.inf, limit, *batch) == (limit, ends[-1])
    until = start + share * (ends[-1] - start)
    steps = next((k for k in range(1, limit + 1) if ends[k] >= until), limit)
    assert cost.fast_forward(costs, start, until, limit, *batch) == (steps, ends[steps])


@examples(200)
@given(
    tables=TABLES,
    start=st.floats(0.0, 1e5),
    sequences=st.integers(1, 40),
    context=st.integers(1, 30_000),
    longest=st.integers(0, 9_000),
    limit=st.integers(1, 600),
    bound=st.floats(0.0, 1.0) | st.none(),
)
def test_a_fast_forward_is_bounded_from_below(
    tables: StepCosts, start: float, sequences: int, context: int, longest: int, limit: int, bound: float | None
) -> None:
    contexts = _contexts(sequences, context, longest)
    if bound is not None:
        crossing = step_seconds(tables._replace(floor=None), [], [length + int(bound * limit) for length in contexts])
        tables = tables._replace(floor=HostFloor(crossing, 0.0, 0.0, 0.0, 2**40))
    costs = kernel_costs(tables)
    batch = (sequences, sum(contexts), max(contexts) * sequences - sum(contexts))
    _, end = cost.fast_forward(costs, start, np.inf, limit, *batch)
    assert cost.fast_forward_bound(costs, start, limit, *batch) <= end


def test_the_bound_is_near_where_the_floor_binds_all_along() -> None:
    """Of 300 steps of a second each: all that is taken off is what rounding may make of them."""
    costs = kernel_costs(LAW._replace(floor=HostFloor(1.0, 0.0, 0.0, 0.0, 2**40)))
    assert cost.fast_forward_bound(costs, 0.0, 300, 4, 1000, 0) == pytest.approx(300.0, rel=1e-9)


MAYBE_FLOORS = st.lists(FLOORS | st.none(), min_size=1, max_size=3)
BATCHES = st.lists(st.lists(st.integers(1, 9000), max_size=20), min_size=1, max_size=6)
STEPS = st.tuples(st.integers(1, 900), st.integers(0, 9000), st.integers(0, 40), st.integers(1, 9000))


@given(floors=MAYBE_FLOORS, batches=BATCHES)
def test_many_decode_steps_cost_what_each_does(floors: list[HostFloor | None], batches: list[list[int]]) -> None:
    costs = [LAW._replace(floor=floor) for floor in floors]
    expected = [[step_seconds(of, (), batch) if batch else 0.0 for of in costs] for batch in batches]
    count, context = np.array([len(batch) for batch in batches]), np.array([sum(batch) for batch in batches])
    longest = np.array([max(batch, default=0) for batch in batches])
    np.testing.assert_allclose(Stacked(costs).decode_steps(count, context, longest), expected, rtol=1e-9)


@given(floors=MAYBE_FLOORS, steps=st.lists(STEPS, min_size=1, max_size=8))
def test_many_prompt_chunks_cost_what_each_does(
    floors: list[HostFloor | None], steps: list[tuple[int, int, int, int]]
) -> None:
    costs = [LAW._replace(floor=floor) for floor in floors]
    expected = [[step_seconds(of, [(new, behind)], [reads] * n) for of in costs] for new, behind, n, reads in steps]
    np.testing.assert_allclose(Stacked(costs).chunk_steps(*np.array(steps).T), expected, rtol=1e-9)


@dataclass(frozen=True)
class Floored(System):
    """A deployment whose host puts a floor under its steps; energy has none."""

    floor: HostFloor = NO_FLOOR

    @property
    def costs(self) -> CompiledCosts:
        """The same with the floor."""
        seconds = rugged_costs(self.seed) if self.rugged else LAW
        return compiled_costs(seconds._replace(floor=self.floor))


#: That bind in some of the steps of ``LAW`` (5 ms and more), in all, or in none.
SIMULATED = st.builds(
    HostFloor,
    st.sampled_from([0.0, 0.004, 0.0055, 0.008]),
    st.sampled_from([0.0, 2e-4]),
    st.sampled_from([0.0, 0.003]),
    st.sampled_from([0.0, 0.01]),
    st.sampled_from([0, 4, 24, 2**40]),
)
ENGINES = {"vllm": vllm_engines(), "sglang": sglang_engines(), "trtllm": trtllm_engines()}


@pytest.mark.parametrize(("count", "least"), [(12, 2), pytest.param(60, 10, marks=pytest.mark.slow)])
@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "serial"])
@pytest.mark.parametrize("name", ENGINES)
def test_whole_runs_equal_their_reference(name: str, overlap: bool, count: int, least: int) -> None:
    """Step by step and bit by bit; without a log, runs of decode steps are cut otherwise, to the same end."""
    engines = ENGINES[name].map(lambda engine: engine.model_copy(update={"overlap": overlap}))
    bound = 0

    @examples(count, always=True)
    @given(system=systems(engines, repeats=True), floor=SIMULATED)
    def check(system: System, floor: HostFloor) -> None:
        nonlocal bound
        fields = {field: getattr(system, field) for field in System.__dataclass_fields__ if field != "trace"}
        floored = Floored(**fields, floor=floor)
        result = _assert_equal(floored)
        _assert_same_without_log(floored, result)
        bound += result.makespan_s > replace(floored, floor=NO_FLOOR).simulate().makespan_s

    check()
    assert bound > least


@pytest.mark.parametrize("name", ENGINES)
def test_every_step_of_a_run_that_the_host_binds_is_as_long_as_the_floor(name: str) -> None:
    """10 ms, on a device that takes 1 ms."""
    engine = EngineSpec.model_validate({"name": name, "page_tokens": 16, "max_running_requests": 4, "chunk_tokens": 64})
    floor = HostFloor(0.01, 0.0, 0.0, 0.0, 2**40)
    costs = compiled_costs(law_costs(0.001, 0.0, 0.0)._replace(floor=floor))
    result = simulate(plan(engine, 4000, costs=costs), System(5, engine, 4000).trace, log=True)
    assert result.log is not None
    assert len(result.log) > 100
    np.testing.assert_allclose(result.log.steps["end_s"] - result.log.steps["start_s"], 0.01, rtol=1e-9)


@examples(25)
@given(
    seed=st.integers(0, 10_000), groups=st.integers(2, 4), chunk=st.sampled_from([16, 64]), overlap=st.booleans(),
    floor=SIMULATED,
)  # fmt: skip
def test_attention_groups_wait_for_the_slowest_device_or_host_of_them(
    seed: int, groups: int, chunk: int, overlap: bool, floor: HostFloor
) -> None:
    """Each has a host of its own; what they do together begins when the last device has done its own part."""
    engine = EngineSpec(name="vllm", max_running_requests=8, chunk_tokens=chunk, page_tokens=8, overlap=overlap)
    arrays = random_trace(seed, SHAPE)

    def lockstep(batches: Sequence[Batch]) -> float:
        formed = [batch for batch in batches if batch[0] or batch[1]]
        counts = [(len(c) + len(d), sum(new for new, _ in c) + len(d), bool(c)) for c, d, _ in formed]
        device = max(step_seconds(LAW, c, [length + 1 for length in d], sampling) for c, d, sampling in formed)
        shared = shared_seconds(sum(tokens for _, tokens, _ in counts), groups)
        return max(device + shared, max(floor.seconds(n, tokens, prompts=prompts) for n, tokens, prompts in counts))

    served = serve(vllm_config(engine, 960), groups, requests_of(arrays), lockstep)
    result = simulate(lockstep_plan(engine, 960, groups, (), LAW._replace(floor=floor)), compiled(arrays))
    finished = np.flatnonzero(result.requests.finished)
    assert len(finished) == len(served.finish_s) > 0
    for k in finished:
        assert result.requests.first_token_s[k] == served.first_token_s[k]
        assert result.requests.finish_s[k] == served.finish_s[k]
    assert_first_visible(result, served.token_s)
