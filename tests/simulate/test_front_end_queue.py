"""The queue of a front end that has no time left, against a queue that takes one token after another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hisearch.base.dtypes import F8
from hisearch.latency.costs import FrontEnd
from hisearch.simulate import simulate
from hisearch.simulate.front_end import ROUNDS, UNMERGED
from hisearch.simulate.results.tables import RequestTable
from tests.kernels.systems import examples
from tests.simulate.test_front_end import trace_of, worker

#: Every step takes 10 ms, so that a token of each running request comes every 10 ms.
STEP_S = 0.01


class Waits(NamedTuple):
    first_s: F8
    last_s: F8


def served(
    stream_s: float,
    gap_s: float,
    output_tokens: int,
    count: int,
    name: str,
    settings: Mapping[str, Any] | None = None,
    spare_tokens: int = 0,
) -> RequestTable:
    """Requests of 16 prompt tokens, one each ``gap_s``, which may make ``spare_tokens`` more than they do."""
    front = FrontEnd(stream_s=stream_s)
    sent = list(gap_s * np.arange(count))
    pool = worker(front, name, max_running_requests=256, **(settings or {}))
    limits = np.full(count, output_tokens + spare_tokens)
    return simulate(pool, trace_of(sent, 16, output_tokens, max_output_tokens=limits)).requests


def waits_of(table: RequestTable, free: RequestTable) -> Waits:
    """What ``table`` has beyond ``free``, of the same run before front ends that take no time."""
    np.testing.assert_array_equal(table.first_token_s, free.first_token_s)
    return Waits(table.ttft_s - free.ttft_s, table.e2e_s - free.e2e_s)


def one_by_one(table: RequestTable, stream_s: float, name: str) -> Waits:
    """The process as a loop over steps: what waits in line when the first and the last token of each request come."""
    made = Counter[int]()
    first, last = (np.rint(at_s / STEP_S).astype(int) for at_s in (table.first_token_s, table.finish_s))
    for begins, ends in zip(first, last, strict=True):
        made.update(range(begins, ends + 1))
    queued_s = pending_s = 0.0
    waits: dict[int, float] = {}
    steps = sorted(made)
    for before, step in pairwise([steps[0] - 1, *steps]):
        own_s, passed_s = stream_s * made[step], STEP_S * (step - before)
        queued_s = max(queued_s + UNMERGED[name] * own_s - passed_s, 0.0)
        pending_s = min(max(pending_s + own_s - passed_s, 0.0), queued_s + 2 * own_s)
        waits[step] = max(queued_s - own_s, 0.0) + ROUNDS * max(pending_s - queued_s - own_s, 0.0)
    return Waits(*(np.array([waits[step] for step in at]) for at in (first, last)))


def burst_s(table: RequestTable, stream_s: float) -> float:
    """The most work that one step brings."""
    running = Counter(np.rint(table.first_token_s / STEP_S).astype(int))
    running.subtract(np.rint(table.finish_s / STEP_S).astype(int) + 1)
    return stream_s * max(accumulate(running[step] for step in range(max(running) + 1)))


@examples(100)
@given(
    name=st.sampled_from(["vllm", "sglang", "trtllm"]),
    load=st.floats(0.05, 3.0),
    gap_steps=st.integers(1, 4),
    output_tokens=st.integers(2, 200),
    overlap=st.booleans(),
    spare_tokens=st.integers(0, 1),
)
@example(name="sglang", load=2.0, gap_steps=1, output_tokens=2, overlap=True, spare_tokens=0)
@example(name="vllm", load=2.0, gap_steps=1, output_tokens=2, overlap=True, spare_tokens=1)
@example(name="trtllm", load=2.0, gap_steps=1, output_tokens=2, overlap=True, spare_tokens=1)
def test_tokens_wait_as_behind_a_loop_over_steps(
    name: str, load: float, gap_steps: int, output_tokens: int, overlap: bool, spare_tokens: int
) -> None:
    """Steps of SGLang mix prompts and decodes here, as the others' do: so each token takes one step.

    With overlap, the step after a request's last may decode it in vain, and no client gets that token.
    """
    settings = {"overlap": overlap} | ({"mixed_chunk": True} if name == "sglang" else {})
    stream_s = load * STEP_S * gap_steps / output_tokens
    table, free = (
        served(each_s, gap_steps * STEP_S, output_tokens, 200, name, settings, spare_tokens)
        for each_s in (stream_s, 0.0)
    )
    waits = waits_of(table, free)
    loop = one_by_one(table, stream_s, name)
    for mine, theirs in zip(waits, loop, strict=True):
        # A step more or less is counted, and half of a step's tokens come before one of them.
        np.testing.assert_allclose(mine, theirs, rtol=0.02, atol=(2 + 2 * ROUNDS) * burst_s(table, stream_s))


@pytest.mark.parametrize("name", ["vllm", "sglang", "trtllm"])
def test_nothing_waits_while_there_is_time_left(name: str) -> None:
    # SGLang computes prompts in steps of their own, so twice as many requests run.
    stream_s = 0.7 * STEP_S / 128
    table = served(stream_s, 0.02, 128, 400, name)
    assert table.last_delivery_s is not None
    assert table.last_delivery_s.max() < 0.7 * STEP_S


@pytest.mark.parametrize("name", ["vllm", "sglang", "trtllm"])
def test_clients_that_wait_for_their_tokens_send_no_more_than_the_front_end_takes(name: str) -> None:
    users, count, stream_s = 64, 2000, 2 * STEP_S / 64
    trace = trace_of(
        [0.0] * users + [np.nan] * (count - users), 16, 50, open_loop=False,
        previous=np.maximum(np.arange(count) - users, -1), shares_with=np.full(count, -1),
    )  # fmt: skip
    table = simulate(worker(FrontEnd(stream_s=stream_s), name, max_running_requests=256), trace).requests
    assert table.last_delivery_s is not None
    done_s = table.finish_s + table.last_delivery_s
    tokens_per_s = 50 * count / (done_s.max() - done_s.min())
    most = 1 / (UNMERGED[name] * stream_s)
    assert 0.7 * most < tokens_per_s < 1.05 * most
