"""The smallest correction of the model that explains a measurement.

Every figure that both sides have gives one difference, the logarithm of measured over predicted: 0.1 is 10 %. Where the
tool says when each request was sent, the steps that its neighbours leave it give another, of the step times alone (see
``neighbours``): near saturation tails say little of what is off, as a step that is a thousandth longer moves them by a
tenth. Terms of the model are corrected one after another, each time the one that leaves the smallest distance, as long
as one more term takes away a fair part of it, or half of what is left of the figures without touching the step times: a
measurement's own noise stays in these whatever is corrected, and says nothing against it. A small penalty on the size
of corrections decides between terms that explain equally much.
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

#: Terms whose errors differ by less cannot be told apart.
RIVAL = 0.01
#: Terms in one correction, at most.
MOST_TERMS = 3
#: Of the ways to add one more term, so many are fitted together with those before it.
_POLISHED = 2


@dataclass(frozen=True)
class Alone:
    """How well a term alone explains the measurements.

    value: its best one. error: root mean square of the figures' differences that is left. distance: that, and what is
    left of step times.
    """

    name: str
    meaning: str
    value: float
    error: float
    distance: float


@dataclass(frozen=True)
class Diagnosis:
    """What was found.

    error_before, error_after: root mean square of the figures' differences, as shares. steps_before, steps_after: how
    far step times among neighbours lie from the model's, see ``Case.steps_error``; None where the tools do not say when
    requests were sent.
    terms: names of what is corrected, the weightiest first; empty where nothing is worth it. alone: every term by
    itself, the best first. alternatives: terms that by themselves explain as much as the first one does, so that the
    measurement cannot tell them apart. ranges: by name, values of what is corrected, and of what may stand in for it,
    that explain as well with the other terms where they then belong; see ``ranges``.
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
        """See above."""
        if not self.terms:
            return ()
        first = next(one for one in self.alone if one.name == self.terms[0])
        return tuple(one for one in self.alone if one is not first and one.distance - first.distance < RIVAL)


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
        starts = points[:_POLISHED] + (search.beside_lost_hits() if len(chosen) == 1 else [])
        found = points[:1] if not chosen else sorted((search.local_search(start) for start in starts), key=search.cost)
        best = next((point for point in found if search.is_worth(chosen, point)), None)
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
        tuple(sorted(alone, key=lambda one: one.distance)),
        ranges(search, chosen, RIVAL) if chosen else {},
    )


@on_one_thread
def refit(cases: Sequence[Case], terms: Sequence[str]) -> Correction:
    """The best correction of these terms alone, for other cases than those that they were found on."""
    search, found = CorrectionSearch(cases), dict[str, float]()
    for term in (term for name in terms for term in search.terms if term.name == name):
        found = search.with_term(found, term)
    return correction_of(search.local_search(found) if len(found) > 1 else found)


def _alone(search: CorrectionSearch, point: Variables, term: Term) -> Alone:
    value = correction_of(point).value(term.name)
    return Alone(term.name, term.meaning, value, search.error(point), search.distance(point))
