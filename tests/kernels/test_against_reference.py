"""The kernels against the slow reference: request by request, bit for bit, on random systems.

vLLM is compared on traces without exact repeats of a prompt (see docs/simulator.md, "Where the kernel differs").
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given

from hisearch.latency.step_cost import step_seconds
from hisearch.simulate import Result
from tests.kernels.systems import ENGINES, System, crowded, examples, sglang_engines, systems, vllm_engines
from tests.reference.cluster import ClusterOutcome
from tests.reference.recording import step_seconds as batch_seconds


def _request_rows(outcome: ClusterOutcome) -> list[tuple[float, ...]]:
    def number(value: float | None) -> float:
        return np.nan if value is None else value

    return [
        (
            request.outcome, request.worker, request.arrival_s, number(request.scheduled_s),
            number(request.first_token_s), number(request.finish_s), request.hit_tokens, request.preemptions,
        )
        for request in outcome.requests.values()
    ]  # fmt: skip


def _simulated_rows(result: Result) -> list[tuple[float, ...]]:
    table = result.requests
    columns = (
        table.outcome, table.worker, table.arrival_s, table.scheduled_s,
        table.first_token_s, table.finish_s, table.hit_tokens, table.preemptions,
    )  # fmt: skip
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _worker_rows(outcome: ClusterOutcome) -> list[tuple[int, ...]]:
    return [
        (
            len(worker.steps), worker.requests, worker.preemptions, worker.prefill_tokens, worker.decode_tokens,
            worker.peak_kv_tokens, worker.evicted_tokens,
        )
        for worker in outcome.workers
    ]  # fmt: skip


def _simulated_worker_rows(result: Result) -> list[tuple[int, ...]]:
    table = result.workers
    columns = (
        table.steps, table.requests, table.preemptions, table.prefill_tokens, table.decode_tokens,
        table.peak_kv_tokens, table.evicted_tokens,
    )  # fmt: skip
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _joules(system: System, outcome: ClusterOutcome) -> list[float]:
    """Energy by the same law as the seconds', step by step."""

    def cost(chunks: Any, decodes: Any, sampling: int) -> float:
        return step_seconds(system.costs.joules, chunks, [context + 1 for context in decodes], sampling)

    return [sum(batch_seconds(cost, step.batch) for step in worker.steps) for worker in outcome.workers]


def _assert_equal(system: System) -> Result:
    result, outcome = system.simulate(), system.reference()
    for k, (mine, theirs) in enumerate(zip(_simulated_rows(result), _request_rows(outcome), strict=True)):
        assert np.array_equal(mine, theirs, equal_nan=True), f"request {k}: kernel {mine}, reference {theirs}"
    assert _simulated_worker_rows(result) == _worker_rows(outcome)
    # Sums of the same durations, added run by run here and step by step there.
    np.testing.assert_allclose(result.workers.busy_s, [w.busy_s for w in outcome.workers], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(result.workers.energy_j, _joules(system, outcome), rtol=1e-9)
    return result


@examples(500)
@given(system=systems(vllm_engines(), repeats=False))
def test_vllm_equals_its_reference(system: System) -> None:
    _assert_equal(system)


@examples(500)
@given(system=systems(sglang_engines(), repeats=True))
def test_sglang_equals_its_reference(system: System) -> None:
    _assert_equal(system)


@pytest.mark.parametrize("name", ENGINES)
def test_engines_short_of_memory_equal_their_references(name: str) -> None:
    preempted = 0

    @examples(100)
    @given(system=crowded(name))
    def check(system: System) -> None:
        nonlocal preempted
        preempted += int(_assert_equal(system).workers.preemptions.sum())

    check()
    assert preempted > 100
