"""Replica counts of several pools, compared with brute force."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisearch.search.model.pair_sizing import CountsSizing
from hisearch.search.model.sizing import Counts, Sizer, Sizing

#: How far counts are from meeting the SLO, 0 or less where they do; more workers never make it worse.
Miss = Callable[[Counts], float]


def missed_pair(needed: Counts) -> Miss:
    """Each pool needs ``needed`` replicas; the largest shortfall is the miss."""
    return lambda counts: max(need / count for need, count in zip(needed, counts, strict=True)) - 1


def shared(speeds: tuple[float, ...], load: float) -> Miss:
    """Pools carry a load together."""
    return lambda counts: load / sum(speed * count for speed, count in zip(speeds, counts, strict=True)) - 1


def run(sizing: Sizer, miss: Miss, needed: Counts = ()) -> list[Counts]:
    """Answer until sizing ends, naming the pool that lacks most of ``needed``. Returns the counts tried."""
    tried: list[Counts] = []
    while (counts := sizing.next) is not None:
        tried.append(counts)
        worst = miss(counts)
        lacks = [need / count for need, count in zip(needed, counts, strict=False)]
        sizing.tell(counts, worst <= 0, worst, pool=lacks.index(max(lacks)) if lacks else 0)
    return tried


def cheapest(usd: tuple[float, ...], most: Counts, ranks: Counts, limit: int, miss: Miss) -> float:
    """Dollars per hour of the cheapest counts that meet the SLO, by brute force; infinite if none does."""
    every = itertools.product(*(range(1, count + 1) for count in most))
    within = (c for c in every if sum(r * n for r, n in zip(ranks, c, strict=True)) <= limit)
    return min((_usd(usd, c) for c in within if miss(c) <= 0), default=math.inf)


def _usd(usd: tuple[float, ...], counts: Counts) -> float:
    return sum(price * count for price, count in zip(usd, counts, strict=True))


COUNT = st.integers(1, 12)
PAIR = st.tuples(COUNT, COUNT)
PRICES = st.tuples(st.sampled_from([1.0, 2.3, 5.0, 0.0]), st.sampled_from([1.0, 3.1, 7.5]))
LAWS = st.one_of(
    st.builds(missed_pair, PAIR),
    st.builds(shared, st.tuples(st.floats(0.2, 4.0), st.floats(0.2, 4.0)), st.floats(1.0, 40.0)),
)


@given(guess=PAIR, usd=PRICES, most=PAIR, ranks=st.sampled_from([(1, 1), (2, 4), (8, 1)]), limit=COUNT, miss=LAWS)
def test_the_cheapest_counts_are_found(
    guess: Counts, usd: tuple[float, ...], most: Counts, ranks: Counts, limit: int, miss: Miss
) -> None:
    most_ranks = limit * sum(ranks)
    sizing = CountsSizing(guess, usd, most, ranks, most_ranks)
    tried = run(sizing, miss)
    assert len(tried) == len(set(tried))
    assert all(all(1 <= n <= m for n, m in zip(c, most, strict=True)) for c in tried)
    assert all(sum(r * n for r, n in zip(ranks, c, strict=True)) <= most_ranks for c in tried)
    expected = cheapest(usd, most, ranks, most_ranks, miss)
    if sizing.fewest is not None:
        assert _usd(usd, sizing.fewest) == pytest.approx(expected)
        assert sizing.best_guess == sizing.fewest in tried
    elif math.isfinite(expected):  # growing stops where what they share is used up
        assert sum(ranks) * 2 > most_ranks - sum(r * n for r, n in zip(ranks, tried[-1], strict=True)) or any(
            _stalls(miss, c) for c in tried
        )


def _stalls(miss: Miss, counts: Counts) -> bool:
    return any(miss((*counts[:i], 2 * counts[i], *counts[i + 1 :])) >= miss(counts) * 0.98 for i in range(len(counts)))


@pytest.mark.parametrize(("guess", "needed"), list(itertools.product([1, 3, 20], [1, 5, 13, 64])))
def test_one_pool_is_asked_for_about_as_often_as_by_bisection(guess: int, needed: int) -> None:
    sizing = CountsSizing((guess,), (2.0,), (64,), (1,), 64)
    tried = run(sizing, missed_pair((needed,)))
    plain, calls = Sizing(guess, 64), 0
    while (counts := plain.next) is not None:
        calls += 1
        plain.tell(counts, counts[0] >= needed, needed / counts[0] - 1)
    assert sizing.fewest == (needed,)
    assert len(tried) <= calls + 3


def test_few_of_many_counts_are_asked_for() -> None:
    for needed in itertools.product([1, 3, 9, 30], [2, 7, 40]):
        sizing = CountsSizing((2, 2), (3.0, 5.0), (64, 64), (1, 1), 128)
        assert len(run(sizing, missed_pair(needed), needed)) <= 32  # of 4,096
        assert sizing.fewest == needed


def test_the_pool_that_is_short_grows_first() -> None:
    sizing = CountsSizing((1, 1), (1.0, 1.0), (8, 8), (1, 1), 16)
    sizing.tell((1, 1), False, 3.0, pool=1)
    assert sizing.next == (1, 2)
    sizing.tell((1, 2), False, 3.0, pool=1)  # that did not help
    assert sizing.next == (2, 2)


def test_no_more_is_asked_for_where_requests_are_rejected() -> None:
    sizing = CountsSizing((2, 3), (1.0, 1.0), (8, 8), (1, 1), 16)
    sizing.tell((2, 3), False, 0.5, healable=False)
    assert sizing.next is None
    assert sizing.fewest is None
