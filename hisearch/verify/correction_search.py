"""The search for corrections with the least distance: along one term, and over several together."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from hisearch.verify.cases import Case, differences, root_mean_square
from hisearch.verify.neighbours import FACTORS
from hisearch.verify.prediction import CHOICES, POOL, Correction
from hisearch.verify.terms import Term, Variables, correction_of, terms_of

#: One more term has to remove at least this share of the remaining difference, and this much in absolute terms.
WORTHWHILE_SHARE = 0.2
WORTHWHILE = 0.01
#: Or this share of the figures' difference alone, if step times among neighbours worsen by at most this.
WORTHWHILE_ALONE, STEPS_SAME = 0.5, 1e-3
#: A remaining difference below this is explained: simulations of equal requests at other times differ as much.
EXPLAINED = 0.03
#: The same for step times among neighbours: a step's end is only known to a token.
STEPS_EXPLAINED = 0.04
#: Reach of a fit's starting points (octaves, for factors), scattered points, and how many of the best are started
#: from: near where step times are known, far elsewhere.
_NEAR_START, _FAR_START = (0.15, 8, 2), (0.8, 32, 4)
#: Precision of a fit, and its evaluations for each variable.
_TOLERANCE, _EVALUATIONS = 2e-3, 20
#: First steps of factors that are fitted to step times, octaves.
_FIRST_STEP = 0.1
#: Values of a term that are simulated across its range.
_GRID = 9
#: Grid points and rounds of the guess of a term from step times; then the step (octaves) and number of simulations
#: tried on either side of it.
_GUESSES, _ROUNDS, _NEAR, _AROUND = 61, 2, 0.0145, 6
#: Shares of lost hits at which step times give a factor.
_SHARES = 8
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

    def with_term(self, others: Variables, term: Term) -> dict[str, float]:
        """``others`` with the best value of ``term`` added."""
        return {**others, term.name: self._along(others, term)}

    def with_lost_hits(self) -> list[Variables]:
        """The best point of each factor on step times combined with lost hits; none without known step times.

        Both lengthen queues, so the best value of one alone is far from its value with the other, and no search from
        there finds both. Step times give the factor at each share of lost hits.
        """
        lost = next((term for term in self.terms if term.name == "hits_lost"), None)
        if lost is None:
            return []
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

        Simulations are discontinuous, so a fit stays near its start: the best of scattered points. Step times from
        neighbours are continuous, and locate the start.
        """
        from scipy.stats import qmc

        smooth = self.steps_error(variables) is not None
        reach, scattered, starts = _NEAR_START if smooth else _FAR_START
        low, high = self._bounds(variables)
        scatter = reach * (2.0 * qmc.Sobol(len(variables), seed=0).random(scattered) - 1.0)
        rows = np.clip(np.array(list(variables.values())) + scatter, low, high).tolist()
        points = [dict(variables), *(dict(zip(variables, row, strict=True)) for row in rows)]
        if smooth:
            points.append(self._fit_factors(variables))
        best = sorted(points, key=self.cost)[:starts]
        return min([*best, *(self._minimised(self.cost, point, reach / 4) for point in best)], key=self.cost)

    def _fit_factors(self, variables: Variables) -> dict[str, float]:
        """``variables`` with all factors on step times fitted together to the step times among neighbours."""
        point = dict(variables)
        for _ in range(_ROUNDS):
            factors = {name: x for name, x in point.items() if name in FACTORS}
            if not factors:
                return point

            def error(tried: Variables, simulated: Variables = point) -> float:
                return self.counted({**variables, **tried}, simulated)

            point = {**variables, **self._minimised(error, factors, _FIRST_STEP)}
        return point

    def _bounds(self, variables: Variables) -> tuple[list[float], list[float]]:
        """Lowest and highest value of each variable."""
        terms = {term.name: term for term in self.terms}
        return [terms[name].low for name in variables], [terms[name].high for name in variables]

    def _minimised(self, cost: Callable[[Variables], float], start: Variables, reach: float) -> dict[str, float]:
        """The lowest ``cost`` near ``start``, by linear approximations without derivatives; ``reach``: first steps."""
        from scipy.optimize import minimize

        low, high = self._bounds(start)

        def point(x: np.ndarray) -> dict[str, float]:
            return dict(zip(start, np.clip(x, low, high).tolist(), strict=True))

        options = {"rhobeg": reach, "tol": _TOLERANCE, "maxiter": _EVALUATIONS * len(start)}
        first = np.array(list(start.values()))
        return point(minimize(lambda x: cost(point(x)), first, method="COBYLA", options=options).x)

    def _along(self, others: Variables, term: Term) -> float:
        """The best of a grid, then of the values between its neighbours.

        The cost is discontinuous, and may have two minima. Near saturation the minimum is narrower than the grid; step
        times among neighbours then locate it.
        """
        from scipy.optimize import minimize_scalar

        def cost(x: float) -> float:
            return self.cost({**others, term.name: float(x)})

        guess = self._guess(others, term)
        near = [] if guess is None else [guess + _NEAR * k for k in range(-_AROUND, _AROUND + 1)]
        grid = np.unique([*np.linspace(term.low, term.high, _GRID), *np.clip(near, term.low, term.high)]).tolist()
        at = int(np.argmin([cost(x) for x in grid]))
        around = (grid[max(at - 1, 0)], grid[min(at + 1, len(grid) - 1)])
        result = minimize_scalar(cost, bounds=around, method="bounded", options={"xatol": 3e-3, "maxiter": 14})
        return min(float(result.x), float(grid[at]), 0.0, key=cost)

    def _guess(self, others: Variables, term: Term) -> float | None:
        """The value of ``term`` that step times among neighbours fit best; None where they do not depend on it.

        The first round takes neighbours from the simulation without the term, later ones from that with it.
        """
        if not (term.name in FACTORS or term.name.startswith(POOL)) or self.steps_error(others) is None:
            return None
        grid = np.linspace(term.low, term.high, _GUESSES).tolist()
        point = others
        for _ in range(_ROUNDS):
            point = min(({**others, term.name: x} for x in grid), key=partial(self.counted, simulated=point))
        return point[term.name]
