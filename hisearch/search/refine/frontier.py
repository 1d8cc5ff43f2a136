"""Widens the front: simulates the deployments one setting away from it that are expected to add most.

Stages 2 and 3 look for the cheapest deployments. This stage explores the range between those and the fastest.
Deployments on the front are the centres. A surrogate's posterior (``refine.posteriors``) predicts their neighbours,
with a standard deviation that shrinks near simulations. The batch with the largest expected hypervolume gain is
simulated, the front moves, and so on. If little is expected of any neighbour, those of the next best deployments (the
front without the front, and so on) are considered too.

Neighbours are used instead of the complete space: a surrogate of a hundred simulations is right about one change to a
simulated deployment, and too optimistic about five.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.base.one_thread import on_one_thread
from hisearch.search.evaluate.runner import TrialRunner
from hisearch.search.model.candidates import Candidate
from hisearch.search.model.deployments import canonical, on_engine, parameters_of, resized, with_cache
from hisearch.search.model.job import Job
from hisearch.search.model.problem import Problem
from hisearch.search.model.routing_configs import lone
from hisearch.search.model.trial import Trial
from hisearch.search.refine.improvement import Box, choose, hits
from hisearch.search.refine.inputs import Expectations, Part, encode
from hisearch.search.refine.local_search import STAGE, can_build, changed
from hisearch.search.refine.posteriors import Posteriors
from hisearch.search.select.pareto import front, minimised
from hisearch.search.stages.clusters import role_problem, within_limits
from hisearch.specs.deployments.deployment import DeploymentSpec

#: Trials between two fits; fixed, so that the search is the same for any number of workers.
BATCH = 8

#: With fewer trials of the complete trace than this, nothing is predicted.
LEAST_TRIALS = 8

#: Neighbours examined closely, selected by an optimistic first pass over all.
_CLOSE = 256

#: Points of the box in the first and in the close pass, and draws.
_FIRST_POINTS, _POINTS, _DRAWS = 256, 1024, 16

#: Standard deviations below the mean in the first pass: optimistic, so that promising neighbours get the close one.
_BETA = 1.0

#: Standard deviations below the mean at which a deployment must still miss the SLO to be given up.
_GIVE_UP_BETA = 3.0

#: The box reaches this share of the front's extent beyond it.
_BEYOND = 0.1

#: A batch with a smaller expected share of the front's hypervolume is not worth its simulations while there are further
#: centres to consider.
_LEAST_GAIN = 1e-3

#: A batch with a smaller expected gain, whatever the centres, is not worth its simulations at all.
_NO_GAIN = 1e-4

#: Consecutive batches that may leave the front unchanged.
_PATIENCE = 6

#: Layers of centres: the front, the front without it, and so on.
_LAYERS = 4


@dataclass(frozen=True)
class _Neighbour:
    """A deployment with its surrogate inputs, its key and its price."""

    key: str
    deployment: DeploymentSpec
    features: Part
    usd_per_hour: float


class Frontier:
    """The stage; it keeps its posteriors and known neighbours from one call to the next."""

    def __init__(self, problem: Problem, workers: Sequence[Candidate]) -> None:
        """Prepare for deployments of ``workers``, of stage 1."""
        self._problem = problem
        self._expectations = Expectations(problem, workers)
        self._posteriors = Posteriors(problem.objectives)
        self._around: dict[int, list[_Neighbour]] = {}

    def widen(self, runner: TrialRunner, until: int) -> None:
        """Simulate batches until ``until`` simulations, or until no neighbour gains or is expected to gain."""
        in_vain = 0
        while runner.simulations < until and not runner.stopped and in_vain < _PATIENCE:
            chosen = self._next(runner.considered, min(BATCH, until - runner.simulations))
            if not chosen:
                return
            before = len(runner.trials)
            runner.run([Job(STAGE, deployment, parameters_of(deployment)) for deployment in chosen], until)
            gained = any(trial.number >= before for trial in front(runner.considered, self._problem.objectives))
            in_vain = 0 if gained else in_vain + 1

    @on_one_thread
    def may_serve(self, trials: Sequence[Trial], deployments: Sequence[DeploymentSpec]) -> list[DeploymentSpec]:
        """Those of ``deployments`` that may meet the SLO, by the posteriors after ``trials``, in their order.

        A deployment is left out if it would miss the SLO even with every figure ``_GIVE_UP_BETA`` deviations better
        than expected. None is left out while too little is known, or if stage 1 does not know its workers.
        """
        comparable = [trial for trial in trials if trial.comparable]
        parts = [(spec, self._expectations.part(spec)) for spec in deployments]
        known = [
            _Neighbour(spec.model_dump_json(), spec, features, self._problem.planner.usd_per_hour(spec))
            for spec, features in parts
            if features is not None
        ]
        if len(comparable) < LEAST_TRIALS or not known:
            return list(deployments)
        predicted = self._posteriors.predict(self._learn(comparable, known))
        lower_bounds = {
            name: (mean - _GIVE_UP_BETA * deviation)[:, None] for name, (mean, deviation) in predicted.items()
        }
        _, feasible = self._posteriors.outcomes(lower_bounds, np.array([neighbour.usd_per_hour for neighbour in known]))
        hopeless = {neighbour.key for neighbour, may in zip(known, feasible[:, 0], strict=True) if not may}
        return [spec for spec in deployments if spec.model_dump_json() not in hopeless]

    def _next(self, trials: Sequence[Trial], count: int) -> list[DeploymentSpec]:
        """The next batch; empty without a front, or with almost no gain expected from the neighbours."""
        comparable = [trial for trial in trials if trial.comparable]
        layers = _layers([trial for trial in comparable if trial.feasible], self._problem.objectives)
        if len(comparable) < LEAST_TRIALS or not layers:
            return []
        known = {trial.deployment.model_dump_json() for trial in trials if trial.slice_fraction == trial.load == 1.0}
        candidates: dict[str, _Neighbour] = {}
        chosen: list[DeploymentSpec] = []
        gain = 0.0
        for layer in layers:
            nearby = {neighbour.key: neighbour for centre in layer for neighbour in self._neighbours(centre)}
            candidates |= {key: neighbour for key, neighbour in nearby.items() if key not in known}
            chosen, gain = self._best(comparable, layers[0], list(candidates.values()), count)
            if gain >= _LEAST_GAIN:
                break
        return chosen if gain >= _NO_GAIN else []

    @on_one_thread
    def _best(
        self, trials: Sequence[Trial], front: Sequence[Trial], candidates: Sequence[_Neighbour], count: int
    ) -> tuple[list[DeploymentSpec], float]:
        """The candidates with the largest joint expected gain, and that gain as a share of the front's hypervolume."""
        if not candidates:
            return [], 0.0
        rows = self._learn(trials, candidates)
        usd = np.array([candidate.usd_per_hour for candidate in candidates])
        front_points = minimised(front, self._problem.objectives)
        predicted = self._posteriors.predict(rows)
        means, likely = self._posteriors.outcomes({name: mean[:, None] for name, (mean, _) in predicted.items()}, usd)
        lower_bounds = {name: (mean - _BETA * deviation)[:, None] for name, (mean, deviation) in predicted.items()}
        best_case, can_serve = self._posteriors.outcomes(lower_bounds, usd)
        # If no neighbour is likely to serve, the box holds those that may: it would otherwise end at the front's own
        # corner.
        within = means[likely[:, 0], 0] if likely.any() else best_case[can_serve[:, 0], 0]
        low, high = _extent(front_points, within)
        first = hits(best_case, can_serve, Box.beyond(front_points, low, high, _FIRST_POINTS))
        close = np.argsort(-first.sum(axis=1), kind="stable")[:_CLOSE]
        random = np.random.default_rng([self._problem.seed, STAGE, len(trials)])
        drawn = self._posteriors.outcomes(self._posteriors.draw(rows[close], random, _DRAWS), usd[close])
        box = Box.beyond(front_points, low, high, _POINTS)
        chosen = choose(hits(*drawn, box), count)
        for i, _ in chosen:
            prediction = {name: (mean[close[i]], deviation[close[i]]) for name, (mean, deviation) in predicted.items()}
            self._posteriors.remember(candidates[close[i]].key, prediction)
        held = max(box.won * len(box.points) * _DRAWS, 1.0)
        return [candidates[close[i]].deployment for i, _ in chosen], sum(gain for _, gain in chosen) / held

    def _learn(self, trials: Sequence[Trial], candidates: Sequence[_Neighbour]) -> F8:
        """Fit the posteriors to ``trials``; return the candidates' inputs, shape (m, d)."""
        parts = [(trial, self._expectations.part(trial.deployment)) for trial in trials]
        known = [(trial, features) for trial, features in parts if features is not None]
        names, rows = encode([*(features for _, features in known), *(candidate.features for candidate in candidates)])
        self._posteriors.fit([trial for trial, _ in known], names, rows[: len(known)])
        return rows[len(known) :]

    def _neighbours(self, centre: Trial) -> list[_Neighbour]:
        """All deployments that can be built and differ from ``centre`` in one setting."""
        if centre.number not in self._around:
            planner, nearby = self._problem.planner, dict[str, _Neighbour]()
            for spec in neighbourhood(self._problem, centre.deployment):
                key, features = spec.model_dump_json(), self._expectations.part(spec)
                if features is not None and key not in nearby and can_build(self._problem, spec):
                    nearby[key] = _Neighbour(key, spec, features, planner.usd_per_hour(spec))
            self._around[centre.number] = list(nearby.values())
        return self._around[centre.number]


def neighbourhood(problem: Problem, deployment: DeploymentSpec) -> Iterator[DeploymentSpec]:
    """Deployments of the space that differ in one setting, at any price; some may not be buildable."""
    for variant in (*changed(problem, deployment), *_elsewhere(problem, deployment), *_sized(problem, deployment)):
        spec = canonical(variant)
        if spec is None or spec == deployment:
            continue
        if within_limits(problem, spec.pools, tuple(p.replicas for p in spec.pools)):
            yield lone(problem.space, spec)


def _elsewhere(problem: Problem, deployment: DeploymentSpec) -> Iterator[DeploymentSpec]:
    """Variants on other accelerators and engines, with other tensor parallelism, and with every other tier size."""
    pools = deployment.pools
    for index, pool in enumerate(pools):
        execution = role_problem(problem, pool.role).space.execution
        others: list[dict[str, object]] = [{"accelerator": name} for name in execution.accelerators]
        others += [{"tensor_parallel": ranks} for ranks in execution.tensor_parallel]
        for update in others:
            changed_pool = pool.model_copy(update=update)
            yield deployment.model_copy(update={"pools": [*pools[:index], changed_pool, *pools[index + 1 :]]})
    execution, pool = problem.space.execution, deployment.pool
    for choice in problem.tier_choices(pool.engine.name).neighbours(pool, all_sizes=True):
        yield with_cache(deployment, memory_fraction=pool.engine.memory_fraction, choice=choice)
    for engine in execution.engines:
        if engine != pool.engine.name:
            try:
                yield on_engine(
                    deployment, engine, problem.page_tokens(engine), problem.space.execution.versions.get(engine, "")
                )
            except ValueError:  # the engine refuses these settings: no such neighbour
                continue


def _sized(problem: Problem, deployment: DeploymentSpec) -> Iterator[DeploymentSpec]:
    """Variants with every number of replicas of a pool between half as many and twice as many."""
    counts = tuple(pool.replicas for pool in deployment.pools)
    for index, (pool, count) in enumerate(zip(deployment.pools, counts, strict=True)):
        most = role_problem(problem, pool.role).max_replicas(pool)
        for replicas in range(-(-count // 2), min(2 * count, most) + 1):
            yield resized(deployment, (*counts[:index], replicas, *counts[index + 1 :]))


def _layers(feasible: Sequence[Trial], objectives: Sequence[str]) -> list[list[Trial]]:
    """The front of feasible trials, the front of the others, and so on."""
    import moocore

    if not feasible:
        return []
    ranks = moocore.pareto_rank(minimised(feasible, objectives))
    layers = [[t for t, rank in zip(feasible, ranks, strict=True) if rank == layer] for layer in range(_LAYERS)]
    return [layer for layer in layers if layer]


def _extent(front_points: F8, expected: F8) -> tuple[F8, F8]:
    """Corners of the box, each of shape (k,): around the front and the expected front, both minimised."""
    import moocore

    points = np.concatenate([front_points, expected])
    points = points[moocore.is_nondominated(points)]
    low, high = points.min(axis=0), points.max(axis=0)
    span = np.where(high > low, high - low, np.maximum(np.abs(high), 1e-9))
    return low - _BEYOND * span, high + _BEYOND * span
