"""Alternatives to a recommendation that was chosen for its probability, and requests that no choice can serve."""

from __future__ import annotations

from collections.abc import Callable

from hisearch.search.confidence.answer import Priced
from hisearch.search.confidence.assessment import Assessment, Assessor
from hisearch.search.confidence.assurance import GROWN, Likelihood, Walk
from hisearch.search.evaluate.runner import TrialRunner
from hisearch.search.model.problem import Problem
from hisearch.search.model.trial import Trial, price_of, rejects_beyond_window
from hisearch.specs.deployments.deployment import DeploymentSpec

#: Rejected deployments that get a quarter of the draws, and of these how many get all, to find the likeliest.
CLOSEST, LIKELIEST = 4, 2


def likeliest_for_less(
    likelihood: Likelihood, first: Trial, best: Trial, assess: Callable[[Trial, int], Assessment], draws: int
) -> Priced | None:
    """Of what was looked at and costs less than ``best``, the likeliest; None unless it is likelier than ``first``.

    Args:
        likelihood: which rejected them.
        first: the rule's own choice.
        best: the recommendation.
        assess: a trial under the first so many draws.
        draws: all of them.
    """
    closest = likelihood.likeliest_rejected(price_of(best), CLOSEST)
    few = [Priced(trial, assess(trial, max(draws // 4, 1))) for trial in closest]
    hopeful = sorted(few, key=_likelier)[-LIKELIEST:]
    likeliest = max((Priced(p.trial, assess(p.trial, draws)) for p in hopeful), key=_likelier, default=None)
    if likeliest is None or likeliest.trial.number == first.number:
        return None
    return likeliest if likeliest.assessment.all_terms > assess(first, draws).all_terms_range[1] else None


def _likelier(priced: Priced) -> tuple[float, float]:
    """Rises with the probability, of equal ones as the price falls."""
    return priced.assessment.all_terms, -price_of(priced.trial)


def keeps_formats(problem: Problem, trial: Trial) -> bool:
    """Whether all pools keep the checkpoint's formats."""
    return _keeps(problem, trial.deployment)


def _keeps(problem: Problem, deployment: DeploymentSpec) -> bool:
    return all(problem.keeps_formats(pool) for pool in deployment.pools)


def likely_with_own_formats(problem: Problem, runner: TrialRunner, likelihood: Likelihood) -> Trial | None:
    """The cheapest that keeps the checkpoint's formats and is likely enough; None without one."""
    runner.extend(GROWN)
    return Walk(problem, runner, likelihood, lambda deployment: _keeps(problem, deployment)).run().trial


def draws_over_window(assessor: Assessor, trial: Trial, draws: int, at_least: float) -> int:
    """Draws in which the model's window alone rejects more requests than the SLO allows; 0 if few enough are so.

    Args:
        assessor: which has made all ``draws`` of ``trial``.
        trial: any deployment of the model.
        draws: how many.
        at_least: the required probability.
    """
    missed = sum(rejects_beyond_window(seen.slo) for seen in assessor.known(trial.deployment, range(draws)))
    return missed if missed > (1.0 - at_least) * draws + 1e-9 else 0
