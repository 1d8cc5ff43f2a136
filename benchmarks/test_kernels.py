"""``pytest benchmarks``: single kernels under pytest-benchmark.

A jitted loop calls each many times, since a call from Python costs more than most of them. Compare versions, and
divide by the ``calls`` of the extra information.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from hisearch.kernels.cache import queue, radix, tree
from hisearch.kernels.engine import cost
from hisearch.kernels.layout import sim as la

ROUNDS = 20


@numba.njit
def fast_forward_often(sim, runs, steps, decoding, context):
    end = 0.0
    for _ in range(runs):
        _, end = cost.fast_forward(sim.seconds, end, 1e300, steps, decoding, context, 0)
    return end


@numba.njit
def batch_cost_often(sim, batch, runs, decoding, context):
    total = 0.0
    for _ in range(runs):
        total += cost.batch_cost(sim.seconds, sim.requests, batch, batch.shape[0], decoding, context, 0, 0)
    return total


@numba.njit
def match_all(sim):
    tokens = 0
    for r in range(sim.trace.prompt_node.shape[0]):
        matched, _ = tree.match(sim, 0, sim.trace.prompt_node[r], sim.trace.input_tokens[r])
        tokens += matched
    return tokens


@numba.njit
def queue_all(sim):
    """Hold, take, fill and release every prompt's pages; return the pages left free."""
    for r in range(sim.trace.prompt_node.shape[0]):
        trace_node, tokens = sim.trace.prompt_node[r], tree.floor_page(sim, sim.trace.input_tokens[r])
        cached, d, redirect = queue.hold(sim, 0, trace_node, tokens)
        if cached < tokens:
            queue.take(sim, 0, (tokens - cached) // sim.config.page_tokens)
            d = queue.grow(sim, 0, d, trace_node, cached, tokens)
        queue.unlock(sim, 0, d, redirect)
    return sim.trees[0].free_pages


@numba.njit
def radix_all(sim):
    """Free pages for every prompt, insert it and charge for it; return the pages left free."""
    cache = sim.trees[0]
    for r in range(sim.trace.prompt_node.shape[0]):
        tokens = tree.floor_page(sim, sim.trace.input_tokens[r])
        radix.ensure_free_pages(sim, 0, tokens // sim.config.page_tokens)
        present, _ = radix.insert(sim, 0, sim.trace.prompt_node[r], tokens, 0)
        cache.free_pages -= (tokens - present) // sim.config.page_tokens
    return cache.free_pages


@pytest.fixture(scope="module")
def vllm_state(state_after: Callable[[str], Any]) -> Any:
    return state_after("million-vllm")


@pytest.fixture(scope="module")
def sglang_state(state_after: Callable[[str], Any]) -> Any:
    return state_after("million")


def test_fast_forward(benchmark: BenchmarkFixture, vllm_state: Any) -> None:
    """A fast-forward of decode steps: 64 sequences that read 100,000 tokens in all at its beginning."""
    runs, steps = 100, 1_000
    fast_forward_often(vllm_state, 1, steps, 64, 100_000)
    benchmark.extra_info["calls"] = runs * steps
    assert benchmark.pedantic(fast_forward_often, (vllm_state, runs, steps, 64, 100_000), rounds=ROUNDS) > 0.0


def test_batch_cost(benchmark: BenchmarkFixture, vllm_state: Any) -> None:
    """Cost of a step of four prompt chunks and 64 decodes."""
    batch = np.arange(4, dtype=np.int32)
    requests = vllm_state.requests
    requests["chunk"][batch], requests["computed"][batch], requests["chunk_kind"][batch] = 2_000, 500, la.PROMPT_ENDS
    runs = 10_000
    batch_cost_often(vllm_state, batch, 1, 64, 100_000)
    benchmark.extra_info["calls"] = runs
    assert benchmark.pedantic(batch_cost_often, (vllm_state, batch, runs, 64, 100_000), rounds=ROUNDS) > 0.0


def test_prefix_match(benchmark: BenchmarkFixture, vllm_state: Any) -> None:
    """The longest cached prefix of every prompt, in the cache that the simulation left."""
    match_all(vllm_state)
    benchmark.extra_info["calls"] = len(vllm_state.trace.prompt_node)
    assert benchmark.pedantic(match_all, (vllm_state,), rounds=ROUNDS) > 0


def test_free_queue(benchmark: BenchmarkFixture, vllm_state: Any) -> None:
    """Store every prompt in a full paged cache, which evicts the oldest pages."""
    pages = queue_all(vllm_state)
    assert pages == vllm_state.trees[0].capacity_pages
    benchmark.extra_info["calls"] = len(vllm_state.trace.prompt_node)
    assert benchmark.pedantic(queue_all, (vllm_state,), rounds=ROUNDS) == pages


def test_radix(benchmark: BenchmarkFixture, sglang_state: Any) -> None:
    """Insert every prompt into a full radix cache, which evicts least recently used leaves."""
    cache = sglang_state.trees[0]
    radix_all(sglang_state)
    benchmark.extra_info["calls"] = len(sglang_state.trace.prompt_node)
    benchmark.pedantic(radix_all, (sglang_state,), rounds=ROUNDS)
    assert cache.free_pages + cache.evictable_pages == cache.capacity_pages
