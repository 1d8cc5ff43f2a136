"""Pipeline stages: closed forms, and the kernels against an event-by-event engine with one queue (``reference``)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, reject
from hypothesis import strategies as st

from hisearch.latency.sharding import Parallelism
from hisearch.latency.step_cost import step_seconds
from hisearch.simulate import WorkerPlan, simulate
from hisearch.simulate.engine import EngineOutOfMemory
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.traces.compiled import CompiledTrace
from tests.kernels.systems import LAW, compiled, examples, plan
from tests.reference.pipeline import PipelineRequest, serve
from tests.reference.random_traces import TraceShape, random_trace

ENGINES = ("vllm", "sglang", "trtllm")


def engine(name: str, **settings: Any) -> EngineSpec:
    page_tokens = 2 if name == "trtllm" else 1
    common = {"max_running_requests": 64, "chunk_tokens": 256, "page_tokens": page_tokens, "prefix_caching": False}
    return EngineSpec.model_validate({"name": name} | common | settings)


def pipe_plan(spec: EngineSpec, stages: int, capacity_tokens: int = 1_000_000) -> WorkerPlan:
    return replace(plan(spec, capacity_tokens), split=Parallelism(1, pipeline=stages))


def same_requests(count: int, prompt_tokens: int, output_tokens: int, gap_s: float = 0.0) -> CompiledTrace:
    """Requests with nothing in common, one every ``gap_s``."""
    arrays = random_trace(
        0, TraceShape(count, prompt_tokens=8, output_tokens=8, follow_up=0.0, repeat=0.0, shared_prefixes=0)
    )
    tokens = np.int64(0) * arrays.input_tokens
    return compiled(
        arrays._replace(
            arrival_s=gap_s * np.arange(count, dtype=np.float64),
            input_tokens=tokens + prompt_tokens,
            output_tokens=tokens + output_tokens,
            max_output_tokens=tokens + output_tokens,
        )
    )


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("stages", [2, 4])
def test_alone_a_request_takes_all_stages_of_every_step(name: str, stages: int) -> None:
    """Latency is the sum of the stages, activation transfers included, at every step (law L7)."""
    result = simulate(pipe_plan(engine(name), stages), same_requests(1, 100, 20))
    passes = [step_seconds(LAW, [(100, 0)], [])] + [step_seconds(LAW, [], [100 + k]) for k in range(1, 20)]
    assert result.requests.e2e_s[0] == pytest.approx(sum(passes), rel=1e-9)


@pytest.mark.parametrize("name", ENGINES)
def test_chunks_of_a_prompt_follow_each_other_through_the_stages(name: str) -> None:
    """Chunks of c seconds in p stages: the first takes c, each further one ends c / p later, where all are equal.

    TensorRT-LLM schedules no request in flight: each further one takes c.
    """
    flat = LAW._replace(chunk_rate=np.zeros((2, 2)))
    spec = engine(name, chunk_tokens=256)
    slow = pipe_plan(spec, 4)
    equal = replace(slow, costs=replace(slow.costs, seconds=flat))
    result = simulate(equal, same_requests(1, 256 * 8, 1))
    chunk_s = step_seconds(flat, [(256, 0)], [], 0)
    overlapping = 1 if name == "trtllm" else 4
    assert result.requests.ttft_s[0] == pytest.approx(chunk_s * (1 + 7 / overlapping), rel=1e-6)


@pytest.mark.parametrize("name", ENGINES)
def test_a_full_pipeline_ends_a_batch_every_stage_time(name: str) -> None:
    """Saturation: as many batches in flight as stages, so that one ends every share of a pass."""
    flat = LAW._replace(chunk_rate=np.zeros((2, 2)))
    spec = engine(name, chunk_tokens=256)
    slow = pipe_plan(spec, 4)
    equal = replace(slow, costs=replace(slow.costs, seconds=flat))
    batches = 40
    result = simulate(equal, same_requests(batches, 256, 1))
    pass_s = step_seconds(flat, [(256, 0)], [])
    assert result.makespan_s == pytest.approx(pass_s * (1 + (batches - 1) / 4), rel=1e-6)


def reference(trace: CompiledTrace, spec: EngineSpec, stages: int) -> list[PipelineRequest]:
    arrays = trace.arrays
    requests = [
        PipelineRequest(float(at), int(prompt), int(output))
        for at, prompt, output in zip(arrays.arrival_s, arrays.input_tokens, arrays.output_tokens, strict=True)
    ]
    return serve(
        requests,
        stages,
        spec.chunk_tokens,
        spec.max_running_requests,
        lambda chunks, decodes, sampling: step_seconds(LAW, chunks, decodes, sampling),
    )


@examples(20)
@given(
    seed=st.integers(0, 10_000),
    stages=st.integers(2, 5),
    chunk=st.sampled_from([64, 256, 1024]),
    rate=st.sampled_from([2.0, 20.0, 200.0]),
)
def test_the_mean_latencies_are_those_of_one_queue(seed: int, stages: int, chunk: int, rate: float) -> None:
    """vLLM. Requests go to micro-batches as they come; in bursts of small chunks that shows (docs/parallelism.md)."""
    shape = TraceShape(60, rate_rps=rate, prompt_tokens=300, output_tokens=60, follow_up=0.0, slack=1.0, repeat=0.0)
    trace = compiled(random_trace(seed, shape))
    spec = engine("vllm", chunk_tokens=chunk)
    result = simulate(pipe_plan(spec, stages), trace)
    served = reference(trace, spec, stages)
    ttft = np.mean([request.first_token_s - request.arrival_s for request in served])
    e2e = np.mean([request.finish_s - request.arrival_s for request in served])
    assert result.requests.finished.all()
    assert np.mean(result.requests.ttft_s) == pytest.approx(ttft, rel=0.25 if chunk > 64 else 0.4)
    assert np.mean(result.requests.e2e_s) == pytest.approx(e2e, rel=0.1)


#: Engines with small batches.
LITTLE = [
    engine(chunk_tokens=64, prefix_caching=True, max_running_requests=8, **own)
    for own in (
        {"name": "vllm"},
        {"name": "sglang", "version": "0.5.9"},
        {"name": "sglang"},
        {"name": "trtllm", "capacity_policy": "guaranteed_no_evict"},
        {"name": "trtllm", "capacity_policy": "max_utilization"},
    )
]


@examples(20, always=True)
@example(seed=399, spec=LITTLE[1], stages=4, capacity=450, workers=1)
@given(
    seed=st.integers(0, 10_000),
    spec=st.sampled_from(LITTLE),
    stages=st.integers(2, 4),
    capacity=st.integers(450, 4000),
    workers=st.integers(1, 2),
)
def test_every_request_is_served_and_one_memory_holds_them_all(
    seed: int, spec: EngineSpec, stages: int, capacity: int, workers: int
) -> None:
    """Laws L1, L3 and L4, with prefixes shared by all micro-batches, follow-ups, and little memory."""
    shape = TraceShape(40, rate_rps=40.0, prompt_tokens=120, output_tokens=30)
    trace = compiled(random_trace(seed, shape))
    try:
        result = simulate(pipe_plan(spec, stages, capacity), trace, replicas=workers)
    except EngineOutOfMemory:
        # SGLang's slots reserve memory for their own outputs alone.
        assert spec.name == "sglang"
        reject()
    requests = result.requests
    served = requests.finished
    assert (served | (requests.outcome == 2)).all()
    assert (requests.finish_s[served] >= requests.first_token_s[served]).all()
    assert (requests.first_token_s[served] >= requests.scheduled_s[served]).all()
    assert (result.workers.peak_kv_tokens <= result.kv_capacity_tokens).all()


@pytest.mark.parametrize("name", ENGINES)
def test_a_repeated_prompt_is_found_whatever_micro_batch_had_it(name: str) -> None:
    shape = TraceShape(30, rate_rps=20.0, prompt_tokens=200, output_tokens=5, follow_up=0.6, slack=1.0)
    trace = compiled(random_trace(7, shape))
    spec = engine(name, prefix_caching=True)
    piped = simulate(pipe_plan(spec, 4), trace)
    alone = simulate(plan(spec, 1_000_000), trace)
    assert piped.hit_rate == pytest.approx(alone.hit_rate, abs=0.02)
