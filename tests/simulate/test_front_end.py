"""Front ends: the queue of requests before the router, tokens on their way back, and the times that clients see."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisearch.latency.costs import CompiledCosts, FrontEnd
from hisearch.latency.step_cost import law_costs
from hisearch.simulate import Result, WorkerPlan, simulate
from hisearch.simulate.front_end import delayed, in_line, servers, stream_s
from hisearch.simulate.plans.fleet import FleetPlan, PoolPlan
from hisearch.simulate.results.tables import RequestTable
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.traces.agents import AgentArrays
from hisearch.traces.compiled import CompiledTrace
from hisearch.traces.compiler import compile_trace
from hisearch.traces.trace import make_trace
from tests.kernels.systems import ENGINES, System, any_engines, compiled_costs, examples, plan, settled, systems

FRONT = FrontEnd(request_s=6e-3, read_s=1e-3, prompt_token_s=3e-6, stream_s=50e-6)
#: A step of any kind takes 10 ms.
FLAT = law_costs(0.01, 0.0, 0.0)
SECONDS = st.sampled_from([0.0, 1e-6, 1e-3, 0.1]) | st.floats(0.0, 1.0)
FRONTS = st.builds(
    lambda beyond_s, read_s, token_s, stream_s: FrontEnd(beyond_s + read_s, read_s, token_s, stream_s),
    *(st.sampled_from(values) for values in ([0.0, 5e-3], [0.0, 1e-3, 0.1], [0.0, 3e-6], [0.0, 5e-5, 2e-4])),
)


def worker(front: FrontEnd = FRONT, name: str = "vllm", **settings: Any) -> WorkerPlan:
    engine = EngineSpec.model_validate({"name": name, "page_tokens": 16, "chunk_tokens": 8192, **settings})
    return plan(engine, 400_000, costs=replace(compiled_costs(FLAT), front_end=front))


def trace_of(sent_s: list[float], input_tokens: int, output_tokens: int | list[int], **more: Any) -> CompiledTrace:
    count = len(sent_s)
    made = make_trace(
        arrival_s=sent_s,
        input_tokens=np.full(count, input_tokens),
        output_tokens=np.broadcast_to(output_tokens, count).copy(),
        **more,
    )
    return compile_trace(made, "made up", "made up")


def slow_line(sent: list[float], each: list[float], workers: int) -> list[float]:
    """The line as a loop: it holds up whoever comes before its turn, and moves ``workers`` times as fast as one."""
    read, free_s = [], 0.0
    for at_s, read_s in zip(sent, each, strict=True):
        begins_s = max(at_s, free_s)
        read.append(begins_s + read_s)
        free_s = begins_s + read_s / workers
    return read


class TestLine:
    @examples(200)
    @given(
        line=st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=40),
        workers=st.integers(1, 5),
    )
    def test_it_is_the_slow_loop(self, line: list[tuple[float, float]], workers: int) -> None:
        sent, each = np.cumsum([gap for gap, _ in line]), np.array([read_s for _, read_s in line])
        read_at_s = in_line(sent, each, workers)
        np.testing.assert_allclose(read_at_s, slow_line(list(sent), list(each), workers), rtol=1e-9, atol=1e-12)
        assert (read_at_s >= sent + each - 1e-9).all()

    def test_a_burst_of_one_worker_is_read_one_by_one_and_of_several_side_by_side(self) -> None:
        sent, each = np.zeros(4), np.full(4, 0.1)
        assert in_line(sent, each, 1) == pytest.approx([0.1, 0.2, 0.3, 0.4])
        assert in_line(sent, each, 2) == pytest.approx([0.1, 0.15, 0.2, 0.25])

    def test_sparse_arrivals_meet_nobody(self) -> None:
        assert in_line(np.array([0.0, 1.0, 2.0]), np.full(3, 0.5), 1) == pytest.approx([0.5, 1.5, 2.5])


def single_model(trace: CompiledTrace) -> np.ndarray:
    return np.zeros(len(trace), dtype=np.int32)


class TestDelayed:
    def fleet(self, replicas: int = 1, front: FrontEnd = FRONT) -> FleetPlan:
        return FleetPlan((PoolPlan(worker(front), replicas),))

    @pytest.mark.parametrize("replicas", [1, 3])
    @pytest.mark.parametrize("load", [1.0, 4.0])
    def test_requests_come_after_the_line_and_what_holds_up_nobody(self, replicas: int, load: float) -> None:
        """Whatever their order in the trace, and at a load the line is met as much sooner."""
        sent = np.array([0.0, 0.0, 0.0, 0.002, 8.0])
        trace = trace_of(list(sent), 1000, 5)
        arrays, delay_s = delayed(trace.arrays, self.fleet(replicas), trace, load, single_model(trace))
        expected = np.array(slow_line(list(sent / load), [1e-3 + 3e-3] * 5, replicas)) + 5e-3
        assert arrays.arrival_s / load == pytest.approx(expected)
        assert delay_s == pytest.approx(expected - sent / load)

    def test_follow_ups_find_it_idle_unless_they_come_at_once(self) -> None:
        trace = trace_of([0.0, np.nan], 1000, 5, previous=[-1, 0], think_s=[0.0, 0.25], open_loop=False)
        arrays, delay_s = delayed(trace.arrays, self.fleet(), trace, 1.0, single_model(trace))
        np.testing.assert_array_equal(arrays.think_s, trace.arrays.think_s)
        assert delay_s[1] == pytest.approx(6e-3 + 3e-6 * trace.arrays.input_tokens[1])

    def test_agents_have_none(self) -> None:
        trace = trace_of([0.0, 0.0], 1000, 5)
        agents = replace(trace, agents=AGENTS)
        arrays, delay_s = delayed(agents.arrays, self.fleet(), agents, 1.0, single_model(agents))
        assert arrays is agents.arrays
        assert len(delay_s) == 0
        assert delayed(trace.arrays, self.fleet(), trace, 1.0, single_model(trace))[0] is not trace.arrays

    @pytest.mark.parametrize("front", [FrontEnd(), FrontEnd(ttft_factor=1.5)])
    def test_one_that_takes_no_time_leaves_all_as_it_is(self, front: FrontEnd) -> None:
        trace = trace_of([0.0, 0.0], 1000, 5)
        arrays, delay_s = delayed(trace.arrays, self.fleet(front=front), trace, 1.0, single_model(trace))
        assert arrays is trace.arrays
        assert len(delay_s) == 0

    def test_the_trace_is_not_written_to(self) -> None:
        trace = trace_of([0.0, 0.0], 1000, 5)
        before = [array.copy() for array in trace.arrays]
        delayed(trace.arrays, self.fleet(), trace, 1.0, single_model(trace))
        for array, copy in zip(trace.arrays, before, strict=True):
            np.testing.assert_array_equal(array, copy)


#: Its presence alone marks a trace with agents.
AGENTS: AgentArrays = object()  # type: ignore[assignment]


def _same(result: Result, expected: Result) -> None:
    for name, values in result.requests.columns().items():
        assert values.tobytes() == getattr(expected.requests, name).tobytes(), name
    for name, values in result.workers.columns().items():
        assert values.tobytes() == getattr(expected.workers, name).tobytes(), name


def _with(system: System, front: FrontEnd) -> WorkerPlan:
    return replace(system.plan, costs=replace(system.plan.costs, front_end=front))


def _simulated(system: System, front: FrontEnd, **options: Any) -> RequestTable:
    settled(system)
    result = simulate(_with(system, front), system.trace, replicas=system.workers, router=system.router, **options)
    return result.requests


class TestClients:
    @pytest.mark.parametrize("name", ENGINES)
    def test_a_client_waits_for_front_end_engine_and_delivery(self, name: str) -> None:
        """One request alone: a step of 10 ms for each token, and each is sent by itself."""
        table = simulate(worker(name=name), trace_of([0.0], 1000, 11)).requests
        front_s = 6e-3 + 1000 * 3e-6
        assert table.engine_ttft_s == pytest.approx([0.01])
        assert table.ttft_s == pytest.approx([front_s + 0.01 + 50e-6])
        assert table.e2e_s == pytest.approx([front_s + 0.11 + 50e-6])
        assert table.tpot_s == pytest.approx([0.01])

    @pytest.mark.parametrize("name", ENGINES)
    def test_a_client_waits_for_the_thinking_too(self, name: str) -> None:
        """As many steps more as there are tokens that the client does not see."""
        for thinking, visible_s in ((0, 0.01), (1, 0.02), (6, 0.07), (10, 0.11), (11, np.nan)):
            trace = trace_of([0.0, 100.0], 1000, 11, thinking_tokens=[thinking, 3])
            table = simulate(worker(name=name), trace).requests
            front_s = 6e-3 + 1000 * 3e-6 + 50e-6
            assert table.ttfo_s == pytest.approx([front_s + visible_s, front_s + 0.04], nan_ok=True)

    def test_tokens_of_a_step_come_out_one_after_another(self) -> None:
        """Nine others decode: on average a token waits for half of theirs, and for itself."""
        front = FrontEnd(stream_s=50e-6)
        trace = trace_of([0.0] * 9 + [0.5], 100, [200] * 9 + [5])
        table = simulate(worker(front, max_running_requests=16), trace).requests
        assert table.first_delivery_s is not None
        assert table.first_delivery_s[9] == pytest.approx(50e-6 * (1 + 9 / 2))
        assert table.ttft_s[9] - table.engine_ttft_s[9] == pytest.approx(50e-6 * (1 + 9 / 2))
        assert table.tpot_s[9] == pytest.approx(0.01)

    def test_several_processes_share_them_and_messages_hold_several(self) -> None:
        front, settings = FrontEnd(stream_s=50e-6), {"stream_interval": 10, "api_servers": 3}
        trace = trace_of([0.0] * 9 + [0.5], 100, [200] * 9 + [5])
        table = simulate(worker(front, max_running_requests=16, **settings), trace).requests
        assert table.first_delivery_s is not None
        assert table.first_delivery_s[9] == pytest.approx(50e-6 * (1 + 9 / 2 / 30))

    def test_several_processes_read_side_by_side(self) -> None:
        fast, slow = (worker(FRONT._replace(stream_s=0.0), api_servers=count) for count in (3, 1))
        trace = trace_of([0.0] * 9, 1000, 2)
        three = simulate(slow, trace, replicas=3).requests.front_end_s
        np.testing.assert_array_equal(simulate(fast, trace).requests.front_end_s, three)

    @pytest.mark.parametrize("factor", [0.7, 1.0, 1.8])
    @examples(30)
    @given(system=systems(any_engines(), repeats=True), front=FRONTS)
    def test_a_factor_on_ttft_delays_all_tokens_of_a_request_alike(
        self, factor: float, system: System, front: FrontEnd
    ) -> None:
        """No step changes; each TTFT is so many times as long, and each latency longer by as much."""
        plain, delayed = _simulated(system, front), _simulated(system, front._replace(ttft_factor=factor))
        served = plain.finished
        np.testing.assert_array_equal(delayed.first_token_s, plain.first_token_s)
        np.testing.assert_allclose(delayed.ttft_s[served], factor * plain.ttft_s[served], rtol=1e-9)
        more_s = (factor - 1.0) * plain.ttft_s[served]
        np.testing.assert_allclose(delayed.e2e_s[served], plain.e2e_s[served] + more_s, rtol=1e-9, atol=1e-12)

    @examples(60)
    @given(system=systems(any_engines(), repeats=True), front=FRONTS, load=st.sampled_from([1.0, 0.5, 3.0]))
    def test_ttft_is_that_of_the_engine_with_front_end_and_delivery(
        self, system: System, front: FrontEnd, load: float
    ) -> None:
        table = _simulated(system, front, load=load)
        if front == FrontEnd():
            assert table.front_end_s is table.first_delivery_s is None
            return
        assert table.front_end_s is not None
        assert table.first_delivery_s is not None
        np.testing.assert_allclose(
            table.ttft_s, table.engine_ttft_s + table.front_end_s + table.first_delivery_s, rtol=1e-12
        )
        arrays = system.trace.arrays
        alone_s = front.request_s + front.prompt_token_s * arrays.input_tokens
        # Nobody is through sooner than alone; a follow-up waits for half a step's tokens at most.
        assert (table.front_end_s >= alone_s - 1e-9).all()
        later, most = arrays.previous >= 0, system.plan.engine.max_running_requests * system.plan.schedulers
        assert (table.front_end_s[later] <= alone_s[later] + 0.5 * front.stream_s * most + 1e-9).all()
        served = table.finished
        assert (table.ttft_s[served] >= table.engine_ttft_s[served]).all()
        if table.thinking_tokens is not None:
            visible = served & (table.thinking_tokens < table.output_tokens)
            assert (table.ttft_s[visible] <= table.ttfo_s[visible] + 1e-12).all()
            assert (table.ttfo_s[visible] <= table.e2e_s[visible] + 1e-12).all()

    @pytest.mark.parametrize("load", [1.0, 5.0])
    def test_what_clients_wait_for_in_line_counts_at_any_load(self, load: float) -> None:
        table = simulate(worker(max_running_requests=64), trace_of([10.0] * 20, 1000, 2), load=load).requests
        assert table.front_end_s == pytest.approx(9e-3 - 4e-3 + 4e-3 * np.arange(1, 21))
        assert table.arrival_s - table.front_end_s == pytest.approx(np.full(20, 10.0 / load))

    @pytest.mark.parametrize("pooled", [True, False])
    @pytest.mark.parametrize("name", ENGINES)
    def test_a_slot_of_a_closed_loop_is_busy_for_service_and_front_end(self, name: str, pooled: bool) -> None:
        """Requests one after another: each costs 10 ms a token and its time in the front end.

        Which takes longer than the step that engines with overlap have launched before they see a request's end.
        """
        count, tokens, front = 20, 5, FRONT._replace(request_s=15e-3)
        previous = np.arange(count) - 1
        loop = trace_of(
            [0.0] + [np.nan] * (count - 1), 1000, tokens, previous=previous, shares_with=np.full(count, -1),
            open_loop=False,
        )  # fmt: skip
        table = simulate(worker(front, name), loop, pooled=pooled).requests
        period = 15e-3 + loop.arrays.input_tokens[1:] * 3e-6 + tokens * 0.01 + front.stream_s
        assert np.diff(table.finish_s) == pytest.approx(period)

    @pytest.mark.parametrize("pooled", [True, False])
    @pytest.mark.parametrize("think_s", [0.0, 50e-6, 0.2])
    def test_a_follow_up_comes_behind_the_tokens_of_the_step_that_it_was_waiting_for(
        self, pooled: bool, think_s: float
    ) -> None:
        """Seven others decode on: on average half of their tokens come before the last, half after it."""
        loop = trace_of(
            [0.0] * 8 + [np.nan], 100, [50] + [200] * 8, previous=[-1] * 8 + [0], shares_with=np.full(9, -1),
            think_s=[0.0] * 8 + [think_s], open_loop=False,
        )  # fmt: skip
        front = FrontEnd(request_s=6e-3, stream_s=50e-6)
        table = simulate(worker(front, max_running_requests=16), loop, pooled=pooled).requests
        half_s = 3.5 * front.stream_s
        assert table.front_end_s is not None
        assert table.front_end_s[8] == pytest.approx(front.request_s + max(half_s - think_s, 0.0))
        sent_s = table.finish_s[0] + front.stream_s + half_s + think_s
        assert table.arrival_s[8] == pytest.approx(sent_s + table.front_end_s[8])
        assert table.last_delivery_s is not None
        assert sent_s == pytest.approx(table.finish_s[0] + table.last_delivery_s[0] + think_s)

    @pytest.mark.parametrize("settings", [{}, {"stream_interval": 5}, {"api_servers": 3}])
    @pytest.mark.parametrize("replicas", [1, 2])
    def test_its_share_of_time_is_that_of_all_its_tokens(self, replicas: int, settings: dict[str, int]) -> None:
        """64 requests of 500 tokens each in steps of 10 ms: 6,400 tokens a second."""
        front = FrontEnd(stream_s=150e-6)
        plan = worker(front, max_running_requests=64, **settings)
        result = simulate(plan, trace_of([0.0] * 64, 10, 500), replicas=replicas)
        processes = replicas * settings.get("api_servers", 1) * settings.get("stream_interval", 1)
        assert result.front_end_busy == pytest.approx(6_400 * 150e-6 / processes, rel=0.01)

    @pytest.mark.parametrize(("name", "processes"), [("vllm", 4), ("sglang", 1)])
    def test_attention_groups_share_the_processes(self, name: str, processes: int) -> None:
        """Of which vLLM starts one for each. A token waits for half of all groups' others, dealt to the processes."""
        plan = worker(FrontEnd(stream_s=50e-6), name)
        groups = replace(plan, split=plan.split._replace(attention_data=4))
        assert servers(groups) == processes
        assert stream_s(groups) == (50e-6, pytest.approx(50e-6 * 4 / processes))

    @pytest.mark.parametrize("name", ENGINES)
    def test_one_that_takes_no_time_changes_no_byte(self, name: str) -> None:
        @examples(20)
        @given(system=systems(any_engines().filter(lambda engine: engine.name == name), repeats=True))
        def check(system: System) -> None:
            plain = settled(system)
            options = {"replicas": system.workers, "router": system.router, "seed": system.seed}
            zero = simulate(_with(system, FrontEnd()), system.trace, **options)
            assert "front_end_s" not in zero.requests.columns()
            _same(plain, zero)
            # Streaming alone delays clients, and what they send when they have an answer.
            streamed = simulate(_with(system, FrontEnd(stream_s=5e-5)), system.trace, **options)
            if (system.trace.arrays.previous < 0).all():
                _same(plain, streamed)
            assert "first_delivery_s" in streamed.requests.columns()

        check()

    @examples(100)
    @given(system=systems(any_engines(), repeats=True), front=FRONTS)
    def test_the_last_token_is_not_there_before_the_first(self, system: System, front: FrontEnd) -> None:
        table = _simulated(system, front)
        served = table.finished
        # Both are sums of the same three terms, each rounded by itself.
        rounding_s = 1e-12
        assert (table.e2e_s[served] >= table.ttft_s[served] - rounding_s).all()
        assert (table.tpot_s[served] >= -rounding_s).all()

    def test_tokens_of_one_request_come_in_order(self) -> None:
        """The last of 256 decodes on alone, in steps that are shorter than the line that its first token was in."""
        costs: CompiledCosts = replace(compiled_costs(law_costs(0.001, 0.0, 0.0)), front_end=FrontEnd(stream_s=50e-6))
        engine = EngineSpec(name="vllm", max_running_requests=256)
        table = simulate(plan(engine, 100_000, costs=costs), trace_of([0.0] * 256, 10, [3] * 255 + [4])).requests
        assert (table.tpot_s >= 0).all()
        assert (table.e2e_s >= table.ttft_s).all()
