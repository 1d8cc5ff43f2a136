"""Settings of policies: what tlru, gdsf, ttl and priority do with them, their defaults, and what is refused."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hisearch.latency.estimator import compile_costs
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.documents.resolve import load_deployment
from hisearch.traces.compiler import compile_trace
from hisearch.traces.stats import lru_hit_curve
from hisearch.traces.trace import make_trace
from hisearch.validate.cache import POLICIES, cache_points, run_cache
from hisearch.validate.cache_settings import (
    ATTENTION_TOKENS,
    RECLAIMS,
    CacheSettings,
    SettingError,
    check_settings,
    complete_settings,
    earliest_arrivals_s,
    mean_turn_tokens,
)
from tests.validate import cache_reference as reference

NAN = math.nan


def hits(prompts, policy, capacity, cache_settings=None, *, arrivals=None, priorities=None):
    """Tokens that each prompt hits in a cache of ``capacity`` single-token pages."""
    plain = reference.PLAIN
    circumstances = reference.Circumstances(arrivals or plain.arrivals, priorities or plain.priorities, plain.settings)
    trace = reference.compiled(prompts, [[*prompt, 90 + i] for i, prompt in enumerate(prompts)], circumstances)
    return run_cache(trace, policy, capacity, 1, False, cache_settings or CacheSettings()).hits.tolist()


def test_tlru_drops_what_a_short_conversation_can_do_without():
    short, long = [1, 2], [3, 4, 5, 6, 7, 8]
    prompts = [long, short, [9, 10, 11], [*long, 12]]
    assert hits(prompts, "lru", 8) == [0, 0, 0, 3]
    # With one new token, both may lose their last two pages: 2 + 1 uncached. Three go: two long ones, then a short one.
    assert hits(prompts, "tlru", 8, CacheSettings(tail_tokens=3, turn_tokens=1)) == [0, 0, 0, 4]
    # Two go: both long ones where two may, but one of each where only the very last one may.
    prompts = [long, short, [9, 10], short]
    assert hits(prompts, "tlru", 8, CacheSettings(tail_tokens=3, turn_tokens=1)) == [0, 0, 0, 2]
    assert hits(prompts, "tlru", 8, CacheSettings(tail_tokens=2, turn_tokens=1)) == [0, 0, 0, 1]


@given(workload=reference.workloads(), capacity=st.integers(1, 14), tail=st.sampled_from([0, 10**30]))
@settings(max_examples=60, deadline=None)
def test_tlru_is_lru_where_no_page_or_every_page_may_go(workload, capacity, tail):
    cache_settings = CacheSettings(tail_tokens=tail, turn_tokens=1)
    trace = reference.compiled(*workload)
    tlru, lru = cache_points(trace, [capacity], ["tlru", "lru"], page_tokens=1, settings=cache_settings)
    assert (tlru.hit_tokens, tlru.tail_requests) == (lru.hit_tokens, lru.tail_requests)


def test_tail_requests_are_counted_under_every_policy():
    prompts = [[1, 2, 3, 4], [1, 2, 3, 5], [1, 2, 3, 4]]
    trace = reference.compiled(prompts, [[*prompt, 9 + i] for i, prompt in enumerate(prompts)])
    cache_settings = CacheSettings(tail_tokens=1, turn_tokens=0, ttl_s=100.0)
    points = cache_points(trace, [4], list(POLICIES), page_tokens=1, settings=cache_settings)
    assert {point.tail_requests for point in points} == {1}


def test_gdsf_keeps_what_costs_more_and_what_is_used_more():
    deep, often = [1, 2, 3, 4], [5, 6]
    cache_settings = CacheSettings(attention_tokens=1.0)  # a token at depth d costs 1 + d
    assert hits([deep, often, [7], deep, often], "gdsf", 6, cache_settings)[3:] == [4, 1]
    # Used three times, two pages are worth 3 and 6, and of the four that are worth 1 to 4 the last one is the leaf.
    assert hits([often, often, often, deep, [7], often], "gdsf", 6, cache_settings)[5] == 2
    assert hits([often, often, often, deep, [7], often], "lru", 6)[5] == 1


@given(workload=reference.workloads(), capacity=st.integers(1, 14))
@settings(max_examples=60, deadline=None)
def test_priority_is_lru_among_equals(workload, capacity):
    trace = reference.compiled(*workload)
    priority, lru = cache_points(trace, [capacity], ["priority", "lru"], page_tokens=1)
    assert priority.hit_tokens == lru.hit_tokens


def test_priority_keeps_the_greatest_value_of_those_that_used_a_page():
    prompts = [[1, 2], [3, 4], [1, 2], [5, 6], [1, 2], [3, 4]]
    assert hits(prompts, "lru", 4)[4:] == [2, 0]
    assert hits(prompts, "priority", 4, priorities=[7, 8, 0, 0, 0, 0])[4:] == [0, 2]
    assert hits(prompts, "priority", 4, priorities=[9, 8, 0, 0, 0, 0])[4:] == [2, 0]


def test_a_page_lives_until_its_time_is_over_and_every_use_renews_it():
    prompts = [[1, 2]] * 4
    assert hits(prompts, "ttl", 9, CacheSettings(ttl_s=2.0), arrivals=[0.0, 1.5, 3.25, 5.25]) == [0, 2, 2, 0]


@given(workload=reference.workloads(), circumstances=reference.circumstances(), capacity=st.integers(1, 14))
@settings(max_examples=100, deadline=None)
def test_hits_under_ttl_do_not_depend_on_the_reclaim(workload, circumstances, capacity):
    """The live pages are the most recently used ones: expired pages never displace them."""
    trace = reference.compiled(*workload, circumstances)
    ttl_s = circumstances.settings.ttl_s
    runs = [
        run_cache(trace, "ttl", capacity, 1, False, CacheSettings(ttl_s=ttl_s, reclaim=reclaim, reclaim_period_s=2.5))
        for reclaim in RECLAIMS
    ]
    assert all(np.array_equal(run.hits, runs[0].hits) for run in runs)


@given(workload=reference.workloads(), capacity=st.integers(1, 14), page=st.integers(1, 4), outputs=st.booleans())
@settings(max_examples=60, deadline=None)
def test_ttl_is_lru_where_nothing_expires(workload, capacity, page, outputs):
    trace = reference.compiled(*workload)
    cache_settings = CacheSettings(ttl_s=1e9)
    (point,) = cache_points(
        trace, [capacity * page], ["ttl"], page_tokens=page, include_outputs=outputs, settings=cache_settings
    )
    (lru,) = lru_hit_curve(trace, [capacity * page], block_tokens=page, include_outputs=outputs)
    assert (point.hit_tokens, point.expired_tokens) == (lru.hit_tokens, 0)


def test_reclaims_differ_in_peak_tokens_and_in_what_they_expire():
    # Two sequences share a page; the second has a page that nobody asks for again.
    prompts = [[1, 2], [1, 3], [1, 2], [4]]
    arrivals = [0.0, 0.0, 5.0, 9.0]
    trace = reference.compiled(
        prompts, [[*prompt, 90 + i] for i, prompt in enumerate(prompts)], reference.PLAIN._replace(arrivals=arrivals)
    )
    by_reclaim = {
        "lazy": CacheSettings(ttl_s=2.0),
        "periodic": CacheSettings(ttl_s=2.0, reclaim="periodic", reclaim_period_s=3.0),
        "pressure": CacheSettings(ttl_s=2.0, reclaim="pressure"),
    }
    points = {
        how: cache_points(trace, [9], ["ttl"], page_tokens=1, settings=settings)[0]
        for how, settings in by_reclaim.items()
    }
    # All three pages are expired at 5 s, and [1, 2] at 9 s, which only the periodic reclaim looks for.
    assert {how: point.expired_tokens for how, point in points.items()} == {"lazy": 3, "periodic": 5, "pressure": 2}
    assert {how: point.peak_tokens for how, point in points.items()} == {"lazy": 3, "periodic": 3, "pressure": 4}


def conversation(previous=None, session=None, arrivals=(0, 10, 20)):
    """A first turn of 100 tokens, a second of 150 behind all of it, and a third that goes back to 60 of them."""
    return compile_trace(
        make_trace(
            arrival_s=list(arrivals), input_tokens=[100, 150, 90], output_tokens=[10, 10, 10],
            shares_with=[-1, 0, 0], shared_tokens=[0, 110, 60], previous=previous, session=session,
            think_s=[0, 5, 5] if previous else None, open_loop=previous is None,
        ),
        "conversation",
    )  # fmt: skip


def test_the_default_turn_is_the_mean_of_follow_ups():
    for trace in (conversation(previous=[-1, 0, 1]), conversation(session=[3, 3, 3])):
        assert mean_turn_tokens(trace) == (50 + 30) / 2
        assert mean_turn_tokens(trace, include_outputs=True) == (40 + 30) / 2
    branched = conversation(previous=[-1, 0, 0], session=[0, 0, 0])
    assert mean_turn_tokens(branched, include_outputs=True) == (40 + 30) / 2
    assert complete_settings(branched, ["tlru"], CacheSettings(tail_tokens=9)).turn_tokens == 40
    with pytest.raises(SettingError, match="turn_tokens: this trace has no follow-ups"):
        cache_points(conversation(), [160], ["tlru"], settings=CacheSettings(tail_tokens=9))


def test_unrecorded_arrivals_are_taken_from_the_turn_before():
    trace = conversation(previous=[-1, 0, 1], arrivals=(2, NAN, NAN))
    assert earliest_arrivals_s(trace).tolist() == [2, 7, 12]
    points = [cache_points(trace, [800], ["ttl"], settings=CacheSettings(ttl_s=ttl))[0] for ttl in (5.0, 5.5)]
    assert [point.hit_tokens for point in points] == [0, 96 + 48]


def test_the_default_depth_is_that_of_the_shipped_roofline():
    known = load_deployment("qwen3-32b-h100-tp2")
    pool = known.deployment.pools[0]
    roofline = Catalogue().get("LatencyProfile", "roofline").spec
    costs = compile_costs(
        "roofline", roofline, known.model.spec, known.accelerators[pool.accelerator].spec, tensor_parallel=1,
        weight_dtype="bf16", kv_dtype="bf16", engine=pool.engine, max_tokens=8192, max_sequences=1,
        max_context_tokens=32768,
    ).seconds  # fmt: skip
    assert costs.token_s[8192] / 8192 / costs.chunk_rate[-1, -1] == pytest.approx(ATTENTION_TOKENS, rel=0.01)
    assert complete_settings(conversation(), ["gdsf"], CacheSettings()).attention_tokens == ATTENTION_TOKENS


@pytest.mark.parametrize(
    ("policy", "fields", "message"),
    [
        ("tlru", {}, "tail_tokens: policy tlru needs it"),
        ("tlru", {"tail_tokens": -1}, "tail_tokens: expected a number of tokens from 0, not -1"),
        ("tlru", {"tail_tokens": 1, "turn_tokens": -2}, "turn_tokens: expected a number of tokens from 0, not -2"),
        ("gdsf", {"attention_tokens": 0.0}, "attention_tokens: expected a positive number of tokens, not 0"),
        ("gdsf", {"attention_tokens": NAN}, "attention_tokens: expected a positive number of tokens, not nan"),
        ("ttl", {}, "ttl_s: policy ttl needs it"),
        ("ttl", {"ttl_s": 0.0}, "ttl_s: expected a positive number of seconds, not 0: a page would expire as it is"),
        ("ttl", {"ttl_s": -1.0}, "ttl_s: expected a positive number of seconds, not -1"),
        ("ttl", {"ttl_s": math.inf}, "ttl_s: expected a positive number of seconds, not inf"),
        ("ttl", {"ttl_s": 1.0, "reclaim": "lasy"}, "reclaim: no way of reclaiming 'lasy'; did you mean 'lazy'"),
        ("ttl", {"ttl_s": 1.0, "reclaim": "periodic"}, "reclaim_period_s: reclaim periodic needs it"),
        (
            "ttl",
            {"ttl_s": 1.0, "reclaim": "periodic", "reclaim_period_s": 0.0},
            "reclaim_period_s: expected a positive number of seconds, not 0",
        ),
        ("ttl", {"ttl_s": 1.0, "reclaim_period_s": 1.0}, "reclaim_period_s: goes with reclaim periodic, not lazy"),
        ("lru", {"ttl_s": 1.0}, "ttl_s: goes with policy ttl, which is not asked for"),
        ("gdsf", {"turn_tokens": 1}, "turn_tokens: goes with policy tlru"),
    ],
)
def test_what_makes_no_sense_is_refused_by_key(policy, fields, message):
    with pytest.raises(SettingError, match=message) as refused:
        check_settings([policy], CacheSettings(**fields))
    assert message.startswith(f"{refused.value.key}: ")
