"""Probabilities and intervals, on a deployment whose law is known, and what they cost."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, norm

from hisearch.latency.costs import CompiledCosts
from hisearch.latency.step_cost import law_costs
from hisearch.score.terms import TermCheck
from hisearch.search.confidence.assessment import BATCH, Assessor, at_prices, interval, summed_up, wilson
from hisearch.search.confidence.uncertainty import PriceRange, Uncertainty, deviations, factors_of, normal_draws
from hisearch.search.model.job import Evaluation
from hisearch.search.records.journal import Journal
from hisearch.specs.deployments.deployment import DeploymentSpec
from tests.search.fakes import make_deployment, make_trial
from tests.traces.test_bootstrap import long_trace

BOUND_S = 0.05
TRACE = long_trace(20)


def costs(error: float) -> CompiledCosts:
    return CompiledCosts(law_costs(0.02, 4e-4, 1e-9), law_costs(0.0, 0.0, 0.0), 70.0, "law", "assumed", error)


class Known:
    """A deployment whose TPOT is its nominal value times the decode factor: its law is lognormal."""

    def __init__(self, error: float = 0.1, correlation: float = 0.5) -> None:
        self.costs, self.correlation = costs(error), correlation
        self.calls: Counter[tuple[str, int]] = Counter()

    def value_s(self, deployment: DeploymentSpec) -> float:
        return 0.08 / (1.0 + deployment.pools[0].replicas)

    def __call__(self, deployment: DeploymentSpec, draw) -> Evaluation:  # type: ignore[no-untyped-def]
        self.calls[deployment.model_dump_json(), draw.number] += 1
        tpot_s = self.value_s(deployment) * factors_of(self.costs, draw.normal, self.correlation)["decode"]
        check = TermCheck("tpot_p99", tpot_s, BOUND_S)
        usd = draw.prices.get("h200", 3.0) * deployment.pools[0].replicas
        metrics = {"tpot_p99_s": tpot_s, "goodput_rps": 5.0, "usd_per_hour": usd}
        return Evaluation(metrics, (check,), check.holds)

    def probability(self, replicas: int) -> float:
        sigma = deviations(self.costs)["decode"]
        return float(norm.cdf(math.log(BOUND_S / self.value_s(make_deployment(replicas=replicas))) / sigma))


def uncertainty(draws: int, seed: int = 0, *, normal: np.ndarray | None = None) -> Uncertainty:
    values = normal_draws(draws, seed) if normal is None else normal
    return Uncertainty(TRACE, seed, values, (PriceRange("h200", 3.0, 2.0, 4.0),))


def assessor(evaluate: Callable[..., Evaluation], draws: int = 64, seed: int = 0, **options) -> Assessor:  # type: ignore[no-untyped-def]
    return Assessor(uncertainty(draws, seed), evaluate, **options)


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_probability_is_the_known_one(replicas: int) -> None:
    evaluate = Known()
    assessment = assessor(evaluate, 1024).assess([make_trial(0, 1.0, 5.0, 4.0, replicas=replicas)], [1024], 0.9)[0]
    assert assessment.all_terms == pytest.approx(evaluate.probability(replicas), abs=0.01)
    assert assessment.terms == {"tpot_p99": assessment.all_terms}
    assert (assessment.draws, assessment.errors) == (1024, 0)


@pytest.mark.slow
def test_ranges_of_the_probability_cover_it_as_often_as_they_say() -> None:
    """Of independent draws; scrambled Sobol points, which are more even than chance, cover it more often."""
    evaluate = Known()
    truth, trial = evaluate.probability(1), make_trial(0, 1.0, 5.0, 4.0, replicas=1)
    covered = {"chance": 0, "sobol": 0}
    for seed in range(400):
        chance = np.random.default_rng(seed).standard_normal((32, 5))
        for kind, normal in (("chance", chance), ("sobol", normal_draws(32, seed))):
            assessment = Assessor(uncertainty(32, seed, normal=normal), evaluate).assess([trial], [32], 0.9)[0]
            covered[kind] += assessment.all_terms_range[0] <= truth <= assessment.all_terms_range[1]
    held = np.arange(33)
    inside = [low <= truth <= high for low, high in (wilson(int(k), 32, 0.9) for k in held)]
    exact = float(binom.pmf(held, 32, truth)[inside].sum())
    assert exact == pytest.approx(0.9, abs=0.05)
    assert covered["chance"] / 400 == pytest.approx(exact, abs=0.05)
    assert covered["sobol"] / 400 >= 0.97


@pytest.mark.parametrize(("draws", "level"), [(32, 0.9), (64, 0.8), (64, 0.9)])
def test_intervals_cover_one_more_value_as_often_as_they_say(draws: int, level: float) -> None:
    rng = np.random.default_rng(1)
    covered = [
        low <= value <= high
        for _ in range(4000)
        for low, high, value in [(*interval(rng.lognormal(size=draws), level), rng.lognormal())]
    ]
    assert np.mean(covered) == pytest.approx(level, abs=0.02)


@pytest.mark.parametrize("level", [0.8, 0.9])
def test_intervals_of_a_known_law_are_its_quantiles(level: float) -> None:
    evaluate = Known(0.1)
    assessment = assessor(evaluate, 2048).assess([make_trial(0, 1.0, 5.0, 4.0, replicas=1)], [2048], level)[0]
    sigma = deviations(evaluate.costs)["decode"]
    low, high = (0.04 * math.exp(sigma * norm.ppf(share)) for share in ((1 - level) / 2, (1 + level) / 2))
    assert assessment.intervals["tpot_p99_s"] == pytest.approx((low, high), rel=0.02)
    assert assessment.medians["tpot_p99_s"] == pytest.approx(0.04, rel=0.01)


def test_without_errors_the_figures_are_the_plain_ones() -> None:
    evaluate = Known(0.0)
    assessment = Assessor(Uncertainty(TRACE, 0, normal_draws(16, 0)), evaluate).assess(
        [make_trial(0, 1.0, 5.0, 4.0, replicas=1)], [16], 0.9
    )[0]
    assert assessment.all_terms == 1.0
    assert assessment.intervals["tpot_p99_s"] == (0.04, 0.04)
    assert assessment.medians["usd_per_hour"] == 3.0


@given(st.floats(0.01, 0.4), st.floats(1.0, 3.0), st.integers(0, 20))
def test_more_error_never_raises_the_probability_of_a_term_that_holds(error: float, more: float, seed: int) -> None:
    trial = make_trial(0, 1.0, 5.0, 4.0, replicas=1)
    small = assessor(Known(error), 64, seed).assess([trial], [64], 0.9)[0]
    large = assessor(Known(error * more), 64, seed).assess([trial], [64], 0.9)[0]
    assert large.all_terms <= small.all_terms
    assert Known(error * more).probability(1) <= Known(error).probability(1) + 1e-12


def test_a_draw_that_cannot_be_simulated_meets_nothing() -> None:
    def evaluate(deployment: DeploymentSpec, draw) -> Evaluation:  # type: ignore[no-untyped-def]
        if draw.number % 4 == 0:
            raise ValueError("out of memory")
        return Known(0.0)(deployment, draw)

    assessment = assessor(evaluate, 16).assess([make_trial(0, 1.0, 5.0, 4.0, replicas=1)], [16], 0.9)[0]
    assert (assessment.all_terms, assessment.errors, assessment.terms) == (0.75, 4, {"tpot_p99": 0.75})
    assert assessment.intervals["tpot_p99_s"] == (0.04, 0.04)


def test_l6_workers_change_nothing_and_a_draw_is_simulated_once() -> None:
    trials = [make_trial(k, 1.0, 5.0, 4.0, replicas=k + 1) for k in range(3)]
    assessments = []
    for workers in (1, 2, 5):
        evaluate = Known()
        assessed = assessor(evaluate, 32, workers=workers)
        assessments.append(assessed.assess(trials, [32, 8, 8], 0.9) + assessed.assess(trials, [16, 16, 8], 0.9))
        assert assessed.simulations == 32 + 16 + 8 == len(evaluate.calls)
        assert set(evaluate.calls.values()) == {1}
    assert assessments[0] == assessments[1] == assessments[2]


@pytest.mark.parametrize("finished", [0, 5, 23])
def test_l9_a_killed_assessment_goes_on_where_it_was(tmp_path: Path, finished: int) -> None:
    trial = make_trial(0, 1.0, 5.0, 4.0, replicas=1)
    path, undisturbed = tmp_path / "confidence.jsonl", Known()
    expected = assessor(undisturbed, 24).assess([trial], [24], 0.9)

    class Killed(Known):
        def __call__(self, deployment: DeploymentSpec, draw) -> Evaluation:  # type: ignore[no-untyped-def]
            if len(self.calls) == finished:
                raise KeyboardInterrupt
            return super().__call__(deployment, draw)

    with Journal(path, "inputs") as journal, pytest.raises(KeyboardInterrupt):
        assessor(Killed(), 24, journal=journal).assess([trial], [24], 0.9)
    with path.open("a") as stream:
        stream.write('{"key": "torn')
    again = Known()
    with Journal(path, "inputs", resume=True) as journal:
        resumed = assessor(again, 24, journal=journal)
        assert resumed.assess([trial], [24], 0.9) == expected
        assert resumed.simulations == 24  # what is looked up counts, so that the same decisions are taken
    assert len(again.calls) == 24 - finished


def test_other_draws_are_not_looked_up(tmp_path: Path) -> None:
    trial, path = make_trial(0, 1.0, 5.0, 4.0, replicas=1), tmp_path / "confidence.jsonl"
    for seed in (0, 1):
        evaluate = Known()
        with Journal(path, "inputs", resume=True) as journal:
            assessor(evaluate, 8, seed, journal=journal).assess([trial], [8], 0.9)
        assert len(evaluate.calls) == 8


def test_stated_changes_are_remembered_too(tmp_path: Path) -> None:
    calls = []

    def what_if(deployment: DeploymentSpec, factors, load: float) -> Evaluation:  # type: ignore[no-untyped-def]
        calls.append((dict(factors), load))
        return Evaluation({"load": load}, (), True)

    for _ in range(2):
        with Journal(tmp_path / "confidence.jsonl", "inputs", resume=True) as journal:
            assessed = assessor(Known(), 8, what_if=what_if, journal=journal)
            assert assessed.supposing(make_deployment(), {"decode": 1.1}, 2.0).metrics == {"load": 2.0}
            assessed.supposing(make_deployment(), {"decode": 1.2}, 2.0)
    assert calls == [({"decode": 1.1}, 2.0), ({"decode": 1.2}, 2.0)]


def test_time_that_runs_out_leaves_whole_batches() -> None:
    clock = iter(range(1000))
    assessed = Assessor(uncertainty(64), Known(), seconds=3.0, clock=lambda: float(next(clock)))
    assessment = assessed.assess([make_trial(0, 1.0, 5.0, 4.0, replicas=1)], [64], 0.9)[0]
    assert BATCH <= assessment.draws < 64
    assert assessment.draws % BATCH == 0
    assert assessed.timed_out
    assert assessed.under(uncertainty(8, 1)).out_of_time  # whatever the clock says then
    patient = Assessor(uncertainty(64), Known(), clock=lambda: float(next(clock)))
    patient.assess([make_trial(0, 1.0, 5.0, 4.0, replicas=1)], [64], 0.9)
    assert not patient.timed_out


def test_terms_that_only_some_draws_have_are_missed_in_the_others() -> None:
    checks = (TermCheck("ttft_p99", 1.0, 2.0),)
    assessment = summed_up(3, [Evaluation({}, checks, True), Evaluation(error="no memory")], 0.9)
    assert (assessment.trial, assessment.terms, assessment.all_terms) == (3, {"ttft_p99": 0.5}, 0.5)


@given(st.floats(1.0, 50.0), st.floats(0.0, 3.0), st.floats(1.0, 80.0))
def test_another_price_moves_the_price_alone(nominal: float, electricity: float, drawn: float) -> None:
    before = Evaluation({"usd_per_hour": nominal + electricity, "usd_per_million_tokens": 2.0, "hit_rate": 0.3})
    after = at_prices(before, nominal, drawn).metrics
    assert after["usd_per_hour"] == pytest.approx(drawn + electricity)
    ratio = after["usd_per_hour"] / (nominal + electricity)
    assert after["usd_per_million_tokens"] == pytest.approx(2.0 * ratio)
    assert after["hit_rate"] == 0.3
