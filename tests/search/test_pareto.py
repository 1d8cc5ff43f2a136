import numpy as np
import pytest

from hisearch.search.model.trial import Trial
from hisearch.search.select.pareto import distinct, front, hypervolume_progress, ranked
from tests.search.fakes import OBJECTIVES, make_trial


def cloud(seed: int, count: int = 60) -> list[Trial]:
    rng = np.random.default_rng(seed)
    return [
        make_trial(
            number,
            float(rng.integers(1, 12)) / 4,
            float(rng.integers(1, 12)),
            float(rng.integers(1, 12)),
            feasible=bool(rng.random() < 0.7),
            slice_fraction=1.0 if rng.random() < 0.8 else 0.5,
            error="broken" if rng.random() < 0.1 else "",
        )
        for number in range(count)
    ]


def dominates(a: Trial, b: Trial) -> bool:
    """No worse in anything and better in something; straight from the definition."""
    better = [
        a.metrics["ttft_p99_s"] - b.metrics["ttft_p99_s"],
        b.metrics["goodput_rps"] - a.metrics["goodput_rps"],
        a.metrics["usd_per_hour"] - b.metrics["usd_per_hour"],
    ]
    return all(value <= 0 for value in better) and any(value < 0 for value in better)


def key(trial: Trial) -> tuple[float, float, float]:
    return (trial.metrics["ttft_p99_s"], trial.metrics["goodput_rps"], trial.metrics["usd_per_hour"])


@pytest.mark.parametrize("seed", range(6))
def test_front_equals_brute_force(seed: int) -> None:
    trials = cloud(seed)
    pool = [t for t in trials if t.feasible and not t.error and t.slice_fraction == 1.0]
    expected = {key(t) for t in pool if not any(dominates(other, t) for other in pool)}
    computed = front(trials, OBJECTIVES)
    assert {key(t) for t in computed} == expected
    assert len(computed) == len(expected)
    assert all(t in pool for t in computed)


def test_without_a_feasible_trial_the_front_is_that_of_the_infeasible() -> None:
    trials = [make_trial(0, 3.0, 1.0, 5.0, feasible=False), make_trial(1, 4.0, 1.0, 6.0, feasible=False)]
    assert front(trials, OBJECTIVES) == [trials[0]]
    assert front([], OBJECTIVES) == []


def test_ranking_puts_feasible_ones_by_rank_and_price_then_near_misses() -> None:
    trials = [
        make_trial(0, 2.5, 1.0, 1.0, feasible=False),
        make_trial(1, 1.0, 5.0, 9.0),
        make_trial(2, 1.5, 5.0, 4.0),
        make_trial(3, 1.6, 5.0, 5.0),
        make_trial(4, 2.1, 1.0, 1.0, feasible=False),
        make_trial(5, 1.0, 5.0, 1.0, error="broken"),
    ]
    assert [t.number for t in ranked(trials, OBJECTIVES)] == [2, 1, 3, 4, 0]


def test_equal_figures_of_the_same_kind_count_once() -> None:
    trials = [make_trial(0, 1.0, 5.0, 4.0), make_trial(1, 1.0, 5.0, 4.0), make_trial(2, 1.0, 5.0, 4.0, engine="vllm")]
    assert [t.number for t in distinct(trials)] == [0, 2]


def test_infinite_objectives_are_dominated_not_fatal() -> None:
    trials = [make_trial(0, float("inf"), 0.0, 3.0, feasible=False), make_trial(1, 9.0, 1.0, 3.0, feasible=False)]
    assert front(trials, OBJECTIVES) == [trials[1]]


def test_hypervolume_only_grows_and_ends_with_the_whole_front() -> None:
    trials = cloud(3)
    progress = hypervolume_progress(trials, OBJECTIVES)
    values = list(progress.values())
    assert values == sorted(values)
    assert values[0] > 0
    best = front(trials, OBJECTIVES)
    assert max(progress) <= max(t.number for t in trials)
    assert set(progress) & {t.number for t in best}
    assert hypervolume_progress([], OBJECTIVES) == {}
