"""Every policy against a slow, obvious cache, the laws L2, L3 and L7, and what is refused."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hisearch.traces.load import load_trace_file
from hisearch.traces.reading.canonical import write_trace
from hisearch.traces.stats import curve_capacities, ideal_hit_tokens, lru_hit_curve
from hisearch.traces.trace import make_trace
from hisearch.validate.cache import POLICIES, cache_points, run_cache
from hisearch.validate.cache_settings import CacheSettings
from tests.validate import cache_reference as reference

PAGES = st.integers(1, 5)
CAPACITIES = st.integers(1, 14)


def points_of(trace, capacities, policies, circumstances=reference.PLAIN, **options):
    """Points of each policy, with the settings that go with it."""
    return [
        point
        for policy in policies
        for point in cache_points(trace, capacities, [policy], settings=circumstances.settings_of(policy), **options)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
@given(
    workload=reference.workloads(),
    circumstances=reference.circumstances(),
    page=PAGES,
    capacity=CAPACITIES,
    outputs=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_a_policy_hits_what_the_slow_cache_hits(policy, workload, circumstances, page, capacity, outputs):
    trace = reference.compiled(*workload, circumstances)
    slow = reference.slow_cache(policy, capacity, page, *workload, outputs, circumstances)
    expected = [slow.serve(i) for i in range(len(trace))]
    (point,) = points_of(trace, [capacity * page], [policy], circumstances, page_tokens=page, include_outputs=outputs)
    assert point.hit_tokens == sum(expected)
    assert point.prompt_tokens == sum(len(prompt) for prompt in workload[0])
    assert point.hit_rate == point.hit_tokens / point.prompt_tokens
    assert point.expired_tokens == (slow.expired_tokens if policy == "ttl" else None)
    assert point.peak_tokens == (slow.peak * page if policy == "ttl" else None)
    uncached = trace.arrays.input_tokens - expected
    late = (uncached > circumstances.settings.tail_tokens).sum()
    assert point.tail_requests == (late if policy == "tlru" else None)
    run = run_cache(trace, policy, capacity, page, outputs, circumstances.settings)
    assert run.hits.tolist() == expected
    assert (run.hits <= trace.arrays.input_tokens).all()  # law L2: the rest of every prompt is computed
    assert run.peak_pages == slow.peak <= capacity  # law L3


@given(workload=reference.workloads(), page=PAGES, outputs=st.booleans())
@settings(max_examples=100, deadline=None)
def test_more_capacity_never_hits_less_under_lru(workload, page, outputs):  # law L7
    sizes = [page * pages for pages in range(1, 30)]
    points = cache_points(reference.compiled(*workload), sizes, page_tokens=page, include_outputs=outputs)
    hits = [point.hit_tokens for point in points]
    assert hits == sorted(hits)


@pytest.mark.parametrize("policy", POLICIES)
@given(workload=reference.workloads(), outputs=st.booleans())
@settings(max_examples=50, deadline=None)
def test_an_unlimited_cache_hits_all_tokens_seen_before(policy, workload, outputs):  # law L7
    trace = reference.compiled(*workload)
    (point,) = points_of(trace, [10**30], [policy], page_tokens=1, include_outputs=outputs)
    assert point.hit_tokens == ideal_hit_tokens(trace, include_outputs=outputs).sum()


@given(workload=reference.workloads(requests=6, longest=4), capacity=st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_belady_is_the_best_there_is(workload, capacity):
    trace = reference.compiled(*workload)
    points = {point.policy: point.hit_tokens for point in points_of(trace, [capacity], POLICIES, page_tokens=1)}
    assert points["belady"] == reference.most_hits(workload[0], capacity)
    assert max(points.values()) == points["belady"]


def test_only_belady_is_an_oracle():  # law L5
    assert [name for name, policy in POLICIES.items() if policy.oracle] == ["belady"]


def test_kernels_run_as_plain_python():
    code = (
        "from tests.validate.test_cache import *\n"
        "prompts = [[1, 2, 3], [1, 2], [4, 5], [1, 2, 3]]\n"
        "trace = reference.compiled(prompts, [[*prompt, 9 + i] for i, prompt in enumerate(prompts)])\n"
        "print(points_of(trace, [3, 4], POLICIES, page_tokens=1))"
    )
    results = [
        subprocess.run(
            [sys.executable, "-c", code], cwd=Path(__file__).parents[2], env=os.environ | more,
            capture_output=True, text=True, check=True, timeout=300,
        ).stdout
        for more in ({}, {"NUMBA_DISABLE_JIT": "1"})
    ]  # fmt: skip
    assert results[0] == results[1] != ""


def test_the_head_of_a_prompt_outlives_its_tail():
    prompts = [[1, 2, 3, 4], [5, 6], [1, 2, 3, 4]]
    trace = reference.compiled(prompts, [[*prompt, 9 + i] for i, prompt in enumerate(prompts)])
    assert run_cache(trace, "lfu", 5, 1, False, CacheSettings()).hits.tolist() == [0, 0, 3]
    assert lru_hit_curve(trace, [5], block_tokens=1)[0].hit_tokens == 3


def test_points_are_in_the_order_asked_for():
    trace = reference.compiled([[1, 2], [1, 2]], [[1, 2, 3], [1, 2, 4]])
    points = cache_points(trace, [2, 1], ["fifo", "lru"], page_tokens=1)
    assert [(point.policy, point.capacity_tokens, point.hit_tokens) for point in points] == [
        ("fifo", 2, 2), ("fifo", 1, 1), ("lru", 2, 2), ("lru", 1, 1),
    ]  # fmt: skip


@given(workload=reference.workloads(), page=PAGES)
@settings(max_examples=50, deadline=None)
def test_the_curve_ends_where_nothing_more_is_hit(workload, page):
    trace = reference.compiled(*workload)
    capacities = curve_capacities(trace, block_tokens=page)
    assert capacities == sorted(set(capacities))
    assert capacities[0] >= page
    last, unlimited, less = lru_hit_curve(trace, [capacities[-1], 10**30, capacities[-1] - page], block_tokens=page)
    assert last.hit_tokens == unlimited.hit_tokens
    assert less.hit_tokens < last.hit_tokens or last.hit_tokens == 0


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_pages_are_the_blocks_of_the_trace(tmp_path, suffix):
    shared = make_trace(
        arrival_s=[0, 1], input_tokens=[128, 128], output_tokens=[1, 1], shares_with=[-1, 0], shared_tokens=[0, 64],
        block_tokens=64,
    )  # fmt: skip
    write_trace(shared, tmp_path / f"t.{suffix}")
    for _ in range(2):  # the second one comes from the disk cache
        trace = load_trace_file(tmp_path / f"t.{suffix}")
        assert trace.block_tokens == 64
    with pytest.raises(ValueError, match="at least one page of 64 tokens, got 63"):
        cache_points(trace, [63])
    assert cache_points(trace, [64 * 2])[0].hit_tokens == 64


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([8], ["lur"]), "no cache policy 'lur'; did you mean 'lru'"),
        (([0],), "at least one page of 16 tokens, got 0"),
        (([16, 15],), "got 15"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments, message):
    trace = reference.compiled([[1]], [[1, 2]])
    with pytest.raises(ValueError, match=message):
        cache_points(trace, *arguments)
    with pytest.raises(ValueError, match="page_tokens must be at least 1"):
        cache_points(trace, [8], page_tokens=0)


def test_too_many_pages_are_refused(monkeypatch):
    monkeypatch.setattr("hisearch.validate.cache.MAX_PAGES", 10)
    trace = reference.compiled([[0] * 40], [[0] * 41])
    assert cache_points(trace, [8], page_tokens=1)[0].hit_tokens == 0
    with pytest.raises(ValueError, match="use larger pages, or lru"):
        cache_points(trace, [8], ["fifo"], page_tokens=1)
