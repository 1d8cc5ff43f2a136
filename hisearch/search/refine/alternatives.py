"""What stands beside the recommendation: other accelerators and the other engines, sized on the whole trace.

A search follows what is cheapest and leaves the rest where a slice or a poor router left it. Before the price of an
alternative is told, the recommendation's own settings are moved to every other accelerator and engine, and the workers
that stage 1 thinks cheapest there are taken as well, all behind the recommendation's router. Each gets its fewest
replicas, as long as it can be cheaper than what is known of its kind.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hisearch.search.evaluate.runner import TrialRunner
from hisearch.search.model.candidates import Candidate
from hisearch.search.model.deployments import configs_by_slo, deployment_of, parameters_of, router_configs, with_cache
from hisearch.search.model.job import Job
from hisearch.search.model.problem import Problem
from hisearch.search.model.sizing import Sizing
from hisearch.search.model.tier_choices import TierChoice
from hisearch.search.model.trial import Trial
from hisearch.search.refine.local_search import STAGE
from hisearch.search.select.recommend import recommend
from hisearch.search.stages.ending import UNTRIED_ALTERNATIVES
from hisearch.search.stages.execution import choices_of
from hisearch.specs.deployments.deployment import DeploymentSpec, PoolSpec
from hisearch.specs.deployments.routing import RouterSpec

#: Workers of stage 1 that are sized of each other accelerator, and of each other engine.
CANDIDATES_OF_EACH = 3

#: Share by which sums of prices in another order may differ.
_ROUNDING = 1e-9


@dataclass(eq=False)
class _Alternative:
    """A worker to size. kind: ``accelerator`` or ``engine``: in which it differs from the recommendation."""

    kind: str
    pool: PoolSpec
    usd_per_replica: float
    sizing: Sizing


def size_alternatives(problem: Problem, sized: Sequence[Candidate], runner: TrialRunner, until: int) -> None:
    """Size the most promising workers on every other accelerator and engine, on the whole trace.

    Args:
        problem: the question.
        sized: the workers that stage 1 knows.
        runner: runs the simulations.
        until: simulations at which to stop.
    """
    found = recommend(runner.considered, problem.objectives)
    if found is None:
        return
    best, racing = found.trial, []
    for kind, candidate, pool in _pools(found.trial, [c for c in sized if not c.shortfall]):
        if problem.planner.can_build(pool):
            racing.append(_alternative(problem, best, kind, candidate, pool, sized))
    while asking := [(one, count) for one in racing if (count := _asked(one, best, runner.considered)) is not None]:
        jobs = [_job(problem, best, one.pool, count) for one, count in asking]
        for (one, count), trial in zip(asking, runner.run(jobs, until, UNTRIED_ALTERNATIVES), strict=True):
            if trial is None or trial.error:
                one.sizing.stop()
            else:
                healable = not trial.rejects_too_many
                one.sizing.tell(count, trial.serves, trial.service_violation, healable=healable)


def _pools(best: Trial, sized: Sequence[Candidate]) -> Iterator[tuple[str, Candidate, PoolSpec]]:
    """(kind, stage 1's candidate, worker to size) of each other accelerator, then of each other engine."""
    for kind in ("accelerator", "engine"):
        for value in dict.fromkeys(_value(candidate.pool, kind) for candidate in sized):
            if {value} == _values(best.deployment, kind):
                continue
            of_it = [candidate for candidate in sized if _value(candidate.pool, kind) == value]
            for candidate in of_it:
                if len(best.deployment.pools) == 1 and _same_but(kind, candidate.pool, best.deployment.pool):
                    yield kind, candidate, _with_cache_of(best.deployment, candidate.pool)
            for candidate in _cheapest(of_it):
                yield kind, candidate, candidate.pool


def _value(pool: PoolSpec, kind: str) -> str:
    return pool.accelerator if kind == "accelerator" else pool.engine.name


def _values(deployment: DeploymentSpec, kind: str) -> set[str]:
    """Of all its pools."""
    return {_value(pool, kind) for pool in deployment.pools}


def _same_but(kind: str, pool: PoolSpec, other: PoolSpec) -> bool:
    """True where two workers differ in nothing that stage 1 chooses but their kind."""
    ours, theirs = choices_of(pool), choices_of(other)
    ours.pop(kind)
    theirs.pop(kind)
    return ours == theirs


def _with_cache_of(deployment: DeploymentSpec, pool: PoolSpec) -> PoolSpec:
    """``pool`` with the memory settings of a deployment; another engine keeps its own eviction and movement.

    Tiers that another engine does not take are left as stage 1 has them.
    """
    ours = deployment.pool
    same = ours.engine.name == pool.engine.name
    like = ours if same else pool
    choice = TierChoice(tuple(ours.tiers), like.movement, like.engine.eviction, ours.agents)
    alone = deployment.model_copy(update={"pools": [pool]})
    memory_fraction = ours.engine.memory_fraction
    try:
        return with_cache(alone, memory_fraction=memory_fraction, choice=choice).pool
    except ValueError:
        own = TierChoice(tuple(pool.tiers), pool.movement, pool.engine.eviction, pool.agents)
        return with_cache(alone, memory_fraction=memory_fraction, choice=own).pool


def _cheapest(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The ones that stage 1 thinks cheapest, one of each parallelism and formats."""
    ordered = sorted(candidates, key=lambda c: (c.usd_per_hour, -c.rps_per_usd))
    firsts = {candidate.group: candidate for candidate in reversed(ordered)}
    return sorted(firsts.values(), key=lambda c: (c.usd_per_hour, -c.rps_per_usd))[:CANDIDATES_OF_EACH]


def _alternative(
    problem: Problem,
    best: Trial,
    kind: str,
    candidate: Candidate,
    pool: PoolSpec,
    sized: Sequence[Candidate],
) -> _Alternative:
    """A worker, sized from stage 1's estimate, corrected by how far that was off for the recommendation."""
    ours = best.deployment.pool
    estimated = next((c.replicas for c in sized if choices_of(c.pool) == choices_of(ours)), ours.replicas)
    # How far the estimate was off for one side of several pools says nothing of unified workers.
    unified = len(best.deployment.pools) == 1
    guess = round(candidate.replicas * ours.replicas / estimated) if unified else candidate.replicas
    usd = problem.planner.usd_per_hour(deployment_of(problem.model, problem.profile, pool, 1, RouterSpec()))
    return _Alternative(kind, pool, usd, Sizing(guess, candidate.max_replicas))


def _asked(one: _Alternative, best: Trial, trials: Sequence[Trial]) -> int | None:
    """Replicas to simulate next, which cost no more than the cheapest known of its kind; None where done."""
    known = _known_usd(one.kind, best, trials)
    if math.isfinite(known) and one.usd_per_replica > 0:
        one.sizing.cap(math.floor(known / one.usd_per_replica * (1 + _ROUNDING)))
    return one.sizing.next


def _known_usd(kind: str, best: Trial, trials: Sequence[Trial]) -> float:
    """Price of the cheapest feasible deployment that differs from ``best`` in its kind; infinite without one."""
    ours = _values(best.deployment, kind)
    feasible = [trial for trial in trials if trial.comparable and trial.feasible]
    prices = [t.metrics["usd_per_hour"] for t in feasible if _values(t.deployment, kind) != ours]
    return min(prices, default=math.inf)


def _job(problem: Problem, best: Trial, pool: PoolSpec, replicas: int) -> Job:
    """Behind the recommendation's router where it has one, else behind the most promising one."""
    shared = sum(pool.replicas for pool in best.deployment.pools if pool.role != "decode") > 1
    router = best.deployment.router if shared else configs_by_slo(problem.space.routing)[0]
    # A single replica gets everything whatever the policy: name the first arm, so that equal runs are recognised.
    chosen = router if replicas > 1 else router_configs(problem.space.routing)[0]
    deployment = deployment_of(problem.model, problem.profile, pool, replicas, chosen)
    return Job(STAGE, deployment, parameters_of(deployment))
