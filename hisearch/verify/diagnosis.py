"""The smallest correction of the model that explains a measurement.

Every figure that both sides have gives one difference, the logarithm of measured over predicted: 0.1 is 10 %. Terms of
the model are corrected one after another, each time the one that leaves the smallest root mean square of the
differences, as long as one more term takes away a fair part of what is left. A small penalty on the size of corrections
decides between terms that explain equally much.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from hisearch.verify.measured import Measurement
from hisearch.verify.prediction import Correction, Predictor

#: Figures whose differences count; ITL's percentiles do not, as tools see bundles of tokens.
FITTED = tuple(
    f"{stem}_{which}_s" for stem in ("ttft", "tpot", "e2e") for which in ("mean", "p50", "p90", "p95", "p99")
)
#: Latencies below this are as good as equal to it, seconds.
_SHORTEST_S = 1e-4
#: One more term has to take away this share of the difference that is left, and this much of it.
WORTHWHILE_SHARE = 0.2
WORTHWHILE = 0.01
#: What is left below this is explained: simulations of equal requests at other moments differ as much.
EXPLAINED = 0.03
#: Terms whose errors differ by less cannot be told apart.
RIVAL = 0.01
#: Terms in one correction, at most.
MOST_TERMS = 3
#: Variables of a fit are shifted by so much that they are never near 0, as its steps are shares of them.
_SHIFT = 4.0
#: How far a fit's starting points are scattered (octaves, for factors), and its steps; one after the other.
_STAGES = ((0.8, 0.03), (0.15, 0.01))
#: So many are scattered, and the best of them are starting points.
_SCATTER, _STARTS = 32, 6
#: Weight of squared corrections beside squared differences.
_PENALTY = 1e-4


class Term(NamedTuple):
    """A term of the model: its field in ``Correction``, what it stands for, and how it is searched.

    low, high: of the search's variable, 0 where nothing is corrected. value: variable -> the field's value.
    """

    name: str
    meaning: str
    low: float
    high: float
    value: Callable[[float], float]


_OCTAVES = 3.0

TERMS = (
    Term("host", "host time per step", -_OCTAVES, _OCTAVES, lambda x: 2.0**x),
    Term("prefill", "prefill rate", -_OCTAVES, _OCTAVES, lambda x: 2.0**x),
    Term("decode", "decode rate", -_OCTAVES, _OCTAVES, lambda x: 2.0**x),
    # The square root spreads milliseconds and seconds alike.
    Term("front_end_s", "queueing before the scheduler", 0.0, _OCTAVES, lambda x: x * x),
    Term("hits_lost", "cache hits", 0.0, 1.0, lambda x: x),
)

Variables = Mapping[str, float]


def correction_of(variables: Variables) -> Correction:
    """The correction at a point of the search."""
    by_name = {term.name: term for term in TERMS}
    return replace(Correction(), **{name: by_name[name].value(x) for name, x in variables.items()})


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

    def predicted(self, correction: Correction) -> dict[str, float]:
        """Likewise, by the corrected model."""
        found = self.predict(correction)
        if self.rows is None:
            return found.figures
        return found.requests.keep(np.isin(found.requests.rows, self.rows)).figures()

    def differences(self, correction: Correction) -> dict[str, float]:
        """Of the figures that count."""
        return differences(self.measured(), self.predicted(correction))

    def error(self, correction: Correction) -> float:
        """Root mean square of the differences."""
        return root_mean_square(self.differences(correction).values())


@dataclass(frozen=True)
class Alone:
    """How well a term alone explains the measurements: its best value, and the error that is left."""

    name: str
    meaning: str
    value: float
    error: float


@dataclass(frozen=True)
class Diagnosis:
    """What was found.

    error_before, error_after: root mean square of the differences, as shares. terms: names of what is corrected, the
    weightiest first; empty where nothing is worth it. alone: every term by itself, the best first. rivals: terms that
    by themselves explain as much as the first one does, so that the measurement cannot tell them apart.
    """

    correction: Correction
    terms: tuple[str, ...]
    error_before: float
    error_after: float
    alone: tuple[Alone, ...]

    @property
    def rivals(self) -> tuple[Alone, ...]:
        """See above."""
        if not self.terms:
            return ()
        first = next(one for one in self.alone if one.name == self.terms[0])
        return tuple(one for one in self.alone if one is not first and one.error - first.error < RIVAL)


def diagnose(cases: Sequence[Case]) -> Diagnosis:
    """The smallest correction that explains all cases together."""
    search = _Search(cases)
    before = search.error({})
    chosen: dict[str, float] = {}
    error, alone = before, list[Alone]()
    while len(chosen) < MOST_TERMS and (not chosen or error > EXPLAINED):
        candidates = [(search.with_term(chosen, term), term) for term in TERMS if term.name not in chosen]
        if not chosen:
            alone = [_alone(search, point, term) for point, term in candidates]
        points = sorted((point for point, _ in candidates), key=search.cost)
        best = points[0] if not chosen else min((search.polish(point) for point in points), key=search.cost)
        gained = error - search.error(best)
        if gained < max(WORTHWHILE, WORTHWHILE_SHARE * error):
            break
        chosen, error = dict(best), search.error(best)
    return Diagnosis(
        correction_of(chosen), tuple(chosen), before, error, tuple(sorted(alone, key=lambda one: one.error))
    )


def refit(cases: Sequence[Case], terms: Sequence[str]) -> Correction:
    """The best correction of these terms alone, for other cases than those that they were found on."""
    search, found = _Search(cases), dict[str, float]()
    for term in (term for name in terms for term in TERMS if term.name == name):
        found = search.with_term(found, term)
    return correction_of(search.polish(found) if len(found) > 1 else found)


def _alone(search: _Search, point: Variables, term: Term) -> Alone:
    return Alone(term.name, term.meaning, getattr(correction_of(point), term.name), search.error(point))


class _Search:
    """Errors of corrections, and the search along one term with the others held."""

    def __init__(self, cases: Sequence[Case]) -> None:
        self._cases = cases

    def error(self, variables: Variables) -> float:
        """Root mean square over all cases."""
        correction = correction_of(variables)
        return root_mean_square(case.error(correction) for case in self._cases)

    def cost(self, variables: Variables) -> float:
        """Squared error and the penalty on what is corrected."""
        return self.error(variables) ** 2 + _PENALTY * math.fsum(x * x for x in variables.values())

    def residuals(self, variables: Variables) -> np.ndarray:
        """Differences of all cases, each weighing as one, and what the penalty makes of the corrections."""
        correction = correction_of(variables)
        found = [np.array(list(case.differences(correction).values())) for case in self._cases]
        scaled = [values / math.sqrt(len(values) * len(found)) for values in found]
        return np.concatenate([*scaled, math.sqrt(_PENALTY) * np.array(list(variables.values()))])

    def with_term(self, others: Variables, term: Term) -> dict[str, float]:
        """``others`` and the best value of ``term`` beside them."""
        return {**others, term.name: self._along(others, term, term.low, term.high)}

    def polish(self, variables: Variables) -> dict[str, float]:
        """Several terms fitted together: what one takes away another may give back.

        Simulations jump, so that a fit stays near where it starts: it starts from the best of points scattered around,
        first far and with long steps, then near and with short ones.
        """
        from scipy.stats import qmc

        names = list(variables)
        bounds = {term.name: (term.low, term.high) for term in TERMS}
        low, high = np.array([bounds[name] for name in names]).T
        best = dict(variables)
        for reach, step in _STAGES:
            centre = np.array(list(best.values()))
            scatter = centre + reach * (2.0 * qmc.Sobol(len(names), seed=0).random(_SCATTER) - 1.0)
            points = sorted([best, *self._points(names, np.clip(scatter, low, high))], key=self.cost)[:_STARTS]
            best = min([*points, *(self._fit(point, low, high, step) for point in points)], key=self.cost)
        return best

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
        """The best of a grid, then a golden section between its neighbours: simulations jump, and may have two dips."""
        from scipy.optimize import minimize_scalar

        def cost(x: float) -> float:
            return self.cost({**others, term.name: float(x)})

        grid = np.linspace(low, high, 9)
        at = int(np.argmin([cost(x) for x in grid]))
        around = (grid[max(at - 1, 0)], grid[min(at + 1, len(grid) - 1)])
        found = minimize_scalar(cost, bounds=around, method="bounded", options={"xatol": 3e-3, "maxiter": 14})
        best = float(found.x) if found.fun <= cost(grid[at]) else float(grid[at])
        return min(best, 0.0, key=cost) if low <= 0.0 <= high else best
