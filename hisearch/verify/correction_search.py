"""The search for corrections that leave the least distance: along one term, and of several together."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hisearch.verify.cases import Case, differences, root_mean_square
from hisearch.verify.neighbours import FACTORS
from hisearch.verify.prediction import CHOICES, POOL, Correction
from hisearch.verify.terms import OCTAVES, Term, Variables, correction_of, terms_of

#: One more term has to take away this share of the difference that is left, and this much of it.
WORTHWHILE_SHARE = 0.2
WORTHWHILE = 0.01
#: Or this share of the figures' difference alone, where step times among neighbours come no farther than by this.
WORTHWHILE_ALONE, STEPS_SAME = 0.5, 1e-3
#: What is left below this is explained: simulations of equal requests at other moments differ as much.
EXPLAINED = 0.03
#: So are step times among neighbours below this: a step's end is known to a token alone.
STEPS_EXPLAINED = 0.04
#: Variables of a fit are shifted by so much that they are never near 0, as its steps are shares of them.
_SHIFT = 4.0
#: How far a fit's starting points are scattered (octaves, for factors), and its steps; one after the other.
_STAGES = ((0.8, 0.03), (0.15, 0.01))
#: So many are scattered, and the best of them are starting points.
_SCATTER, _STARTS = 32, 4
#: A term's place that step times say is looked for on a grid of so many points, in so many rounds; around it, in steps
#: of a hundredth, so many of them either way, simulations are tried.
_GUESSES, _ROUNDS, _NEAR, _AROUND = 61, 2, 0.0145, 6
#: Shares of lost hits at which step times are asked for their factor.
_SHARES = 8
#: Several terms together are looked for with so many trials a round.
_TOLD = 120
#: Weight of the difference of step times beside the figures', in a distance.
_STEPS_WEIGHT = 2.0
#: Weight of squared corrections beside squared differences.
_PENALTY = 1e-4


class CorrectionSearch:
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

    def local_search(self, variables: Variables) -> dict[str, float]:
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
