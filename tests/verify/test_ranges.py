"""A correction is stated with the values that explain the measurements as well."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hisearch.traces.importers.measurement import PerRequest
from hisearch.verify.findings import is_narrow
from hisearch.verify.ranges import ranges
from hisearch.verify.terms import TERMS, Term, Variables, correction_of


class Valley:
    """Explains by what prefill and lost hits do together, and by the decode rate.

    slope: octaves of prefill that all prompts' hits are worth; separation: how well the two are separated from each
        other.
    """

    def __init__(self, truth: Variables, slope: float, separation: float) -> None:
        self.terms = TERMS
        self._truth, self._slope, self._separation = truth, slope, separation

    def distance(self, variables: Variables) -> float:
        off = {name: variables.get(name, 0.0) - x for name, x in self._truth.items()}
        together = off["prefill"] + self._slope * off["hits_lost"]
        return math.hypot(together, self._separation * off["hits_lost"], off["decode"])

    def left(self, variables: Variables) -> tuple[float, ...]:
        return (self.distance(variables),)

    def luck(self, _: Variables) -> float:
        return 0.0

    def with_term(self, others: Variables, term: Term) -> dict[str, float]:
        grid = np.linspace(term.low, term.high, 6001).tolist()
        return {**others, term.name: min(grid, key=lambda x: self.distance({**others, term.name: x}))}


@settings(deadline=None, max_examples=20)
@given(st.floats(0.2, 1.0), st.floats(0.1, 0.9), st.floats(0.5, 1.5), st.sampled_from([0.0, 1.0]))
def test_indistinguishable_terms_have_a_range_that_holds_the_truth(
    prefill: float, lost: float, slope: float, separation: float
) -> None:
    truth = {"prefill": prefill, "hits_lost": lost, "decode": 0.5}
    search = Valley(truth, slope, separation)
    # A search may stop anywhere in the valley; where the terms are separable, it is narrow and that is the truth.
    moved = 0.0 if separation else 0.3 * (1.0 - lost)
    best = truth | {"hits_lost": lost + moved, "prefill": prefill - slope * moved}
    intervals = ranges(search, best, 0.01)
    value = correction_of(truth)
    for name in truth:
        low, high = intervals[name]
        assert low <= value.value(name) * 1.02
        assert high >= value.value(name) * 0.98
        assert low <= correction_of(best).value(name) <= high
    assert is_narrow("decode", *intervals["decode"])
    assert is_narrow("hits_lost", *intervals["hits_lost"]) == bool(separation)


def requests_of(ttft_s: list[float], *, sent: bool = True) -> PerRequest:
    """Requests sent one a second."""
    seconds = np.array(ttft_s)
    unit_tokens, count = np.ones(len(seconds), dtype=np.int64), np.arange(len(seconds))
    return PerRequest(count, count.astype(float) if sent else None, seconds, seconds + 1.0, unit_tokens, unit_tokens)


def test_a_steadily_growing_wait_is_recognised() -> None:
    growing = [0.1 + 0.02 * at for at in range(80)]
    assert requests_of(growing).growing_wait() == pytest.approx((0.1 + 0.02 * 9.5, 0.1 + 0.02 * 69.5))
    shuffled = np.random.default_rng(0).permutation(80)
    mixed = requests_of(growing).keep(shuffled)
    assert mixed.growing_wait() == requests_of(growing).growing_wait()
    for steady in (
        [0.1] * 80,
        [0.1, 0.9] * 40,
        growing[:20] * 4,
        growing[::-1],
        [0.1 + 0.002 * at for at in range(80)],
    ):
        assert requests_of(steady).growing_wait() is None
    assert requests_of(growing, sent=False).growing_wait() is None
    assert requests_of(growing[::3]).growing_wait() is None
