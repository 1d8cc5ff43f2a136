"""How likely deployments are to meet the SLO: simulated again under draws of what may be otherwise.

Every deployment meets the same draws (``confidence.uncertainty``), numbered from 0, so that two of them differ by
what they are and not by luck. A draw that a deployment cannot be simulated under (its engine would run out of memory)
meets no term. Results do not depend on the number of threads.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TypeVar

import numpy as np

from hisearch.score.metrics import metric_of
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

#: Draws between two looks at the clock, or at how many were missed. Fixed, so that nothing depends on the workers.
BATCH = 8

#: Figures that get an interval, where a deployment has them.
FIGURES = (
    *(f"{name}_{point}_s" for name in ("ttft", "tpot", "itl", "e2e") for point in ("mean", "p50", "p90", "p95", "p99")),
    "goodput_rps", "attainment", "throughput_rps", "output_tokens_per_s", "hit_rate", "utilisation", "usd_per_hour",
    "usd_per_million_tokens", "mean_w", "joules_per_token",
)  # fmt: skip


@dataclass(frozen=True)
class Assessment:
    """What a deployment came to under some draws.

    trial: its number. draws: how many; errors: of them could not be simulated. terms: probability that each term of the
    SLO holds, by label; all_terms: that all do; all_terms_range: where that probability lies, as far as so many draws
    tell (Wilson). intervals, medians: by figure, of the draws that were simulated; figures that are undefined or
    infinite in one of them are left out.
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
    """Simulates deployments under draws, and under stated changes, side by side, and remembers what came of it.

    Every simulation is recorded in a journal as it ends, where there is one, and looked up there: a run that was killed
    goes on where it was, and counts what it finds as simulated, so that it takes the same decisions (law L9).
    """

    def __init__(
        self,
        uncertainty: Uncertainty,
        evaluate: Disturbed,
        *,
        what_if: WhatIf | None = None,
        workers: int = 1,
        journal: Journal | None = None,
        progress: Progress | None = None,
        seconds: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start with nothing known; ``seconds`` count from here.

        Args:
            uncertainty: the draws.
            evaluate: simulates under a draw.
            what_if: simulates under a stated change; needed by ``supposing`` alone.
            workers: threads.
            journal: where finished simulations are recorded and looked up.
            progress: who is told of every simulation.
            seconds: after so many no new simulation is begun.
            clock: seconds.
        """
        self.uncertainty = uncertainty
        self.workers = workers
        self.progress: Progress = progress if progress is not None else SilentProgress()
        self._evaluate, self._what_if = evaluate, what_if
        self._journal, self._seconds, self._clock = journal, seconds, clock
        self._started_at = clock()
        self._known: dict[tuple[str, int], Evaluation] = {}
        #: By digest. Two threads may ask for the same at once and both simulate it, which gives the same.
        self._finished: dict[str, Evaluation] = {}

    def under(self, uncertainty: Uncertainty) -> Assessor:
        """One for other draws, with the same clock and journal; its simulations are counted here as well."""
        other = copy.copy(self)
        other.uncertainty, other._known = uncertainty, {}
        return other

    @property
    def simulations(self) -> int:
        """Different simulations that were asked for so far."""
        return len(self._finished)

    @property
    def out_of_time(self) -> bool:
        """Whether no new simulation may begin."""
        return self._clock() - self._started_at >= self._seconds

    def evaluations(self, deployments: Sequence[DeploymentSpec], draws: Sequence[Sequence[int]]) -> None:
        """Simulate each deployment under its draws; a draw is made once for all that want it."""
        keys = [deployment.model_dump_json() for deployment in deployments]
        wanted: dict[int, dict[str, DeploymentSpec]] = {}
        for key, deployment, numbers in zip(keys, deployments, draws, strict=True):
            for number in numbers:
                if (key, number) not in self._known:
                    wanted.setdefault(number, {})[key] = deployment
        for number, found in zip(wanted, self.each(self._under, wanted.items()), strict=True):
            self._known.update({(key, number): evaluation for key, evaluation in found.items()})

    def known(self, deployment: DeploymentSpec, numbers: Iterable[int]) -> list[Evaluation]:
        """What came of a deployment under those of the draws that it was simulated under."""
        key = deployment.model_dump_json()
        return [self._known[key, number] for number in numbers if (key, number) in self._known]

    def assess(self, trials: Sequence[Trial], draws: Sequence[int], level: float) -> list[Assessment]:
        """Simulate each trial's deployment under its first so many draws, and sum up.

        Where time runs out, they are fewer, but at least ``BATCH``.
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

    def each(self, make: Callable[[_T], _R], asked: Iterable[_T]) -> list[_R]:
        """``make`` of every item, in order, in ``workers`` threads."""
        from joblib import Parallel, delayed

        items = list(asked)
        pool = Parallel(n_jobs=self.workers if len(items) > 1 else 1, backend="threading", return_as="generator")
        found = []
        for result in pool(delayed(make)(item) for item in items):
            found.append(result)
            self.progress.advanced(1)
        return found

    def _under(self, asked: tuple[int, Mapping[str, DeploymentSpec]]) -> dict[str, Evaluation]:
        """Each deployment under the draw; the draw is made when the first of them is not in the journal."""
        number, deployments = asked
        draw = cache(lambda: self.uncertainty.draw(number))
        return {
            key: self._recorded(
                _digest("draw", self.uncertainty.digest, number, key),
                lambda deployment=deployment: self._evaluate(deployment, draw()),  # type: ignore[misc]
            )
            for key, deployment in deployments.items()
        }

    def _recorded(self, key: str, simulate: Callable[[], Evaluation]) -> Evaluation:
        """What the journal knows, else what ``simulate`` finds; what cannot be simulated becomes an error."""
        found = self._finished.get(key)
        if found is None and self._journal is not None:
            found = self._journal.get(key)
        if found is not None:
            self._finished[key] = found
            return found
        try:
            evaluation = simulate()
        except TRIAL_ERRORS as error:
            evaluation = Evaluation(error=f"{type(error).__name__}: {error}")
        # A want of this machine's memory depends on what else ran: it is no fact about the deployment.
        if self._journal is not None and not evaluation.error.startswith(MemoryError.__name__):
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
        label: sum(check.holds for one in sound for check in one.slo if check.label == label) / count
        for label in labels
    }
    held = sum(evaluation.feasible for evaluation in sound)
    values = {
        name: np.array([one.metrics[name] for one in sound])
        for name in FIGURES
        if sound and all(math.isfinite(one.metrics.get(name, math.nan)) for one in sound)
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
    """Where one more value of the same law lies with probability ``level``, from the order of ``values``.

    The i-th smallest of n values is exceeded by one more with probability 1 - i / (n + 1), whatever the law; beyond
    the smallest and the largest nothing is said, so that few values give an interval that is too short.
    """
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2], method="weibull")
    return float(low), float(high)


def wilson(held: int, count: int, level: float) -> tuple[float, float]:
    """Where the probability of an event lies that happened ``held`` times in ``count`` (Wilson's interval)."""
    from scipy.stats import binomtest

    found = binomtest(held, count).proportion_ci(level, method="wilson")
    return float(found.low), float(found.high)


def at_prices(evaluation: Evaluation, nominal_usd: float, drawn_usd: float) -> Evaluation:
    """The evaluation with the deployment's price moved from one to another; electricity stays as it is.

    Limits on what it costs are held against the new price.
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
        replace(check, value=metrics[metric_of(check.label)]) if isinstance(check, LimitCheck) else check
        for check in evaluation.slo
    )
    return replace(evaluation, metrics=metrics, slo=checks, feasible=all(check.holds for check in checks))
