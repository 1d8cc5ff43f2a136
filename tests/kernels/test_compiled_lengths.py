"""Steps of SGLang that wait for a kernel of their number of tokens: each number once a worker, in closed form."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hisearch.latency.costs import LockstepCosts
from hisearch.latency.sharding import Parallelism
from hisearch.simulate import simulate
from hisearch.simulate.plans.plan import WorkerPlan
from hisearch.simulate.plans.speculation_plan import SpeculationPlan
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.traces.compiled import TraceArrays
from tests.kernels.systems import LAW, compiled, compiled_costs, plan
from tests.reference.random_traces import TraceShape, random_trace

COMPILE_S = 0.7
LENGTHS = (10, 12, 10, 25, 12)


def one_after_another() -> TraceArrays:
    """Requests of ``LENGTHS`` tokens, each long after the one before it has ended."""
    shape = TraceShape(
        requests=len(LENGTHS), rate_rps=1.0, prompt_tokens=40, output_tokens=3, follow_up=0.0, repeat=0.0
    )
    arrays = random_trace(1, shape)
    tokens = np.array(LENGTHS, arrays.input_tokens.dtype)
    outputs = np.full_like(arrays.output_tokens, 3)
    return arrays._replace(
        arrival_s=100.0 * np.arange(len(LENGTHS)), input_tokens=tokens, output_tokens=outputs, max_output_tokens=outputs
    )


def worker(**changes: Any) -> WorkerPlan:
    engine = EngineSpec(
        name="sglang", version="0.5.9", max_running_requests=4, chunk_tokens=16, max_prefill_tokens=64,
        prefix_caching=False,
    )  # fmt: skip
    return replace(plan(engine, 1 << 12), **changes)


KINDS = {
    "alone": {},
    "groups": {
        "split": Parallelism(1, attention_data=2),
        "costs": replace(compiled_costs(), lockstep=LockstepCosts(LAW.token_s, 0.0 * LAW.token_s)),
    },
    "stages": {"split": Parallelism(1, pipeline=2)},
    "drafts": {"speculation": SpeculationPlan(2, 2, True, (0.5, 0.2)), "max_request_tokens": 1 << 12},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_waits_where_its_number_of_tokens_is_new(kind: str) -> None:
    """25 tokens are a chunk of 16 and one of 9.

    Groups take requests in turn, each with kernels of its own. Batches of a pipeline share kernels, which its stages
    compile in turn: the second one those of the first chunk while the first one does those of the second chunk.
    """
    trace = compiled(one_after_another())
    quick, slow = (
        simulate(worker(**KINDS[kind], kernel_compile_s=wait_s), trace).requests for wait_s in (0.0, COMPILE_S)
    )
    waited = (slow.first_token_s - slow.arrival_s) - (quick.first_token_s - quick.arrival_s)
    new = {"groups": [1, 1, 0, 2, 1], "stages": [2, 2, 0, 3, 0]}.get(kind, [1, 1, 0, 2, 0])
    np.testing.assert_allclose(waited, COMPILE_S * np.array(new), atol=1e-9)
    decoding = slow.finish_s - slow.first_token_s
    np.testing.assert_allclose(decoding, quick.finish_s - quick.first_token_s, atol=1e-9)


def test_replicas_compile_for_themselves() -> None:
    arrays = one_after_another()
    same = arrays._replace(input_tokens=np.full_like(arrays.input_tokens, 10))
    waits = []
    for replicas in (1, 3):
        table = simulate(worker(kernel_compile_s=COMPILE_S), compiled(same), replicas=replicas).requests
        waits.append(int((table.first_token_s - table.arrival_s > COMPILE_S).sum()))
    assert waits == [1, 3]


def test_longer_steps_than_the_limits_compile_once() -> None:
    """Without chunks a prompt that exceeds the limits is a step of its own."""
    arrays = one_after_another()
    long = arrays._replace(input_tokens=np.full_like(arrays.input_tokens, 90))
    engine = worker().engine.model_copy(update={"chunked_prefill": False})
    table = simulate(worker(engine=engine, kernel_compile_s=COMPILE_S), compiled(long)).requests
    assert (table.first_token_s - table.arrival_s > COMPILE_S).tolist() == [True] + 4 * [False]
