"""Which price would change the answer, and at what value: arithmetic over simulated trials."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hisearch.hardware.price_book import Listed, PriceBook
from hisearch.search.model.trial import Trial, price_of

#: Share of today's price below which a price is not worth reporting.
LEAST_SHARE = 0.05

#: Two deployments use the same amount of an item if the difference is below this many dollars per hour.
_SAME = 1e-9


@dataclass(frozen=True)
class Checked:
    """A trial under draws: how many of them it held. may_do: whether that leaves it likely enough."""

    held: int
    draws: int
    may_do: bool


@dataclass(frozen=True)
class PriceBreakEven:
    """Beyond ``usd`` for an item another trial is cheaper than the recommendation.

    dearer: True if that is above today's price (``now_usd``), False if below. checked: the trial under draws; None
    where none were made of it.
    """

    item: str
    unit: str
    now_usd: float
    usd: float
    dearer: bool
    trial: Trial
    checked: Checked | None = None


def price_break_evens(
    book: PriceBook,
    trials: Sequence[Trial],
    best: Trial,
    *,
    check: Callable[[Trial], Checked | None] = lambda _: None,
    most: int | None = None,
) -> list[PriceBreakEven]:
    """For every price, the nearest values above and below at which a feasible trial becomes cheaper than ``best``.

    Everything else stays: other prices, electricity, and which trials meet the SLO. Trials already cheaper than
    ``best`` are left out, as something other than price speaks against them; so are those that ``check`` says will not
    do. The nearest in proportion come first; of equal ones, the trial with the widest margin.

    Args:
        book: today's prices.
        trials: all of them.
        best: the recommendation.
        check: looks at a trial under draws; None: it cannot.
        most: values to look for; all where absent.
    """
    others = [trial for trial in trials if trial.meets_slo and trial.number != best.number]
    alternatives = [trial for trial in others if price_of(trial) >= price_of(best)]
    queue: list[tuple[float, str, bool, float, int, Listed, float, Trial]] = []
    for price in book.prices():
        book_plus_one = book.at({price.item: price.usd + 1.0})
        amounts = [book_plus_one.cost(t.deployment) - book.cost(t.deployment) for t in (best, *alternatives)]
        for trial, amount in zip(alternatives, amounts[1:], strict=True):
            usd = _crossing(price, best, trial, amount - amounts[0])
            if usd is not None:
                change, dearer = usd / price.usd - 1.0, amount < amounts[0]
                key = (abs(change), price.item, not dearer, -trial.worst_margin, trial.number)
                queue.append((*key, price, usd, trial))
    heapq.heapify(queue)
    nearest: dict[tuple[str, bool], PriceBreakEven] = {}
    while queue and len(nearest) < (math.inf if most is None else most):
        _, item, cheaper, *_, price, usd, trial = heapq.heappop(queue)
        if (item, cheaper) in nearest:
            continue
        checked = check(trial)
        if checked is None or checked.may_do:
            nearest[item, cheaper] = PriceBreakEven(item, price.unit, price.usd, usd, not cheaper, trial, checked)
    return list(nearest.values())


def _crossing(price: Listed, best: Trial, trial: Trial, more: float) -> float | None:
    """The price at which ``trial``, with ``more`` of the item, costs what ``best`` does; None if never."""
    if abs(more) < _SAME:
        return None
    usd = price.usd - (price_of(trial) - price_of(best)) / more
    return usd if usd >= LEAST_SHARE * price.usd else None
