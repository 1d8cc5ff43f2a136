"""The walk to the cheapest deployment that is likely enough, against looking at all of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hisearch.score.terms import TermCheck
from hisearch.search.confidence.assessment import Assessor
from hisearch.search.confidence.assurance import Assured, Likelihood, Walk, first_of
from hisearch.search.confidence.chance_constrained import (
    ChanceConstrained,
    find_chance_constrained,
    format_chance_constrained,
)
from hisearch.search.confidence.uncertainty import factors_of
from hisearch.search.evaluate.runner import TrialRunner
from hisearch.search.model.job import Evaluation, Job
from hisearch.search.model.trial import Trial
from hisearch.search.select.recommend import price_of, recommend
from hisearch.specs.deployments.deployment import DeploymentSpec
from hisearch.specs.studies.study import BudgetSpec
from tests.search.fakes import OBJECTIVES, FakeEvaluator, make_deployment, make_problem
from tests.search.test_confidence import costs, uncertainty

DRAWS = 64


def slower(deployment: DeploymentSpec, draw) -> Evaluation:  # type: ignore[no-untyped-def]
    """The fake world where all takes as much longer as the draw's decode steps do: also the load weighs more."""
    factor = factors_of(costs(0.1), draw.normal, 0.5)["decode"]
    found = FakeEvaluator()(Job(1, deployment, load=factor))
    checks = tuple(
        TermCheck(check.label, (check.value_s or 0.0) * factor, check.bound_s)
        if isinstance(check, TermCheck)
        else check
        for check in found.slo
    )
    return Evaluation(found.metrics, checks, all(check.holds for check in checks))


def walked(at_least: float, *, limit: int = 10_000, workers: int = 1) -> tuple[Assured, Assessor, TrialRunner]:
    problem = make_problem()
    runner = TrialRunner(FakeEvaluator(), BudgetSpec(simulations=40, seconds=1e6), workers=workers)
    started = [make_deployment(kind, count) for kind, counts in (("fast", (6, 8)), ("dear", (5,))) for count in counts]
    runner.run([Job(1, deployment, {}) for deployment in started])
    assert all(trial.feasible for trial in runner.trials)
    found = recommend(runner.trials, OBJECTIVES)
    assert found is not None
    assessor = Assessor(uncertainty(DRAWS), slower, workers=workers)
    assessor.assess([found.trial], [DRAWS], 0.9)
    runner.extend(64)
    likelihood = Likelihood(assessor, at_least, limit, found.trial)
    return Walk(problem, runner, likelihood).run(), assessor, runner


def share(deployment: DeploymentSpec) -> float:
    drawn = uncertainty(DRAWS)
    return sum(slower(deployment, drawn.draw(k)).feasible for k in range(DRAWS)) / DRAWS


@pytest.mark.parametrize("at_least", [0.5, 0.8, 0.9, 0.97])
def test_it_finds_what_looking_at_all_finds(at_least: float) -> None:
    found, assessor, runner = walked(at_least)
    assert found.trial is not None
    assert share(found.trial.deployment) >= at_least
    sizes = [make_deployment("fast", n) for n in range(6, 40)] + [make_deployment("dear", n) for n in range(5, 20)]
    enough = [make_problem().planner.usd_per_hour(one) for one in sizes if share(one) >= at_least]
    assert price_of(found.trial) == min(enough)
    assert assessor.simulations < DRAWS * (found.looked_at + 2)
    assert found.trial in runner.trials


def test_l6_workers_change_nothing() -> None:
    one, two = walked(0.95)[0], walked(0.95, workers=3)[0]
    assert one == two


def test_a_limit_ends_it_and_is_said() -> None:
    found, assessor, _ = walked(0.97, limit=8)
    assert found.trial is None
    assert found.spent
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
    found = Walk(problem, runner, never).run()
    assert found.trial is None
    assert not found.spent
    assert found.looked_at >= 2


@given(order=st.permutations(range(6)), at_least=st.sampled_from([0.5, 0.8, 0.95]))
@settings(max_examples=15, deadline=None)
def test_in_any_order_the_first_that_is_likely_enough_is_found(order: list[int], at_least: float) -> None:
    runner = TrialRunner(FakeEvaluator(), BudgetSpec(simulations=40, seconds=1e6), workers=1)
    runner.run([Job(1, make_deployment("fast", 6 + 2 * place), {}) for place in order])
    first = runner.trials[0]
    assessor = Assessor(uncertainty(DRAWS), slower)
    assessor.assess([first], [DRAWS], 0.9)
    found = first_of(runner.trials, Likelihood(assessor, at_least, 10_000, first))
    assert found.trial == next((t for t in runner.trials if share(t.deployment) >= at_least), None)
    assert not found.spent


def test_what_was_chosen_by_its_draws_looks_likelier_there_than_under_fresh_ones() -> None:
    """Over many seeds the chosen one's share of its own draws is too high, and that of fresh draws is not."""
    deployments = [make_deployment("fast", 6), make_deployment("dear", 5), make_deployment("fast", 7)]
    many = uncertainty(1024)
    truth = [sum(slower(one, many.draw(k)).feasible for k in range(1024)) / 1024 for one in deployments]
    assert truth[0] < truth[1] < truth[2] < 1.0
    runner = TrialRunner(FakeEvaluator(), BudgetSpec(simulations=40, seconds=1e6), workers=1)
    runner.run([Job(1, one, {}) for one in deployments])
    own, fresh = [], []
    for seed in range(100):
        drawn = uncertainty(16, seed, normal=np.random.default_rng(seed).standard_normal((16, 5)))
        assessor = Assessor(drawn, slower)
        assessor.assess([runner.trials[0]], [16], 0.9)
        found = first_of(runner.trials, Likelihood(assessor, 0.95, 10_000, runner.trials[0]))
        if found.trial is not None:
            other = assessor.under(drawn.fresh(64))
            own.append(assessor.assess([found.trial], [16], 0.9)[0].all_terms - truth[found.trial.number])
            fresh.append(other.assess([found.trial], [64], 0.9)[0].all_terms - truth[found.trial.number])
            assert assessor.simulations == other.simulations
    assert len(own) > 50
    assert np.mean(own) > 0.02
    assert abs(np.mean(fresh)) < 0.01


def chance_constrained(
    *, limit: int = 10_000, sizes: tuple[int, ...] = (5, 6, 7, 10)
) -> tuple[ChanceConstrained | None, Trial]:
    runner = TrialRunner(FakeEvaluator(), BudgetSpec(simulations=40, seconds=1e6), workers=1)
    runner.run([Job(1, make_deployment("fast", size), {}) for size in sizes])
    best = runner.trials[0]
    assessor = Assessor(uncertainty(DRAWS), slower)
    (own,) = assessor.assess([best], [DRAWS], 0.9)
    return find_chance_constrained(assessor, best, own, runner.trials, limit, 0.9), best


def test_beside_an_unlikely_recommendation_the_cheapest_likely_one_is_priced() -> None:
    found, best = chance_constrained()
    assert found is not None
    assert found.trial is not None
    assert found.assessment is not None
    enough = [size for size in (5, 6, 7, 10) if share(make_deployment("fast", size)) >= 0.9]
    assert found.trial.deployment.pool.replicas == min(enough) > best.deployment.pool.replicas
    assert found.assessment.all_terms == share(found.trial.deployment)
    text = format_chance_constrained(found, best)
    assert f"at ${price_of(found.trial):,.2f} per hour, ${price_of(found.trial) - price_of(best):,.2f} more" in text


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
