"""Parts of a run, and the test for a growing queue, on runs whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest

from hisearch.score.steady_state import format_growth, queue_growth_rps, served_rates, span_needed_s, stretch_of
from hisearch.simulate.results.tables import Outcome, RequestTable


def single_server(arrival_s: np.ndarray, service_s: np.ndarray, stopped_s: float = np.inf) -> RequestTable:
    """Requests served one after another; what has not arrived by ``stopped_s`` never does."""
    finish_s, free_s = np.empty(len(arrival_s)), 0.0
    for k, (came, takes) in enumerate(zip(arrival_s, service_s, strict=True)):
        free_s = max(free_s, came) + takes
        finish_s[k] = free_s
    outcome = np.where(finish_s <= stopped_s, Outcome.FINISHED, Outcome.IN_FLIGHT)
    outcome = np.where(arrival_s > stopped_s, Outcome.UNREACHED, outcome)
    finish_s[outcome != Outcome.FINISHED] = np.nan
    none = np.zeros(len(arrival_s), np.int64)
    return RequestTable(
        np.where(outcome == Outcome.UNREACHED, np.nan, arrival_s), arrival_s, finish_s, finish_s,
        none, none, none, none, none, none, outcome, none + 1, none + 1,
    )  # fmt: skip


def poisson(rate: float, span_s: float, rng: np.random.Generator) -> np.ndarray:
    return np.sort(rng.uniform(0.0, span_s, rng.poisson(rate * span_s)))


@pytest.mark.parametrize("seed", range(20))
def test_a_queue_below_its_limit_has_no_trend(seed: int) -> None:
    rng, stretch = np.random.default_rng(seed), stretch_of(600.0, 0.0)
    arrival_s = poisson(20.0, stretch.total_s, rng)
    assert queue_growth_rps(single_server(arrival_s, rng.exponential(0.9 / 20.0, len(arrival_s))), stretch) == 0.0


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("stopped_s", [np.inf, 200.0])
def test_an_overload_is_told_with_its_growth(seed: int, stopped_s: float) -> None:
    rng, stretch = np.random.default_rng(seed), stretch_of(600.0, 0.0)
    arrival_s = poisson(20.0, stretch.total_s, rng)
    run = single_server(arrival_s, rng.exponential(1.2 / 20.0, len(arrival_s)), stopped_s)
    until_s = min(stopped_s, stretch.total_s)
    waiting = (run.arrival_s <= until_s) & ~(run.finish_s <= until_s)
    assert queue_growth_rps(run, stretch) == pytest.approx(waiting.sum() / until_s, rel=0.3)


@pytest.mark.parametrize("stopped_s", [np.inf, 500.0])
def test_an_overloaded_server_serves_what_it_can_and_not_what_comes(stopped_s: float) -> None:
    """Of 20 requests a second it serves 1 / 0.06: what is still unserved at the end has not been served in time."""
    rng, stretch = np.random.default_rng(3), stretch_of(600.0, 0.0)
    arrival_s = poisson(20.0, stretch.total_s, rng)
    run = single_server(arrival_s, np.full(len(arrival_s), 0.06), stopped_s)
    share = min(stretch.measured_s, stopped_s - stretch.warm_up_s) / stretch.measured_s
    rates = served_rates(run, stretch)
    assert rates["throughput_rps"] == pytest.approx(share / 0.06, rel=0.01)
    assert rates["total_tokens_per_s"] == 2 * rates["output_tokens_per_s"] == 2 * rates["throughput_rps"]


def test_a_burst_is_no_trend() -> None:
    rng, stretch = np.random.default_rng(1), stretch_of(600.0, 0.0)
    burst = stretch.total_s - 60.0 + rng.uniform(0.0, 5.0, 300)
    arrival_s = np.sort(np.concatenate((poisson(10.0, stretch.total_s, rng), burst)))
    assert queue_growth_rps(single_server(arrival_s, np.full(len(arrival_s), 0.05)), stretch) == 0.0


def test_a_day_that_clears_its_rush_hour_is_no_overload_and_one_that_does_not_is() -> None:
    """Each cycle has a rush of four times the traffic: by parts of the day the queue rises; by days it does not."""
    rng, cycle_s = np.random.default_rng(2), 600.0
    cycle = np.sort(np.concatenate((poisson(5.0, cycle_s, rng), 200.0 + poisson(15.0, 200.0, rng))))
    stretch = stretch_of(3 * cycle_s, cycle_s)
    arrival_s = np.concatenate([cycle + k * cycle_s for k in range(4)])
    arrival_s = arrival_s[arrival_s < stretch.total_s]
    clears = single_server(arrival_s, np.full(len(arrival_s), 0.8 * cycle_s / len(cycle)))
    assert (clears.finish_s - clears.arrival_s).max() > 60.0
    assert queue_growth_rps(clears, stretch) == 0.0
    keeps = single_server(arrival_s, np.full(len(arrival_s), 1.1 * cycle_s / len(cycle)))
    assert queue_growth_rps(keeps, stretch) == pytest.approx(len(cycle) / cycle_s * (1 - 1 / 1.1), rel=0.3)


@pytest.mark.parametrize(("span_s", "cycle_s"), [(600.0, 0.0), (600.0, 100.0), (600.0, 400.0), (600.0, 86400.0)])
def test_a_run_measures_whole_cycles_behind_its_warm_up(span_s: float, cycle_s: float) -> None:
    stretch = stretch_of(span_s, cycle_s)
    assert stretch.measured_s >= span_s
    assert stretch.warm_up_s >= 0.1 * span_s
    if cycle_s:
        assert stretch.measured_s / cycle_s == pytest.approx(round(stretch.measured_s / cycle_s))
        assert stretch.lag_s / cycle_s == pytest.approx(round(stretch.lag_s / cycle_s))


def test_long_stays_ask_for_long_spans() -> None:
    assert span_needed_s(5.0) == 600.0
    assert span_needed_s(60.0) == 1200.0


def test_growth_is_told_with_the_test_that_found_it() -> None:
    said = "requests a second (Wilcoxon's signed-rank test, 99 % confidence)"
    assert format_growth(3.14) == f"the queue grows by 3.1 {said}"
    assert format_growth(1521.0) == f"the queue grows by 1,521 {said}"
