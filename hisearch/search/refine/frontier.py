"""The front, widened: of all that differs in one setting from a deployment on it, what is expected to add most is next.

Stages 2 and 3 look for what is cheapest. What lies between that and the fastest deployment is found here. Deployments
on the front are the centres; their neighbours are believed to come to something (``refine.posteriors``), with a
doubt that shrinks where simulations are; the batch that is expected to add most hypervolume is simulated, the front
moves, and so on. Where little is expected of any neighbour, those of the next best deployments (the front without the
front, and so on) are looked at as well.

Neighbours rather than the whole space: a surrogate of a hundred simulations is right about one change to a deployment
that was simulated, and too hopeful about five.
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
from hisearch.search.model.routing_configs import lone_config
from hisearch.search.model.trial import Trial
from hisearch.search.refine.improvement import Box, choose, hits
from hisearch.search.refine.inputs import Expectations, Part, encode
from hisearch.search.refine.local_search import STAGE, can_build, changed
from hisearch.search.refine.posteriors import Posteriors
from hisearch.search.select.pareto import front, minimised
from hisearch.search.stages.clusters import role_problem, within_limits
from hisearch.specs.deployments.deployment import DeploymentSpec

#: Trials between two looks at what they say; fixed, so that the search is the same for any number of workers.
BATCH = 8

#: With fewer trials on the whole trace than this nothing is believed.
LEAST_TRIALS = 8

#: Neighbours that are looked at closely, by the hopeful first look at all.
_CLOSE = 256

#: Points of the box, for the first look and for the close one, and draws.
_FIRST_POINTS, _POINTS, _DRAWS = 256, 1024, 16

#: How far below the mean the first look is, in standard deviations: what may be good deserves the close one.
_HOPE = 1.0

#: How far below the mean a figure would have to come out, in standard deviations, for a deployment to be given up.
_LAST_HOPE = 3.0

#: The box reaches this share of the front's extent beyond it.
_BEYOND = 0.1

#: A batch that is expected to add less than this share of the front's hypervolume is not worth its simulations as long
#: as there are further centres to look at.
_LEAST_GAIN = 1e-3

#: A batch that is expected to add less than this, wherever the centres, is not worth its simulations at all.
_NO_GAIN = 1e-4

#: Batches in a row that may leave the front as it is.
_PATIENCE = 6

#: Layers of centres: the front, the front without it, and so on.
_LAYERS = 4


@dataclass(frozen=True)
class _Neighbour:
    """A deployment as the surrogate sees it, what tells it from others, and its price."""

    key: str
    deployment: DeploymentSpec
    part: Part
    usd_per_hour: float


class Frontier:
    """The stage; it keeps what it believes, and the neighbours that it knows, from one call to the next."""

    def __init__(self, problem: Problem, workers: Sequence[Candidate]) -> None:
        """Look at the deployments of ``workers``, of stage 1."""
        self._problem = problem
        self._expectations = Expectations(problem, workers)
        self._posteriors = Posteriors(problem.objectives)
        self._around: dict[int, list[_Neighbour]] = {}

    def widen(self, runner: TrialRunner, until: int) -> None:
        """Simulate batches until ``until`` simulations, or until nothing is, or has been, gained by any neighbour."""
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
        """Those of ``deployments`` that may meet the SLO, by what is believed after ``trials``, in their order.

        Left out are those that would miss it even with every figure ``_LAST_HOPE`` deviations better than expected, and
        none as long as too little is known, or of workers that stage 1 does not know.
        """
        comparable = [trial for trial in trials if trial.comparable]
        parts = [(one, self._expectations.part(one)) for one in deployments]
        known = [
            _Neighbour(one.model_dump_json(), one, part, self._problem.planner.usd_per_hour(one))
            for one, part in parts
            if part is not None
        ]
        if len(comparable) < LEAST_TRIALS or not known:
            return list(deployments)
        predicted = self._posteriors.predict(self._learn(comparable, known))
        hopes = {name: (mean - _LAST_HOPE * deviation)[:, None] for name, (mean, deviation) in predicted.items()}
        _, feasible = self._posteriors.outcomes(hopes, np.array([one.usd_per_hour for one in known]))
        hopeless = {one.key for one, may in zip(known, feasible[:, 0], strict=True) if not may}
        return [one for one in deployments if one.model_dump_json() not in hopeless]

    def _next(self, trials: Sequence[Trial], count: int) -> list[DeploymentSpec]:
        """The next batch; nothing where there is no front yet, or next to nothing to be expected of the neighbours."""
        comparable = [trial for trial in trials if trial.comparable]
        layers = _layers([trial for trial in comparable if trial.feasible], self._problem.objectives)
        if len(comparable) < LEAST_TRIALS or not layers:
            return []
        known = {trial.deployment.model_dump_json() for trial in trials if trial.slice_fraction == trial.load == 1.0}
        candidates: dict[str, _Neighbour] = {}
        chosen: list[DeploymentSpec] = []
        gain = 0.0
        for layer in layers:
            found = {one.key: one for centre in layer for one in self._neighbours(centre)}
            candidates |= {key: one for key, one in found.items() if key not in known}
            chosen, gain = self._best(comparable, layers[0], list(candidates.values()), count)
            if gain >= _LEAST_GAIN:
                break
        return chosen if gain >= _NO_GAIN else []

    @on_one_thread
    def _best(
        self, trials: Sequence[Trial], front: Sequence[Trial], candidates: Sequence[_Neighbour], count: int
    ) -> tuple[list[DeploymentSpec], float]:
        """The candidates that are expected to add most together, and how much: a share of the front's hypervolume."""
        if not candidates:
            return [], 0.0
        rows = self._learn(trials, candidates)
        usd = np.array([one.usd_per_hour for one in candidates])
        found = minimised(front, self._problem.objectives)
        predicted = self._posteriors.predict(rows)
        means, likely = self._posteriors.outcomes({name: mean[:, None] for name, (mean, _) in predicted.items()}, usd)
        hopes = {name: (mean - _HOPE * deviation)[:, None] for name, (mean, deviation) in predicted.items()}
        hoped, hopeful = self._posteriors.outcomes(hopes, usd)
        # Where no neighbour is likely to serve, the box holds those that may: it would end at the front's own corner.
        within = means[likely[:, 0], 0] if likely.any() else hoped[hopeful[:, 0], 0]
        low, high = _extent(found, within)
        first = hits(hoped, hopeful, Box.beyond(found, low, high, _FIRST_POINTS))
        close = np.argsort(-first.sum(axis=1), kind="stable")[:_CLOSE]
        random = np.random.default_rng([self._problem.seed, STAGE, len(trials)])
        drawn = self._posteriors.outcomes(self._posteriors.draw(rows[close], random, _DRAWS), usd[close])
        box = Box.beyond(found, low, high, _POINTS)
        chosen = choose(hits(*drawn, box), count)
        for i, _ in chosen:
            of_it = {name: (mean[close[i]], deviation[close[i]]) for name, (mean, deviation) in predicted.items()}
            self._posteriors.remember(candidates[close[i]].key, of_it)
        held = max(box.won * len(box.points) * _DRAWS, 1.0)
        return [candidates[close[i]].deployment for i, _ in chosen], sum(gain for _, gain in chosen) / held

    def _learn(self, trials: Sequence[Trial], candidates: Sequence[_Neighbour]) -> F8:
        """Fit what is believed to ``trials``; the candidates' inputs, shape (m, d)."""
        parts = [(trial, self._expectations.part(trial.deployment)) for trial in trials]
        known = [(trial, part) for trial, part in parts if part is not None]
        names, rows = encode([*(part for _, part in known), *(one.part for one in candidates)])
        self._posteriors.fit([trial for trial, _ in known], names, rows[: len(known)])
        return rows[len(known) :]

    def _neighbours(self, centre: Trial) -> list[_Neighbour]:
        """All that can be built and differs from ``centre`` in one setting."""
        if centre.number not in self._around:
            planner, found = self._problem.planner, dict[str, _Neighbour]()
            for other in neighbourhood(self._problem, centre.deployment):
                key, part = other.model_dump_json(), self._expectations.part(other)
                if part is not None and key not in found and can_build(self._problem, other):
                    found[key] = _Neighbour(key, other, part, planner.usd_per_hour(other))
            self._around[centre.number] = list(found.values())
        return self._around[centre.number]


def neighbourhood(problem: Problem, deployment: DeploymentSpec) -> Iterator[DeploymentSpec]:
    """Deployments of the space that differ in one setting, at any price; some may not be buildable."""
    for found in (*changed(problem, deployment), *_elsewhere(problem, deployment), *_sized(problem, deployment)):
        other = canonical(found)
        if other is None or other == deployment:
            continue
        if within_limits(problem, other.pools, tuple(p.replicas for p in other.pools)):
            yield _lone(problem, other)


def _lone(problem: Problem, deployment: DeploymentSpec) -> DeploymentSpec:
    """A single replica gets everything whatever the router: it is named after the first arm."""
    if len(deployment.pools) > 1 or deployment.pool.replicas > 1:
        return deployment
    return lone_config(problem.space, deployment.admission).of(deployment)


def _elsewhere(problem: Problem, deployment: DeploymentSpec) -> Iterator[DeploymentSpec]:
    """On other accelerators and engines, with workers of another width, and with every other size of a tier."""
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
                yield on_engine(deployment, engine, problem.page_tokens(engine))
            except ValueError:  # the engine refuses these settings: there is no such neighbour
                continue


def _sized(problem: Problem, deployment: DeploymentSpec) -> Iterator[DeploymentSpec]:
    """With every number of replicas of a pool between half as many and twice as many."""
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
    found = [[t for t, rank in zip(feasible, ranks, strict=True) if rank == layer] for layer in range(_LAYERS)]
    return [layer for layer in found if layer]


def _extent(found: F8, expected: F8) -> tuple[F8, F8]:
    """Corners of the box, each of shape (k,): around the front, and the front that is expected, both minimised."""
    import moocore

    points = np.concatenate([found, expected])
    points = points[moocore.is_nondominated(points)]
    low, high = points.min(axis=0), points.max(axis=0)
    span = np.where(high > low, high - low, np.maximum(np.abs(high), 1e-9))
    return low - _BEYOND * span, high + _BEYOND * span
