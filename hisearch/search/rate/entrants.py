"""Deployments that use all accelerators that are there, with stage 1's estimate of the rate that each carries."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hisearch.search.model.candidates import Candidate
from hisearch.search.model.deployments import deployment_of, router_configs
from hisearch.search.model.problem import Problem
from hisearch.search.model.routing_configs import lone, pd_configs, unified_configs
from hisearch.search.stages.clusters import within_limits
from hisearch.search.stages.execution_report import ExecutionReport
from hisearch.specs.deployments.deployment import DeploymentSpec

#: Best workers of each side of a disaggregated deployment, by rate per accelerator, that are paired.
KEPT_OF_A_SIDE = 6


@dataclass(frozen=True)
class Entrant:
    """A deployment in the race.

    group: what its variants of batch limits share: shape, accelerators, engine, split, formats. estimate_rps: requests
    per second by step times alone, of all its workers.
    """

    deployment: DeploymentSpec
    group: tuple[object, ...]
    estimate_rps: float


def entrants_of(problem: Problem, report: ExecutionReport) -> list[Entrant]:
    """Every deployment of stage 1's workers that fills the accelerators; the most promising of each group first.

    The first of each group stand before all others, both by their estimates.
    """
    entrants = [*_unified(problem, report.sized), *_disaggregated(problem, report.sides)]
    entrants.sort(key=lambda entrant: -entrant.estimate_rps)
    firsts = {entrant.group: entrant for entrant in reversed(entrants)}
    leaders = sorted(firsts.values(), key=lambda entrant: -entrant.estimate_rps)
    ours = {id(entrant) for entrant in leaders}
    return leaders + [entrant for entrant in entrants if id(entrant) not in ours]


def _unified(problem: Problem, sized: Sequence[Candidate]) -> Iterator[Entrant]:
    configs = unified_configs(problem.space)
    router = configs[0].router if configs else router_configs(problem.space.routing)[0]
    for candidate in sized:
        workers = deployment_of(problem.model, problem.profile, candidate.pool, candidate.max_replicas, router)
        rate = candidate.estimate.capacity_rps * candidate.max_replicas
        yield Entrant(lone(problem.space, workers), candidate.group, rate)


def _disaggregated(problem: Problem, sides: Sequence[Candidate]) -> Iterator[Entrant]:
    """Pairs of workers between which KV can be moved, in the numbers whose slower side is fastest."""
    disaggregated = problem.space.pools.disaggregated
    if disaggregated is None:
        return
    config = pd_configs(problem.space, disaggregated)[0]
    prefills, decodes = (_best(sides, role) for role in ("prefill", "decode"))
    for sender, receiver in itertools.product(prefills, decodes):
        engine = sender.pool.engine.name == receiver.pool.engine.name
        if not engine or sender.pool.kv_dtype != receiver.pool.kv_dtype:
            continue
        pools, best = (sender.pool, receiver.pool), (0.0, (0, 0))
        for senders in range(1, sender.max_replicas + 1):
            left = problem.max_accelerators - senders * sender.pool.parallelism.ranks
            counts = (senders, min(left // receiver.pool.parallelism.ranks, receiver.max_replicas))
            if counts[1] < 1 or not within_limits(problem, pools, counts):
                continue
            rate = min(counts[0] * sender.estimate.capacity_rps, counts[1] * receiver.estimate.capacity_rps)
            best = max(best, (rate, counts))
        if best[0] > 0:
            placed = [pool.model_copy(update={"replicas": n}) for pool, n in zip(pools, best[1], strict=True)]
            spec = DeploymentSpec(model=problem.model, profile=problem.profile, pools=placed, **config.settings)
            yield Entrant(spec, ("disaggregated", sender.group, receiver.group), best[0])


def _best(sides: Sequence[Candidate], role: str) -> list[Candidate]:
    """Workers of a role with the most requests per accelerator, one of each group."""
    ours = [side for side in sides if side.pool.role == role and not (side.shortfall and side.shortfall != "load")]
    ours.sort(key=lambda side: -side.estimate.capacity_rps / side.pool.parallelism.ranks)
    firsts = {side.group: side for side in reversed(ours)}
    return sorted(firsts.values(), key=lambda s: -s.estimate.capacity_rps / s.pool.parallelism.ranks)[:KEPT_OF_A_SIDE]
