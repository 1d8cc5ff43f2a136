"""Which price would change the answer, and at what value: arithmetic over simulated trials."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hisearch.hardware.price_book import Listed, PriceBook
from hisearch.search.model.trial import Trial, price_of

#: Share of today's price below which a price is not worth reporting.
LEAST_SHARE = 0.05

#: Two deployments use the same amount of an item if the difference is below this many dollars per hour.
_SAME = 1e-9


@dataclass(frozen=True)
class PriceBreakEven:
    """Beyond ``usd`` for an item another trial is cheaper than the recommendation.

    dearer: True if that is above today's price (``now_usd``), False if below.
    """

    item: str
    unit: str
    now_usd: float
    usd: float
    dearer: bool
    trial: Trial


def price_break_evens(book: PriceBook, trials: Sequence[Trial], best: Trial) -> list[PriceBreakEven]:
    """For every price, the nearest values above and below at which a feasible trial becomes cheaper than ``best``.

    Everything else stays: other prices, electricity, and which trials meet the SLO. Trials already cheaper than
    ``best`` are left out, as something other than price speaks against them. The nearest in proportion come first.
    """
    others = [trial for trial in trials if trial.meets_slo and trial.number != best.number]
    alternatives = [trial for trial in others if price_of(trial) >= price_of(best)]
    break_evens = []
    for price in book.prices():
        book_plus_one = book.at({price.item: price.usd + 1.0})

        def amount(trial: Trial, book_plus_one: PriceBook = book_plus_one) -> float:
            return book_plus_one.cost(trial.deployment) - book.cost(trial.deployment)

        ours = amount(best)
        for dearer in (True, False):
            crossings = [
                (usd, trial.number, trial)
                for trial in alternatives
                if (usd := _crossing(price, best, trial, amount(trial) - ours, dearer)) is not None
            ]
            if crossings:
                usd, _, trial = min(crossings) if dearer else max(crossings, key=lambda item: (item[0], -item[1]))
                break_evens.append(PriceBreakEven(price.item, price.unit, price.usd, usd, dearer, trial))
    return sorted(
        break_evens,
        key=lambda break_even: (abs(break_even.usd / break_even.now_usd - 1.0), break_even.item, not break_even.dearer),
    )


def _crossing(price: Listed, best: Trial, trial: Trial, more: float, dearer: bool) -> float | None:
    """The price at which ``trial``, with ``more`` of the item, costs what ``best`` does; None if never."""
    if abs(more) < _SAME or (more < 0) != dearer:
        return None
    usd = price.usd - (price_of(trial) - price_of(best)) / more
    return usd if usd >= LEAST_SHARE * price.usd else None
