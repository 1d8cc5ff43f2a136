"""By how much step times, or the load, may be off before the answer changes, and what the answer is then.

Break-evens are found by trial: the recommended deployment is simulated on the study's own trace with all its steps of a
kind scaled by one factor, between a factor that holds the SLO and one that misses it. Feasibility need not be monotone:
a break-even is a pair of factors that were simulated, never an extrapolation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hisearch.search.confidence.assessment import Assessor
from hisearch.search.confidence.uncertainty import REGIMES
from hisearch.search.model.growth import most_replicas, with_replicas
from hisearch.search.model.job import Evaluation
from hisearch.search.model.problem import Problem
from hisearch.search.model.trial import Trial
from hisearch.search.select.recommend import price_of
from hisearch.specs.deployments.deployment import DeploymentSpec

#: What is scaled together, by what it is called.
SCALED: dict[str, tuple[str, ...]] = {
    "all steps": REGIMES,
    "prefill": ("prefill",),
    "decode": ("decode", "mixed"),
    "host work": ("host",),
}

#: Largest factor tried, and its reciprocal the smallest.
MOST_FACTOR = 2.0
#: Stands for the label of the term that breaks, where the simulation came to no figures.
EVERY_TERM = "every term"

#: Share by which the two ends of a break-even may differ.
TOLERANCE = 0.01

#: Turns of a break-even that trust a power law; more would spend themselves on one end of a bent curve.
INTERPOLATED = (1, 3)

#: Simulations for one break-even at most, and for what would answer instead.
SIMULATIONS = 9
MAX_ALTERNATIVES = 6


@dataclass(frozen=True)
class BreakEven:
    """Where a verdict changes.

    what: a key of ``SCALED``. holds: the factor nearest to the change that met the SLO, or None; missed: the one that
    did not, or None. term: what is missed there. simulations: that it took.
    """

    what: str
    holds: float | None
    missed: float | None
    term: str
    simulations: int


@dataclass(frozen=True)
class Instead:
    """What would answer in place of the recommendation: a deployment, its price, what it took to find it."""

    deployment: DeploymentSpec
    usd_per_hour: float
    simulations: int


def break_even(
    what: str, evaluate: Callable[[float], Evaluation], violation: float, *, slower: bool = True
) -> BreakEven:
    """The factor at which a verdict changes, between 1 and ``MOST_FACTOR`` (or its reciprocal).

    Args:
        what: is scaled.
        evaluate: simulates at a factor.
        violation: the worst one at factor 1.
        slower: from 1, which holds, towards slower steps; else from 1, which misses, towards faster ones.
    """
    near, far = 1.0, MOST_FACTOR if slower else 1.0 / MOST_FACTOR
    ends = {near: violation}
    term, simulations, factor = "", 0, far
    while simulations < SIMULATIONS:
        found = evaluate(factor)
        simulations += 1
        ends[factor] = max((check.violation for check in found.slo), default=math.inf)
        holds = found.feasible and not found.error
        if not holds and slower:
            term = max(found.slo, key=lambda check: check.violation).label if found.slo else EVERY_TERM
        if holds != slower:
            far = factor
        elif simulations == 1:  # not even the farthest factor changes the verdict
            return BreakEven(what, factor if slower else None, None if slower else factor, term, simulations)
        else:
            near = factor
        if abs(math.log(far / near)) <= math.log1p(TOLERANCE):
            break
        factor = _between(near, far, ends, simulations)
    return BreakEven(what, near if slower else far, far if slower else near, term, simulations)


def _between(near: float, far: float, ends: Mapping[float, float], turn: int) -> float:
    """Twice where a power law through the worst values at both ends meets its bound, else the middle."""
    at_near, at_far = (math.log1p(ends[end]) if ends[end] > -1.0 else -math.inf for end in (near, far))
    share = 0.5
    if turn in INTERPOLATED and math.isfinite(at_near) and math.isfinite(at_far) and at_near != at_far:
        share = min(max(at_near / (at_near - at_far), 0.05), 0.95)
    return math.exp(math.log(near) + share * math.log(far / near))


def step_break_even(assessor: Assessor, best: Trial, what: str) -> BreakEven:
    """How much slower one kind of step, of ``SCALED``, may be before the recommendation misses the SLO."""
    return break_even(
        what, lambda factor: assessor.supposing(best.deployment, scaled(what, factor)), best.worst_violation
    )


def scaled(what: str, factor: float) -> dict[str, float]:
    """Factors by regime that scale what has that name."""
    return dict.fromkeys(SCALED[what], factor)


def instead_of(
    problem: Problem,
    trials: Sequence[Trial],
    best: Trial,
    evaluate: Callable[[DeploymentSpec], Evaluation],
    term: str,
) -> Instead | None:
    """The cheapest of ``MAX_ALTERNATIVES`` deployments that holds where the recommendation no longer does, if any.

    Looked at are, by price, what met the SLO on the study's own terms with a wider margin in what is missed, and the
    recommendation with more replicas.

    Args:
        problem: the question.
        trials: the study's.
        best: the recommendation.
        evaluate: simulates a deployment under what the recommendation does not hold under.
        term: what it misses there.
    """
    for simulations, deployment in enumerate(_rivals(problem, trials, best, term), start=1):
        found = evaluate(deployment)
        if found.feasible and not found.error:
            return Instead(deployment, found.metrics["usd_per_hour"], simulations)
    return None


def _rivals(problem: Problem, trials: Sequence[Trial], best: Trial, term: str) -> list[DeploymentSpec]:
    """At most ``MAX_ALTERNATIVES``, cheapest first: three sizes of ``best``; others, each wider than cheaper ones."""
    ours = best.deployment.pools[0].replicas
    sizes = range(ours + 1, min(ours + 3, most_replicas(problem, best.deployment)) + 1)
    grown = [with_replicas(problem, best.deployment, replicas) for replicas in sizes]
    electricity = best.metrics.get("energy_usd_per_hour", 0.0)
    offered = [(problem.planner.usd_per_hour(one) + electricity, -1, one) for one in grown]
    margin = _margin(best, term)
    for trial in sorted(trials, key=lambda t: (t.metrics.get("usd_per_hour", math.inf), -_margin(t, term), t.number)):
        if len(offered) == MAX_ALTERNATIVES:
            break
        feasible = trial.comparable and trial.feasible and price_of(trial) >= price_of(best)
        if feasible and _margin(trial, term) > margin and trial.deployment not in grown:
            margin = _margin(trial, term)
            offered.append((price_of(trial), trial.number, trial.deployment))
    return [deployment for _, _, deployment in sorted(offered, key=lambda item: item[:2])]


def _margin(trial: Trial, term: str) -> float:
    found = [check.margin for check in trial.slo if check.label == term and check.margin is not None]
    return found[0] if found else math.inf
