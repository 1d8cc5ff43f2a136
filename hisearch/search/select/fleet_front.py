"""The front of deployments of several models, from the models' own fronts.

Models share no workers, router or admission. A deployment of several is one of each, and one model's figures do not
depend on the others' deployments. Every combined figure is a sum, a weighted mean with fixed weights, a largest or a
smallest of the models' figures: it never improves if one of them worsens. Replacing one model's deployment by one at
least as good on every axis is therefore at least as good overall:

    every point of the combined front is a combination of points of the models' fronts,

if their axes are all the criteria of the combination, including its limits. The combinations are made one model after
the other. Those already dominated are dropped on the way, by the same argument.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hisearch.search.model.trial import Trial, is_maximised
from hisearch.specs.studies.fleet_study import LEAST, PER_TOKEN, SUMMED
from hisearch.specs.studies.study import PRICE, LimitSpec

#: Replaces values that are not finite in dominance checks.
_LARGEST = 1e300


@dataclass(frozen=True)
class Combination:
    """A deployment of each model. trials: one of each, in the order of the models. figures: combined, by axis."""

    trials: tuple[Trial, ...]
    figures: Mapping[str, float]

    def within(self, limits: Mapping[str, LimitSpec]) -> bool:
        """True if the combination keeps those of ``limits`` that are on its axes."""
        return all(
            self.figures[name] >= limit.bound if is_maximised(name) else self.figures[name] <= limit.bound
            for name, limit in limits.items()
            if name in self.figures
        )


def figure_of(name: str, values: Sequence[float], tokens: Sequence[float]) -> float:
    """A combined figure from the models' figures.

    values: of each model. tokens: that each model serves, prompts and outputs.
    """
    if name in SUMMED:
        return math.fsum(values)
    if name in PER_TOKEN:
        return math.fsum(value * weight for value, weight in zip(values, tokens, strict=True)) / math.fsum(tokens)
    if any(math.isnan(value) for value in values):  # undefined if a model's requests all have a single output token
        values = [value for value in values if not math.isnan(value)] or [math.nan]
    return min(values) if name in LEAST else max(values)


def combine(fronts: Sequence[Sequence[Trial]], axes: Sequence[str], tokens: Sequence[float]) -> tuple[Combination, ...]:
    """The combined front, ascending in its first axis; empty if a model has no front.

    fronts: of each model, over ``axes``: objectives, and figures limited for all models together. tokens: as in
    ``figure_of``.
    """
    import moocore

    partial: list[tuple[Trial, ...]] = [()]
    for count, front in enumerate(fronts, start=1):
        partial = [(*trials, trial) for trials in partial for trial in front]
        if not partial:
            return ()
        points = np.array([[_minimised(name, trials, tokens[:count]) for name in axes] for trials in partial])
        partial = [partial[k] for k in np.flatnonzero(moocore.is_nondominated(points)).tolist()]
    complete = [Combination(trials, {name: _value(name, trials, tokens) for name in axes}) for trials in partial]
    return tuple(
        sorted(
            complete,
            key=lambda combination: (_signed(axes[0], combination.figures[axes[0]]), combination.figures[PRICE]),
        )
    )


def cheapest(combinations: Sequence[Combination], limits: Mapping[str, LimitSpec]) -> Combination | None:
    """The cheapest that keeps the limits; of equally cheap ones the one with the widest tightest margin."""
    kept = [combination for combination in combinations if combination.within(limits)]
    return min(
        kept,
        key=lambda combination: (combination.figures[PRICE], -min(t.worst_margin for t in combination.trials)),
        default=None,
    )


def _value(name: str, trials: Sequence[Trial], tokens: Sequence[float]) -> float:
    return figure_of(name, [trial.objective(name) for trial in trials], tokens)


def _signed(name: str, value: float) -> float:
    return -value if is_maximised(name) else value


def _minimised(name: str, trials: Sequence[Trial], tokens: Sequence[float]) -> float:
    """A finite value to minimise: infinite is worse than anything, undefined is no drawback."""
    value = _signed(name, _value(name, trials, tokens))
    return -_LARGEST if math.isnan(value) else float(np.clip(value, -_LARGEST, _LARGEST))
