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

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from hisearch.one_thread import on_one_thread
from hisearch.verify.measured import Measurement
from hisearch.verify.neighbours import FACTORS
from hisearch.verify.prediction import CHOICES, POOL, Correction, Predictor, parts
from hisearch.verify.ranges import ranges
from hisearch.verify.terms import OCTAVES, Term, Variables, correction_of, terms_of

#: Figures whose differences count; ITL's percentiles do not, as tools see bundles of tokens.
FITTED = tuple(
    f"{stem}_{which}_s" for stem in ("ttft", "tpot", "e2e") for which in ("mean", "p50", "p90", "p95", "p99")
)
#: Latencies below this are as good as equal to it, seconds.
_SHORTEST_S = 1e-4
#: One more term has to take away this share of the difference that is left, and this much of it.
WORTHWHILE_SHARE = 0.2
WORTHWHILE = 0.01
#: Or this share of the figures' difference alone, where step times among neighbours come no farther than by this.
WORTHWHILE_ALONE, STEPS_SAME = 0.5, 1e-3
#: What is left below this is explained: simulations of equal requests at other moments differ as much.
EXPLAINED = 0.03
#: So are step times among neighbours below this: a step's end is known to a token alone.
STEPS_EXPLAINED = 0.04
#: Terms whose errors differ by less cannot be told apart.
RIVAL = 0.01
#: Terms in one correction, at most.
MOST_TERMS = 3
#: Variables of a fit are shifted by so much that they are never near 0, as its steps are shares of them.
_SHIFT = 4.0
#: How far a fit's starting points are scattered (octaves, for factors), and its steps; one after the other.
_STAGES = ((0.8, 0.03), (0.15, 0.01))
#: So many are scattered, and the best of them are starting points.
_SCATTER, _STARTS = 32, 4
#: Of the ways to add one more term, so many are fitted together with those before it.
_POLISHED = 2
#: A term's place that step times say is looked for on a grid of so many points, in so many rounds; around it, in steps
#: of a hundredth, so many of them either way, simulations are tried.
_GUESSES, _ROUNDS, _NEAR, _AROUND = 61, 2, 0.0145, 6
#: Shares of lost hits at which step times are asked for their factor.
_SHARES = 8
#: Several terms together are looked for with so many trials a round.
_TOLD = 120
#: Weight of the difference of step times beside the figures', in a distance.
_STEPS_WEIGHT = 2.0
#: Share of what luck makes of the difference of step times that is not held against a correction.
_LUCK_SHARE = 1 / 3
#: Weight of squared corrections beside squared differences.
_PENALTY = 1e-4


def differences(measured: Mapping[str, float], predicted: Mapping[str, float]) -> dict[str, float]:
    """Figure -> log(measured / predicted), of those that are fitted and known on both sides."""
    shared = (name for name in FITTED if name in measured and name in predicted)
    return {name: math.log(max(measured[name], _SHORTEST_S) / max(predicted[name], _SHORTEST_S)) for name in shared}


def root_mean_square(values: Iterable[float]) -> float:
    """Of at least one value."""
    found = list(values)
    return math.sqrt(math.fsum(value * value for value in found) / len(found))


class Case(NamedTuple):
    """A measurement and what predicts it. rows: the requests that count, by their places in it; None: its figures."""

    measurement: Measurement
    predict: Predictor
    rows: np.ndarray | None = None

    def measured(self) -> dict[str, float]:
        """Figures of the requests that count."""
        requests = self.measurement.requests
        if self.rows is None or requests is None:
            return self.measurement.figures
        return requests.keep(np.isin(requests.rows, self.rows)).figures()

    def predicted(self, correction: Correction, choice: int = 0) -> dict[str, float]:
        """Likewise, by the corrected model; ``choice``: of the prompts that lose their hits."""
        found = self.predict(correction, choice)
        if self.rows is None:
            return found.figures
        return found.requests.keep(np.isin(found.requests.rows, self.rows)).figures()

    def differences(self, correction: Correction, choice: int = 0) -> dict[str, float]:
        """Of the figures that count."""
        return differences(self.measured(), self.predicted(correction, choice))

    def error(self, correction: Correction, choice: int = 0) -> float:
        """Root mean square of the differences."""
        return root_mean_square(self.differences(correction, choice).values())

    def steps_error(
        self,
        correction: Correction,
        simulated: Correction | None = None,
        choice: int = 0,
        but_for_luck: bool = True,
    ) -> float | None:
        """How far step times among neighbours are from those of the simulation; None where they are not known.

        Both are counted in the same way, and are off by the same where the model is right: see ``prediction.apart``.
        Nothing is squared: some requests have other neighbours than the simulation of ``simulated`` (of ``correction``
        where absent) says, and are far off. ``but_for_luck``: what comes of not knowing which worker each request came
        to does not count, nor a third of what comes of not knowing which prompts lost their hits: all of that would let
        luck explain everything.
        """
        found = self.predict.steps(correction, simulated, choice)
        own = self.predict.own_steps(simulated or correction, choice)
        if found is None or own is None:
            return None
        measured, predicted = (
            values if self.rows is None else values[np.isin(rows, self.rows)] for rows, values in (found, own)
        )
        if not len(measured) or not len(predicted):
            return None
        found_parts = parts(measured, predicted)
        if not but_for_luck:
            return sum(found_parts)
        placing = zip(found_parts, self.predict.placing().steps, strict=True)
        left = sum(max(part - luck, 0.0) for part, luck in placing)
        return max(left - _LUCK_SHARE * self.predict.luck(simulated or correction), 0.0)


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
    itself, the best first. rivals: terms that by themselves explain as much as the first one does, so that the
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
    def rivals(self) -> tuple[Alone, ...]:
        """See above."""
        if not self.terms:
            return ()
        first = next(one for one in self.alone if one.name == self.terms[0])
        return tuple(one for one in self.alone if one is not first and one.distance - first.distance < RIVAL)


@on_one_thread
def diagnose(cases: Sequence[Case]) -> Diagnosis:
    """The smallest correction that explains all cases together."""
    search = _Search(cases)
    chosen: dict[str, float] = {}
    alone = list[Alone]()
    while len(chosen) < MOST_TERMS and not (chosen and search.is_explained(chosen)):
        candidates = [(search.with_term(chosen, term), term) for term in search.terms if term.name not in chosen]
        if not chosen:
            alone = [_alone(search, point, term) for point, term in candidates]
        points = sorted((point for point, _ in candidates), key=search.cost)
        starts = points[:_POLISHED] + (search.beside_lost_hits() if len(chosen) == 1 else [])
        found = points[:1] if not chosen else sorted((search.polish(start) for start in starts), key=search.cost)
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
    search, found = _Search(cases), dict[str, float]()
    for term in (term for name in terms for term in search.terms if term.name == name):
        found = search.with_term(found, term)
    return correction_of(search.polish(found) if len(found) > 1 else found)


def _alone(search: _Search, point: Variables, term: Term) -> Alone:
    value = correction_of(point).value(term.name)
    return Alone(term.name, term.meaning, value, search.error(point), search.distance(point))


class _Search:
    """Errors of corrections, and the search along one term with the others held."""

    def __init__(self, cases: Sequence[Case]) -> None:
        self._cases = cases
        self.terms = terms_of(cases[0].predict)
        #: By how much figures differ where requests are served by other workers.
        pairs = [(one.predict.placing().figures, one.predict(Correction()).figures) for one in cases]
        self.placing = root_mean_square(root_mean_square(differences(*pair).values()) for pair in pairs)

    def error(self, variables: Variables) -> float:
        """Root mean square over all cases."""
        correction = correction_of(variables)
        return root_mean_square(case.error(correction) for case in self._cases)

    def steps_error(self, variables: Variables) -> float | None:
        """Mean over the cases that know it; None where none does."""
        correction = correction_of(variables)
        found = [error for case in self._cases if (error := case.steps_error(correction)) is not None]
        return float(np.mean(found)) if found else None

    def counted(self, variables: Variables, simulated: Variables) -> float:
        """``steps_error`` with luck, by the neighbours of another simulation; 0 where no case knows it."""
        corrections = correction_of(variables), correction_of(simulated)
        errors = (case.steps_error(*corrections, but_for_luck=False) for case in self._cases)
        return float(np.mean([error for error in errors if error is not None] or [0.0]))

    def left(self, variables: Variables, choice: int = 0) -> tuple[float, float]:
        """What is left of the figures, and of the step times by their weight, each case weighing as one."""
        correction = correction_of(variables)
        return (
            root_mean_square(case.error(correction, choice) for case in self._cases),
            _STEPS_WEIGHT
            * root_mean_square(case.steps_error(correction, choice=choice) or 0.0 for case in self._cases),
        )

    def distance(self, variables: Variables, choice: int = 0) -> float:
        """What is left of both."""
        return math.hypot(*self.left(variables, choice))

    def luck(self, variables: Variables) -> float:
        """By how much figures differ with hits lost by other prompts, or served by other workers, root mean square."""
        correction = correction_of(variables)
        pairs = [(case.predict(correction, 1).figures, case.predict(correction).figures) for case in self._cases]
        hits = root_mean_square(root_mean_square(differences(*pair).values()) for pair in pairs)
        return math.hypot(hits, self.placing)

    def cost(self, variables: Variables) -> float:
        """Squared distance and the penalty on what is corrected."""
        return self.distance(variables) ** 2 + _PENALTY * math.fsum(x * x for x in variables.values())

    def residuals(self, variables: Variables) -> np.ndarray:
        """Differences of all cases, each weighing as one, and what the penalty makes of the corrections."""
        correction = correction_of(variables)
        found = [np.array(list(case.differences(correction).values())) for case in self._cases]
        scaled = [values / math.sqrt(len(values) * len(found)) for values in found]
        steps = [_STEPS_WEIGHT * (case.steps_error(correction) or 0.0) / math.sqrt(len(found)) for case in self._cases]
        return np.concatenate([*scaled, np.array(steps), math.sqrt(_PENALTY) * np.array(list(variables.values()))])

    def with_term(self, others: Variables, term: Term) -> dict[str, float]:
        """``others`` and the best value of ``term`` beside them."""
        return {**others, term.name: self._along(others, term, term.low, term.high)}

    def beside_lost_hits(self) -> list[Variables]:
        """The best point of each factor on step times beside lost hits; none where step times are not known.

        Either of the two makes queues longer, so that the best value of one alone is far from where it is beside the
        other, and no search from there finds both: step times say the factor at each share of lost hits.
        """
        lost = next(term for term in self.terms if term.name == "hits_lost")
        found: list[Variables] = []
        for term in (term for term in self.terms if term.name in FACTORS):
            guesses = {
                share: self._guess({lost.name: share}, term)
                for share in np.linspace(lost.low, lost.high, _SHARES + 1)[1:].tolist()
            }
            points = [{lost.name: share, term.name: at} for share, at in guesses.items() if at is not None]
            found += sorted(points, key=self.cost)[:1]
        return found

    def is_explained(self, variables: Variables) -> bool:
        """What is left of the figures and of the step times is no more than luck."""
        return (
            self.error(variables) <= max(EXPLAINED, self.placing)
            and (self.steps_error(variables) or 0.0) <= STEPS_EXPLAINED
        )

    def is_worth(self, fewer: Variables, more: Variables) -> bool:
        """The terms that ``more`` has beyond ``fewer`` take away a fair part of the distance, and more than luck does.

        Or so much of the figures' difference that it is explained without the step times, which are no worse for it.
        Whichever prompts lose their hits: near saturation queues hang on every one of them, so that a fit finds the few
        prompts whose loss happens to make the measured queue.
        """
        least = max(WORTHWHILE, self.luck(more))
        for choice in range(CHOICES):
            before, after = self.left(fewer, choice), self.left(more, choice)
            distance = math.hypot(*before)
            both = distance - math.hypot(*after) >= max(least, WORTHWHILE_SHARE * distance)
            figures = before[0] - after[0] >= max(least, WORTHWHILE_ALONE * before[0]) and before[0] > EXPLAINED
            if not both and not (figures and after[1] <= before[1] + STEPS_SAME):
                return False
        return True

    def without_idle(self, variables: Variables) -> dict[str, float]:
        """Without the terms that the others, where they were moved to beside them, do as well without."""
        found = dict(variables)
        for name in reversed(variables):
            fewer = {other: x for other, x in found.items() if other != name}
            if fewer and not self.is_worth(fewer, found):
                found = fewer
        return found

    def polish(self, variables: Variables) -> dict[str, float]:
        """Several terms fitted together: what one takes away another may give back.

        Simulations jump, so that a fit stays near where it starts: it starts from the best of points scattered around,
        first far and with long steps, then near and with short ones. With step times from neighbours, which do not
        jump, the start is near already.
        """
        from scipy.stats import qmc

        names = list(variables)
        bounds = {term.name: (term.low, term.high) for term in self.terms}
        low, high = np.array([bounds[name] for name in names]).T
        best = dict(variables)
        smooth = self.steps_error(best) is not None
        stages, scattered, starts = (_STAGES[1:], 8, 2) if smooth else (_STAGES, _SCATTER, _STARTS)
        for reach, step in stages:
            centre = np.array(list(best.values()))
            scatter = centre + reach * (2.0 * qmc.Sobol(len(names), seed=0).random(scattered) - 1.0)
            told = [self._told(best)] if smooth else []
            points = sorted([best, *told, *self._points(names, np.clip(scatter, low, high))], key=self.cost)[:starts]
            best = min([*points, *(self._fit(point, low, high, step) for point in points)], key=self.cost)
        return best

    def _told(self, variables: Variables) -> dict[str, float]:
        """``variables`` with the factors on step times where those among neighbours say that they are, all together."""
        from scipy.optimize import minimize

        names = [name for name in variables if name in FACTORS]
        if not names:
            return dict(variables)
        found = dict(variables)
        for _ in range(_ROUNDS):

            def error(x: np.ndarray, simulated: Variables = found) -> float:
                inside = np.clip(x, -OCTAVES, OCTAVES)
                return self.counted({**variables, **dict(zip(names, inside.tolist(), strict=True))}, simulated)

            start = np.array([found[name] for name in names])
            fitted = minimize(
                error, start, method="Nelder-Mead", options={"maxfev": _TOLD, "xatol": 2e-3, "fatol": 1e-4}
            )
            inside = np.clip(fitted.x, -OCTAVES, OCTAVES)
            found = {**variables, **dict(zip(names, inside.tolist(), strict=True))}
        return found

    def _points(self, names: Sequence[str], rows: np.ndarray) -> list[dict[str, float]]:
        return [dict(zip(names, row, strict=True)) for row in rows.tolist()]

    def _fit(self, variables: Variables, low: np.ndarray, high: np.ndarray, step: float) -> dict[str, float]:
        """Least squares from one point; the variables are shifted, as steps are shares of them."""
        from scipy.optimize import least_squares

        names = list(variables)

        def residuals(shifted: np.ndarray) -> np.ndarray:
            return self.residuals(self._points(names, shifted[None] - _SHIFT)[0])

        inside = 1e-3 * (high - low)
        start = np.clip(np.array(list(variables.values())), low + inside, high - inside)
        box = (low + _SHIFT, high + _SHIFT)
        found = least_squares(residuals, start + _SHIFT, bounds=box, diff_step=step, xtol=1e-3, max_nfev=10)
        return self._points(names, found.x[None] - _SHIFT)[0]

    def _along(self, others: Variables, term: Term, low: float, high: float) -> float:
        """The best of a grid, then a golden section between its neighbours: simulations jump, and may have two dips.

        Near saturation the dip is narrower than the grid; step times among neighbours say where it may be.
        """
        from scipy.optimize import minimize_scalar

        def cost(x: float) -> float:
            return self.cost({**others, term.name: float(x)})

        guess = self._guess(others, term)
        near = [] if guess is None else [guess + _NEAR * k for k in range(-_AROUND, _AROUND + 1)]
        grid = sorted({*np.linspace(low, high, 9).tolist(), *(min(max(x, low), high) for x in near)})
        at = int(np.argmin([cost(x) for x in grid]))
        around = (grid[max(at - 1, 0)], grid[min(at + 1, len(grid) - 1)])
        found = minimize_scalar(cost, bounds=around, method="bounded", options={"xatol": 3e-3, "maxiter": 14})
        best = float(found.x) if found.fun <= cost(grid[at]) else grid[at]
        return min(best, 0.0, key=cost) if low <= 0.0 <= high else best

    def _guess(self, others: Variables, term: Term) -> float | None:
        """Where step times among neighbours are best along ``term``; None where they say nothing of it.

        Neighbours are first those of the simulation without the term, then of the one with it.
        """
        if not (term.name in FACTORS or term.name.startswith(POOL)) or self.steps_error(others) is None:
            return None
        grid = np.linspace(term.low, term.high, _GUESSES).tolist()
        simulated: Variables = others
        for _ in range(_ROUNDS):

            def error(x: float, simulated: Variables = simulated) -> float:
                return self.counted({**others, term.name: x}, simulated)

            simulated = {**others, term.name: min(grid, key=error)}
        return simulated[term.name]
