"""How far step times, or the load, may be off before the answer changes, and the answer then.

Break-evens are found by simulation. The recommended deployment runs on the study's own trace with all its steps of a
kind scaled by a factor. Bisection narrows the factors between one that holds the SLO and one that misses it.
Feasibility need not be monotone: a break-even is a pair of simulated factors, never an extrapolation.
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
from hisearch.search.model.trial import Trial, price_of
from hisearch.specs.deployments.deployment import DeploymentSpec

#: Regimes that are scaled together, by name.
SCALED: dict[str, tuple[str, ...]] = {
    "all steps": REGIMES,
    "prefill": ("prefill",),
    "decode": ("decode", "mixed"),
    "host work": ("host",),
}

#: Largest factor tried; its reciprocal is the smallest.
MOST_FACTOR = 2.0
#: Label of the term that breaks if the simulation gave no figures.
EVERY_TERM = "every term"

#: Relative difference allowed between the two ends of a break-even.
TOLERANCE = 0.01

#: Turns of a break-even that use a power law; with more, a bent curve would move only one end.
INTERPOLATED = (1, 3)

#: Most simulations for one break-even, and for the alternative.
SIMULATIONS = 9
MAX_ALTERNATIVES = 6


@dataclass(frozen=True)
class BreakEven:
    """Where a verdict changes.

    what: a key of ``SCALED``. holds: the factor nearest to the change that met the SLO, or None; missed: the nearest
    one that did not, or None. term: the missed term. simulations: number used.
    """

    what: str
    holds: float | None
    missed: float | None
    term: str
    simulations: int


@dataclass(frozen=True)
class Instead:
    """An alternative to the recommendation: a deployment, its price, and the simulations used to find it."""

    deployment: DeploymentSpec
    usd_per_hour: float
    simulations: int


def break_even(
    what: str, evaluate: Callable[[float], Evaluation], violation: float, *, slower: bool = True
) -> BreakEven:
    """The factor at which a verdict changes, between 1 and ``MOST_FACTOR`` (or its reciprocal).

    what: key of ``SCALED``. violation: the worst one at factor 1. slower: from 1, which holds, towards slower steps;
    otherwise from 1, which misses, towards faster ones.
    """
    near, far = 1.0, MOST_FACTOR if slower else 1.0 / MOST_FACTOR
    ends = {near: violation}
    term, simulations, factor = "", 0, far
    while simulations < SIMULATIONS:
        evaluation = evaluate(factor)
        simulations += 1
        ends[factor] = evaluation.worst_violation
        holds = evaluation.feasible
        if not holds and slower:
            term = missed_term(evaluation)
        if holds != slower:
            far = factor
        elif simulations == 1:  # even the farthest factor does not change the verdict
            return BreakEven(what, factor if slower else None, None if slower else factor, term, simulations)
        else:
            near = factor
        if abs(math.log(far / near)) <= math.log1p(TOLERANCE):
            break
        factor = _between(near, far, ends, simulations)
    return BreakEven(what, near if slower else far, far if slower else near, term, simulations)


def missed_term(evaluation: Evaluation) -> str:
    """Label of the term that is missed most; ``EVERY_TERM`` if the simulation gave no figures."""
    return EVERY_TERM if evaluation.worst is None else evaluation.worst.label


def _between(near: float, far: float, ends: Mapping[float, float], turn: int) -> float:
    """In turns of ``INTERPOLATED``, the point where a power law through both ends meets the bound; else the middle."""
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
    """Factors by regime for a key of ``SCALED``."""
    return dict.fromkeys(SCALED[what], factor)


def instead_of(
    problem: Problem,
    trials: Sequence[Trial],
    best: Trial,
    evaluate: Callable[[DeploymentSpec], Evaluation],
    term: str,
) -> Instead | None:
    """The cheapest of ``MAX_ALTERNATIVES`` deployments that holds if the recommendation no longer does, if any.

    Candidates, by price: deployments that met the SLO as stated with a wider margin in ``term``, and the recommendation
    with more replicas.

    evaluate: simulates a deployment under the change that the recommendation does not tolerate. term: the term that it
    misses then.
    """
    for simulations, deployment in enumerate(_alternatives(problem, trials, best, term), start=1):
        evaluation = evaluate(deployment)
        if evaluation.feasible:
            return Instead(deployment, evaluation.metrics["usd_per_hour"], simulations)
    return None


def _alternatives(problem: Problem, trials: Sequence[Trial], best: Trial, term: str) -> list[DeploymentSpec]:
    """At most ``MAX_ALTERNATIVES``, cheapest first: three sizes of ``best``; others, each wider than cheaper ones."""
    ours = best.deployment.pools[0].replicas
    sizes = range(ours + 1, min(ours + 3, most_replicas(problem, best.deployment)) + 1)
    grown = [with_replicas(problem, best.deployment, replicas) for replicas in sizes]
    electricity = best.metrics.get("energy_usd_per_hour", 0.0)
    offered = [(problem.planner.usd_per_hour(spec) + electricity, -1, spec) for spec in grown]
    margin = _margin(best, term)
    for trial in sorted(trials, key=lambda t: (t.metrics.get("usd_per_hour", math.inf), -_margin(t, term), t.number)):
        if len(offered) == MAX_ALTERNATIVES:
            break
        feasible = trial.meets_slo and price_of(trial) >= price_of(best)
        if feasible and _margin(trial, term) > margin and trial.deployment not in grown:
            margin = _margin(trial, term)
            offered.append((price_of(trial), trial.number, trial.deployment))
    return [deployment for _, _, deployment in sorted(offered, key=lambda item: item[:2])]


def _margin(trial: Trial, term: str) -> float:
    margins = [check.margin for check in trial.slo if check.label == term and check.margin is not None]
    return margins[0] if margins else math.inf
