"""The real planner and evaluator of a search: workers compiled once, slices cut once, jobs simulated."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Generic, TypeVar

import numpy as np

from hisearch.hardware.price_book import PriceBook
from hisearch.hardware.prices import ffn_host_name, mean_cost
from hisearch.latency.costs import CompiledCosts
from hisearch.latency.device_memory.plan import DoesNotFit, MemoryPlan
from hisearch.latency.sharding import InvalidParallelism
from hisearch.score.capacity import capacity
from hisearch.score.evaluate import Score, evaluate
from hisearch.score.terms import REPLICAS, LimitCheck, worst_margin
from hisearch.search.evaluate.sustained import WHOLE, Least, sustained
from hisearch.search.evaluate.world import World
from hisearch.search.model.deployments import without_replicas
from hisearch.search.model.job import Evaluation, Job
from hisearch.simulate.draft_use import token_costs
from hisearch.simulate.engine import GiveUp
from hisearch.simulate.plans.agent_memory import AgentsRefused
from hisearch.simulate.plans.draw import WorkerHardware, ffn_accelerator_name, idle_draw, shared_draws, worker_devices
from hisearch.simulate.plans.fleet import FleetPlan
from hisearch.simulate.plans.fleet_plan import plan_fleet
from hisearch.simulate.plans.plan import WorkerPlan, plan_pool_memory, plan_worker
from hisearch.simulate.plans.refusals import check_split
from hisearch.simulate.plans.tiers import TierRefused
from hisearch.simulate.results.result import Result
from hisearch.specs.deployments.deployment import DeploymentSpec, PoolSpec
from hisearch.specs.deployments.tier_checks import capacity_problems, of_another_host, spread_of
from hisearch.specs.machines.hardware import AcceleratorSpec
from hisearch.traces.compiled import CompiledTrace
from hisearch.traces.stats import requests_over_window

_Value = TypeVar("_Value")

#: With capacity as an objective, the smallest load that is tried; and the largest that a slice is ranked by.
LEAST_LOAD, MOST_LOAD_OF_SLICE = 1 / 8, 8.0

#: Approximate simulations per deployment with capacity as an objective: double or halve twice, then bisect.
SIMULATIONS_OF_CAPACITY = 9

#: Relative difference between the largest load that holds and the smallest that does not, both simulated.
CAPACITY_TOLERANCE = 0.02


class Simulation:
    """Planner and evaluator over one ``World``; both may be used from several threads at once."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._plans: _Memo[WorkerPlan] = _Memo()
        self._slices: _Memo[CompiledTrace] = _Memo()
        self._events, self._counting = 0, threading.Lock()

    def __reduce__(self) -> tuple[type[Simulation], tuple[World]]:
        """Another process gets the world, and compiles workers and cuts slices itself."""
        return Simulation, (self._world,)

    @property
    def world(self) -> World:
        """The simulated world."""
        return self._world

    @property
    def events(self) -> int:
        """Events that the event loops of all simulations so far handled: their work, the same on every machine."""
        return self._events

    @property
    def book(self) -> PriceBook:
        """Prices of the world's hardware."""
        world = self._world
        return PriceBook(world.accelerators, world.hosts, world.media, world.devices)

    def kv_capacity_tokens(self, pool: PoolSpec) -> int:
        """KV capacity of one worker in the tokens of its pages (see ``WorkerPlan``).

        Raises:
            DoesNotFit, InvalidParallelism, DevicesRefused: see ``plan_worker``.
        """
        return self._memory(pool).kv_capacity_tokens

    def requests_kv_tokens(self, pool: PoolSpec, context_tokens: float) -> int:
        """Tokens of requests with ``context_tokens`` each that a worker holds; errors as of ``kv_capacity_tokens``."""
        return int(self._memory(pool).requests_tokens(context_tokens))

    def _memory(self, pool: PoolSpec) -> MemoryPlan:
        world = self._world
        check_split(pool, world.model)
        accelerator, host, ffn, _ = self._hardware(pool)
        devices = worker_devices(pool, world.devices, ffn, host)
        return plan_pool_memory(pool, world.model, accelerator, world.profile, devices)

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
        """Step costs of one worker; with drafted tokens, of steps of one token that take as long on average."""
        plan = self.plan(pool)
        return plan.costs if plan.speculation is None else replace(plan.costs, seconds=token_costs(plan))

    def usd_per_hour(self, deployment: DeploymentSpec) -> float:
        """Dollars per hour of a deployment."""
        return self.book.breakdown(deployment).total

    def plan(self, pool: PoolSpec) -> WorkerPlan:
        """The pool's worker, compiled at first use; replicas share it, but for their parts of what is bought whole."""
        worker = pool.model_copy(update={"replicas": 1})
        plan = self._plans.get(worker.model_dump_json(), lambda: self._compile(worker))
        if pool.devices is None or pool.replicas == 1:
            return plan
        hardware = self._hardware(pool)
        devices = worker_devices(pool, self._world.devices, hardware.ffn, hardware.host)
        costs, power = idle_draw(plan.costs, pool, self._world.model, hardware, devices)
        return replace(plan, costs=costs, power=power, shared_draws=shared_draws(pool, hardware, devices))

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
                at_load = self.evaluate_at(job.deployment, load)
            except ObjectsLeaveTooLittleMemory:
                # The host memory cannot hold a larger population's objects: only the verdict is used.
                return Score(evaluation.metrics, evaluation.slo, False)
            return Score(at_load.metrics, at_load.slo, at_load.feasible)

        ends = {"min_load": LEAST_LOAD, "max_load": self._world.most_load}
        most = capacity(score_at, **ends, relative_tolerance=CAPACITY_TOLERANCE)
        metrics = self._at_most(evaluation.metrics, most.load) | {
            "capacity_goodput_rps": most.goodput_rps,
            "capacity_missed_load": most.infeasible_load,
            "queue_growth_rps": most.queue_growth_rps,
        }
        return replace(evaluation, metrics=evaluation.metrics | metrics, simulations=most.simulations)

    def _at_most(self, metrics: Mapping[str, float], load: float) -> dict[str, float]:
        """Figures that follow from ``load``, the largest that a deployment carries."""
        figures = {"capacity_load": load}
        if self._world.population is None:
            return figures
        return figures | self._world.population.figures({**metrics, **figures})

    def _evaluate_once(self, job: Job) -> Evaluation:
        if job.load != 1.0 and job.slice_fraction == 1.0:
            return self.evaluate_at(job.deployment, job.load)
        return self._scored(job.deployment, self.fleet(job.deployment), self.slice(job.slice_fraction), job.load)

    def evaluate_at(
        self,
        deployment: DeploymentSpec,
        load: float,
        fleet: FleetPlan | None = None,
        *,
        brief: bool = False,
        to_the_end: bool = False,
        least: Least = WHOLE,
    ) -> Evaluation:
        """Whether a deployment carries ``load`` times the study's own load in a steady state.

        fleet: another plan of it. brief, to_the_end, least: see ``sustained.sustained``. A larger population
        is another trace; it is simulated once.

        Raises:
            ValueError: the deployment cannot be built or simulated.
        """
        world, plan = self._world, fleet if fleet is not None else self.fleet(deployment)
        if world.population is not None:
            population, name = world.population, world.trace.name
            trace = self._slices.get(f"population {load!r}", lambda: population.trace(load, name))
            return self._scored(deployment, plan, trace)
        if world.continuation is None:
            return self._scored(deployment, plan, world.trace, load)
        return sustained(
            world.continuation,
            world.load * load,
            world.slo.terms,
            lambda trace, give_up: self._run(plan, trace, load, give_up),
            lambda trace, result, kept: self._score(deployment, plan, trace, result, kept),
            only_brief=brief,
            to_the_end=to_the_end,
            least=least,
        )

    def evaluate_disturbed(
        self,
        deployment: DeploymentSpec,
        trace: CompiledTrace,
        disturb: Callable[[CompiledCosts], CompiledCosts],
        load: float = 1.0,
    ) -> Evaluation:
        """Simulate a deployment on another trace, with other step costs, and score it.

        disturb: maps compiled step costs to those used; nothing is compiled again. load: factor on the study's own
        load; at any other than 1.0 the study's own trace is carried on instead of ``trace``.

        Raises:
            ValueError: the deployment cannot be built or simulated.
        """
        changed = self.disturbed(deployment, disturb)
        if load != 1.0:
            return self.evaluate_at(deployment, load, changed)
        return self._scored(deployment, changed, trace)

    def disturbed(self, deployment: DeploymentSpec, disturb: Callable[[CompiledCosts], CompiledCosts]) -> FleetPlan:
        """A deployment's plan with other step costs; see ``evaluate_disturbed``.

        Raises:
            ValueError: a worker cannot be built.
        """
        fleet = self.fleet(deployment)
        pools = [replace(pool, plan=replace(pool.plan, costs=disturb(pool.plan.costs))) for pool in fleet.pools]
        return replace(fleet, pools=tuple(pools))

    def evaluate_fleet(self, deployment: DeploymentSpec, fleet: FleetPlan, load: float = 1.0) -> Evaluation:
        """Simulate another plan of a deployment on the study's trace, at ``load`` times its own load, and score it.

        Raises:
            ValueError: it cannot be simulated.
        """
        return self._scored(deployment, fleet, self.slice(1.0), load)

    def _scored(
        self, deployment: DeploymentSpec, fleet: FleetPlan, trace: CompiledTrace, load: float = 1.0
    ) -> Evaluation:
        score = self._score(deployment, fleet, trace, result := self._run(fleet, trace, load))
        return Evaluation(score.metrics, score.slo, score.feasible, warnings=(*result.warnings, *score.warnings))

    def _run(self, fleet: FleetPlan, trace: CompiledTrace, load: float, give_up: GiveUp | None = None) -> Result:
        from hisearch.simulate.engine import NEVER, simulate_fleet

        stop, world = NEVER if give_up is None else give_up, self._world
        result = simulate_fleet(fleet, trace, seed=world.seed, load=world.load * load, give_up=stop)
        with self._counting:
            self._events += result.events
        return result

    def _score(
        self,
        deployment: DeploymentSpec,
        fleet: FleetPlan,
        trace: CompiledTrace,
        result: Result,
        kept: np.ndarray | None = None,
    ) -> Score:
        """Score a run of ``trace``. kept: the requests that ``result`` has of it; all of them where absent."""
        window_tokens = fleet.pools[0].plan.max_request_tokens
        over_window = requests_over_window(trace, window_tokens)
        score = evaluate(
            result,
            self._world.slo,
            usd_per_hour=self._paid_usd_per_hour(deployment, result),
            accelerators=self.book.breakdown(deployment).accelerators,
            over_window=over_window if kept is None else over_window[kept],
            window_tokens=window_tokens,
            limits=self._world.limits,
        )
        down = self._world.replicas_down
        if down == 0:
            return score
        fewest = min(pool.replicas for pool in deployment.pools)
        check = LimitCheck(REPLICAS, float(fewest), down + 1.0, at_least=True)
        return replace(score, slo=(*score.slo, check), feasible=score.feasible and check.holds)

    def fleet(self, deployment: DeploymentSpec, *, whole: bool = False) -> FleetPlan:
        """A deployment's pools, compiled at first use, and the transfers between them.

        Without the replicas that the study takes to be away, unless ``whole``; one of each pool is always left.

        Raises:
            ValueError: a worker cannot be built.
        """
        fabric = deployment.transfer.fabric
        return plan_fleet(
            deployment if whole else without_replicas(deployment, self._world.replicas_down),
            [self.plan(pool) for pool in deployment.pools],
            models=dict.fromkeys(deployment.model_refs, self._world.model),
            usd_per_hour=[price.initial.total / price.pool.replicas for price in self.book.pool_prices(deployment)],
            fabric=self._world.fabrics[fabric] if fabric is not None else None,
        )

    def _paid_usd_per_hour(self, deployment: DeploymentSpec, result: Result) -> float:
        """Dollars per hour of the workers that were there."""
        if all(pool.autoscale is None and not pool.schedule for pool in deployment.pools):
            return self.usd_per_hour(deployment)
        return mean_cost(self.book.pool_prices(deployment), deployment, result.present_workers).total

    def replay(self, deployment: DeploymentSpec, trace: CompiledTrace, load: float = 1.0) -> Result:
        """Simulate a deployment on another trace, at ``load`` times the study's own.

        Raises:
            ValueError: the deployment cannot be built or simulated.
        """
        from hisearch.simulate.engine import simulate_fleet

        return simulate_fleet(self.fleet(deployment), trace, seed=self._world.seed, load=self._world.load * load)

    def slice(self, fraction: float) -> CompiledTrace:
        """The trace's first ``fraction`` of requests, at least one; the trace itself for 1.0."""
        if fraction == 1.0:
            return self._world.trace
        return self._slices.get(repr(fraction), lambda: self._cut(fraction))

    def _cut(self, fraction: float) -> CompiledTrace:
        from hisearch.traces.changes.selection import head

        return head(self._world.trace, max(round(len(self._world.trace) * fraction), 1))

    def _compile(self, pool: PoolSpec) -> WorkerPlan:
        accelerator, host, ffn, ffn_host = self._hardware(pool)
        return plan_worker(
            pool,
            model=self._world.model,
            accelerator=accelerator,
            host=host,
            media=self._world.media,
            profile=self._world.profile,
            profile_name=self._world.profile_name,
            devices=self._world.devices,
            ffn_accelerator=ffn,
            ffn_host=ffn_host,
        )

    def _hardware(self, pool: PoolSpec) -> WorkerHardware:
        accelerator, name = self._accelerator(pool), ffn_accelerator_name(pool)
        ffn = self._world.accelerators[name] if name is not None else None
        names = (pool.host or accelerator.host, ffn_host_name(pool, ffn or accelerator))
        host, ffn_host = (self._world.hosts[each] if each is not None else None for each in names)
        return WorkerHardware(accelerator, host, ffn, ffn_host)

    def _accelerator(self, pool: PoolSpec) -> AcceleratorSpec:
        try:
            return self._world.accelerators[pool.accelerator]
        except KeyError:
            known = ", ".join(sorted(self._world.accelerators))
            raise ValueError(f"no accelerator named '{pool.accelerator}'; known: {known}") from None


def _slice_capacity(evaluation: Evaluation) -> float:
    """Estimate of a slice's capacity, for ranking only: growth of latencies until a term is missed."""
    return 1.0 / max(1.0 - worst_margin(evaluation.slo), 1.0 / MOST_LOAD_OF_SLICE)


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
