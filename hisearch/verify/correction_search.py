"""The search for corrections with the least distance: along one term, and over several together."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hisearch.verify.cases import Case, differences, root_mean_square
from hisearch.verify.neighbours import FACTORS
from hisearch.verify.prediction import CHOICES, POOL, Correction
from hisearch.verify.terms import OCTAVES, Term, Variables, correction_of, terms_of

#: One more term has to remove at least this share of the remaining difference, and this much in absolute terms.
WORTHWHILE_SHARE = 0.2
WORTHWHILE = 0.01
#: Or this share of the figures' difference alone, if step times among neighbours worsen by at most this.
WORTHWHILE_ALONE, STEPS_SAME = 0.5, 1e-3
#: A remaining difference below this is explained: simulations of equal requests at other times differ as much.
EXPLAINED = 0.03
#: The same for step times among neighbours: a step's end is only known to a token.
STEPS_EXPLAINED = 0.04
#: Shift of a fit's variables that keeps them away from 0, because its steps are shares of them.
_SHIFT = 4.0
#: Stages of a fit: scatter of its starting points (octaves, for factors), and its steps.
_STAGES = ((0.8, 0.03), (0.15, 0.01))
#: Scattered points, and how many of the best are starting points.
_SCATTER, _STARTS = 32, 4
#: Grid points and rounds of the guess of a term from step times; then the step (octaves) and number of simulations
#: tried on either side of it.
_GUESSES, _ROUNDS, _NEAR, _AROUND = 61, 2, 0.0145, 6
#: Shares of lost hits at which step times give a factor.
_SHARES = 8
#: Evaluations a round when several factors are fitted to step times.
_FACTOR_EVALUATIONS = 120
#: Weight of the difference of step times relative to the figures', in a distance.
_STEPS_WEIGHT = 2.0
#: Weight of squared corrections relative to squared differences.
_PENALTY = 1e-4


class CorrectionSearch:
    """Errors of corrections, and the search along one term with the others held."""

    def __init__(self, cases: Sequence[Case]) -> None:
        self._cases = cases
        self.terms = terms_of(cases[0].predict)
        #: Difference of figures when requests are served by other workers.
        pairs = [(case.predict.placing().figures, case.predict(Correction()).figures) for case in cases]
        self.placing = root_mean_square(root_mean_square(differences(*pair).values()) for pair in pairs)

    def error(self, variables: Variables) -> float:
        """Root mean square over all cases."""
        correction = correction_of(variables)
        return root_mean_square(case.error(correction) for case in self._cases)

    def steps_error(self, variables: Variables) -> float | None:
        """Mean over the cases with known step times; None without any."""
        correction = correction_of(variables)
        errors = [error for case in self._cases if (error := case.steps_error(correction)) is not None]
        return float(np.mean(errors)) if errors else None

    def counted(self, variables: Variables, simulated: Variables) -> float:
        """``steps_error`` with luck, by the neighbours of another simulation; 0 without a case that has it."""
        corrections = correction_of(variables), correction_of(simulated)
        errors = (case.steps_error(*corrections, but_for_luck=False) for case in self._cases)
        return float(np.mean([error for error in errors if error is not None] or [0.0]))

    def left(self, variables: Variables, choice: int = 0) -> tuple[float, float]:
        """Remaining differences of the figures and of the weighted step times; all cases weigh the same."""
        correction = correction_of(variables)
        return (
            root_mean_square(case.error(correction, choice) for case in self._cases),
            _STEPS_WEIGHT
            * root_mean_square(case.steps_error(correction, choice=choice) or 0.0 for case in self._cases),
        )

    def distance(self, variables: Variables, choice: int = 0) -> float:
        """Remaining difference of both together."""
        return math.hypot(*self.left(variables, choice))

    def luck(self, variables: Variables) -> float:
        """Root mean square difference of figures when other prompts lose hits, or other workers serve requests."""
        correction = correction_of(variables)
        pairs = [(case.predict(correction, 1).figures, case.predict(correction).figures) for case in self._cases]
        hits = root_mean_square(root_mean_square(differences(*pair).values()) for pair in pairs)
        return math.hypot(hits, self.placing)

    def cost(self, variables: Variables) -> float:
        """Squared distance plus the penalty on corrections."""
        return self.distance(variables) ** 2 + _PENALTY * math.fsum(x * x for x in variables.values())

    def residuals(self, variables: Variables) -> np.ndarray:
        """Differences of all cases, each with the same weight, and the penalty terms of the corrections."""
        correction = correction_of(variables)
        by_case = [np.array(list(case.differences(correction).values())) for case in self._cases]
        scaled = [values / math.sqrt(len(values) * len(by_case)) for values in by_case]
        steps = [
            _STEPS_WEIGHT * (case.steps_error(correction) or 0.0) / math.sqrt(len(by_case)) for case in self._cases
        ]
        return np.concatenate([*scaled, np.array(steps), math.sqrt(_PENALTY) * np.array(list(variables.values()))])

    def with_term(self, others: Variables, term: Term) -> dict[str, float]:
        """``others`` with the best value of ``term`` added."""
        return {**others, term.name: self._along(others, term, term.low, term.high)}

    def with_lost_hits(self) -> list[Variables]:
        """The best point of each factor on step times combined with lost hits; none without known step times.

        Both lengthen queues, so the best value of one alone is far from its value with the other, and no search from
        there finds both. Step times give the factor at each share of lost hits.
        """
        lost = next(term for term in self.terms if term.name == "hits_lost")
        best: list[Variables] = []
        for term in (term for term in self.terms if term.name in FACTORS):
            guesses = {
                share: self._guess({lost.name: share}, term)
                for share in np.linspace(lost.low, lost.high, _SHARES + 1)[1:].tolist()
            }
            points = [{lost.name: share, term.name: at} for share, at in guesses.items() if at is not None]
            best += sorted(points, key=self.cost)[:1]
        return best

    def is_explained(self, variables: Variables) -> bool:
        """Whether luck explains the remaining differences of figures and step times."""
        return (
            self.error(variables) <= max(EXPLAINED, self.placing)
            and (self.steps_error(variables) or 0.0) <= STEPS_EXPLAINED
        )

    def is_worth(self, fewer: Variables, more: Variables) -> bool:
        """Whether the terms that ``more`` adds to ``fewer`` remove a fair part of the distance, and more than luck.

        Alternatively they remove much of the figures' difference without worsening the step times. Either has to hold
        for every choice of prompts that lose their hits: near saturation queues depend on each of them, so a fit can
        pick the few prompts whose loss happens to reproduce the measured queue.
        """
        least = max(WORTHWHILE, self.luck(more))
        for choice in range(CHOICES):
            before, after = self.left(fewer, choice), self.left(more, choice)
            distance = math.hypot(*before)
            closer = distance - math.hypot(*after) >= max(least, WORTHWHILE_SHARE * distance)
            figures = before[0] - after[0] >= max(least, WORTHWHILE_ALONE * before[0]) and before[0] > EXPLAINED
            if not closer and not (figures and after[1] <= before[1] + STEPS_SAME):
                return False
        return True

    def without_idle(self, variables: Variables) -> dict[str, float]:
        """``variables`` without the terms that the others, after their refit, make unnecessary."""
        needed = dict(variables)
        for name in reversed(variables):
            fewer = {term_name: x for term_name, x in needed.items() if term_name != name}
            if fewer and not self.is_worth(fewer, needed):
                needed = fewer
        return needed

    def local_search(self, variables: Variables) -> dict[str, float]:
        """Fit several terms together: one term's effect may offset another's.

        Simulations are discontinuous, so a fit stays near its start. It starts from the best of scattered points, first
        far apart with long steps, then close with short ones. Step times from neighbours are continuous, so that with
        them the start is already close.
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
            fitted_factors = [self._fit_factors(best)] if smooth else []
            points = sorted([best, *fitted_factors, *self._points(names, np.clip(scatter, low, high))], key=self.cost)[
                :starts
            ]
            best = min([*points, *(self._fit(point, low, high, step) for point in points)], key=self.cost)
        return best

    def _fit_factors(self, variables: Variables) -> dict[str, float]:
        """``variables`` with all factors on step times fitted together to the step times among neighbours."""
        from scipy.optimize import minimize

        names = [name for name in variables if name in FACTORS]
        if not names:
            return dict(variables)
        point = dict(variables)
        for _ in range(_ROUNDS):

            def error(x: np.ndarray, simulated: Variables = point) -> float:
                inside = np.clip(x, -OCTAVES, OCTAVES)
                return self.counted({**variables, **dict(zip(names, inside.tolist(), strict=True))}, simulated)

            start = np.array([point[name] for name in names])
            fitted = minimize(
                error,
                start,
                method="Nelder-Mead",
                options={"maxfev": _FACTOR_EVALUATIONS, "xatol": 2e-3, "fatol": 1e-4},
            )
            inside = np.clip(fitted.x, -OCTAVES, OCTAVES)
            point = {**variables, **dict(zip(names, inside.tolist(), strict=True))}
        return point

    def _points(self, names: Sequence[str], rows: np.ndarray) -> list[dict[str, float]]:
        return [dict(zip(names, row, strict=True)) for row in rows.tolist()]

    def _fit(self, variables: Variables, low: np.ndarray, high: np.ndarray, step: float) -> dict[str, float]:
        """Least squares from one point; the variables are shifted because steps are shares of them."""
        from scipy.optimize import least_squares

        names = list(variables)

        def residuals(shifted: np.ndarray) -> np.ndarray:
            return self.residuals(self._points(names, shifted[None] - _SHIFT)[0])

        inside = 1e-3 * (high - low)
        start = np.clip(np.array(list(variables.values())), low + inside, high - inside)
        box = (low + _SHIFT, high + _SHIFT)
        result = least_squares(residuals, start + _SHIFT, bounds=box, diff_step=step, xtol=1e-3, max_nfev=10)
        return self._points(names, result.x[None] - _SHIFT)[0]

    def _along(self, others: Variables, term: Term, low: float, high: float) -> float:
        """The best of a grid, then a golden section between its neighbours.

        The cost is discontinuous, and may have two minima. Near saturation the minimum is narrower than the grid; step
        times among neighbours then locate it.
        """
        from scipy.optimize import minimize_scalar

        def cost(x: float) -> float:
            return self.cost({**others, term.name: float(x)})

        guess = self._guess(others, term)
        near = [] if guess is None else [guess + _NEAR * k for k in range(-_AROUND, _AROUND + 1)]
        grid = sorted({*np.linspace(low, high, 9).tolist(), *(min(max(x, low), high) for x in near)})
        at = int(np.argmin([cost(x) for x in grid]))
        around = (grid[max(at - 1, 0)], grid[min(at + 1, len(grid) - 1)])
        result = minimize_scalar(cost, bounds=around, method="bounded", options={"xatol": 3e-3, "maxiter": 14})
        best = float(result.x) if result.fun <= cost(grid[at]) else grid[at]
        return min(best, 0.0, key=cost) if low <= 0.0 <= high else best

    def _guess(self, others: Variables, term: Term) -> float | None:
        """The value of ``term`` that step times among neighbours fit best; None where they do not depend on it.

        The first round takes neighbours from the simulation without the term, later ones from that with it.
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
