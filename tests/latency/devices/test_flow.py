"""Overlapped phases against jobs on stations, event by event."""

from __future__ import annotations

import numpy as np
import pytest
from event_simulation import makespan_s
from hypothesis import given
from hypothesis import strategies as st

from hisearch.latency.devices.flow import Stage, overlapped_s, serial_s

SECONDS = st.floats(0.001, 10.0)


def law(stages, rounds, jobs):
    return float(overlapped_s([Stage(name, np.array(t)) for name, t in stages], rounds, jobs))


@given(st.lists(SECONDS, min_size=1, max_size=5), st.integers(1, 12), st.integers(1, 5))
def test_stations_of_their_own_are_exact(times, rounds, jobs):
    stages = [(f"station {i}", t) for i, t in enumerate(times)]
    assert law(stages, rounds, jobs) == pytest.approx(makespan_s(stages * rounds, [1.0] * jobs))


@given(SECONDS, SECONDS, SECONDS, st.integers(1, 40), st.integers(1, 3))
def test_a_visit_over_the_end_of_a_round_is_worth_one_round_at_most(first, pim, last, rounds, jobs):
    """Sub-batch interleaving: accelerator, PIM, accelerator again, which goes on with the next layer."""
    stages = [("accelerator", first), ("pim", pim), ("accelerator", last)]
    turn = [("pim", pim), ("accelerator", last + first)]
    steps = [("accelerator", first), *turn * (rounds - 1), ("pim", pim), ("accelerator", last)]
    slack = jobs * (first + last)
    assert law(stages, rounds, jobs) == pytest.approx(makespan_s(steps, [1.0] * jobs), abs=slack)


@given(st.floats(0.0, 0.3), st.integers(20, 60))
def test_halves_that_are_not_alike_wait_for_the_slower_one(imbalance, rounds):
    """Never faster than alike halves, and slower by no more than twice the imbalance."""
    stages = [("accelerator", 1.0), ("link", 0.1), ("pim", 0.8), ("link", 0.1)]
    uneven = makespan_s(stages * rounds, [1.0 + imbalance, 1.0 - imbalance])
    alike = law(stages, rounds, 2)
    assert alike * (1 - 1e-9) <= uneven <= alike * (1.0 + 2.0 * imbalance) + 2.0


def test_one_job_waits_for_nobody():
    stages = [Stage("a", np.array([1.0, 2.0])), Stage("b", np.array([3.0, 4.0]))]
    np.testing.assert_allclose(overlapped_s(stages, 7, 1), serial_s(stages, 7))
