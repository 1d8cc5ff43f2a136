"""At which prices another deployment would be recommended, where the recommendation must be likely to meet the SLO."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hisearch.hardware.price_book import PriceBook
from hisearch.search.confidence.assessment import Assessment
from hisearch.search.confidence.assurance import no_wider
from hisearch.search.model.trial import Trial
from hisearch.search.select.price_sensitivity import Checked, PriceBreakEven, price_break_evens

#: Most prices that are named as changing the answer.
PRICES = 6


def likely_price_break_evens(
    book: PriceBook,
    trials: Sequence[Trial],
    best: Trial,
    at_least: float | None,
    look: Callable[[Trial], Assessment | None],
) -> tuple[PriceBreakEven, ...]:
    """The nearest of ``price_break_evens``, without trials that a few draws show to be less likely than required.

    Args:
        book: today's prices.
        trials: all of them.
        best: the recommendation.
        at_least: the required probability; None: no trial is looked at.
        look: simulates a trial under a few draws; None where no simulation is left for it.
    """
    rejected: list[Trial] = []

    def check(trial: Trial) -> Checked | None:
        if at_least is None:
            return None
        if any(no_wider(trial, other) for other in rejected):
            return Checked(0, 0, may_do=False)
        assessed = look(trial)
        if assessed is None or not assessed.draws:
            return None
        may_do = assessed.all_terms_range[1] >= at_least
        rejected.extend([trial] * (not may_do))
        return Checked(round(assessed.all_terms * assessed.draws), assessed.draws, may_do)

    return tuple(price_break_evens(book, trials, best, check=check, most=PRICES))
