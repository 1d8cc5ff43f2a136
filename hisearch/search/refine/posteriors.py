"""Posteriors of deployments that were not simulated: a Gaussian process for each relevant figure.

The figures are the objectives except the price, which is known, and the values of the SLO's terms. Each is modelled as
the logarithm of its ratio to a reference. Beyond e times the reference the logarithm is taken again, so that a queue's
thousand seconds do not mask the tenths that decide.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.score.terms import Check, LimitCheck, TermCheck
from hisearch.search.model.trial import Trial, is_maximised
from hisearch.search.refine.gaussian import GaussianProcess, parameter_means
from hisearch.search.select.pareto import INFINITE_OBJECTIVE
from hisearch.specs.studies.study import PRICE

#: Iterations of the optimiser for a first fit, and for one that starts from an earlier fit.
_FIRST_STEPS, _NEXT_STEPS = 30, 8

#: Most trials that a process is fitted to: those nearest to the SLO.
_MOST_TRIALS = 400

#: Logarithms of ratios are kept within this.
_FARTHEST = 12.0


@dataclass(frozen=True)
class Figure:
    """A modelled figure: an objective, or the value that an SLO term or a limit bounds, by its label.

    reference: its unit. bound: largest value allowed, or infinite; negated smallest value if more is better. maximised:
    more is better; the loss is then the negated logarithm.
    """

    name: str
    reference: float
    bound: float = math.inf
    maximised: bool = False

    def loss(self, value: float) -> float:
        """The modelled figure: ascending as it gets worse."""
        ratio = value / self.reference
        if not math.isfinite(ratio):
            return _squashed(_FARTHEST)
        log = math.log(ratio) if ratio > 0 else -_FARTHEST
        log = -log if self.maximised else log
        return _squashed(min(max(log, -_FARTHEST), _FARTHEST))

    def minimised(self, losses: F8) -> F8:
        """The figure of losses, negated if more is better."""
        logs = np.where(losses > 1.0, np.exp(np.minimum(losses, 1.0 + _FARTHEST) - 1.0), losses)
        logs = np.clip(logs, -_FARTHEST, 50.0)
        return -self.reference * np.exp(-logs) if self.maximised else self.reference * np.exp(logs)


def _squashed(log: float) -> float:
    return log if log <= 1.0 else 1.0 + math.log(log)


def figures(trials: Sequence[Trial], objectives: Sequence[str]) -> dict[str, Figure]:
    """The figures of comparable ``trials``, by name; those undefined in any of them are left out.

    Bounded figures come first: an objective that is also a term is one figure.
    """
    by_name: dict[str, Figure] = {}
    for place, check in enumerate(trials[0].slo):
        if check.label == PRICE or any(math.isnan(_bounded_value(trial.slo[place], math.nan)) for trial in trials):
            continue
        if isinstance(check, TermCheck):
            by_name[check.label] = Figure(check.label, check.bound_s, check.bound_s)
        elif isinstance(check, LimitCheck):
            sign = -1.0 if check.at_least else 1.0
            by_name[check.label] = Figure(check.label, check.bound, sign * check.bound, check.at_least)
    for name in objectives:
        if name in by_name or name == PRICE:
            continue
        values_of = [trial.objective(name) for trial in trials]
        finite = [value for value in values_of if math.isfinite(value) and value > 0]
        if finite and not any(math.isnan(value) for value in values_of):
            by_name[name] = Figure(name, float(np.median(finite)), maximised=is_maximised(name))
    return by_name


def value_of(trial: Trial, figure: Figure) -> float:
    """A trial's simulated value of a figure."""
    for check in trial.slo:
        if check.label == figure.name:
            return _bounded_value(check, math.inf)
    return trial.objective(figure.name)


def _bounded_value(check: Check, undefined: float) -> float:
    """The value that a check bounds; ``undefined`` without a value, or if it is no time, money or energy."""
    if isinstance(check, TermCheck) and check.value_s is not None:
        return check.value_s
    return check.value if isinstance(check, LimitCheck) and not math.isnan(check.value) else undefined


class Posteriors:
    """Gaussian processes over deployments' inputs, refitted as trials come in."""

    def __init__(self, objectives: Sequence[str]) -> None:
        """Start without any fit."""
        self._objectives = tuple(objectives)
        self._processes: dict[str, GaussianProcess] = {}
        self._known: dict[str, dict[str, float]] = {}
        self._remembered: dict[str, dict[str, tuple[float, float]]] = {}
        self._errors: dict[str, list[float]] = {}
        self._most_usd = math.inf
        self.figures: dict[str, Figure] = {}

    def remember(self, deployment: str, predicted: dict[str, tuple[float, float]]) -> None:
        """Keep a prediction, (mean, standard deviation) by figure, to compare with the outcome."""
        self._remembered[deployment] = predicted

    def _compare(self, trials: Sequence[Trial]) -> None:
        """Compare the predictions of ``trials`` with their outcomes."""
        for trial in trials:
            for name, (mean, deviation) in self._remembered.pop(trial.deployment.model_dump_json(), {}).items():
                error = self.figures[name].loss(value_of(trial, self.figures[name])) - mean
                self._errors.setdefault(name, []).append((error / max(deviation, 1e-6)) ** 2)

    def _deviation_factor(self, name: str) -> float:
        """Factor by which a figure's deviations are too small, judged by its past predictions; at least 1.

        Uses the median of squared errors, 0.455 for correct deviations, so that a few surprises do not dominate.
        """
        errors = self._errors.get(name, [])
        return max(math.sqrt(float(np.median(errors)) / 0.455), 1.0) if len(errors) >= 8 else 1.0

    def fit(self, trials: Sequence[Trial], names: Sequence[str], inputs: F8) -> None:
        """Fit to comparable ``trials``, at least one, and their ``inputs``, shape (n, d), with ``names``.

        Parameters of earlier fits for inputs of the same names are the starting point.
        """
        if self.figures:
            self._compare(trials)
        order = sorted(range(len(trials)), key=lambda i: (max(trials[i].worst_violation, 0.0), -trials[i].number))
        kept = sorted(order[:_MOST_TRIALS])
        chosen, rows = [trials[i] for i in kept], inputs[kept]
        self.figures = figures(chosen, self._objectives)
        self._most_usd = next(
            (c.bound for c in chosen[0].slo if isinstance(c, LimitCheck) and c.label == PRICE), math.inf
        )
        self._processes = {}
        for name, figure in self.figures.items():
            losses = np.array([figure.loss(value_of(trial, figure)) for trial in chosen])
            known = self._known.get(name, {})
            steps = _NEXT_STEPS if known else _FIRST_STEPS
            process = GaussianProcess.fit(rows, losses, _start(names, known), steps)
            self._known[name] = known | dict(zip((*names, *_VARIANCES), process.theta.tolist(), strict=True))
            self._processes[name] = process

    def predict(self, inputs: F8) -> dict[str, tuple[F8, F8]]:
        """(mean, standard deviation) of every figure's loss, each of shape (m,), by name."""
        predictions = {}
        for name, process in self._processes.items():
            mean, deviation = process.predict(inputs)
            predictions[name] = (mean, self._deviation_factor(name) * deviation)
        return predictions

    def draw(self, inputs: F8, random: np.random.Generator, count: int) -> dict[str, F8]:
        """``count`` joint draws of every figure's loss, each of shape (m, count), by name."""
        return {
            name: process.draw(inputs, self._deviation_factor(name) * random.standard_normal((len(inputs), count)))
            for name, process in self._processes.items()
        }

    def outcomes(self, losses: dict[str, F8], usd: F8) -> tuple[F8, np.ndarray]:
        """Objectives and feasibility of losses.

        losses: of every figure, shape (m, s), by name. usd: prices, shape (m,).

        Returns:
            objectives, to be minimised, shape (m, s, k), and which draws meet the SLO, shape (m, s).
        """
        shape = (len(usd), next(iter(losses.values())).shape[1])
        feasible = np.broadcast_to((usd <= self._most_usd)[:, None], shape).copy()
        values: dict[str, F8] = {PRICE: np.broadcast_to(usd[:, None], shape)}
        for name, figure in self.figures.items():
            values[name] = figure.minimised(losses[name])
            feasible &= values[name] <= figure.bound
        unknown = np.full(shape, INFINITE_OBJECTIVE)
        return np.stack([values.get(name, unknown) for name in self._objectives], axis=2), feasible


#: Names of the last two parameters of a process.
_VARIANCES = ("signal", "noise")


def _start(names: Sequence[str], known: Mapping[str, float]) -> F8:
    """Starting parameters: known ones, else the priors' means."""
    means = parameter_means(len(names))
    return np.array([known.get(name, mean) for name, mean in zip((*names, *_VARIANCES), means, strict=True)])
