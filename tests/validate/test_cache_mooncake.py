"""The published Mooncake conversation trace: block-LRU hit rates, all policies' order, and a floor on speed."""

import os
import time
from pathlib import Path

import pytest

from hisearch.traces.load import load_trace_file
from hisearch.validate.cache import POLICIES, cache_points
from hisearch.validate.cache_settings import CacheSettings

#: Capacity in tokens -> share of the input tokens that an LRU cache of 512-token blocks hits.
PUBLISHED = {1: 0.054, 2: 0.086, 5: 0.211, 10: 0.291, 20: 0.358, 50: 0.371}

#: The trace states no follow-ups; it lasts an hour, so nothing expires.
SETTINGS = {"tlru": CacheSettings(tail_tokens=8192, turn_tokens=2000), "ttl": CacheSettings(ttl_s=3600.0)}


def points_of(trace, capacities, policy):
    return cache_points(trace, capacities, [policy], settings=SETTINGS.get(policy))


@pytest.fixture(scope="module")
def mooncake():
    root = Path(os.environ.get("HISEARCH_SHARED") or Path(__file__).parents[3] / "shared")
    path = root / "traces" / "mooncake" / "conversation_trace.jsonl.gz"
    if not path.is_file():
        pytest.skip(f"no Mooncake trace at {path}: set HISEARCH_SHARED to the folder that holds traces/mooncake")
    return load_trace_file(path)


def test_lru_as_published(mooncake):
    points = cache_points(mooncake, [millions * 10**6 for millions in PUBLISHED])
    assert [point.hit_rate for point in points] == pytest.approx(list(PUBLISHED.values()), abs=0.001)


@pytest.mark.parametrize("policy", POLICIES)
def test_an_unlimited_cache_as_counted(mooncake, policy):
    (point,) = points_of(mooncake, [200_000_000], policy)
    assert (point.hit_tokens, point.prompt_tokens) == (54_098_411, 144_793_823)


def test_nothing_beats_the_oracle(mooncake):
    rates = {policy: points_of(mooncake, [5_000_000], policy)[0].hit_rate for policy in POLICIES}
    assert max(rates, key=rates.__getitem__) == "belady"


@pytest.mark.parametrize("policy", POLICIES)
def test_a_capacity_takes_a_second_at_most(mooncake, policy):
    """Processor time, several times what docs/accuracy-details.md reports."""
    points_of(mooncake, [1_000_000], policy)
    start = time.process_time()
    points_of(mooncake, [1_000_000], policy)
    assert time.process_time() - start < 1.0
