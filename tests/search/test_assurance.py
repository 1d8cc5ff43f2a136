"""The walk to the cheapest deployment that is likely enough, compared with an exhaustive search."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hisearch.score.terms import OVER_WINDOW, RejectionCheck, TermCheck
from hisearch.search.confidence.assessment import Assessor
from hisearch.search.confidence.assurance import WRONGLY, Likelihood, Walk, WalkResult, few_of, first_likely
from hisearch.search.confidence.chance_constrained import ChanceConstrained, find_chance_constrained
from hisearch.search.confidence.conclusion_words import format_chance_constrained
from hisearch.search.confidence.likely_alternatives import draws_over_window, likeliest_for_less
from hisearch.search.confidence.uncertainty import factors_of
from hisearch.search.evaluate.runner import TrialRunner
from hisearch.search.model.deployments import hardware
from hisearch.search.model.job import Evaluation, Job
from hisearch.search.model.trial import Trial, price_of
from hisearch.search.select.recommend import recommend
from hisearch.specs.deployments.deployment import DeploymentSpec
from hisearch.specs.studies.study import BudgetSpec
from tests.search.fakes import OBJECTIVES, FakeEvaluator, make_deployment, make_problem
from tests.search.test_confidence import costs, uncertainty

DRAWS = 64


def slower(deployment: DeploymentSpec, draw) -> Evaluation:  # type: ignore[no-untyped-def]
    """The fake world slowed down by the decode factor of the draw, which also scales the load."""
    factor = factors_of(costs(0.1), draw.normal, 0.5)["decode"]
    evaluation = FakeEvaluator()(Job(1, deployment, load=factor))
    checks = tuple(
        TermCheck(check.label, (check.value_s or 0.0) * factor, check.bound_s)
        if isinstance(check, TermCheck)
        else check
        for check in evaluation.slo
    )
    return Evaluation(evaluation.metrics, checks, all(check.holds for check in checks))


def walked(
    at_least: float, *, limit: int = 10_000, workers: int = 1, **options: Any
) -> tuple[WalkResult, Assessor, TrialRunner]:
    problem = make_problem()
    runner = TrialRunner(FakeEvaluator(), BudgetSpec(simulations=40, seconds=1e6), workers=workers)
    started = [make_deployment(kind, count) for kind, counts in (("fast", (6, 8)), ("dear", (5,))) for count in counts]
    runner.run([Job(1, deployment, {}) for deployment in started])
    assert all(trial.feasible for trial in runner.trials)
    recommendation = recommend(runner.trials, OBJECTIVES)
    assert recommendation is not None
    assessor = Assessor(uncertainty(DRAWS), slower, workers=workers, **options)
    assessor.assess([recommendation.trial], [DRAWS], 0.9)
    runner.extend(64)
    likelihood = Likelihood(assessor, at_least, limit, recommendation.trial)
    return Walk(problem, runner, likelihood).run(), assessor, runner


def share(deployment: DeploymentSpec) -> float:
    drawn = uncertainty(DRAWS)
    return sum(slower(deployment, drawn.draw(k)).feasible for k in range(DRAWS)) / DRAWS


@pytest.mark.parametrize("at_least", [0.5, 0.8, 0.9, 0.97])
def test_it_finds_what_looking_at_all_finds(at_least: float) -> None:
    outcome, assessor, runner = walked(at_least)
    assert outcome.trial is not None
    assert share(outcome.trial.deployment) >= at_least
    sizes = [make_deployment("fast", n) for n in range(6, 40)] + [make_deployment("dear", n) for n in range(5, 20)]
    enough = [make_problem().planner.usd_per_hour(deployment) for deployment in sizes if share(deployment) >= at_least]
    assert price_of(outcome.trial) == min(enough)
    assert assessor.simulations < DRAWS * (outcome.looked_at + 2)
    assert outcome.trial in runner.trials


def test_what_misses_the_slo_once_carried_on_is_not_chosen() -> None:
    plain, *_ = walked(0.8)
    assert plain.trial is not None
    enough_usd = 1.3 * price_of(plain.trial)
    asked: list[int] = []

    def carrying_on(trial: Trial) -> Callable[[], Evaluation] | None:
        asked.append(trial.number)
        if price_of(trial) >= enough_usd:
            return None  # its trace is long enough
        return lambda: Evaluation(trial.metrics, trial.slo, feasible=False)

    lasting, assessor, _ = walked(0.8, carrying_on=carrying_on)
    assert lasting.trial is not None
    assert asked[-1] == lasting.trial.number
    assert price_of(lasting.trial) >= enough_usd
    assert share(lasting.trial.deployment) >= 0.8
    assert (assessor.holds_carried_on(plain.trial), assessor.holds_carried_on(lasting.trial)) == (False, None)


@given(draws=st.integers(1, 300), at_least=st.sampled_from([0.01, 0.5, 0.8, 0.9, 0.95, 0.99, 0.999]))
def test_the_few_that_reject_first_seldom_reject_what_is_likely_enough(draws: int, at_least: float) -> None:
    allowed = math.floor((1 - at_least) * draws + 1e-9)
    few = few_of(range(draws), at_least, allowed)
    assert len(set(few)) == len(few) <= allowed
    assert all(allowed <= draw < allowed + (draws - allowed + 1) // 2 for draw in few)
    if few:
        assert (1 - at_least) ** len(few) <= WRONGLY + 1e-9 < (1 - at_least) ** (len(few) - 1)


def test_l6_workers_change_nothing() -> None:
    sequential, parallel = walked(0.95)[0], walked(0.95, workers=3)[0]
    assert sequential == parallel


def test_a_limit_ends_it_and_is_said() -> None:
    outcome, assessor, _ = walked(0.97, limit=8)
    assert outcome.trial is None
    assert outcome.ended == "simulations"
    assert assessor.simulations <= DRAWS + 16


def test_where_nothing_is_likely_enough_none_is_found() -> None:
    class Never(Assessor):
        def known(self, deployment, numbers):  # type: ignore[no-untyped-def]
            checks = (TermCheck("ttft_p99", math.inf, 2.0),)
            return [Evaluation({}, checks, False) for _ in numbers]

    problem = make_problem()
    runner = TrialRunner(FakeEvaluator(), BudgetSpec(simulations=40, seconds=1e6))
    runner.run([Job(1, make_deployment("fast", count), {}) for count in (6, 7)])
    runner.extend(64)
    never = Likelihood(Never(uncertainty(8), slower), 0.9, 10_000, runner.trials[0])
    outcome = Walk(problem, runner, never).run()
    assert outcome.trial is None
    assert not outcome.ended
    assert outcome.looked_at >= 2


@given(order=st.permutations(range(6)), at_least=st.sampled_from([0.5, 0.8, 0.95]))
@settings(max_examples=15, deadline=None)
def test_in_any_order_the_first_that_is_likely_enough_is_found(order: list[int], at_least: float) -> None:
    runner = TrialRunner(FakeEvaluator(), BudgetSpec(simulations=40, seconds=1e6), workers=1)
    runner.run([Job(1, make_deployment("fast", 6 + 2 * place), {}) for place in order])
    first = runner.trials[0]
    assessor = Assessor(uncertainty(DRAWS), slower)
    assessor.assess([first], [DRAWS], 0.9)
    outcome = first_likely(runner.trials, Likelihood(assessor, at_least, 10_000, first))
    assert outcome.trial == next((t for t in runner.trials if share(t.deployment) >= at_least), None)
    assert not outcome.ended


def test_what_was_chosen_by_its_draws_looks_likelier_there_than_under_fresh_ones() -> None:
    """Over many seeds: the chosen trial's share on the draws that chose it is too high, on fresh draws it is not."""
    deployments = [make_deployment("fast", 6), make_deployment("dear", 5), make_deployment("fast", 7)]
    many = uncertainty(1024)
    truth = [sum(slower(deployment, many.draw(k)).feasible for k in range(1024)) / 1024 for deployment in deployments]
    assert truth[0] < truth[1] < truth[2] < 1.0
    runner = TrialRunner(FakeEvaluator(), BudgetSpec(simulations=40, seconds=1e6), workers=1)
    runner.run([Job(1, deployment, {}) for deployment in deployments])
    reused, fresh = [], []
    for seed in range(100):
        drawn = uncertainty(16, seed, normal=np.random.default_rng(seed).standard_normal((16, 5)))
        assessor = Assessor(drawn, slower)
        assessor.assess([runner.trials[0]], [16], 0.9)
        outcome = first_likely(runner.trials, Likelihood(assessor, 0.95, 10_000, runner.trials[0]))
        if outcome.trial is not None:
            other = assessor.under(drawn.fresh(64))
            reused.append(assessor.assess([outcome.trial], [16], 0.9)[0].all_terms - truth[outcome.trial.number])
            fresh.append(other.assess([outcome.trial], [64], 0.9)[0].all_terms - truth[outcome.trial.number])
            assert assessor.simulations == other.simulations
    assert len(reused) > 50
    assert np.mean(reused) > 0.02
    assert abs(np.mean(fresh)) < 0.01


def chance_constrained(
    *, limit: int = 10_000, sizes: tuple[int, ...] = (5, 6, 7, 10)
) -> tuple[ChanceConstrained | None, Trial]:
    runner = TrialRunner(FakeEvaluator(), BudgetSpec(simulations=40, seconds=1e6), workers=1)
    runner.run([Job(1, make_deployment("fast", size), {}) for size in sizes])
    best = runner.trials[0]
    assessor = Assessor(uncertainty(DRAWS), slower)
    (assessment,) = assessor.assess([best], [DRAWS], 0.9)
    return find_chance_constrained(assessor, best, assessment, runner.trials, limit, 0.9), best


def test_the_cheapest_likely_deployment_is_priced_when_the_recommendation_is_unlikely() -> None:
    likely, best = chance_constrained()
    assert likely is not None
    assert likely.trial is not None
    assert likely.assessment is not None
    enough = [size for size in (5, 6, 7, 10) if share(make_deployment("fast", size)) >= 0.9]
    assert likely.trial.deployment.pool.replicas == min(enough) > best.deployment.pool.replicas
    assert likely.assessment.all_terms == share(likely.trial.deployment)
    text = format_chance_constrained(likely, best)
    assert f"at ${price_of(likely.trial):,.2f} per hour, ${price_of(likely.trial) - price_of(best):,.2f} more" in text


def test_it_is_not_looked_for_where_the_recommendation_is_likely_enough_and_says_where_none_is_found() -> None:
    assert chance_constrained(sizes=(7, 10))[0] is None
    assert chance_constrained(limit=0)[0] is None
    spent, best = chance_constrained(limit=8)
    assert spent is not None
    assert spent.spent
    assert "spec.confidence.chance_constrained" in format_chance_constrained(spent, best)
    none, best = chance_constrained(sizes=(5,))
    assert none is not None
    assert format_chance_constrained(none, best).startswith("Nothing that was simulated has a wider margin")
    assert format_chance_constrained(None, best) == ""


def test_the_likeliest_for_less_is_found_among_different_workers() -> None:
    """Rejected ones have had few draws each; the closest get all of them, one of each kind and number of workers."""
    outcome, assessor, runner = walked(0.97)
    assert outcome.trial is not None
    likelihood = Likelihood(assessor, 0.97, 10_000, runner.trials[0])
    for trial in runner.trials:
        if trial.meets_slo and price_of(trial) < price_of(outcome.trial):
            likelihood.enough(trial)
    closest = likelihood.likeliest_rejected(price_of(outcome.trial), 4)
    assert len({hardware(trial.deployment) for trial in closest}) == len(closest) > 0
    between = likeliest_for_less(
        likelihood,
        runner.trials[0],
        outcome.trial,
        lambda trial, draws: assessor.assess([trial], [draws], 0.9)[0],
        DRAWS,
    )
    best = max(share(trial.deployment) for trial in closest)
    assert between is None or between.assessment.all_terms == pytest.approx(best)


@pytest.mark.parametrize(("over", "counted"), [(0, 0), (6, 0), (7, 7), (64, 64)])
def test_where_the_window_rejects_too_many_no_deployment_is_looked_for(over: int, counted: int) -> None:
    class Rejecting(Assessor):
        def known(self, deployment, numbers):  # type: ignore[no-untyped-def]
            return [
                Evaluation({}, (RejectionCheck(0.01, 1000, {OVER_WINDOW: 11 if n < over else 10}),), n >= over)
                for n in numbers
            ]

    runner = TrialRunner(FakeEvaluator(), BudgetSpec(simulations=40, seconds=1e6))
    runner.run([Job(1, make_deployment("fast", 6), {})])
    assert draws_over_window(Rejecting(uncertainty(64), slower), runner.trials[0], 64, 0.9) == counted
