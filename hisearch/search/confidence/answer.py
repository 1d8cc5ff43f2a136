"""What the steps after a search are asked, and what they answer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from hisearch.hardware.price_book import PriceBook
from hisearch.score.capacity import Capacity
from hisearch.search.confidence.assessment import Assessment
from hisearch.search.confidence.assurance import WalkResult
from hisearch.search.confidence.chance_constrained import ChanceConstrained
from hisearch.search.confidence.changes import Faster, NextPurchase, StepChange
from hisearch.search.confidence.fresh_knowledge import FreshKnowledge
from hisearch.search.confidence.misses import Misses
from hisearch.search.model.trial import Recommendation, Trial
from hisearch.search.select.price_sensitivity import PriceBreakEven
from hisearch.search.select.setting_sensitivity import Setting
from hisearch.specs.studies.study import ConfidenceSpec, RecommendSpec


@dataclass(frozen=True)
class Question:
    """Input of a conclusion. memory_bytes: of every accelerator, by name."""

    recommend: RecommendSpec
    confidence: ConfidenceSpec
    book: PriceBook
    memory_bytes: Mapping[str, float]


@dataclass(frozen=True)
class Candidate:
    """A deployment compared with the recommendation, under the first of the same draws.

    cheapest: share of these draws in which it is the cheapest assessed deployment that meets the SLO.
    """

    trial: Trial
    assessment: Assessment
    cheapest: float


@dataclass(frozen=True)
class Priced:
    """A deployment beside the recommendation, with its probability of meeting the SLO."""

    trial: Trial
    assessment: Assessment


@dataclass(frozen=True)
class Conclusion:
    """Results of the steps after a search. ``choice`` says which trial the recommendation is.

    assessment: of the recommendation; candidates[0] is the same under the first draws alone. at_least: required
    probability; walk: the search for it, None if the nominal trial has it. satisfied: whether the recommendation has
    it, None if none is required. lasts: whether the recommendation meets the SLO where its load is carried on, None
    where nothing was. confirmed: the recommendation under fresh draws that did not select it. by_rule: the
    recommendation of each rule; limit_usd: price limit of lowest_latency and most_headroom there; limit_given: the
    study sets it. nominal: the rule's own choice, if another one is recommended. between: the likeliest that costs
    less than the recommendation, if it is likelier than ``nominal``. own_formats: the cheapest that keeps the
    checkpoint's formats and has the required probability, if the recommendation has narrower ones; None also where
    there is none. chance_constrained: the price of a higher probability, if none is required and the recommendation's
    is low. fresh: the recommendation with a router whose knowledge is of now, if its own is old. misses: why draws of
    the recommendation miss the SLO, if some do and what would change the answer is asked. simulations: number by
    purpose.
    """

    recommendation: Recommendation
    assessment: Assessment | None = None
    candidates: tuple[Candidate, ...] = ()
    at_least: float | None = None
    walk: WalkResult | None = None
    satisfied: bool | None = None
    confirmed: Assessment | None = None
    by_rule: tuple[Recommendation, ...] = ()
    limit_usd: float = math.inf
    limit_given: bool = False
    steps: tuple[StepChange, ...] = ()
    faster: Faster | None = None
    prices: tuple[PriceBreakEven, ...] = ()
    settings: tuple[Setting, ...] = ()
    headroom: Capacity | None = None
    next_purchase: NextPurchase | None = None
    nominal: Priced | None = None
    between: Priced | None = None
    own_formats: Priced | None = None
    chance_constrained: ChanceConstrained | None = None
    fresh: FreshKnowledge | None = None
    simulations: Mapping[str, int] = field(default_factory=dict)
    lasts: bool | None = None
    misses: Misses | None = None
