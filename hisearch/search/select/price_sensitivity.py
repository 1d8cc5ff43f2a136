"""Which price would change the answer, and to what: arithmetic over what was simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hisearch.hardware.price_book import Listed, PriceBook
from hisearch.search.model.trial import Trial
from hisearch.search.select.recommend import price_of

#: Share of today's price below which a price is not worth saying.
LEAST_SHARE = 0.05

#: Dollars per hour below which two deployments of other amounts of an item are taken to need the same of it.
_SAME = 1e-9


@dataclass(frozen=True)
class PriceBreakEven:
    """Beyond ``usd`` for an item another trial is cheaper than the recommendation.

    dearer: whether that is above today's price (``now_usd``) or below it.
    """

    item: str
    unit: str
    now_usd: float
    usd: float
    dearer: bool
    trial: Trial


def price_break_evens(book: PriceBook, trials: Sequence[Trial], best: Trial) -> list[PriceBreakEven]:
    """For every price the nearest one above and below at which a feasible trial becomes cheaper than ``best``.

    All else stays: the other prices, electricity, and what meets the SLO. Trials that are cheaper than ``best`` as it
    is, which something else than price speaks against, are left out. The nearest in proportion come first.
    """
    alternatives = [t for t in trials if t.comparable and t.feasible and t.number != best.number and _dearer(t, best)]
    found = []
    for price in book.prices():
        other = book.at({price.item: price.usd + 1.0})

        def amount(trial: Trial, other: PriceBook = other) -> float:
            return other.cost(trial.deployment) - book.cost(trial.deployment)

        ours = amount(best)
        for dearer in (True, False):
            crossings = [
                (usd, trial.number, trial)
                for trial in alternatives
                if (usd := _crossing(price, best, trial, amount(trial) - ours, dearer)) is not None
            ]
            if crossings:
                usd, _, trial = min(crossings) if dearer else max(crossings, key=lambda item: (item[0], -item[1]))
                found.append(PriceBreakEven(price.item, price.unit, price.usd, usd, dearer, trial))
    return sorted(found, key=lambda one: (abs(one.usd / one.now_usd - 1.0), one.item, not one.dearer))


def _dearer(trial: Trial, best: Trial) -> bool:
    return price_of(trial) >= price_of(best)


def _crossing(price: Listed, best: Trial, trial: Trial, more: float, dearer: bool) -> float | None:
    """The price at which ``trial``, which needs so much ``more`` of the item, costs what ``best`` does; None: never."""
    if abs(more) < _SAME or (more < 0) != dearer:
        return None
    usd = price.usd - (price_of(trial) - price_of(best)) / more
    return usd if usd >= LEAST_SHARE * price.usd else None
