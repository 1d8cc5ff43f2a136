"""A deployment of a model with linear attention under vLLM: what it holds, and which prefixes it finds."""

from __future__ import annotations

import numpy as np
import pytest

from hisearch.simulate import Result, WorkerPlan, simulate
from hisearch.simulate.plans.plan import plan_worker
from hisearch.specs.deployments.pool import PoolSpec
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.traces.compiler import compile_trace
from hisearch.traces.trace import make_trace

#: Tokens of a page of Qwen3.5-397B-A17B on eight GPUs whose kernels export states.
PAGE = 576


def worker(**engine: object) -> WorkerPlan:
    """Qwen3.5-397B-A17B on 8 H200."""
    pool = PoolSpec.model_validate(
        {"accelerator": "h200", "tensor_parallel": 8, "weight_dtype": "fp8", "engine": {"name": "vllm"} | engine}
    )
    catalogue = Catalogue()
    return plan_worker(
        pool,
        model=catalogue.get("Model", "qwen3.5-397b-a17b").spec,
        accelerator=catalogue.get("Accelerator", "h200").spec,
        host=None,
        media={},
        profile=catalogue.get("LatencyProfile", "roofline").spec,
    )


def served(plan: WorkerPlan, input_tokens: list[int], shared_tokens: list[int]) -> Result:
    """Requests a minute apart, each of which shares its first ``shared_tokens`` with the first."""
    count = len(input_tokens)
    trace = make_trace(
        arrival_s=60.0 * np.arange(count),
        input_tokens=input_tokens,
        output_tokens=np.full(count, 20),
        shares_with=[-1] + [0] * (count - 1),
        shared_tokens=shared_tokens,
    )
    return simulate(plan, compile_trace(trace, "prompts", "prompts"))


def test_pages_and_groups_are_those_of_the_model() -> None:
    plan = worker()
    assert plan.engine.page_size == PAGE
    assert plan.groups is not None
    assert (plan.groups.full, plan.groups.states, plan.groups.checkpoints) == (1, 3, True)
    assert plan.groups.retention_tokens == 0
    assert worker(version="0.28.0").groups == worker(version="0.19.1").groups
    assert worker(version="0.28.0").engine.page_size == 528
    assert plan.max_request_tokens == 262_144


@pytest.mark.slow
def test_a_prefix_is_found_where_its_state_was_kept() -> None:
    """The first prompt's state is kept at its last full page; where a second one parts from it, from then on."""
    plan = worker()
    tokens, shared = [10 * PAGE + 7] * 4, [0, 10 * PAGE + 7, 4 * PAGE + 100, 4 * PAGE + 100]
    result = served(plan, tokens, shared)
    assert result.requests.hit_tokens.tolist() == [0, 10 * PAGE, 0, 4 * PAGE]
    # Before 0.29 states are kept at the ends of chunks, of which a prompt alone has one, and at its last full page.
    older = worker(version="0.28.0", chunk_tokens=2048)
    small = older.engine.page_size
    result = served(older, [10 * small + 7] * 2, [0, 4 * small + 100])
    assert result.requests.hit_tokens.tolist() == [0, 3 * small]


@pytest.mark.slow
def test_without_prefix_caching_a_request_takes_a_page_more_in_each_group() -> None:
    plan = worker(prefix_caching=False)
    page = plan.engine.page_size
    result = served(plan, [3 * page], [0])
    assert result.requests.hit_tokens.tolist() == [0]
    # 3 full pages and the fourth, which the answer needs, beside three states.
    assert result.workers.peak_kv_tokens.tolist() == [(4 + 3) * page]
