"""The chance-constrained recommendation: the cheapest simulated deployment that is likely to meet the SLO."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hisearch.score.quantities import HOURS_PER_MONTH, usd
from hisearch.search.confidence.assessment import Assessment, Assessor
from hisearch.search.confidence.assurance import Likelihood, first_of
from hisearch.search.model.deployments import describe
from hisearch.search.model.trial import Trial
from hisearch.search.select.recommend import EQUAL_MARGIN, price_of
from hisearch.specs.wording import SURE, counted, format_percent


@dataclass(frozen=True)
class ChanceConstrained:
    """Result of the search for a chance-constrained recommendation.

    trial: the cheapest that meets the SLO with a probability of ``SURE`` or more, None if none was found. assessment:
    of it, under all draws. looked_at: deployments simulated under draws. simulations: under draws. spent: their limit,
    or time, ended the search.
    """

    trial: Trial | None
    assessment: Assessment | None
    looked_at: int
    simulations: int
    spent: bool


def find_chance_constrained(
    assessor: Assessor, best: Trial, assessed: Assessment, trials: Sequence[Trial], limit: int, level: float
) -> ChanceConstrained | None:
    """Examine deployments that met the SLO, cheapest first, with at most ``limit`` simulations.

    Only deployments with a wider tightest margin than all cheaper ones are examined: equally tight ones will miss about
    as often.

    Args:
        assessor: simulates under draws.
        best: the recommendation, known under all draws.
        assessed: its assessment.
        trials: the study's.
        limit: most simulations.
        level: confidence level of the range of the probability.

    Returns:
        None if the recommendation itself is likely enough, or nothing may be simulated.
    """
    if assessed.all_terms >= SURE or not limit or assessed.draws < len(assessor.uncertainty):
        return None
    likelihood = Likelihood(assessor, SURE, limit, best)
    assured = first_of(_widening(best, trials), likelihood)
    assessment = None
    if assured.trial is not None:
        assessment = assessor.assess([assured.trial], [assessed.draws], level)[0]
    return ChanceConstrained(assured.trial, assessment, assured.looked_at, assured.simulations, assured.spent)


def _widening(best: Trial, trials: Sequence[Trial]) -> Iterator[Trial]:
    """Deployments that met the SLO, by price, each with a wider tightest margin than ``best`` and all cheaper ones."""
    met = [trial for trial in trials if trial.comparable and trial.feasible]
    widest = best.worst_margin
    for trial in sorted(met, key=lambda trial: (price_of(trial), -trial.worst_margin, trial.number)):
        if trial.worst_margin > widest + EQUAL_MARGIN:
            widest = trial.worst_margin
            yield trial


def format_chance_constrained(outcome: ChanceConstrained | None, best: Trial) -> str:
    """The price of a higher probability, in a sentence; "" if it was not looked for."""
    if outcome is None:
        return ""
    if outcome.trial is not None and outcome.assessment is not None:
        more = price_of(outcome.trial) - price_of(best)
        what = "more" if more >= 0 else "less"
        return (
            f"The cheapest found that meets it with at least {format_percent(SURE)}: "
            f"{describe(outcome.trial.deployment)} at {usd(price_of(outcome.trial))} per hour, {usd(abs(more))} {what} "
            f"({usd(abs(more) * HOURS_PER_MONTH)} a month), with {format_percent(outcome.assessment.all_terms)} "
            f"(trial {outcome.trial.number})."
        )
    if not outcome.looked_at:
        return "Nothing that was simulated has a wider margin: none is known that is likelier to meet the SLO."
    looked_at = counted(outcome.looked_at, "other deployment")
    if outcome.spent:
        return (
            f"Of {looked_at}, cheapest first, none meets it with at least {format_percent(SURE)}; then "
            "the limit on these simulations was reached (spec.confidence.chance_constrained)."
        )
    return f"None of {looked_at} meets it with at least {format_percent(SURE)}."
