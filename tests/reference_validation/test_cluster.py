"""Routers and the order of events, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from hisearch.traces.compiled import TraceArrays
from tests.reference.cluster import FINISHED, TOO_LARGE, Cluster, ClusterOutcome
from tests.reference.restatement.splitmix import SplitMix64
from tests.reference.restatement.vllm import VllmConfig, VllmWorker
from tests.reference.router import Router, RouterConfig

CONFIG = VllmConfig(max_num_seqs=4, max_tokens=64, num_blocks=11, block_size=4)


def _unit(chunks: list[tuple[int, int]], decodes: list[int], sampling: int) -> float:
    return 1.0


def _trace(rows: list[tuple[float, int, int, int, float]]) -> TraceArrays:
    """Unrelated requests from (arrival, input, output, previous, think)."""
    arrival, input_tokens, output_tokens, previous, think = zip(*rows, strict=True)
    count = len(rows)
    prompts = np.arange(count) * 2 + 1
    parent, start, end = np.zeros((3, 2 * count + 1), dtype=np.int64)
    parent[0], parent[prompts], parent[prompts + 1] = -1, 0, prompts
    end[prompts], start[prompts + 1] = input_tokens, input_tokens
    end[prompts + 1] = np.add(input_tokens, output_tokens)
    zeros = np.zeros(count, dtype=np.int32)
    return TraceArrays(
        arrival_s=np.array(arrival, dtype=np.float64),
        input_tokens=np.array(input_tokens, dtype=np.int64),
        output_tokens=np.array(output_tokens, dtype=np.int64),
        max_output_tokens=np.array(output_tokens, dtype=np.int64),
        previous=np.array(previous, dtype=np.int32),
        think_s=np.array(think, dtype=np.float64),
        session=zeros,
        tenant=zeros,
        priority=zeros,
        thinking_tokens=np.zeros(count, dtype=np.int64),
        prompt_node=prompts.astype(np.int32),
        output_node=(prompts + 1).astype(np.int32),
        parent=parent.astype(np.int32),
        start_tokens=start,
        end_tokens=end,
    )


def _run(rows: list[tuple[float, int, int, int, float]], workers: int = 1, **router: object) -> ClusterOutcome:
    return Cluster(_trace(rows), lambda: VllmWorker(CONFIG, _unit), workers, RouterConfig(**router)).run()  # type: ignore[arg-type]


def test_generator_gives_the_published_outputs() -> None:
    # first outputs for seed 0 of the reference implementation of splitmix64 (Vigna, prng.di.unimi.it)
    generator = SplitMix64(0)
    assert [generator.next() for _ in range(3)] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_round_robin_takes_turns_and_rejections_use_none() -> None:
    rows = [(0.0, 4, 1, -1, 0.0), (0.0, 60, 1, -1, 0.0), (0.0, 4, 1, -1, 0.0), (0.0, 4, 1, -1, 0.0)]
    outcome = _run(rows, workers=2, policy="round_robin")
    assert [outcome.requests[i].worker for i in range(4)] == [0, -1, 1, 0]
    assert [outcome.requests[i].outcome for i in range(4)] == [FINISHED, TOO_LARGE, FINISHED, FINISHED]
    assert outcome.requests[1].reason == "60 tokens exceed the pool's 40"


def test_follow_ups_arrive_after_finish_or_rejection() -> None:
    rows = [(1.0, 4, 2, -1, 0.0), (2.0, 60, 1, -1, 0.0), (np.nan, 4, 1, 0, 0.5), (np.nan, 4, 1, 1, 0.25)]
    outcome = _run(rows)
    assert outcome.requests[0].finish_s == 3.0
    assert outcome.requests[2].arrival_s == 3.5
    assert outcome.requests[3].arrival_s == 2.25
    # request 3 waits for the step that began at 2.0, request 2 for request 3's
    assert [outcome.requests[index].scheduled_s for index in (3, 2)] == [3.0, 4.0]
    assert outcome.makespan_s == 5.0


def test_step_sees_arrivals_at_its_start_even_those_that_another_worker_causes() -> None:
    # worker 1 ends request 1 at 1.0, its follow-up goes to worker 0, whose step at 1.0 already has it
    rows = [(0.0, 4, 3, -1, 0.0), (0.0, 4, 1, -1, 0.0), (np.nan, 4, 1, 1, 0.0)]
    outcome = _run(rows, workers=2, policy="round_robin")
    assert outcome.requests[2].worker == 0
    assert [[entry.id for entry in step.batch] for step in outcome.workers[0].steps] == [[0], [0, 2], [0]]


def test_power_of_two_takes_the_first_drawn_unless_the_second_told_less() -> None:
    loads = [7, 3, 5]
    router = Router(RouterConfig("power_of_two", seed=9), 3, ask=loads.__getitem__)
    expected = SplitMix64(9)
    for request in range(50):
        first = expected.next() % 3
        second = (first + 1 + expected.next() % 2) % 3
        pair = router.order[first], router.order[second]
        assert router.dispatch(request, [(request + 1, 0, 9)]) == min(pair, key=loads.__getitem__)


def test_cache_aware_follows_the_first_that_came_that_way_then_the_fewest_requests() -> None:
    router = Router(RouterConfig("cache_aware", cache_threshold=0.5), 2)
    first, second = router.order
    assert router.dispatch(0, [(1, 0, 10)]) == first
    assert router.dispatch(1, [(1, 0, 10), (2, 10, 15)]) == first  # 10 of 15 match
    assert router.dispatch(2, [(1, 0, 10), (3, 10, 20)]) == second  # 10 of 20 are not *more* than half
    assert router.dispatch(3, [(1, 0, 10)]) == first  # which has that name, though both hold it
    assert router.dispatch(4, [(4, 0, 1)]) == second  # three requests and one
    assert [router.tree.size(place) for place in range(2)] == [15, 21]


def test_cache_aware_took_the_smallest_tree_before_0_2_4() -> None:
    router = Router(RouterConfig("cache_aware", version="0.2.3", cache_threshold=0.5), 2)
    first, second = router.order
    assert [router.dispatch(k, [(k + 1, 0, size)]) for k, size in enumerate((10, 3, 3, 3))] == [
        first, second, second, second
    ]  # fmt: skip


def test_cache_aware_balances_first() -> None:
    config = RouterConfig("cache_aware", balance_abs_threshold=2, balance_rel_threshold=1.5)
    router = Router(config, 2)
    first, second = router.order
    assert [router.dispatch(i, [(1, 0, 10)]) for i in range(4)] == [first, first, first, second]


@pytest.mark.parametrize("policy", ["random", "power_of_two"])
def test_one_worker_gets_everything(policy: str) -> None:
    outcome = _run([(0.1 * i, 4, 1, -1, 0.0) for i in range(5)], policy=policy)
    assert outcome.workers[0].requests == 5
