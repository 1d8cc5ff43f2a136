"""The smallest correction of the model that explains a measurement.

Every figure that both sides have gives one difference, the logarithm of measured over predicted: 0.1 is 10 %. If the
tool records when each request was sent, the steps counted from its neighbours give another, of the step times alone
(see ``neighbours``). Near saturation tails reveal little, because a step that is a thousandth longer moves them by a
tenth. Terms of the model are corrected one after another, each time the one that leaves the smallest distance. This
goes on as long as one more term removes a fair part of the distance, or half of the figures' remaining difference
without changing the step times. A measurement's noise stays in the step times whatever is corrected, so it does not
count against a correction. A small penalty on the size of corrections decides between terms that explain equally well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hisearch.base.one_thread import on_one_thread
from hisearch.verify.cases import Case
from hisearch.verify.correction_search import CorrectionSearch
from hisearch.verify.prediction import Correction
from hisearch.verify.ranges import ranges
from hisearch.verify.terms import Term, Variables, correction_of

#: Terms whose distances differ by less cannot be distinguished.
INDISTINGUISHABLE = 0.01
#: Terms in one correction, at most.
MOST_TERMS = 3
#: Candidates for one more term that local search fits together with the terms before it.
_LOCAL_SEARCHES = 2


@dataclass(frozen=True)
class Alone:
    """How well a term alone explains the measurements.

    value: its best one. error: root mean square of the figures' remaining differences. distance: that, together with
    the remaining difference of step times.
    """

    name: str
    meaning: str
    value: float
    error: float
    distance: float


@dataclass(frozen=True)
class Diagnosis:
    """Result of a diagnosis.

    error_before, error_after: root mean square of the figures' differences, as shares. steps_before, steps_after:
    distance of step times among neighbours from the model's, see ``Case.steps_error``; None where the tools do not
    record when requests were sent.
    terms: names of the corrected terms, the most important first; empty where no correction is worthwhile. alone:
    every term by itself, the best first. alternatives: terms that alone explain as much as the first one, so that the
    measurement cannot distinguish them. ranges: by name, values of the corrected terms and of their substitutes that
    explain as well with the other terms refitted; see ``ranges``.
    """

    correction: Correction
    terms: tuple[str, ...]
    error_before: float
    error_after: float
    steps_before: float | None
    steps_after: float | None
    alone: tuple[Alone, ...]
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def alternatives(self) -> tuple[Alone, ...]:
        """Terms that alone explain as much as the first one."""
        if not self.terms:
            return ()
        first = next(term for term in self.alone if term.name == self.terms[0])
        return tuple(
            term for term in self.alone if term is not first and term.distance - first.distance < INDISTINGUISHABLE
        )


@on_one_thread
def diagnose(cases: Sequence[Case]) -> Diagnosis:
    """The smallest correction that explains all cases together."""
    search = CorrectionSearch(cases)
    chosen: dict[str, float] = {}
    alone = list[Alone]()
    while len(chosen) < MOST_TERMS and not (chosen and search.is_explained(chosen)):
        candidates = [(search.with_term(chosen, term), term) for term in search.terms if term.name not in chosen]
        if not chosen:
            alone = [_alone(search, point, term) for point, term in candidates]
        points = sorted((point for point, _ in candidates), key=search.cost)
        starts = points[:_LOCAL_SEARCHES] + (search.with_lost_hits() if len(chosen) == 1 else [])
        fits = points[:1] if not chosen else sorted((search.local_search(start) for start in starts), key=search.cost)
        best = next((point for point in fits if search.is_worth(chosen, point)), None)
        if best is None:
            break
        before, chosen = set(chosen), search.without_idle(best)
        if set(chosen) <= before:
            break
    return Diagnosis(
        correction_of(chosen),
        tuple(chosen),
        search.error({}),
        search.error(chosen),
        search.steps_error({}),
        search.steps_error(chosen),
        tuple(sorted(alone, key=lambda fit: fit.distance)),
        ranges(search, chosen, INDISTINGUISHABLE) if chosen else {},
    )


@on_one_thread
def refit(cases: Sequence[Case], terms: Sequence[str]) -> Correction:
    """The best correction of these terms alone, for cases other than those of the diagnosis."""
    search, point = CorrectionSearch(cases), dict[str, float]()
    for term in (term for name in terms for term in search.terms if term.name == name):
        point = search.with_term(point, term)
    return correction_of(search.local_search(point) if len(point) > 1 else point)


def _alone(search: CorrectionSearch, point: Variables, term: Term) -> Alone:
    value = correction_of(point).value(term.name)
    return Alone(term.name, term.meaning, value, search.error(point), search.distance(point))
