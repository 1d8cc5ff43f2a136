"""The rate that holds with a probability, held against draws whose largest loads are known."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisearch.search.rate.assured import LEAST_SHARE, TOLERANCE, AssuredLoad, assured_load

CARRIED = st.lists(st.floats(0.001, 20.0), min_size=1, max_size=40)


def search(carried: list[float], at_least: float, start: float, slowest: list[int] | None = None) -> AssuredLoad:
    """A search over draws that hold every load up to their own."""
    tried: Counter[tuple[int, float]] = Counter()

    def holds(draw: int, load: float) -> bool:
        tried[draw, load] += 1
        return load <= carried[draw]

    answer = assured_load(
        holds,
        slowest if slowest is not None else list(range(len(carried))),
        at_least,
        start,
        each=lambda make, items: [make(item) for item in items],
    )
    assert all(count == 1 for count in tried.values())
    assert answer.simulations == len(tried)
    return answer


@given(CARRIED, st.sampled_from([0.5, 0.9, 0.99]), st.floats(0.5, 10.0))
def test_the_rate_is_the_quantile_of_what_the_draws_carry(carried: list[float], at_least: float, start: float) -> None:
    answer, needed = search(carried, at_least, start), math.ceil(at_least * len(carried) - 1e-9)
    truth = sorted(carried)[len(carried) - needed]  # so many carry as much or more
    assert answer.share_first == sum(own >= start for own in carried) / len(carried)
    assert answer.draws == len(carried)
    if truth >= start:
        assert answer.load == start
    elif truth < LEAST_SHARE * start:
        assert answer.load == 0.0
    else:
        assert answer.load <= truth <= answer.load * (1.0 + TOLERANCE)
    if answer.load > 0.0:
        assert answer.share == sum(own >= answer.load for own in carried) / len(carried) >= at_least - 1e-9


@given(CARRIED, st.randoms())
def test_the_order_of_the_draws_changes_the_cost_alone(carried: list[float], random) -> None:  # type: ignore[no-untyped-def]
    order = list(range(len(carried)))
    random.shuffle(order)
    ours, theirs = search(carried, 0.9, 5.0), search(carried, 0.9, 5.0, order)
    assert (ours.load, ours.share, ours.share_first) == (theirs.load, theirs.share, theirs.share_first)


def test_slow_draws_first_cost_little() -> None:
    """Not six or seven simulations of each draw, as a search of every draw's own load would."""
    carried = [1.0 + draw / 64 for draw in range(64)]
    for start in (1.3, 1.5, 2.0):
        assert search(carried, 0.9, start).simulations < 3.5 * len(carried)


@pytest.mark.parametrize("after", [0, 8, 24])
def test_a_limit_ends_the_search_with_what_it_knows(after: int) -> None:
    carried, made = [1.0 + draw / 16 for draw in range(16)], []

    def holds(draw: int, load: float) -> bool:
        made.append(draw)
        return load <= carried[draw]

    answer = assured_load(
        holds, range(16), 0.9, 1.5,
        each=lambda make, items: [make(item) for item in items], over=lambda: "work" if len(made) >= after else "",
    )  # fmt: skip
    assert answer.ended == "work"
    assert answer.share_first is None
    assert answer.load <= sorted(carried)[1]
