"""Candidates that stage 2 races: a worker of one pool, or workers of several, with their numbers and routers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from hisearch.score.terms import is_of_size
from hisearch.search.model.candidates import Cluster, Kept
from hisearch.search.model.deployments import deployment_of
from hisearch.search.model.pair_sizing import CountsSizing
from hisearch.search.model.problem import Problem
from hisearch.search.model.routing_configs import RoutingConfig, lone, mixed_configs, pd_configs, unified_configs
from hisearch.search.model.sizing import Counts, Sizer, Sizing
from hisearch.search.model.trial import Trial
from hisearch.search.stages.clusters import within_limits
from hisearch.specs.deployments.deployment import DeploymentSpec, PoolSpec


def report(sizing: Sizer, counts: Counts, trial: Trial) -> None:
    """Tell a sizer the outcome of the requested counts; the worst missed term shows which pool is short."""
    healable = not trial.rejects_too_many
    sizing.tell(counts, trial.serves, trial.service_violation, healable=healable, pool=_short_pool(trial))


def _short_pool(trial: Trial) -> int:
    """The pool to blame for the worst missed term: decode if it concerns tokens after the first."""
    checks = [check for check in trial.slo if not is_of_size(check)]
    worst = max(checks, key=lambda check: check.violation)
    decode = next((i for i, pool in enumerate(trial.deployment.pools) if pool.role == "decode"), 0)
    return decode if worst.label.startswith(("tpot", "itl", "ttfo")) else 0


@dataclass(eq=False)
class ShortlistEntry:
    """A candidate in stage 2.

    routing_configs: still in the race; the first one is used for sizing. guess: counts to start sizing with. fewest:
    counts that met the SLO on the latest slice, or None. tried: its trials there.
    """

    candidate: Kept
    routing_configs: list[RoutingConfig]
    guess: Counts
    fewest: Counts | None = None
    tried: list[Trial] = field(default_factory=list)

    @property
    def counts(self) -> Counts:
        """Counts to try routing configurations with: the fewest that met the SLO, else the largest tried."""
        return self.fewest if self.fewest is not None else self.guess

    @property
    def shares(self) -> bool:
        """True if a router has a choice."""
        return sum(self.counts) > 1

    @property
    def beyond_help(self) -> bool:
        """True if its worker rejected too many requests on the latest slice: no replica or router changes that."""
        return any(trial.rejects_too_many for trial in self.tried)


def shortlist_entry(problem: Problem, candidate: Kept) -> ShortlistEntry:
    """A candidate at the start, with every routing configuration of its shape."""
    return ShortlistEntry(candidate, configs_of(problem, candidate), estimated(candidate))


def estimated(candidate: Kept) -> Counts:
    """Workers of each pool by stage 1's estimate."""
    if isinstance(candidate, Cluster):
        return candidate.counts
    return (min(max(candidate.replicas, 1), candidate.max_replicas),)


def configs_of(problem: Problem, candidate: Kept) -> list[RoutingConfig]:
    """Routing configurations for a candidate's fixed workers, most promising first."""
    pools = problem.space.pools
    if isinstance(candidate, Cluster):
        if candidate.shape == "disaggregated" and pools.disaggregated is not None:
            return pd_configs(problem.space, pools.disaggregated)
        if pools.mixed is not None:
            return mixed_configs(problem.space, pools.mixed)
    return unified_configs(problem.space)


def sizer(problem: Problem, entry: ShortlistEntry) -> Sizer:
    """The sizer that finds the candidate's fewest workers."""
    candidate = entry.candidate
    if not isinstance(candidate, Cluster):
        return Sizing(entry.guess[0], candidate.max_replicas)
    prices = [side.usd_per_hour / side.replicas for side in candidate.sides]
    most = tuple(side.max_replicas for side in candidate.sides)
    ranks = tuple(pool.parallelism.ranks for pool in candidate.pools)
    limit = problem.max_accelerators
    return CountsSizing(entry.guess, prices, most, ranks, limit)


def deployment(problem: Problem, candidate: Kept, counts: Counts, routing_config: RoutingConfig) -> DeploymentSpec:
    """``counts`` workers of a candidate's pools behind a routing configuration."""
    if isinstance(candidate, Cluster):
        pools = [
            pool.model_copy(update={"replicas": count}) for pool, count in zip(candidate.pools, counts, strict=True)
        ]
        return DeploymentSpec(model=problem.model, profile=problem.profile, pools=pools, **routing_config.settings)
    workers = deployment_of(problem.model, problem.profile, candidate.pool, counts[0], routing_config.router)
    return lone(problem.space, routing_config.of(workers))


def offsets(problem: Problem, entry: ShortlistEntry) -> list[Counts | None]:
    """Counts to try on the complete trace: the current ones first, then adjacent ones; None: out of bounds.

    One pool: one worker less, and the space's ``extra_replicas``. Several: a worker moved from one to another, and the
    extra ones in each of them.
    """
    extra = problem.space.routing.extra_replicas
    if not isinstance(entry.candidate, Cluster):
        counts = [entry.counts[0] + offset for offset in dict.fromkeys([0, -1, *extra])]
        return [(count,) if 1 <= count <= entry.candidate.max_replicas else None for count in counts]
    counts_list = [entry.counts, *moved(entry.counts)]
    counts_list += [added(entry.counts, index, more) for more in extra if more for index in range(len(entry.counts))]
    pools = entry.candidate.pools
    return [counts for counts in dict.fromkeys(counts_list) if within_limits(problem, pools, counts)]


def moved(counts: Counts) -> Iterator[Counts]:
    """One worker moved from each pool with several to each other one."""
    for source, count in enumerate(counts):
        for target in range(len(counts)):
            if count > 1 and source != target:
                yield added(added(counts, source, -1), target, 1)


def added(counts: Counts, index: int, more: int) -> Counts:
    """Counts with some more workers of a pool."""
    return (*counts[:index], counts[index] + more, *counts[index + 1 :])


def kind_of(candidate: Kept) -> tuple[str, ...]:
    """Shape, accelerators and engine: one of each kind stays in the race, so that like is compared with like."""
    shape = (candidate.shape,) if isinstance(candidate, Cluster) else ()
    return (*shape, *(name for side in candidate.sides for name in (side.pool.accelerator, side.pool.engine.name)))


def key_of(pools: Iterable[PoolSpec]) -> tuple[str, ...]:
    """Key of workers, whatever their numbers."""
    return tuple(pool.model_copy(update={"replicas": 1}).model_dump_json() for pool in pools)
