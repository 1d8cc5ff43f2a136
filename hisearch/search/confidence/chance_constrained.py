"""The cheapest of what was simulated that is likely to meet the SLO, beside a recommendation that is not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hisearch.score.quantities import HOURS_PER_MONTH, usd
from hisearch.search.confidence.assessment import Assessment, Assessor
from hisearch.search.confidence.assurance import Likelihood, first_of
from hisearch.search.model.deployments import describe
from hisearch.search.model.trial import Trial
from hisearch.search.select.recommend import EQUAL_MARGIN, price_of
from hisearch.specs.wording import SURE, counted, in_percent


@dataclass(frozen=True)
class ChanceConstrained:
    """What looking came to.

    trial: the cheapest that meets the SLO with a probability of ``SURE`` or more, None where none was found.
    assessment: of it, under all draws. looked_at: deployments that were simulated under draws. simulations: under
    draws. spent: the limit on them, or time, ended it.
    """

    trial: Trial | None
    assessment: Assessment | None
    looked_at: int
    simulations: int
    spent: bool


def find_chance_constrained(
    assessor: Assessor, best: Trial, own: Assessment, trials: Sequence[Trial], limit: int, level: float
) -> ChanceConstrained | None:
    """Look at what met the SLO, cheapest first, by at most ``limit`` simulations.

    Of that only what has a wider tightest margin than all that is cheaper: what is as tight will miss about as often.

    Args:
        assessor: simulates under draws.
        best: the recommendation, known under all draws.
        own: what is known of it.
        trials: the study's.
        limit: most simulations.
        level: of the range of the probability found.

    Returns:
        None where the recommendation is likely enough itself, or nothing may be simulated.
    """
    if own.all_terms >= SURE or not limit or own.draws < len(assessor.uncertainty):
        return None
    likelihood = Likelihood(assessor, SURE, limit, best)
    found = first_of(_widening(best, trials), likelihood)
    assessment = None
    if found.trial is not None:
        assessment = assessor.assess([found.trial], [own.draws], level)[0]
    return ChanceConstrained(found.trial, assessment, found.looked_at, found.simulations, found.spent)


def _widening(best: Trial, trials: Sequence[Trial]) -> Iterator[Trial]:
    """What met the SLO, by price, with a wider tightest margin than the recommendation and all that is cheaper."""
    met = [one for one in trials if one.comparable and one.feasible]
    widest = best.worst_margin
    for one in sorted(met, key=lambda one: (price_of(one), -one.worst_margin, one.number)):
        if one.worst_margin > widest + EQUAL_MARGIN:
            widest = one.worst_margin
            yield one


def format_chance_constrained(found: ChanceConstrained | None, best: Trial) -> str:
    """What being surer would cost, in a sentence; "" where it was not looked for."""
    if found is None:
        return ""
    if found.trial is not None and found.assessment is not None:
        more = price_of(found.trial) - price_of(best)
        what = "more" if more >= 0 else "less"
        return (
            f"The cheapest found that meets it with at least {in_percent(SURE)}: {describe(found.trial.deployment)} at "
            f"{usd(price_of(found.trial))} per hour, {usd(abs(more))} {what} ({usd(abs(more) * HOURS_PER_MONTH)} a "
            f"month), with {in_percent(found.assessment.all_terms)} (trial {found.trial.number})."
        )
    if not found.looked_at:
        return "Nothing that was simulated has a wider margin: none is known that is surer."
    looked_at = counted(found.looked_at, "deployment")
    if found.spent:
        return (
            f"Of {looked_at} looked at beside it, cheapest first, none meets it with at least {in_percent(SURE)}; then "
            "the limit on these simulations was reached (spec.confidence.chance_constrained)."
        )
    return f"None of {looked_at} looked at beside it meets it with at least {in_percent(SURE)}."
