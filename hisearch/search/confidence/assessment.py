"""How likely deployments are to meet the SLO: repeated simulation under draws of uncertain inputs.

Every deployment gets the same draws (``confidence.uncertainty``), numbered from 0, so that two of them differ by design
and not by luck. If a deployment cannot be simulated under a draw (its engine would run out of memory), it meets no
term. Results do not depend on the number of threads.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TypeVar

import numpy as np

from hisearch.score.metrics import metric_of
from hisearch.score.stated import LATENCIES
from hisearch.score.terms import LimitCheck
from hisearch.search.confidence.uncertainty import Draw, Uncertainty
from hisearch.search.model.job import TRIAL_ERRORS, Evaluation
from hisearch.search.model.trial import Trial
from hisearch.search.records.journal import Journal
from hisearch.search.records.progress import Progress, SilentProgress
from hisearch.specs.deployments.deployment import DeploymentSpec

_T = TypeVar("_T")
_R = TypeVar("_R")

#: Simulates a deployment under a draw and scores it at the draw's prices. Pure; called from several threads at once.
Disturbed = Callable[[DeploymentSpec, Draw], Evaluation]

#: Simulates a deployment with step times scaled by regime, at a factor on the study's load. Pure, likewise.
WhatIf = Callable[[DeploymentSpec, Mapping[str, float], float], Evaluation]

#: Simulates a trial's deployment until a steady state shows; None where the study's trace is long enough to show one.
CarryingOn = Callable[[Trial], Callable[[], Evaluation] | None]

#: Draws between two checks of the clock, or of the number missed. Fixed, so that nothing depends on the workers.
BATCH = 8

#: Figures with an interval, if a deployment has them.
FIGURES = (
    *(f"{name}_{point}_s" for name in LATENCIES for point in ("mean", "p50", "p90", "p95", "p99")),
    "goodput_rps", "attainment", "throughput_rps", "output_tokens_per_s", "hit_rate", "utilisation", "usd_per_hour",
    "usd_per_million_tokens", "mean_w", "joules_per_token",
)  # fmt: skip


@dataclass(frozen=True)
class Assessment:
    """Results of a deployment under some draws.

    trial: its number. draws: how many; errors: how many of them could not be simulated. terms: probability that each
    term of the SLO holds, by label; all_terms: that all do; all_terms_range: confidence interval of that probability
    (Wilson). intervals, medians: by figure, over the simulated draws; figures that are undefined or infinite in one of
    them are left out.
    """

    trial: int
    draws: int
    level: float
    terms: Mapping[str, float]
    all_terms: float
    all_terms_range: tuple[float, float]
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    medians: Mapping[str, float] = field(default_factory=dict)
    errors: int = 0


class Assessor:
    """Simulates deployments in parallel under draws and under stated changes, and remembers the results.

    Every simulation is recorded in the journal, if there is one, as it ends, and looked up there. A killed run thus
    continues where it was. Simulations found there count as made, so that the run takes the same decisions (law L9).
    """

    def __init__(
        self,
        uncertainty: Uncertainty,
        evaluate: Disturbed,
        *,
        what_if: WhatIf | None = None,
        carrying_on: CarryingOn | None = None,
        workers: int = 1,
        journal: Journal | None = None,
        progress: Progress | None = None,
        seconds: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start without results; ``seconds`` count from now on.

        Args:
            uncertainty: the draws.
            evaluate: simulates under a draw.
            what_if: simulates under a stated change; only ``supposing`` needs it.
            carrying_on: of the study's load; without it, every trace is taken to be long enough.
            workers: threads.
            journal: where finished simulations are recorded and looked up.
            progress: listener to every simulation.
            seconds: time after which no new simulation begins.
            clock: seconds.
        """
        self.uncertainty = uncertainty
        self.workers = workers
        self.progress: Progress = progress if progress is not None else SilentProgress()
        self._evaluate, self._what_if, self._carrying_on = evaluate, what_if, carrying_on
        self._journal, self._seconds, self._clock = journal, seconds, clock
        self._started_at = clock()
        self._known: dict[tuple[str, int], Evaluation] = {}
        #: By digest. Two threads may simulate the same key at once, with the same result.
        self._finished: dict[str, Evaluation] = {}
        self._timed_out = threading.Event()

    def under(self, uncertainty: Uncertainty) -> Assessor:
        """An assessor for other draws, with the same clock and journal; its simulations are counted here as well."""
        assessor = copy.copy(self)
        assessor.uncertainty, assessor._known = uncertainty, {}
        return assessor

    @property
    def simulations(self) -> int:
        """Different simulations requested so far."""
        return len(self._finished)

    @property
    def out_of_time(self) -> bool:
        """True if no new simulation may begin; asked only where one is wanted."""
        if self._clock() - self._started_at >= self._seconds:
            self._timed_out.set()
        return self._timed_out.is_set()

    @property
    def timed_out(self) -> bool:
        """True if time kept a simulation from being made."""
        return self._timed_out.is_set()

    def evaluations(
        self,
        deployments: Sequence[DeploymentSpec],
        draws: Sequence[Sequence[int]],
        meanwhile: Callable[[], object] | None = None,
    ) -> None:
        """Simulate each deployment under its draws; a draw is made once for all deployments.

        meanwhile: called as well, in one of the threads.
        """
        keys = [deployment.model_dump_json() for deployment in deployments]
        by_number: dict[int, dict[str, DeploymentSpec]] = {}
        for key, deployment, numbers in zip(keys, deployments, draws, strict=True):
            for number in numbers:
                if (key, number) not in self._known:
                    by_number.setdefault(number, {})[key] = deployment
        works: list[Callable[[], object]] = [partial(self._know, *item) for item in by_number.items()]
        self.each(lambda work: work(), [meanwhile, *works] if meanwhile is not None else works)

    def known(self, deployment: DeploymentSpec, numbers: Iterable[int]) -> list[Evaluation]:
        """Evaluations of a deployment under those of the draws that were simulated."""
        key = deployment.model_dump_json()
        return [self._known[key, number] for number in numbers if (key, number) in self._known]

    def assess(self, trials: Sequence[Trial], draws: Sequence[int], level: float) -> list[Assessment]:
        """Simulate each trial's deployment under its first ``draws`` draws, and sum up.

        If time runs out, there are fewer draws, but at least ``BATCH``.
        """
        for start in range(0, max(draws, default=0), BATCH):
            if start and self.out_of_time:
                break
            numbers = [range(start, min(start + BATCH, count)) for count in draws]
            self.evaluations([trial.deployment for trial in trials], numbers)
        return [
            summed_up(trial.number, self.known(trial.deployment, range(count)), level)
            for trial, count in zip(trials, draws, strict=True)
            if count
        ]

    def supposing(self, deployment: DeploymentSpec, factors: Mapping[str, float], load: float = 1.0) -> Evaluation:
        """A deployment on the study's own trace, with step times scaled by regime, at a load.

        Safe from several threads at once.
        """
        if self._what_if is None:
            raise ValueError("this assessor was not told how to simulate a stated change")
        simulate = self._what_if
        key = _digest("what if", deployment.model_dump_json(), sorted(factors.items()), load)
        return self._recorded(key, lambda: simulate(deployment, factors, load))

    def holds_carried_on(self, trial: Trial) -> bool | None:
        """Whether a trial meets the SLO where the study's load is carried on to a steady state.

        None where the trace itself is long enough to show one.
        """
        simulate = self._carrying_on(trial) if self._carrying_on is not None else None
        if simulate is None:
            return None
        return self._recorded(_digest("carried on", trial.deployment.model_dump_json()), simulate).feasible

    def each(self, make: Callable[[_T], _R], items: Iterable[_T]) -> list[_R]:
        """``make`` of every item, in order, in ``workers`` threads."""
        from joblib import Parallel, delayed

        listed = list(items)
        pool = Parallel(n_jobs=self.workers if len(listed) > 1 else 1, backend="threading", return_as="generator")
        results = []
        for result in pool(delayed(make)(item) for item in listed):
            results.append(result)
            self.progress.advanced(1)
        return results

    def _know(self, number: int, deployments: Mapping[str, DeploymentSpec]) -> None:
        """Evaluate each deployment under the draw, which is made for the first deployment missing in the journal."""
        draw = cache(lambda: self.uncertainty.draw(number))
        for key, deployment in deployments.items():
            self._known[key, number] = self._recorded(
                _digest("draw", self.uncertainty.digest, number, key),
                lambda deployment=deployment: self._evaluate(deployment, draw()),  # type: ignore[misc]
            )

    def _recorded(self, key: str, simulate: Callable[[], Evaluation]) -> Evaluation:
        """The recorded evaluation, else the result of ``simulate``; a failed simulation becomes an error."""
        recorded = self._finished.get(key)
        if recorded is None and self._journal is not None:
            recorded = self._journal.get(key)
        if recorded is not None:
            self._finished[key] = recorded
            return recorded
        try:
            evaluation = simulate()
        except TRIAL_ERRORS as error:
            evaluation = Evaluation.failed(error)
        if self._journal is not None and evaluation.lasts:
            self._journal.record(key, evaluation)
        self._finished[key] = evaluation
        return evaluation


def _digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def summed_up(number: int, evaluations: Sequence[Evaluation], level: float) -> Assessment:
    """Probabilities and intervals of a trial from its evaluations under draws, at least one."""
    count = len(evaluations)
    sound = [evaluation for evaluation in evaluations if not evaluation.error]
    labels = dict.fromkeys(check.label for evaluation in sound for check in evaluation.slo)
    terms = {
        label: sum(check.holds for evaluation in sound for check in evaluation.slo if check.label == label) / count
        for label in labels
    }
    held = sum(evaluation.feasible for evaluation in sound)
    values = {
        name: np.array([evaluation.metrics[name] for evaluation in sound])
        for name in FIGURES
        if sound and all(math.isfinite(evaluation.metrics.get(name, math.nan)) for evaluation in sound)
    }
    return Assessment(
        number,
        count,
        level,
        terms,
        held / count,
        wilson(held, count, level),
        {name: interval(column, level) for name, column in values.items()},
        {name: float(np.median(column)) for name, column in values.items()},
        count - len(sound),
    )


def interval(values: np.ndarray, level: float) -> tuple[float, float]:
    """Prediction interval of one more value of the same law with probability ``level``, from the order of ``values``.

    One more value exceeds the i-th smallest of n with probability 1 - i / (n + 1), whatever the law. Nothing is known
    beyond the smallest and the largest, so few values give an interval that is too short.
    """
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2], method="weibull")
    return float(low), float(high)


def wilson(held: int, count: int, level: float) -> tuple[float, float]:
    """Wilson's confidence interval of the probability of an event that happened ``held`` times in ``count``."""
    from scipy.stats import binomtest

    bounds = binomtest(held, count).proportion_ci(level, method="wilson")
    return float(bounds.low), float(bounds.high)


def at_prices(evaluation: Evaluation, nominal_usd: float, drawn_usd: float) -> Evaluation:
    """The evaluation with the deployment's price moved from one to another; electricity stays as it is.

    Limits on the cost are checked against the new price.
    """
    metrics = dict(evaluation.metrics)
    before = metrics["usd_per_hour"]
    after = before + drawn_usd - nominal_usd
    metrics["usd_per_hour"] = after
    if before > 0:
        for name in ("usd_per_million_tokens", "usd_per_agent_hour"):
            if name in metrics:
                metrics[name] *= after / before
    checks = tuple(
        replace(check, value=metrics.get(metric_of(check.label), check.value))
        if isinstance(check, LimitCheck)
        else check
        for check in evaluation.slo
    )
    return replace(evaluation, metrics=metrics, slo=checks, feasible=all(check.holds for check in checks))


def cheapest_shares(by_trial: Sequence[Sequence[Evaluation]]) -> list[float]:
    """Share of draws in which each trial is the cheapest that meets the SLO; the earlier one at equal prices.

    by_trial: evaluations of each under the same draws; where there are fewer of some, the first of them count. Empty
    without draws.
    """
    wins, count = [0] * len(by_trial), 0
    for evaluations in zip(*by_trial, strict=False):
        count += 1
        prices = [e.metrics["usd_per_hour"] if e.feasible else math.inf for e in evaluations]
        if min(prices) < math.inf:
            wins[prices.index(min(prices))] += 1
    return [won / count for won in wins] if count else []
