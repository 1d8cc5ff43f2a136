"""Flat searches: a sampler without stages takes every decision of the space at once.

The comparison favours them. A proposal that cannot be built or was simulated before costs nothing. Every simulation
runs the whole trace.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks.proof.table import Table, key_of
from hisearch.search.model.deployments import deployment_of, router_configs
from hisearch.search.model.job import Job
from hisearch.search.model.problem import Problem
from hisearch.search.model.trial import Trial
from hisearch.search.records.notices import quiet_optuna
from hisearch.search.select.pareto import minimised
from hisearch.search.stages.execution import weight_dtypes
from hisearch.specs.deployments.deployment import DeploymentSpec, EngineSpec, PoolSpec, RouterSpec

#: A decision's name and its options -> the option that is taken.
Ask = Callable[[str, Sequence[Any]], Any]

#: Consecutive repeated proposals after which a sampler counts as exhausted.
_MOST_STALE = 20_000

#: Consecutive repeated proposals after which TPE gets a random one; it would repeat its favourite for ever.
_MOST_REPEATS = 5

#: Ordinal options: the sampler chooses an index among them.
_ORDERED = frozenset({"tensor_parallel", "chunk_tokens", "max_running_requests", "replicas"})


def propose(problem: Problem, ask: Ask) -> DeploymentSpec | None:
    """Build a deployment decision by decision; None where it is outside the space or cannot be built."""
    execution, cache = problem.space.execution, problem.space.cache
    engine = ask("engine", execution.engines)
    accelerator = ask("accelerator", execution.accelerators)
    ranks = ask("tensor_parallel", execution.tensor_parallel)
    weight_dtype = ask("weight_dtype", weight_dtypes(execution))
    kv_dtype = ask("kv_dtype", execution.kv_dtypes)
    chunk = ask("chunk_tokens", execution.chunk_tokens)
    running = ask("max_running_requests", execution.max_running_requests)
    replicas = ask("replicas", range(1, execution.max_replicas + 1))
    router = _router(problem, ask)
    choice = problem.tier_choices(engine).choose(ask)
    try:
        settings = EngineSpec(
            name=engine,
            chunk_tokens=chunk,
            page_tokens=problem.page_tokens(engine),
            max_running_requests=running,
            memory_fraction=cache.memory_fraction[0],
            eviction=choice.eviction,
        )
        pool = PoolSpec(
            accelerator=accelerator,
            engine=settings,
            tensor_parallel=ranks,
            weight_dtype=weight_dtype,
            kv_dtype=kv_dtype,
            tiers=list(choice.tiers),
            movement=choice.movement,
        )
        problem.planner.requests_kv_tokens(pool, problem.demand.mean_context_tokens)
    except ValueError:
        return None
    if replicas > problem.max_replicas(pool) or not problem.planner.can_build(pool):
        return None
    if replicas == 1:
        router = router_configs(problem.space.routing)[0]
    return deployment_of(problem.model, problem.profile, pool, replicas, router)


def _router(problem: Problem, ask: Ask) -> RouterSpec:
    routing = problem.space.routing
    policy = ask("router", routing.policies)
    if policy != "cache_aware":
        return RouterSpec(policy=policy)
    return RouterSpec(
        policy=policy,
        cache_threshold=ask("cache_threshold", routing.cache_threshold),
        balance_abs_threshold=ask("balance_abs_threshold", routing.balance_abs_threshold),
        balance_rel_threshold=ask("balance_rel_threshold", routing.balance_rel_threshold),
    )


def _from_unit_cube(point: Iterator[float]) -> Ask:
    """Take each decision from the point's next coordinate."""

    def ask(name: str, options: Sequence[Any]) -> Any:
        return options[min(int(next(point) * len(options)), len(options) - 1)]

    return ask


#: Coordinates of a point; exceeds the number of decisions.
_DIMENSIONS = 32


def sample_points(table: Table, points: Iterator[Any], simulations: int) -> list[Trial]:
    """Simulate the points that are new deployments; each has shape (``_DIMENSIONS``,) in the unit cube."""
    trials: dict[str, Trial] = {}
    stale = 0
    while len(trials) < simulations and stale < _MOST_STALE:
        deployment = propose(table.problem, _from_unit_cube(iter(next(points).tolist())))
        stale += 1
        if deployment is None or key_of(deployment) in trials:
            continue
        stale = 0
        job = Job(0, deployment)
        trials[key_of(deployment)] = table.evaluate(job).trial(len(trials), job)
    return list(trials.values())


def random(table: Table, simulations: int, seed: int) -> list[Trial]:
    """Uniform over each decision's options."""
    generator = np.random.default_rng(seed)
    points = (generator.random(_DIMENSIONS) for _ in itertools.count())
    return sample_points(table, points, simulations)


def qmc(table: Table, simulations: int, seed: int) -> list[Trial]:
    """A scrambled Sobol sequence over the decisions."""
    from scipy.stats import qmc as sequences

    sobol = sequences.Sobol(_DIMENSIONS, rng=np.random.default_rng(seed))

    def points() -> Iterator[Any]:
        while True:
            yield from sobol.random(1024)

    return sample_points(table, points(), simulations)


def _ask_optuna(trial: Any) -> Ask:
    def ask(name: str, options: Sequence[Any]) -> Any:
        if len(options) == 1:
            return options[0]
        if name in _ORDERED or name.endswith("_gib"):
            return options[trial.suggest_int(name, 0, len(options) - 1)]
        key = f"{name} of {', '.join(map(str, options))}"
        return options[trial.suggest_categorical(key, list(range(len(options))))]

    return ask


def with_optuna(table: Table, sampler: Any, simulations: int, otherwise: Any = None) -> list[Trial]:
    """Simulate the proposals of an Optuna sampler; the SLO's terms are its constraints.

    ``otherwise``: a sampler that replaces it after repetitions; repetitions are then reported as failed.
    """
    import optuna
    from optuna.trial import TrialState

    trials: dict[str, Trial] = {}
    objectives, stale = table.problem.objectives, 0
    with quiet_optuna():
        study = optuna.create_study(directions=["minimize"] * len(objectives), sampler=sampler)
        while len(trials) < simulations and stale < _MOST_STALE:
            study.sampler = otherwise if otherwise is not None and stale >= _MOST_REPEATS else sampler
            optuna_trial = study.ask()
            deployment = propose(table.problem, _ask_optuna(optuna_trial))
            stale += 1
            if deployment is None:
                study.tell(optuna_trial, state=TrialState.FAIL)
                continue
            key, job = key_of(deployment), Job(0, deployment)
            repeated = key in trials
            if not repeated:
                stale = 0
                trials[key] = table.evaluate(job).trial(len(trials), job)
            done = trials[key]
            if done.error or (repeated and otherwise is not None):
                study.tell(optuna_trial, state=TrialState.FAIL)
                continue
            for check in done.slo:
                optuna_trial.set_constraint(check.label, min(check.violation, 1e6))
            study.tell(optuna_trial, minimised([done], objectives)[0].tolist())
    return list(trials.values())


def tpe(table: Table, simulations: int, seed: int) -> list[Trial]:
    """Optuna's multi-objective TPE with its default settings; random where it repeats itself."""
    import optuna

    with quiet_optuna():
        sampler = optuna.samplers.TPESampler(seed=seed)
    return with_optuna(table, sampler, simulations, optuna.samplers.RandomSampler(seed=seed))


def nsga2(table: Table, simulations: int, seed: int) -> list[Trial]:
    """Optuna's NSGA-II with its default settings."""
    import optuna

    return with_optuna(table, optuna.samplers.NSGAIISampler(seed=seed), simulations)


#: Name -> a flat search: (table, simulations, seed) -> its trials in order.
FLAT: dict[str, Callable[[Table, int, int], list[Trial]]] = {
    "random": random,
    "QMC": qmc,
    "NSGA-II": nsga2,
    "TPE": tpe,
}

#: Methods whose curve ends early: TPE takes 0.1 s a proposal, and longer with each trial.
MOST_SIMULATIONS = {"TPE": 300}
