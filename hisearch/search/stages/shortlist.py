"""What stage 2 races: a worker of one pool, or the workers of several, with their numbers and their routers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from hisearch.score.terms import is_of_size
from hisearch.search.model.candidates import Cluster, Kept
from hisearch.search.model.deployments import deployment_of
from hisearch.search.model.pair_sizing import Counts, CountsSizing
from hisearch.search.model.problem import Problem
from hisearch.search.model.routing_configs import RoutingConfig, lone_config, mixed_configs, pd_configs, unified_configs
from hisearch.search.model.sizing import Sizing
from hisearch.search.model.trial import Trial
from hisearch.search.stages.clusters import within_limits
from hisearch.specs.deployments.deployment import DeploymentSpec


class Sizer(Protocol):
    """Asks for workers of each pool; see ``Sizing`` and ``CountsSizing``."""

    @property
    def next(self) -> Counts | None:
        """Counts to simulate now."""

    @property
    def fewest(self) -> Counts | None:
        """Cheapest counts that met the SLO."""

    @property
    def best_guess(self) -> Counts:
        """Those, else the largest that were tried."""

    def report(self, counts: Counts, trial: Trial) -> None:
        """Tell what came of the counts that were asked for."""

    def stop(self) -> None:
        """Ask for no more."""


@dataclass
class _OnePool:
    """``Sizing`` of a single pool, by counts."""

    sizing: Sizing

    @property
    def next(self) -> Counts | None:
        return None if self.sizing.next is None else (self.sizing.next,)

    @property
    def fewest(self) -> Counts | None:
        return None if self.sizing.fewest is None else (self.sizing.fewest,)

    @property
    def best_guess(self) -> Counts:
        return (self.sizing.best_guess,)

    def report(self, counts: Counts, trial: Trial) -> None:
        healable = not trial.rejects_too_many
        self.sizing.tell(counts[0], trial.serves, trial.service_violation, healable=healable)

    def stop(self) -> None:
        self.sizing.stop()


@dataclass
class _SeveralPools:
    """``CountsSizing``; the worst missed term says which pool is short."""

    sizing: CountsSizing

    @property
    def next(self) -> Counts | None:
        return self.sizing.next

    @property
    def fewest(self) -> Counts | None:
        return self.sizing.fewest

    @property
    def best_guess(self) -> Counts:
        return self.sizing.best_guess

    def report(self, counts: Counts, trial: Trial) -> None:
        self.sizing.tell(
            counts,
            trial.serves,
            trial.service_violation,
            healable=not trial.rejects_too_many,
            pool=_short_pool(trial),
        )

    def stop(self) -> None:
        self.sizing.stop()


def _short_pool(trial: Trial) -> int:
    """The pool that is short by the worst missed term: the decode workers where that is of tokens after the first."""
    checks = [check for check in trial.slo if not is_of_size(check)]
    worst = max(checks, key=lambda check: check.violation)
    decode = next((i for i, pool in enumerate(trial.deployment.pools) if pool.role == "decode"), 0)
    return decode if worst.label.startswith(("tpot", "itl")) else 0


@dataclass(eq=False)
class ShortlistEntry:
    """A candidate on its way through the stage.

    routing_configs: still in the race, the first one is used for sizing. guess: counts to start sizing at. fewest:
    counts that met the SLO on the latest slice, or None. tried: its trials there.
    """

    candidate: Kept
    routing_configs: list[RoutingConfig]
    guess: Counts
    fewest: Counts | None = None
    tried: list[Trial] = field(default_factory=list)

    @property
    def counts(self) -> Counts:
        """Where to try arms: the fewest that met the SLO, else the largest tried."""
        return self.fewest if self.fewest is not None else self.guess

    @property
    def shares(self) -> bool:
        """True where some router has a choice."""
        return sum(self.counts) > 1

    @property
    def beyond_help(self) -> bool:
        """True where its worker rejected too many requests on the latest slice: no replica or router changes that."""
        return any(trial.rejects_too_many for trial in self.tried)


def shortlist_entry(problem: Problem, candidate: Kept) -> ShortlistEntry:
    """A candidate at the start, with every arm of its shape."""
    return ShortlistEntry(candidate, configs_of(problem, candidate), estimated(candidate))


def estimated(candidate: Kept) -> Counts:
    """Workers of each pool by stage 1's estimate."""
    if isinstance(candidate, Cluster):
        return candidate.counts
    return (min(max(candidate.replicas, 1), candidate.max_replicas),)


def configs_of(problem: Problem, candidate: Kept) -> list[RoutingConfig]:
    """Routers and what else there is to choose with a candidate's workers fixed, most promising first."""
    pools = problem.space.pools
    if isinstance(candidate, Cluster):
        if candidate.shape == "disaggregated" and pools.disaggregated is not None:
            return pd_configs(problem.space, pools.disaggregated)
        if pools.mixed is not None:
            return mixed_configs(problem.space, pools.mixed)
    return unified_configs(problem.space)


def sizer(problem: Problem, one: ShortlistEntry) -> Sizer:
    """Who finds its fewest workers."""
    candidate = one.candidate
    if not isinstance(candidate, Cluster):
        return _OnePool(Sizing(one.guess[0], candidate.max_replicas))
    prices = [side.usd_per_hour / side.replicas for side in candidate.sides]
    most = tuple(side.max_replicas for side in candidate.sides)
    ranks = tuple(pool.parallelism.ranks for pool in candidate.pools)
    limit = problem.max_accelerators
    return _SeveralPools(CountsSizing(one.guess, prices, most, ranks, limit))


def deployment(problem: Problem, candidate: Kept, counts: Counts, routing_config: RoutingConfig) -> DeploymentSpec:
    """So many workers of a candidate's pools behind an arm."""
    if isinstance(candidate, Cluster):
        pools = [
            pool.model_copy(update={"replicas": count}) for pool, count in zip(candidate.pools, counts, strict=True)
        ]
        return DeploymentSpec(model=problem.model, profile=problem.profile, pools=pools, **routing_config.settings)
    # A single replica gets everything whatever the policy: name the first arm, so that equal runs are recognised.
    chosen = routing_config if counts[0] > 1 else lone_config(problem.space, routing_config.admission)
    return chosen.of(deployment_of(problem.model, problem.profile, candidate.pool, counts[0], chosen.router))


def offsets(problem: Problem, one: ShortlistEntry) -> list[Counts | None]:
    """Counts to try on the whole trace beside the ones that were found, which come first; None: out of bounds.

    One pool: one worker less, and those of the space's ``extra_replicas``. Several: a worker moved from one to another,
    and the extra ones on each of them.
    """
    extra = problem.space.routing.extra_replicas
    if not isinstance(one.candidate, Cluster):
        counts = [one.counts[0] + offset for offset in dict.fromkeys([0, -1, *extra])]
        return [(count,) if 1 <= count <= one.candidate.max_replicas else None for count in counts]
    found = [one.counts, *moved(one.counts)]
    found += [added(one.counts, index, more) for more in extra if more for index in range(len(one.counts))]
    pools = one.candidate.pools
    return [counts for counts in dict.fromkeys(found) if within_limits(problem, pools, counts)]


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
    """Shape, accelerators and engine: of each kind one stays in the race, so that like is compared with like."""
    if isinstance(candidate, Cluster):
        return (candidate.shape, *(part for pool in candidate.pools for part in (pool.accelerator, pool.engine.name)))
    return (candidate.pool.accelerator, candidate.pool.engine.name)


def key_of(candidate: Kept) -> tuple[str, ...]:
    """What tells a candidate's workers from others."""
    pools = candidate.pools if isinstance(candidate, Cluster) else (candidate.pool,)
    return tuple(pool.model_copy(update={"replicas": 1}).model_dump_json() for pool in pools)


def key_of_deployment(spec: DeploymentSpec) -> tuple[str, ...]:
    """``key_of`` the candidate that a deployment is made from."""
    return tuple(pool.model_copy(update={"replicas": 1}).model_dump_json() for pool in spec.pools)
