"""Workers whose ranks share prompts: the same work and decisions, at other times."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hisearch.latency.sharding import InvalidParallelism
from hisearch.latency.step_cost import step_seconds
from hisearch.simulate import Result, WorkerPlan, simulate
from hisearch.specs.deployments.pool import PoolSpec
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.traces.compiler import compile_trace
from hisearch.traces.trace import make_trace
from tests.simulate import test_shared_context as shared_context
from tests.simulate.test_shared_context import planned

CATALOGUE = Catalogue()
MODELS = {"vllm": "deepseek-v3", "sglang": "deepseek-v3.2"}


@cache
def worker(engine: str, ranks: int, model: str = "", stages: int = 1) -> WorkerPlan:
    pool = PoolSpec.model_validate({
        "accelerator": "h200", "tensor_parallel": 8 // ranks, "prefill_context_parallel": ranks,
        "pipeline_parallel": stages, "engine": {"name": engine, "chunk_tokens": 1024, "max_running_requests": 16},
    })  # fmt: skip
    return planned(pool, model or MODELS[engine])


def served(plan: WorkerPlan, seed: int) -> Result:
    """Prompts of several steps."""
    return shared_context.served(plan, seed, longest=3000, capacity_tokens=8192)


@settings(deadline=None)
@given(ranks=st.sampled_from([2, 4, 8]), engine=st.sampled_from(["vllm", "sglang"]), seed=st.integers(0, 2**16))
def test_every_request_is_served(ranks: int, engine: str, seed: int) -> None:
    """L1 and L2."""
    requests = served(worker(engine, ranks), seed).requests
    assert np.isfinite(requests.finish_s).all()
    assert (requests.hit_tokens < requests.input_tokens).all()


@settings(deadline=None)
@given(ranks=st.sampled_from([2, 4, 8]), engine=st.sampled_from(["vllm", "sglang"]), seed=st.integers(0, 2**16))
def test_decisions_are_those_of_one_set_of_ranks(ranks: int, engine: str, seed: int) -> None:
    """With the same costs, the same times to the last bit: the scheduler does not know who computes what."""
    plan = worker(engine, ranks)
    alone = replace(worker(engine, 1), costs=plan.costs)
    for name in ("finish_s", "first_token_s", "hit_tokens"):
        ours, theirs = (getattr(served(either, seed).requests, name) for either in (plan, alone))
        assert np.array_equal(ours, theirs), name


@pytest.mark.parametrize("ranks", [1, 2, 8])
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_lone_prompt_takes_the_steps_of_its_chunks(engine: str, ranks: int) -> None:
    """L7."""
    plan = worker(engine, ranks)
    trace = make_trace(arrival_s=np.zeros(1), input_tokens=np.array([2500]), output_tokens=np.array([2]))
    requests = simulate(plan, compile_trace(trace, "one", "one")).requests
    chunks = [(1024, 0, 0), (1024, 1024, 0), (452, 2048, 1)]
    by_hand = sum(step_seconds(plan.costs.seconds, [(new, cached)], [], samples) for new, cached, samples in chunks)
    assert float(requests.first_token_s[0]) == pytest.approx(by_hand, rel=1e-9)


def test_a_worker_draws_and_costs_what_its_ranks_do() -> None:
    for engine in ("vllm", "sglang"):
        shared, alone = worker(engine, 4), worker(engine, 1)
        assert shared.ranks == alone.ranks == 8
        assert shared.schedulers == 1
        assert shared.idle_w == alone.idle_w
        assert shared.kv_capacity_tokens < alone.kv_capacity_tokens


def test_stages_share_prompts_too() -> None:
    """Two stages of eight ranks: twice the accelerators, and passes of about the same length."""
    single, double = worker("vllm", 4), worker("vllm", 4, stages=2)
    assert double.ranks == 16
    chunk = [(1024, 0)]
    passes = [step_seconds(plan.costs.seconds, chunk, []) for plan in (single, double)]
    assert passes[0] < passes[1] < 1.1 * passes[0]
    assert np.isfinite(served(double, 3).requests.finish_s).all()


@pytest.mark.parametrize(
    ("engine", "model", "message"),
    [
        ("vllm", "qwen3-235b-a22b", "vLLM shares prompts of models with MLA alone"),
        ("sglang", "deepseek-v3", "not simulated under SGLang for MLA without sparse attention"),
    ],
)
def test_models_whose_prompts_engines_do_not_share(engine: str, model: str, message: str) -> None:
    with pytest.raises(InvalidParallelism, match=message):
        worker(engine, 4, model)
