"""Stage 3: memory for KV, the host tier and eviction, sampled by Optuna around the best deployments of stage 2.

The sampler is the multivariate tree-structured Parzen estimator with the SLO as constraints. It learns from few trials,
which is what a stage of some tens of simulations needs, and costs about 2 ms a trial at this size. From ``NSGA_FROM``
trials on, where its cost per trial has grown past that of a simulation, NSGA-II takes over, which costs under a
millisecond whatever the number.

Trials are asked for in batches of a fixed size and told in the order of asking, so that the sampler sees the same for
any number of workers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hisearch.search.deployments import host_gib, parameters_of, with_cache
from hisearch.search.job import Job
from hisearch.search.ledger import Ledger
from hisearch.search.notices import quiet_optuna
from hisearch.search.pareto import front, minimised, miss_order
from hisearch.search.problem import Problem
from hisearch.search.trial import Trial
from hisearch.specs.deployment import DeploymentSpec
from hisearch.specs.study import SearchSpaceSpec

if TYPE_CHECKING:
    import optuna

STAGE = 3

#: Trials between two updates of the sampler.
ASK_BATCH = 8

#: Deployments of stage 2 whose memory is searched: from its front, and cheaper ones that narrowly miss the SLO.
FRONT_BASES = 5
MISSED_BASES = 3

#: A cheaper deployment is worth a second look with more cache where its worst term is missed by at most this share.
NARROW_MISS = 0.5

#: Steps of the memory fraction: what operators set, and few enough for the sampler to repeat itself.
MEMORY_STEP = 0.01

#: Batches without a deployment that is new, after which the space counts as exhausted.
STALE_BATCHES = 4

NSGA_FROM = 500

#: Violation that stands for an infinite one.
_INFINITE_VIOLATION = 1e6


def bases(trials: Sequence[Trial], objectives: Sequence[str]) -> list[Trial]:
    """Deployments to vary, best first, each hardware and router setting once."""
    comparable = [trial for trial in trials if trial.comparable]
    feasible = sorted((t for t in comparable if t.feasible), key=lambda t: (t.metrics["usd_per_hour"], t.number))
    cheapest_usd = feasible[0].metrics["usd_per_hour"] if feasible else math.inf
    missed = sorted((trial for trial in comparable if not trial.feasible), key=miss_order)
    narrow = [t for t in missed if t.metrics["usd_per_hour"] < cheapest_usd and miss_order(t)[0] <= NARROW_MISS]
    if not feasible:
        return (narrow or missed)[: FRONT_BASES + MISSED_BASES]
    by_price = sorted(front(feasible, objectives), key=lambda t: (t.metrics["usd_per_hour"], t.number))
    chosen = [feasible[0], *(trial for trial in by_price if trial is not feasible[0])][:FRONT_BASES]
    return chosen + narrow[:MISSED_BASES]


@dataclass(frozen=True)
class CacheSearch:
    """What stage 3 did. ended: by itself, it had nothing more to propose. settings: all that it could have proposed."""

    ended: bool
    settings: tuple[DeploymentSpec, ...] = ()


def search_cache(problem: Problem, ledger: Ledger, until: int) -> CacheSearch:
    """Run stage 3 on top of the ledger's trials; it stops at ``until`` simulations or when nothing new is proposed."""
    found = bases(ledger.trials, problem.objectives)
    if not found or not has_choices(problem.space):
        return CacheSearch(ended=True)
    settings = tuple(_settings(problem, found))
    if until <= ledger.simulations or ledger.stopped:
        return CacheSearch(ended=False, settings=settings)
    with quiet_optuna():
        study = _study(problem, until - ledger.simulations)
        for index, trial in enumerate(found):
            study.enqueue_trial(_values_of(index, trial.deployment, problem))
        stale = 0
        while ledger.simulations < until and not ledger.stopped and stale < STALE_BATCHES:
            before = ledger.simulations
            _run_batch(study, problem, found, ledger, until)
            stale = stale + 1 if ledger.simulations == before else 0
    return CacheSearch(stale == STALE_BATCHES, settings)


def _settings(problem: Problem, found: Sequence[Trial]) -> Iterator[DeploymentSpec]:
    """Every setting of the bases' memory, whether or not it can be built."""
    cache = problem.space.cache
    low, high = cache.memory_fraction
    steps, sizes = range(_memory_steps(low, high) + 1), sorted(set(cache.host_gib_per_worker))
    for trial, step, gib in itertools.product(found, steps, sizes):
        engine = trial.deployment.pool.engine
        for eviction in cache.eviction if _chooses_eviction(engine.name, gib) else [engine.eviction]:
            yield with_cache(
                trial.deployment,
                memory_fraction=round(low + step * MEMORY_STEP, 6),
                host_gib=gib,
                host_medium=cache.host_medium,
                eviction=eviction,
            )


def has_choices(space: SearchSpaceSpec) -> bool:
    """True where a space leaves stage 3 something to choose."""
    tiers = space.cache.host_gib_per_worker
    evictions = space.cache.eviction if "sglang" in space.execution.engines and max(tiers) > 0 else []
    return _memory_steps(*space.cache.memory_fraction) > 0 or len(tiers) > 1 or len(evictions) > 1


def _memory_steps(low: float, high: float) -> int:
    """Steps from the lower to the upper bound of the memory fraction."""
    return math.floor((high - low) / MEMORY_STEP + 1e-9)


def _study(problem: Problem, trials: int) -> optuna.Study:
    import optuna

    sampler: optuna.samplers.BaseSampler
    if trials < NSGA_FROM:
        sampler = optuna.samplers.TPESampler(
            seed=problem.seed, multivariate=True, group=True, constant_liar=True, n_startup_trials=2 * ASK_BATCH
        )
    else:
        sampler = optuna.samplers.NSGAIISampler(seed=problem.seed)
    return optuna.create_study(directions=["minimize"] * len(problem.objectives), sampler=sampler)


def _run_batch(study: optuna.Study, problem: Problem, found: Sequence[Trial], ledger: Ledger, until: int) -> None:
    """Ask for a batch, simulate what of it can be built, tell it in order."""
    asked = [study.ask() for _ in range(ASK_BATCH)]
    jobs = [_job(_suggest(trial, problem, found), found) for trial in asked]
    built = [job for job in jobs if problem.planner.can_build(job.deployment.pool)]
    done = {id(job): trial for job, trial in zip(built, ledger.run(built, until), strict=True)}
    for trial, job in zip(asked, jobs, strict=True):
        _tell(study, trial, done.get(id(job)), problem.objectives)


def _suggest(trial: optuna.Trial, problem: Problem, found: Sequence[Trial]) -> dict[str, Any]:
    """Let the sampler choose; dimensions that have one value only are not asked for."""
    cache = problem.space.cache
    base = trial.suggest_categorical("base", list(range(len(found))))
    low, high = cache.memory_fraction
    step = trial.suggest_int("memory_step", 0, _memory_steps(low, high))
    tier = trial.suggest_int("host_tier", 0, len(cache.host_gib_per_worker) - 1)
    gib = sorted(cache.host_gib_per_worker)[tier]
    engine = found[base].deployment.pool.engine
    eviction: str = engine.eviction
    if _chooses_eviction(engine.name, gib):
        eviction = trial.suggest_categorical("eviction", cache.eviction)
    return {
        "base": base,
        "memory_fraction": round(low + step * MEMORY_STEP, 6),
        "host_gib": gib,
        "host_medium": cache.host_medium,
        "eviction": eviction,
    }


def _values_of(index: int, deployment: DeploymentSpec, problem: Problem) -> dict[str, Any]:
    """What the sampler would have had to choose to arrive at a deployment of stage 2."""
    cache, pool = problem.space.cache, deployment.pool
    values: dict[str, Any] = {
        "base": index,
        "memory_step": round((pool.engine.memory_fraction - cache.memory_fraction[0]) / MEMORY_STEP),
        "host_tier": sorted(cache.host_gib_per_worker).index(host_gib(pool)),
    }
    if _chooses_eviction(pool.engine.name, host_gib(pool)):
        values["eviction"] = pool.engine.eviction
    return values


def _chooses_eviction(engine: str, gib: float) -> bool:
    """Only SGLang has a choice, and without a host tier its lfu is lru: it counts no hits then (0.5.9)."""
    return engine == "sglang" and gib > 0


def _job(choice: dict[str, Any], found: Sequence[Trial]) -> Job:
    settings = {name: value for name, value in choice.items() if name != "base"}
    deployment = with_cache(found[choice["base"]].deployment, **settings)
    return Job(STAGE, deployment, parameters_of(deployment))


def _tell(study: optuna.Study, asked: optuna.Trial, done: Trial | None, objectives: Sequence[str]) -> None:
    """Tell a trial's objectives, minimised, and how far it is from each bound; at most zero is feasible."""
    from optuna.trial import TrialState

    if done is None or done.error:
        study.tell(asked, state=TrialState.FAIL)
        return
    for check in done.slo:
        asked.set_constraint(check.label, min(check.violation, _INFINITE_VIOLATION))
    study.tell(asked, minimised([done], objectives)[0].tolist())
