"""Alternatives to the recommendation: other accelerators, engines, devices, drafted tokens, the checkpoint's formats.

A search follows the cheapest deployments; others stay where a slice or a poor router left them. Before an alternative's
price is reported, the recommendation's own settings are moved to every other accelerator and engine, and to the
checkpoint's formats. The workers that stage 1 estimates to be cheapest there are tried as well, all behind the
recommendation's router. Each gets its fewest replicas on the complete trace, as long as it can be cheaper than the best
known of its kind. Then the cheapest of each kind is followed to its neighbours of the same kind.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hisearch.search.evaluate.runner import TrialRunner
from hisearch.search.model.candidates import Candidate
from hisearch.search.model.deployments import (
    configs_most_promising_first,
    deployment_of,
    format_devices,
    parameters_of,
    with_cache,
)
from hisearch.search.model.job import Job
from hisearch.search.model.problem import Problem
from hisearch.search.model.routing_configs import lone
from hisearch.search.model.sizing import Counts, Sizing
from hisearch.search.model.tier_choices import TierChoice
from hisearch.search.model.trial import Trial
from hisearch.search.refine.local_search import STAGE, MayServe, local_search
from hisearch.search.select.recommend import cheapest_usd, recommended
from hisearch.search.stages.ending import Untried
from hisearch.search.stages.execution import choices_of
from hisearch.search.stages.shortlist import report
from hisearch.specs.deployments.deployment import DeploymentSpec, PoolSpec
from hisearch.specs.deployments.routing import RouterSpec

#: Workers of stage 1 to size for each other accelerator and each other engine.
CANDIDATES_OF_EACH = 3

#: Relative difference of sums of prices that are added in another order.
_ROUNDING = 1e-9


#: What an alternative differs in; a name of ``choices_of``. The latter two only where a space has several choices.
KINDS = ("accelerator", "engine", "formats")
DEVICES, SPECULATION = "devices", "speculation"

#: Values of the kind ``formats``.
_OWN, _NARROWER = "the checkpoint's", "narrower"


def kinds_of(problem: Problem) -> tuple[str, ...]:
    """What alternatives may differ in."""
    execution = problem.space.execution
    several: dict[str, Sequence[object]] = {DEVICES: execution.devices, SPECULATION: execution.speculation}
    return (*KINDS, *(kind for kind, choices in several.items() if len(choices) > 1))


@dataclass(eq=False)
class _Alternative:
    """A worker to size. kind: one of ``kinds_of``, in which it differs from the recommendation."""

    kind: str
    pool: PoolSpec
    usd_per_replica: float
    sizing: Sizing


def size_alternatives(problem: Problem, sized: Sequence[Candidate], runner: TrialRunner, until: int) -> None:
    """Size the most promising workers on every other accelerator and engine, on the complete trace.

    sized: stage 1's workers. until: simulations at which to stop.
    """
    best = recommended(runner.considered, problem.objectives)
    if best is None:
        return
    racing = []
    for kind, candidate, pool in _pools(problem, best, [c for c in sized if not c.shortfall]):
        if problem.planner.can_build(pool):
            racing.append(_alternative(problem, best, kind, candidate, pool, sized))
    while asking := [
        (alternative, counts)
        for alternative in racing
        if (counts := _next_counts(problem, alternative, best, runner.considered)) is not None
    ]:
        jobs = [_job(problem, best, alternative.pool, counts[0]) for alternative, counts in asking]
        for (alternative, counts), trial in zip(asking, runner.run(jobs, until, Untried.ALTERNATIVES), strict=True):
            if trial is None or trial.error:
                alternative.sizing.stop()
            else:
                report(alternative.sizing, counts, trial)


def search_alternatives(problem: Problem, runner: TrialRunner, until: int, may_serve: MayServe) -> None:
    """Follow the cheapest deployment of each kind to its neighbours, kind by kind, each with an equal share.

    Of other accelerators and engines the cheapest one is followed, of formats that which keeps the checkpoint's. A kind
    without a deployment that meets the SLO has nothing to follow.

    until: simulations at which to stop. may_serve: see ``local_search``.
    """
    best = recommended(runner.considered, problem.objectives)
    if best is None:
        return
    kinds = kinds_of(problem)
    for number, kind in enumerate(kinds):
        ours = _values(problem, best.deployment, kind)
        if kind == "formats" and _OWN in ours:
            continue

        def differs(deployment: DeploymentSpec, kind: str = kind, ours: set[str] = ours) -> bool:
            return _differs(problem, deployment, kind, ours)

        share = (until - runner.simulations) // (len(kinds) - number)
        local_search(problem, runner, runner.simulations + share, may_serve, differs)


def _differs(problem: Problem, deployment: DeploymentSpec, kind: str, ours: set[str]) -> bool:
    """True if a deployment is an alternative in ``kind`` to one with the values ``ours``."""
    values = _values(problem, deployment, kind)
    return values == {_OWN} if kind == "formats" else values != ours


def _pools(problem: Problem, best: Trial, sized: Sequence[Candidate]) -> Iterator[tuple[str, Candidate, PoolSpec]]:
    """(kind, stage 1's candidate, worker to size) for each other accelerator, each other engine, and own formats."""
    for kind in kinds_of(problem):
        for value in dict.fromkeys(_value(problem, candidate.pool, kind) for candidate in sized):
            if value == _NARROWER or {value} == _values(problem, best.deployment, kind):
                continue
            with_value = [candidate for candidate in sized if _value(problem, candidate.pool, kind) == value]
            for candidate in with_value:
                if len(best.deployment.pools) == 1 and _same_but(kind, candidate.pool, best.deployment.pool):
                    yield kind, candidate, _with_cache_of(best.deployment, candidate.pool)
            for candidate in _cheapest(with_value):
                yield kind, candidate, candidate.pool


def _value(problem: Problem, pool: PoolSpec, kind: str) -> str:
    if kind == "formats":
        return _OWN if problem.keeps_formats(pool) else _NARROWER
    if kind == DEVICES:
        return "" if pool.devices is None else format_devices(pool.devices)
    if kind == SPECULATION:
        return "" if pool.engine.speculation is None else pool.engine.speculation.label
    return pool.accelerator if kind == "accelerator" else pool.engine.name


def _values(problem: Problem, deployment: DeploymentSpec, kind: str) -> set[str]:
    """Values of all its pools."""
    return {_value(problem, pool, kind) for pool in deployment.pools}


def _same_but(kind: str, pool: PoolSpec, reference: PoolSpec) -> bool:
    """True if two workers differ in none of stage 1's choices except their kind; other engines need not draft."""
    ours, theirs = choices_of(pool), choices_of(reference)
    ours.pop(kind)
    theirs.pop(kind)
    if kind == "engine":
        # Other engines have no such pool, and may have no such order.
        ours |= {name: theirs[name] for name in ("window_pool", "schedule")}
    if kind == "engine" and pool.engine.speculation is None:
        theirs["speculation"] = None
    return ours == theirs


def _with_cache_of(deployment: DeploymentSpec, pool: PoolSpec) -> PoolSpec:
    """``pool`` with the memory settings of a deployment; another engine keeps its own eviction and movement.

    Tiers that another engine does not accept stay as stage 1 set them.
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
        pool_choice = TierChoice(tuple(pool.tiers), pool.movement, pool.engine.eviction, pool.agents)
        return with_cache(alone, memory_fraction=memory_fraction, choice=pool_choice).pool


def _cheapest(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The cheapest ones by stage 1's estimate, one of each parallelism and formats."""
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
    """A worker, sized from stage 1's estimate, corrected by the estimate's error for the recommendation."""
    ours = best.deployment.pool
    estimated = next((c.replicas for c in sized if choices_of(c.pool) == choices_of(ours)), ours.replicas)
    # The estimate's error for one side of several pools says nothing about unified workers.
    unified = len(best.deployment.pools) == 1
    guess = round(candidate.replicas * ours.replicas / estimated) if unified else candidate.replicas
    usd = problem.planner.usd_per_hour(deployment_of(problem.model, problem.profile, pool, 1, RouterSpec()))
    return _Alternative(kind, pool, usd, Sizing(guess, candidate.max_replicas))


def _next_counts(problem: Problem, alternative: _Alternative, best: Trial, trials: Sequence[Trial]) -> Counts | None:
    """Replicas to simulate next, costing no more than the cheapest known of its kind; None when done."""
    ours = _values(problem, best.deployment, alternative.kind)
    known = cheapest_usd(trial for trial in trials if _differs(problem, trial.deployment, alternative.kind, ours))
    if math.isfinite(known) and alternative.usd_per_replica > 0:
        alternative.sizing.cap(math.floor(known / alternative.usd_per_replica * (1 + _ROUNDING)))
    return alternative.sizing.next


def _job(problem: Problem, best: Trial, pool: PoolSpec, replicas: int) -> Job:
    """A job behind the recommendation's router if it has one, else behind the most promising one."""
    shared = sum(pool.replicas for pool in best.deployment.pools if pool.role != "decode") > 1
    router = best.deployment.router if shared else configs_most_promising_first(problem.space.routing)[0]
    deployment = lone(problem.space, deployment_of(problem.model, problem.profile, pool, replicas, router))
    return Job(STAGE, deployment, parameters_of(deployment))
