"""L7: limits with a closed form. Times by the law of ``systems.LAW``, computed independently."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hisearch.latency.step_cost import law_costs
from hisearch.simulate import simulate
from hisearch.simulate.plans.tier_plan import TransferLaw
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.traces.compiled import CompiledTrace, TraceArrays
from tests.kernels.systems import (
    ENGINES,
    System,
    any_engines,
    compiled,
    compiled_costs,
    examples,
    pages,
    plan,
    systems,
)
from tests.reference.random_traces import TraceShape, random_trace, tree_of_sequences

AMPLE = 1 << 24
#: Tokens below which SGLang does not load back from the host.
LOAD_BACK_TOKENS = 10


def single_request(prompt: int, output: int, arrival_s: float = 0.0) -> CompiledTrace:
    """A trace of one request."""
    zero = np.zeros(1, np.int32)
    parent, start, end, prompt_node, output_node = tree_of_sequences(
        [list(range(prompt))], [list(range(prompt, prompt + output))]
    )
    arrays = TraceArrays(
        np.array([arrival_s]), np.array([prompt]), np.array([output]), np.array([output]), zero - 1, np.zeros(1),
        zero, zero, zero, np.zeros(1, np.int64), prompt_node, output_node, parent, start, end,
    )  # fmt: skip
    return compiled(arrays, "one")


def prefill_seconds(missing: int, cached: int, chunk_tokens: int) -> float:
    """Time of a lone prompt: 5 ms a chunk, 20 us a token, 1 ns for every token and each one before it, itself too."""
    chunks = -(-missing // chunk_tokens)
    attention = sum(range(cached + 1, cached + missing + 1))
    return 0.005 * chunks + 2e-5 * missing + 1e-9 * attention


def decode_seconds(prompt: int, output: int) -> float:
    """Time from a lone request's first to its last token: step k reads the prompt and k tokens made before."""
    return sum(0.005 + 2e-5 + 1e-9 * (prompt + k) for k in range(1, output))


def serialised(trace: TraceArrays, think_s: float = 1.0) -> TraceArrays:
    """The same requests in the same order, each after the one before has finished."""
    count = len(trace.arrival_s)
    return trace._replace(
        previous=np.arange(-1, count - 1, dtype=np.int32),
        think_s=np.full(count, think_s),
        arrival_s=np.where(np.arange(count) == 0, 0.0, np.nan),
    )


def token_paths(trace: TraceArrays) -> list[list[tuple[int, int]]]:
    """Every request's prompt and output, token by token, as (tree node, position)."""
    paths = []
    for node in trace.output_node.tolist():
        path: list[tuple[int, int]] = []
        while node > 0:
            path[:0] = [(node, position) for position in range(trace.start_tokens[node], trace.end_tokens[node])]
            node = int(trace.parent[node])
        paths.append(path)
    return paths


def unlimited_hits(trace: TraceArrays, page: int, *, full_pages: bool = False) -> list[int]:
    """Tokens of every prompt in whole pages that requests before it computed, at least one token left to compute.

    The last output token of a request is never computed. full_pages: of a fully cached prompt of whole pages only
    one token is left to compute, else its last page.
    """
    paths = token_paths(trace)
    hits = []
    for k, prompt in enumerate(trace.input_tokens.tolist()):
        best = 0
        for earlier in paths[:k]:
            limit = min(len(earlier) - 1, prompt - (not full_pages))
            shared = next((i for i in range(limit) if earlier[i] != paths[k][i]), limit)
            best = max(best, shared // page * page)
        hits.append(min(best, prompt - 1))
    return hits


@pytest.mark.parametrize("name", ENGINES)
@examples(40)
@given(
    prompt=st.integers(1, 3000),
    output=st.integers(1, 300),
    chunk=st.sampled_from([16, 256, 8192]),
    caching=st.booleans(),
)
def test_l7_one_request_takes_the_closed_form(name: str, prompt: int, output: int, chunk: int, caching: bool) -> None:
    engine = EngineSpec.model_validate(
        {
            "name": name, "page_tokens": 16, "chunk_tokens": chunk, "max_running_requests": 4,
            "prefix_caching": caching, "overlap": False,
        }
    )  # fmt: skip
    result = simulate(plan(engine, AMPLE), single_request(prompt, output, arrival_s=0.25))
    table = result.requests
    assert table.scheduled_s[0] == 0.25
    assert table.ttft_s[0] == pytest.approx(prefill_seconds(prompt, 0, chunk), rel=1e-9)
    assert table.finish_s[0] - table.first_token_s[0] == pytest.approx(
        decode_seconds(prompt, output), rel=1e-9, abs=1e-12
    )
    assert result.workers.busy_s[0] == pytest.approx(result.makespan_s, rel=1e-9)
    # Energy is by the same law, 300 J for every second.
    assert result.workers.energy_j[0] == pytest.approx(300 * result.makespan_s, rel=1e-9)
    assert (result.workers.prefill_tokens[0], result.workers.decode_tokens[0]) == (prompt, output - 1)
    assert result.workers.steps[0] == -(-prompt // chunk) + output - 1


def test_l7_one_request_by_hand() -> None:
    """100 prompt tokens in chunks of 64, 3 output tokens."""
    engine = EngineSpec(name="vllm", chunk_tokens=64, max_running_requests=4)
    table = simulate(plan(engine, AMPLE), single_request(100, 3)).requests
    first = (0.005 + 64 * 2e-5 + 2080e-9) + (0.005 + 36 * 2e-5 + (5050 - 2080) * 1e-9)
    assert table.first_token_s[0] == pytest.approx(first, rel=1e-12)
    assert table.finish_s[0] == pytest.approx(first + 2 * 0.00502 + (101 + 102) * 1e-9, rel=1e-12)


@pytest.mark.parametrize("name", ENGINES)
@examples(20)
@given(seed=st.integers(0, 1000), page=st.sampled_from([1, 4, 16]), chunk=st.sampled_from([16, 64]))
def test_l7_zero_load_serves_every_request_as_if_alone(name: str, seed: int, page: int, chunk: int) -> None:
    page = pages(name, page)
    arrays = random_trace(seed, TraceShape(requests=15, follow_up=0.0, same_time=0.0))
    engine = EngineSpec.model_validate(
        {"name": name, "page_tokens": page, "chunk_tokens": chunk, "max_running_requests": 4}
    )
    table = simulate(plan(engine, AMPLE), compiled(arrays), load=1e-6).requests
    # Gaps of 1 s at least, so that nothing overlaps.
    assume(np.diff(table.arrival_s).min() > 1.0)
    np.testing.assert_array_equal(table.arrival_s, arrays.arrival_s / 1e-6)
    np.testing.assert_array_equal(table.scheduled_s, table.arrival_s)
    assert table.hit_tokens.tolist() == unlimited_hits(arrays, page)
    for k in range(len(arrays.arrival_s)):
        prompt, hit = int(arrays.input_tokens[k]), int(table.hit_tokens[k])
        # Absolute: arrivals lie at 1e5 s, where doubles are 1.5e-11 s apart, and every step adds a rounding.
        assert table.ttft_s[k] == pytest.approx(prefill_seconds(prompt - hit, hit, chunk), abs=1e-8)
        assert table.e2e_s[k] - table.ttft_s[k] == pytest.approx(
            decode_seconds(prompt, int(arrays.output_tokens[k])), abs=1e-8
        )


@pytest.mark.parametrize("name", ENGINES)
@examples(25)
@given(seed=st.integers(0, 1000), page=st.sampled_from([1, 4, 16]))
def test_l7_unlimited_cache_hits_all_that_was_computed_before(name: str, seed: int, page: int) -> None:
    page = pages(name, page)
    arrays = serialised(random_trace(seed))
    engine = EngineSpec.model_validate({"name": name, "page_tokens": page, "overlap": False})
    table = simulate(plan(engine, AMPLE), compiled(arrays)).requests
    assert table.hit_tokens.tolist() == unlimited_hits(arrays, page)


@examples(60)
@given(
    seed=st.integers(0, 10_000),
    page=st.sampled_from([1, 4, 16]),
    capacities=st.lists(st.integers(300, 1500), min_size=2, max_size=5),
)
def test_l7_more_capacity_never_lowers_a_request_s_hits(seed: int, page: int, capacities: Sequence[int]) -> None:
    """vLLM's free queue is an LRU of pages: what a smaller pool holds, a larger one holds too.

    Without exact repeats, whose recomputed last page is a second copy. SGLang's eviction is not inclusion-respecting:
    it evicts whole nodes, and as many pages as it needs where it could do with the difference to what is free.
    """
    arrays = serialised(random_trace(seed, TraceShape(requests=30, repeat=0.0, slack=1.0)))
    engine = EngineSpec(name="vllm", page_tokens=page)
    hits = [simulate(plan(engine, capacity), compiled(arrays)).requests.hit_tokens for capacity in sorted(capacities)]
    for smaller, larger in pairwise(hits):
        assert (smaller <= larger).all()
    assert (hits[-1] <= unlimited_hits(arrays, page)).all()


@pytest.mark.parametrize("name", ENGINES)
@examples(30)
@given(
    prompt=st.integers(1, 2000), output=st.integers(1, 200), chunk=st.sampled_from([64, 8192]),
    slower=st.tuples(*[st.floats(1.0, 3.0)] * 3),
)  # fmt: skip
def test_l7_faster_machine_never_ends_a_lone_request_later(
    name: str, prompt: int, output: int, chunk: int, slower: tuple[float, float, float]
) -> None:
    engine = EngineSpec.model_validate({"name": name, "chunk_tokens": chunk, "max_running_requests": 4})
    trace = single_request(prompt, output)
    slow = compiled_costs(law_costs(0.005 * slower[0], 2e-5 * slower[1], 1e-9 * slower[2]))
    fast_table = simulate(plan(engine, AMPLE), trace).requests
    slow_table = simulate(plan(engine, AMPLE, costs=slow), trace).requests
    assert fast_table.first_token_s[0] <= slow_table.first_token_s[0]
    assert fast_table.finish_s[0] <= slow_table.finish_s[0]


@pytest.mark.parametrize("name", ENGINES)
@examples(30)
@given(seed=st.integers(0, 10_000), page=st.sampled_from([1, 4, 16]), capacity=st.sampled_from([300, 500]))
def test_l7_unlimited_host_tier_makes_up_for_a_small_pool(name: str, seed: int, page: int, capacity: int) -> None:
    """With a free and unlimited second tier, every page computed before is hit, in the one tier or the other.

    SGLang leaves fewer than ten missing tokens on the host and computes them.
    """
    page = pages(name, page)
    arrays = serialised(random_trace(seed, TraceShape(requests=30, slack=1.0)))
    # vLLM's later releases copy prompts alone.
    version = "0.19.1" if name == "vllm" else ""
    engine = EngineSpec.model_validate({"name": name, "version": version, "page_tokens": page, "overlap": False})
    worker = plan(engine, capacity, host_tokens=AMPLE, host_read=TransferLaw(), host_write=TransferLaw())
    table = simulate(worker, compiled(arrays)).requests
    without = simulate(plan(engine, capacity), compiled(arrays)).requests
    assert table.finished.all()
    hits = table.hit_tokens + table.host_hit_tokens
    ideal = np.array(unlimited_hits(arrays, page))
    left = LOAD_BACK_TOKENS - 1 if name == "sglang" else 0
    if name == "vllm":
        # Of a prompt that host memory has all of, one token is computed again, not a page.
        ideal = np.array(unlimited_hits(arrays, page, full_pages=True))
    assert (hits <= ideal).all()
    assert (hits >= ideal - left).all()
    assert (hits >= without.hit_tokens - left).all()
    if name != "sglang":
        np.testing.assert_array_equal(hits, ideal)
    else:
        assert ((table.host_hit_tokens == 0) | (table.host_hit_tokens >= LOAD_BACK_TOKENS)).all()


@examples(40)
@given(system=systems(any_engines(), repeats=True))
def test_l7_host_tier_without_room_for_a_page_changes_nothing(system: System) -> None:
    tiny = replace(system, host_tokens=system.engine.page_size - 1)
    for name in ("finish_s", "hit_tokens"):
        np.testing.assert_array_equal(
            getattr(tiny.simulate().requests, name), getattr(system.simulate().requests, name)
        )


@pytest.mark.parametrize("name", ENGINES)
def test_l4_load_back_takes_latency_and_bandwidth(name: str) -> None:
    """A prompt comes back from the host.

    SGLang's step ends when the copy does, where that takes longer than computing; the others wait for it.
    """
    arrays = serialised(random_trace(4, TraceShape(requests=2, repeat=1.0, follow_up=0.0, prompt_tokens=200)))
    tokens = int(arrays.input_tokens[1])
    page = pages(name, 1)
    engine = EngineSpec.model_validate({"name": name, "page_tokens": page})
    # The first prompt and its output just fit: nothing of them is left behind the filler between the two.
    filler = single_request(tokens + 30, 1).arrays
    arrays = _with_filler(arrays, filler)
    # Copies to the host take no time: others would have to wait for them.
    read = TransferLaw(2.0, 0.01)
    worker = plan(engine, tokens + 60, host_tokens=AMPLE, host_read=read, host_write=TransferLaw())
    table = simulate(worker, compiled(arrays)).requests
    assert table.finished.all()
    loaded = int(table.host_hit_tokens[2])
    assert loaded >= LOAD_BACK_TOKENS
    assert table.hit_tokens[2] + loaded == (tokens - 1) // page * page
    if name == "vllm":
        # The request waits for its load, of its last token too, and then computes that one.
        assert table.ttft_s[2] == pytest.approx(2.0 + 0.01 * (loaded + 1) + prefill_seconds(1, tokens - 1, 1), rel=1e-9)
    elif name == "trtllm":
        # Page by page.
        copies_s = loaded // page * (2.0 + 0.01 * page)
        reused = loaded + int(table.hit_tokens[2])
        assert table.ttft_s[2] == pytest.approx(copies_s + prefill_seconds(tokens - reused, reused, tokens), rel=1e-9)
    else:
        assert table.ttft_s[2] == pytest.approx(2.0 + 0.01 * loaded, rel=1e-9)


def _with_filler(arrays: TraceArrays, filler: TraceArrays) -> TraceArrays:
    """The first request, an unrelated one, the second request, one after another."""
    paths = [[hash(token) for token in path] for path in token_paths(arrays)]
    lengths = arrays.input_tokens.tolist()
    unrelated = list(range(-1, -int(filler.input_tokens[0] + filler.output_tokens[0]) - 1, -1))
    prompts = [paths[0][: lengths[0]], unrelated[: int(filler.input_tokens[0])], paths[1][: lengths[1]]]
    outputs = [paths[0][lengths[0] :], unrelated[int(filler.input_tokens[0]) :], paths[1][lengths[1] :]]
    parent, start, end, prompt_node, output_node = tree_of_sequences(prompts, outputs)
    zeros = np.zeros(3, np.int32)
    made = np.array([len(output) for output in outputs])
    merged = TraceArrays(
        np.zeros(3), np.array([len(prompt) for prompt in prompts]), made, made, zeros, np.zeros(3), zeros, zeros, zeros,
        0 * made, prompt_node, output_node, parent, start, end,
    )  # fmt: skip
    return serialised(merged)
