"""The real planner and evaluator of a search: workers compiled once, slices cut once, jobs simulated."""

from __future__ import annotations

import hashlib
import json
import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import BaseModel

from hisearch.hardware.price_book import PriceBook
from hisearch.hardware.prices import CostBreakdown, ffn_host_name, mean_cost
from hisearch.latency.device_memory.plan import DoesNotFit
from hisearch.latency.sharding import InvalidParallelism
from hisearch.score.capacity import capacity
from hisearch.score.evaluate import Score, evaluate
from hisearch.score.terms import worst_margin
from hisearch.search.model.job import Evaluation, Job
from hisearch.search.model.population import Population
from hisearch.simulate.plans.agent_memory import AgentsRefused
from hisearch.simulate.plans.fleet import FleetPlan
from hisearch.simulate.plans.fleet_plan import plan_fleet
from hisearch.simulate.plans.plan import (
    WorkerPlan,
    check_split,
    ffn_accelerator_name,
    plan_pool_memory,
    plan_worker,
    worker_devices,
)
from hisearch.simulate.plans.tiers import TierRefused
from hisearch.specs.deployments.deployment import DeploymentSpec, PoolSpec
from hisearch.specs.deployments.tier_checks import capacity_problems, of_another_host, spread_of
from hisearch.specs.machines.devices import DeviceSpec
from hisearch.specs.machines.hardware import AcceleratorSpec, FabricSpec, HostSpec, MediumSpec
from hisearch.specs.machines.profile import LatencyProfileSpec
from hisearch.specs.models.model import ModelSpec
from hisearch.specs.studies.slo import SloSpec
from hisearch.specs.studies.study import LimitSpec
from hisearch.traces.compiled import CompiledTrace
from hisearch.traces.stats import requests_over_window

if TYPE_CHECKING:
    from hisearch.latency.costs import CompiledCosts
    from hisearch.simulate.engine import GiveUp
    from hisearch.simulate.results.result import Result

_Value = TypeVar("_Value")

#: With capacity as an objective, loads from 1/MOST_LOAD to MOST_LOAD are tried.
MOST_LOAD = 8.0

#: Approximate simulations per deployment with capacity as an objective: double or halve twice, then bisect.
SIMULATIONS_OF_CAPACITY = 7


@dataclass(frozen=True)
class World:
    """Everything that decides a simulation's outcome, besides the job itself.

    accelerators, hosts, media, devices, fabrics: catalogue entries by name. load: the study's factor on the arrival
    rate. seed: of every simulation (common random numbers). limits: bounds by objective. capacity: it is an objective.
    population: the agents, if the load is their number.
    """

    model: ModelSpec
    slo: SloSpec
    profile_name: str
    profile: LatencyProfileSpec
    accelerators: Mapping[str, AcceleratorSpec]
    hosts: Mapping[str, HostSpec]
    media: Mapping[str, MediumSpec]
    trace: CompiledTrace
    load: float = 1.0
    seed: int = 0
    devices: Mapping[str, DeviceSpec] = field(default_factory=dict)
    limits: Mapping[str, LimitSpec] = field(default_factory=dict)
    capacity: bool = False
    fabrics: Mapping[str, FabricSpec] = field(default_factory=dict)
    population: Population | None = None

    def digest(self, version: str) -> str:
        """Digest of the content, the program's version and its kernels: a journal with another digest does not apply.

        Fields at their defaults are left out, as in ``Job.digest``.
        """
        from hisearch.base.kernel_cache import all_kernels_digest

        content = {
            "version": version,
            "kernels": all_kernels_digest(),
            "model": _stated(self.model),
            "slo": _stated(self.slo),
            "profile": [self.profile_name, _stated(self.profile)],
            "accelerators": {name: _stated(spec) for name, spec in self.accelerators.items()},
            "hosts": {name: _stated(spec) for name, spec in self.hosts.items()},
            "media": {name: _stated(spec) for name, spec in self.media.items()},
            "devices": {name: _stated(spec) for name, spec in self.devices.items()},
            "trace": self.trace.digest,
            "load": self.load,
            "seed": self.seed,
        }
        # Later fields: left out if a world has none, so that its digest does not change.
        later = {
            "limits": {name: _stated(limit) for name, limit in self.limits.items()},
            "capacity": self.capacity,
            "fabrics": {name: _stated(spec) for name, spec in self.fabrics.items()},
            "population": _stated(self.population.spec) if self.population is not None else None,
        }
        content |= {name: value for name, value in later.items() if value}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _stated(spec: BaseModel) -> dict[str, Any]:
    """A spec as plain data, without values at their defaults."""
    return spec.model_dump(mode="json", exclude_defaults=True)


class Simulation:
    """Planner and evaluator over one ``World``; both may be used from several threads at once."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._plans: _Memo[WorkerPlan] = _Memo()
        self._slices: _Memo[CompiledTrace] = _Memo()

    def __reduce__(self) -> tuple[type[Simulation], tuple[World]]:
        """Another process gets the world, and compiles workers and cuts slices itself."""
        return Simulation, (self._world,)

    @property
    def world(self) -> World:
        """The simulated world."""
        return self._world

    @property
    def book(self) -> PriceBook:
        """Prices of the world's hardware."""
        world = self._world
        return PriceBook(world.accelerators, world.hosts, world.media, world.devices)

    def kv_capacity_tokens(self, pool: PoolSpec) -> int:
        """KV tokens that one worker holds.

        Raises:
            DoesNotFit, InvalidParallelism, DevicesRefused: see ``plan_worker``.
        """
        world = self._world
        check_split(pool, world.model)
        devices = worker_devices(pool, world.devices, self._ffn_accelerator(pool))
        plan = plan_pool_memory(pool, world.model, self._accelerator(pool), world.profile, devices)
        return plan.kv_capacity_tokens

    def can_build(self, pool: PoolSpec) -> bool:
        """True if ``plan`` would succeed, and a full host has the memory and disks that its workers' tiers need.

        Main memory that belongs to another host of the study does not count.
        """
        name, world = pool.host or self._accelerator(pool).host, self._world
        if name is not None:
            spread = spread_of(pool, world.model, world.hosts[name])
            if capacity_problems(pool.tiers, pool.parallelism, world.media, name, world.hosts[name], spread):
                return False
            if of_another_host(pool.tiers, world.media, name, world.hosts):
                return False
        try:
            self.plan(pool)
        except (AgentsRefused, DoesNotFit, InvalidParallelism, TierRefused):
            return False
        return True

    def costs(self, pool: PoolSpec) -> CompiledCosts:
        """Step costs of one worker."""
        return self.plan(pool).costs

    def usd_per_hour(self, deployment: DeploymentSpec) -> float:
        """Dollars per hour of a deployment."""
        return self.book.breakdown(deployment).total

    def plan(self, pool: PoolSpec) -> WorkerPlan:
        """The pool's worker, compiled at first use; replicas share it."""
        worker = pool.model_copy(update={"replicas": 1})
        return self._plans.get(worker.model_dump_json(), lambda: self._compile(worker))

    def evaluate(self, job: Job) -> Evaluation:
        """Simulate a job and score it, with its capacity if the study asks for it.

        Raises:
            ValueError: the deployment cannot be built or simulated.
        """
        evaluation = self._evaluate_once(job)
        if not self._world.capacity or job.load != 1.0:
            return evaluation
        if job.slice_fraction != 1.0:
            return replace(
                evaluation, metrics=evaluation.metrics | self._at_most(evaluation.metrics, _slice_capacity(evaluation))
            )

        from hisearch.simulate.engine import ObjectsLeaveTooLittleMemory

        def score_at(load: float) -> Score:
            try:
                at_load = evaluation if load == 1.0 else self._evaluate_once(replace(job, load=load))
            except ObjectsLeaveTooLittleMemory:
                # The host memory cannot hold a larger population's objects: only the verdict is used.
                return Score(evaluation.metrics, evaluation.slo, False)
            return Score(at_load.metrics, at_load.slo, at_load.feasible)

        most = capacity(score_at, max_load=MOST_LOAD, min_load=1.0 / MOST_LOAD)
        metrics = self._at_most(evaluation.metrics, most.load) | {
            "capacity_goodput_rps": most.goodput_rps,
            "capacity_missed_load": most.infeasible_load,
        }
        return replace(evaluation, metrics=evaluation.metrics | metrics, simulations=most.simulations)

    def _at_most(self, metrics: Mapping[str, float], load: float) -> dict[str, float]:
        """Figures that follow from ``load``, the largest that a deployment carries."""
        figures = {"capacity_load": load}
        if self._world.population is None:
            return figures
        return figures | self._world.population.figures({**metrics, **figures})

    def _evaluate_once(self, job: Job) -> Evaluation:
        trace, load = self._traffic(job)
        return self._scored(job.deployment, self.fleet(job.deployment), trace, load, self._give_up(job, trace))

    def _traffic(self, job: Job) -> tuple[CompiledTrace, float]:
        """The trace to replay and its load factor: a larger population is another trace."""
        population = self._world.population
        if population is None or job.load == 1.0:
            return self.slice(job.slice_fraction), job.load
        name = self._world.trace.name
        return self._slices.get(f"population {job.load!r}", lambda: population.trace(job.load, name)), 1.0

    def evaluate_disturbed(
        self,
        deployment: DeploymentSpec,
        trace: CompiledTrace,
        disturb: Callable[[CompiledCosts], CompiledCosts],
        load: float = 1.0,
    ) -> Evaluation:
        """Simulate a deployment on another trace, with other step costs, and score it.

        disturb: maps compiled step costs to those used; nothing is compiled again. load: factor on the study's own
        load.

        Raises:
            ValueError: the deployment cannot be built or simulated.
        """
        fleet = self.fleet(deployment)
        pools = [replace(pool, plan=replace(pool.plan, costs=disturb(pool.plan.costs))) for pool in fleet.pools]
        return self._scored(deployment, replace(fleet, pools=tuple(pools)), trace, load)

    def evaluate_fleet(self, deployment: DeploymentSpec, fleet: FleetPlan, load: float = 1.0) -> Evaluation:
        """Simulate another plan of a deployment on the study's trace, at ``load`` times its own load, and score it.

        Raises:
            ValueError: it cannot be simulated.
        """
        return self._scored(deployment, fleet, self.slice(1.0), load)

    def _scored(
        self,
        deployment: DeploymentSpec,
        fleet: FleetPlan,
        trace: CompiledTrace,
        load: float = 1.0,
        give_up: GiveUp | None = None,
    ) -> Evaluation:
        from hisearch.simulate.engine import NEVER, simulate_fleet

        result = simulate_fleet(
            fleet,
            trace,
            seed=self._world.seed,
            load=self._world.load * load,
            give_up=give_up if give_up is not None else NEVER,
        )
        cost = self.book.breakdown(deployment)
        score = evaluate(
            result,
            self._world.slo,
            usd_per_hour=self._paid_usd_per_hour(deployment, result),
            accelerators=cost.accelerators,
            over_window=requests_over_window(trace, fleet.pools[0].plan.max_request_tokens),
            limits=self._world.limits,
        )
        return Evaluation(score.metrics, score.slo, score.feasible, warnings=(*result.warnings, *score.warnings))

    def fleet(self, deployment: DeploymentSpec) -> FleetPlan:
        """A deployment's pools, compiled at first use, and the transfers between them.

        Raises:
            ValueError: a worker cannot be built.
        """
        fabric = deployment.transfer.fabric
        return plan_fleet(
            deployment,
            [self.plan(pool) for pool in deployment.pools],
            models=dict.fromkeys(deployment.model_refs, self._world.model),
            usd_per_hour=[cost.total / pool.replicas for cost, pool in self._costs_of_pools(deployment)],
            fabric=self._world.fabrics[fabric] if fabric is not None else None,
        )

    def _costs_of_pools(self, deployment: DeploymentSpec) -> list[tuple[CostBreakdown, PoolSpec]]:
        """Price of each pool with its initial replicas."""
        return [
            (self.book.breakdown(deployment.model_copy(update={"pools": [pool]})), pool) for pool in deployment.pools
        ]

    def _paid_usd_per_hour(self, deployment: DeploymentSpec, result: Result) -> float:
        """Dollars per hour of the mean number of workers."""
        if all(pool.autoscale is None and not pool.schedule for pool in deployment.pools):
            return self.usd_per_hour(deployment)
        costs = [cost for cost, _ in self._costs_of_pools(deployment)]
        return mean_cost(costs, deployment, result.mean_workers).total

    def replay(self, deployment: DeploymentSpec, trace: CompiledTrace, load: float = 1.0) -> Result:
        """Simulate a deployment on another trace, at ``load`` times the study's own.

        Raises:
            ValueError: the deployment cannot be built or simulated.
        """
        from hisearch.simulate.engine import simulate_fleet

        return simulate_fleet(self.fleet(deployment), trace, seed=self._world.seed, load=self._world.load * load)

    def _give_up(self, job: Job, trace: CompiledTrace) -> GiveUp:
        """At other loads than the study's only the verdict counts: stop once the TTFT term is bound to fail."""
        from hisearch.simulate.engine import NEVER, GiveUp

        bounds = [term for term in self._world.slo.terms if term.metric == "ttft_s"]
        if job.load == 1.0 or not bounds:
            return NEVER
        # The percentile lies at or above the bound once this many of all requests exceed it.
        term = max(bounds, key=lambda term: term.percentile)
        return GiveUp(term.at_most_s, math.ceil(len(trace) * (1.0 - term.percentile / 100.0)) + 1)

    def slice(self, fraction: float) -> CompiledTrace:
        """The trace's first ``fraction`` of requests, at least one; the trace itself for 1.0."""
        if fraction == 1.0:
            return self._world.trace
        return self._slices.get(repr(fraction), lambda: self._cut(fraction))

    def _cut(self, fraction: float) -> CompiledTrace:
        from hisearch.traces.changes.selection import head

        return head(self._world.trace, max(round(len(self._world.trace) * fraction), 1))

    def _compile(self, pool: PoolSpec) -> WorkerPlan:
        accelerator = self._accelerator(pool)
        host_name = pool.host or accelerator.host
        ffn_host = ffn_host_name(pool, self._ffn_accelerator(pool) or accelerator)
        return plan_worker(
            pool,
            model=self._world.model,
            accelerator=accelerator,
            host=self._world.hosts[host_name] if host_name is not None else None,
            media=self._world.media,
            profile=self._world.profile,
            profile_name=self._world.profile_name,
            devices=self._world.devices,
            ffn_accelerator=self._ffn_accelerator(pool),
            ffn_host=self._world.hosts[ffn_host] if ffn_host is not None else None,
        )

    def _ffn_accelerator(self, pool: PoolSpec) -> AcceleratorSpec | None:
        name = ffn_accelerator_name(pool)
        return self._world.accelerators[name] if name is not None else None

    def _accelerator(self, pool: PoolSpec) -> AcceleratorSpec:
        try:
            return self._world.accelerators[pool.accelerator]
        except KeyError:
            known = ", ".join(sorted(self._world.accelerators))
            raise ValueError(f"no accelerator named '{pool.accelerator}'; known: {known}") from None


def _slice_capacity(evaluation: Evaluation) -> float:
    """Estimate of a slice's capacity, for ranking only: growth of latencies until a term is missed."""
    return min(1.0 / max(1.0 - worst_margin(evaluation.slo), 1.0 / MOST_LOAD), MOST_LOAD)


class _Memo(Generic[_Value]):
    """Values by key, each made once even if several threads ask at the same time."""

    def __init__(self) -> None:
        self._values: dict[str, _Value] = {}
        self._lock = threading.Lock()
        self._making: dict[str, threading.Lock] = {}

    def get(self, key: str, make: Callable[[], _Value]) -> _Value:
        """The value of ``key``, from ``make`` at first use; a ``make`` that raises is tried again the next time."""
        with self._lock:
            making = self._making.setdefault(key, threading.Lock())
        with making:
            if key not in self._values:
                self._values[key] = make()
            return self._values[key]
