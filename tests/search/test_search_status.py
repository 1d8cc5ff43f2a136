import io
import math
from typing import Any

import moocore
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hisearch.search.model.job import Evaluation
from hisearch.search.records.progress import Pace, PlainProgress
from hisearch.search.records.search_status import SearchStatus

OBJECTIVES = ("ttft_p99", "goodput", "usd_per_hour")

FIGURES = st.tuples(st.floats(0.01, 100.0), st.floats(0.1, 50.0), st.floats(1.0, 90.0), st.booleans())


def evaluation(ttft_s: float, goodput_rps: float, usd: float, feasible: bool = True) -> Evaluation:
    return Evaluation({"ttft_p99_s": ttft_s, "goodput_rps": goodput_rps, "usd_per_hour": usd}, feasible=feasible)


def slow_hypervolume(rows: list[tuple[float, float, float]]) -> float:
    """From all points at once, dominated ones included."""
    signs = np.array([1.0, -1.0, 1.0])
    decades = np.log10(np.array(rows)) * signs
    return float(moocore.hypervolume(np.minimum(decades - decades[0], 1.0), ref=[1.0, 1.0, 1.0]))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # on a busy machine drawing takes seconds
@given(st.lists(FIGURES, min_size=1, max_size=12))
def test_the_hypervolume_never_falls_and_is_that_of_all_feasible_points(rows: list[tuple[float, ...]]) -> None:
    status, before = SearchStatus(OBJECTIVES), 0.0
    for number, row in enumerate(rows):
        status.add(number, evaluation(*row))
        assert status.hypervolume >= before - 1e-12
        before = status.hypervolume
    feasible = [row[:3] for row in rows if row[3]]
    assert status.feasible == len(feasible)
    assert before == (pytest.approx(slow_hypervolume(feasible)) if feasible else 0.0)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(FIGURES, min_size=1, max_size=12).flatmap(
        lambda rows: st.tuples(st.just(rows), st.permutations(list(enumerate(rows))))
    )
)
def test_the_order_in_which_trials_end_does_not_change_it(drawn: Any) -> None:
    """A run that was killed and goes on finds its trials in the journal, in another order than they ended in."""
    rows, ended = drawn
    in_order, shuffled = SearchStatus(OBJECTIVES), SearchStatus(OBJECTIVES)
    for number, row in enumerate(rows):
        in_order.add(number, evaluation(*row))
    for number, row in ended:
        shuffled.add(number, evaluation(*row))
    assert shuffled.hypervolume == pytest.approx(in_order.hypervolume)
    assert shuffled.notes() == in_order.notes()


def test_it_begins_at_one_and_twice_as_good_in_everything_is_this_much() -> None:
    status = SearchStatus(OBJECTIVES)
    assert status.notes() == ("0 feasible",)
    status.add(0, evaluation(1.0, 10.0, 8.0))
    assert status.notes() == ("1 feasible", "from $8.00/h", "hypervolume 1.00")
    status.add(1, evaluation(0.5, 20.0, 4.0))
    assert status.hypervolume == pytest.approx((1 + math.log10(2)) ** 3)
    assert status.notes()[1] == "from $4.00/h"


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0])
def test_an_undefined_figure_adds_nothing(bad: float) -> None:
    status = SearchStatus(OBJECTIVES)
    status.add(0, evaluation(1.0, 10.0, 8.0))
    status.add(1, evaluation(bad, 1000.0, 0.1))
    assert status.hypervolume == pytest.approx(1.0)


def test_time_left_follows_the_pace_of_late() -> None:
    now = 0.0
    pace = Pace(lambda: now)
    assert pace.left(10) == ""
    pace.advance(100)  # replayed, in no time
    for _ in range(10):
        now += 10.0
        pace.advance(1)
    assert pace.left(115) == "at most 50 s left"
    assert pace.left(110 + 36) == "at most 6 min 0 s left"
    assert pace.left(110 + 720) == "at most 2 h 0 min left"
    assert pace.left(110) == ""


def test_time_left_is_within_the_stages_limit_and_needs_a_pace() -> None:
    now = 0.0
    pace = Pace(lambda: now)
    pace.begin(limit_s=60.0)
    now = 2.0
    pace.advance(1)
    assert pace.left(1000) == ""
    now = 10.0
    pace.advance(1)
    assert pace.left(1000) == "at most 50 s left"
    assert pace.left(4) == "at most 10 s left"


def test_lines_come_no_faster_than_the_interval_and_not_of_stages_without_a_step() -> None:
    stream = io.StringIO()
    progress = PlainProgress(stream, interval_s=3600.0)
    for stage in ("2 routing", "3 cache tiers"):
        progress.started(stage, 50)
        for _ in range(40 if stage == "2 routing" else 0):
            progress.advanced(1, "1 feasible")
        progress.finished()
    assert stream.getvalue().splitlines() == ["2 routing: up to 50", "2 routing: 40 done; 1 feasible"]
