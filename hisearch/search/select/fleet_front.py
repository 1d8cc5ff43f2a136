"""The front of deployments of several models, from the fronts of each model's.

Models share no workers, no router and no admission, so that a deployment of several is one of each, and what one
model's requests get does not depend on the others' deployments. Every figure of the whole is a sum, a weighted mean
with fixed weights, a largest or a smallest of the models' figures: it never gets better where one of them gets worse.
So to exchange one model's deployment for one that is at least as good on every axis is at least as good for the whole:

    every point of the front of the whole is a combination of points of the models' fronts,

if their axes are all that the whole is judged by, its limits among them. The combinations are made one model after the
other, and those that are dominated already are dropped on the way, which the same argument allows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hisearch.search.model.trial import Trial, is_maximised
from hisearch.specs.studies.fleet_study import LEAST, PER_TOKEN, PRICE, SUMMED
from hisearch.specs.studies.study import LimitSpec

#: Stands for what is not finite where dominance is looked at.
_LARGEST = 1e300


@dataclass(frozen=True)
class Combination:
    """A deployment of each model. trials: one of each, in the order of the models. figures: of the whole, by axis."""

    trials: tuple[Trial, ...]
    figures: Mapping[str, float]

    def within(self, limits: Mapping[str, LimitSpec]) -> bool:
        """Whether the whole keeps to those of ``limits`` that are on its axes."""
        return all(
            self.figures[name] >= limit.bound if is_maximised(name) else self.figures[name] <= limit.bound
            for name, limit in limits.items()
            if name in self.figures
        )


def figure_of(name: str, values: Sequence[float], tokens: Sequence[float]) -> float:
    """A figure of the whole from those of its models.

    Args:
        name: of the objective.
        values: of each model.
        tokens: that each model is asked for, prompts and outputs.
    """
    if name in SUMMED:
        return math.fsum(values)
    if name in PER_TOKEN:
        return math.fsum(value * weight for value, weight in zip(values, tokens, strict=True)) / math.fsum(tokens)
    if any(math.isnan(value) for value in values):  # undefined of a model whose requests have one output token each
        values = [value for value in values if not math.isnan(value)] or [math.nan]
    return min(values) if name in LEAST else max(values)


def combine(fronts: Sequence[Sequence[Trial]], axes: Sequence[str], tokens: Sequence[float]) -> tuple[Combination, ...]:
    """The front of the whole, ascending in its first axis; empty where a model has none.

    Args:
        fronts: of each model, over ``axes``.
        axes: objectives, and what is limited for all models together.
        tokens: that each model is asked for.
    """
    import moocore

    found: list[tuple[Trial, ...]] = [()]
    for count, front in enumerate(fronts, start=1):
        found = [(*trials, trial) for trials in found for trial in front]
        if not found:
            return ()
        points = np.array([[_minimised(name, trials, tokens[:count]) for name in axes] for trials in found])
        found = [found[k] for k in np.flatnonzero(moocore.is_nondominated(points)).tolist()]
    whole = [Combination(trials, {name: _value(name, trials, tokens) for name in axes}) for trials in found]
    return tuple(sorted(whole, key=lambda one: (_signed(axes[0], one.figures[axes[0]]), one.figures[PRICE])))


def cheapest(found: Sequence[Combination], limits: Mapping[str, LimitSpec]) -> Combination | None:
    """The cheapest that keeps to the limits; of equally cheap ones that with the widest tightest margin."""
    kept = [one for one in found if one.within(limits)]
    return min(kept, key=lambda one: (one.figures[PRICE], -min(t.worst_margin for t in one.trials)), default=None)


def _value(name: str, trials: Sequence[Trial], tokens: Sequence[float]) -> float:
    return figure_of(name, [trial.objective(name) for trial in trials], tokens)


def _signed(name: str, value: float) -> float:
    return -value if is_maximised(name) else value


def _minimised(name: str, trials: Sequence[Trial], tokens: Sequence[float]) -> float:
    """To be minimised, and finite: what never ends is worse than anything, what is undefined is no drawback."""
    value = _signed(name, _value(name, trials, tokens))
    return -_LARGEST if math.isnan(value) else float(np.clip(value, -_LARGEST, _LARGEST))
