"""The chance-constrained recommendation: the cheapest simulated deployment that is likely to meet the SLO."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hisearch.search.confidence.assessment import Assessment, Assessor
from hisearch.search.confidence.assurance import Likelihood, first_likely
from hisearch.search.model.trial import Trial, price_of
from hisearch.search.select.recommend import EQUAL_MARGIN
from hisearch.specs.wording import SURE


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

    best, assessed: the recommendation, known under all draws, and its assessment. trials: the study's. level: of the
    confidence interval of the probability.

    Returns:
        None if the recommendation itself is likely enough, or nothing may be simulated.
    """
    if assessed.all_terms >= SURE or not limit or assessed.draws < len(assessor.uncertainty):
        return None
    likelihood = Likelihood(assessor, SURE, limit, best)
    assured = first_likely(_widening(best, trials), likelihood)
    assessment = None
    if assured.trial is not None:
        assessment = assessor.assess([assured.trial], [assessed.draws], level)[0]
    return ChanceConstrained(assured.trial, assessment, assured.looked_at, assured.simulations, bool(assured.ended))


def _widening(best: Trial, trials: Sequence[Trial]) -> Iterator[Trial]:
    """Deployments that met the SLO, by price, each with a wider tightest margin than ``best`` and all cheaper ones."""
    met = [trial for trial in trials if trial.meets_slo]
    widest = best.worst_margin
    for trial in sorted(met, key=lambda trial: (price_of(trial), -trial.worst_margin, trial.number)):
        if trial.worst_margin > widest + EQUAL_MARGIN:
            widest = trial.worst_margin
            yield trial
