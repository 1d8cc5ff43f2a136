"""How many requests a question's study simulates, and why."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

from hisearch.specs.documents.question import THINK_P90, Question
from hisearch.specs.documents.resolved import ResolvedStudy
from hisearch.specs.studies.slo import SloSpec, SloTerm
from hisearch.specs.workloads.length_phrase import mean_tokens

#: Requests that lie above the SLO's highest percentile, at least: their number is then known to a seventh.
ABOVE_PERCENTILE = 50


#: A trace lasts at least so many times as long as a request may stay, so that its empty beginning counts little.
STAYS = 10


#: Requests of a closed loop beyond the users' first ones, which all arrive at once, as a multiple of what the highest
#: percentile leaves above it.
FIRST_ONES = 2


#: Fewest and most requests of a trace.
LEAST_REQUESTS, MOST_REQUESTS = 2000, 20_000


#: Seconds per output token where the SLO bounds none.
_TPOT_S = 0.03


@dataclass(frozen=True)
class Sample:
    """Requests of a trace. span_s: of their arrivals, NaN in a closed loop. stay_s: of a request, at most."""

    requests: int
    percentile: float
    span_s: float
    stay_s: float
    users: int

    @classmethod
    def of(cls, question: Question, slo: SloSpec) -> Sample:
        """As many as the SLO's highest percentile and the length of a stay ask for."""
        percentile = max(term.percentile for term in slo.terms)
        above = max(1.0 - percentile / 100.0, 1e-3)
        above_of_class = min(max(1.0 - term.percentile / 100.0, 1e-3) * _share_of(question, term) for term in slo.terms)
        parts = question.parts
        stay_s = max(_stay_s(part, slo) for part in parts)
        conversation_s = max(_stay_s(part, slo) * part.turns + mean_think_s(part) * (part.turns - 1) for part in parts)
        users = question.concurrency or 0
        lasting = (question.total_rate or 0.0) * STAYS * conversation_s
        least = max(LEAST_REQUESTS, ABOVE_PERCENTILE / above_of_class, lasting, FIRST_ONES * users / above)
        requests = min(math.ceil(least), MOST_REQUESTS)
        return cls(requests, percentile, _span_s(question, requests), stay_s, users)

    def cut(self, question: Question, resolved: ResolvedStudy) -> Sample:
        """With as many requests as the study has, which overrides may have changed."""
        generator = None if isinstance(resolved.workload, Path) else resolved.workload.spec.generator
        if generator is None or generator.requests is None:
            return self
        return replace(self, requests=generator.requests, span_s=_span_s(question, generator.requests))

    @property
    def sentence(self) -> str:
        """How many, and why."""
        above = math.floor(self.requests * (1.0 - self.percentile / 100.0) + 1e-9)
        span = f"{self.span_s:,.0f} s, " if math.isfinite(self.span_s) else ""
        return f"{self.requests:,} requests are simulated ({span}{above:,} of them above p{self.percentile:g})."

    @property
    def caution(self) -> str:
        """Why they are too few; "" where they are not."""
        if math.isfinite(self.span_s) and self.span_s < 2 * self.stay_s:
            return (
                f"{self.requests:,} requests last {self.span_s:,.0f} s, and one may stay for {self.stay_s:,.0f} s: "
                "queues are still filling when the simulation ends, and figures are too good. Raise requests in the "
                "study and run it"
            )
        first = self.users / self.requests
        if self.users and first > 1.0 - self.percentile / 100.0:
            return (
                f"the {self.users:,} users begin at once, and these first requests are {100 * first:.2g} % of all: "
                f"p{self.percentile:g} is theirs. Raise requests in the study and run it"
            )
        return ""


def _span_s(question: Question, requests: int) -> float:
    return requests / question.total_rate if question.total_rate is not None else math.nan


def _share_of(question: Question, term: SloTerm) -> float:
    """Share of the requests that a term is about; 1 where it names a class that the question does not have."""
    if not term.of_class or not question.classes:
        return 1.0
    shares = 0.0
    for each, share in zip(question.classes, question.requests_shares, strict=True):
        of_priority = term.priority is None or term.priority == each.priority
        of_tenant = 1.0 if term.tenant is None else each.tenants.count(term.tenant) / len(each.tenants)
        shares += share * of_priority * of_tenant
    return shares or 1.0


def _stay_s(question: Question, slo: SloSpec) -> float:
    """Seconds that a request of mean length stays where the SLO just holds."""
    bounds = {
        metric: min((term.at_most_s for term in slo.terms if term.metric == metric), default=None)
        for metric in ("ttft_s", "ttfo_s", "tpot_s", "e2e_s")
    }
    ttft_s = bounds["ttft_s"] or 1.0
    tpot_s = bounds["tpot_s"] or _TPOT_S
    visible_s = min(ttft_s + tpot_s * question.mean_thinking, bounds["ttfo_s"] or math.inf)
    stay_s = visible_s + tpot_s * mean_tokens(question.output_lengths)
    return min(stay_s, bounds["e2e_s"] or math.inf)


def mean_think_s(question: Question) -> float:
    """Mean think time: lognormal by its median and its 90th percentile."""
    sigma = math.log(THINK_P90) / 1.2815515655446004
    return question.think_s * math.exp(sigma**2 / 2)
