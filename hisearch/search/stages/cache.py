"""Stage 3: memory for KV, the cache tiers and their movement, sampled by Optuna around the best deployments of stage 2.

The sampler is the multivariate tree-structured Parzen estimator with the SLO as constraints. It learns from few trials,
as a stage of some tens of simulations needs, and costs about 2 ms a trial at this size. From ``NSGA_FROM`` trials on,
its cost per trial would exceed that of a simulation. NSGA-II then takes over, at under a millisecond whatever the
number.

Trials are asked for in batches of a fixed size and told in the order of asking. The sampler thus sees the same for any
number of workers.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hisearch.search.evaluate.runner import TrialRunner
from hisearch.search.model.deployments import parameters_of, starting_memory_fraction, with_cache
from hisearch.search.model.job import Job
from hisearch.search.model.problem import Problem
from hisearch.search.model.tier_choices import Decision, NotOffered, TierChoice
from hisearch.search.model.trial import Trial
from hisearch.search.records.notices import quiet_optuna
from hisearch.search.select.pareto import front, minimised, miss_order
from hisearch.specs.deployments.deployment import DeploymentSpec
from hisearch.specs.deployments.tiers import MovementSpec
from hisearch.specs.studies.search_space import CacheSpace

if TYPE_CHECKING:
    import optuna

STAGE = 3

#: Trials between two updates of the sampler.
ASK_BATCH = 8

#: Deployments of stage 2 whose memory is searched: from its front, and cheaper ones that narrowly miss the SLO.
FRONT_BASES = 5
MISSED_BASES = 3

#: A cheaper deployment gets a try with more cache if its worst term is missed by at most this share.
NARROW_MISS = 0.5

#: Steps of the memory fraction: as operators set it, and few enough for the sampler to repeat itself.
MEMORY_STEP = 0.01

#: Batches without a new deployment, after which the space counts as exhausted.
STALE_BATCHES = 4

NSGA_FROM = 500

#: Violation that stands for an infinite one.
_INFINITE_VIOLATION = 1e6


def bases(trials: Sequence[Trial], objectives: Sequence[str], *, tiers: bool = False) -> list[Trial]:
    """Deployments to vary, best first, each hardware and router setting once.

    ``tiers``: the space has cache tiers to offer. They may then save a cheaper deployment that recomputes many prompts,
    however widely it misses the SLO without them.
    """
    comparable = [trial for trial in trials if trial.comparable]
    feasible = sorted((t for t in comparable if t.feasible), key=lambda t: (t.metrics["usd_per_hour"], t.number))
    cheapest_usd = feasible[0].metrics["usd_per_hour"] if feasible else math.inf
    missed = sorted((trial for trial in comparable if not trial.feasible), key=miss_order)
    cheaper = [trial for trial in missed if trial.metrics["usd_per_hour"] < cheapest_usd]
    narrow = cheaper if tiers else [trial for trial in cheaper if miss_order(trial)[0] <= NARROW_MISS]
    if not feasible:
        return (narrow or missed)[: FRONT_BASES + MISSED_BASES]
    by_price = sorted(front(feasible, objectives), key=lambda t: (t.metrics["usd_per_hour"], t.number))
    chosen = [feasible[0], *(trial for trial in by_price if trial is not feasible[0])][:FRONT_BASES]
    return chosen + narrow[:MISSED_BASES]


@dataclass(frozen=True)
class CacheSearch:
    """Result of stage 3. ended: it had nothing more to propose. bases: deployments that it could have varied."""

    ended: bool
    bases: tuple[DeploymentSpec, ...] = ()


def search_cache(
    problem: Problem, runner: TrialRunner, until: int, first: Sequence[Trial] = (), number: int = 1
) -> CacheSearch:
    """Run stage 3 after the runner's trials, until ``until`` simulations or until nothing new is proposed.

    Earlier stage-3 trials of the same deployments are told to the sampler. first: trials to vary in any case. number:
    of this run of stage 3, from 1; each draws differently.
    """
    others = bases(runner.considered, problem.objectives, tiers=bool(problem.space.cache.tiers))
    base_trials = list({trial.number: trial for trial in (*first, *others)}.values())
    if not base_trials or not has_choices(problem):
        return CacheSearch(ended=True)
    varied = tuple(trial.deployment for trial in base_trials)
    if until <= runner.simulations or runner.stopped:
        return CacheSearch(ended=False, bases=varied)
    with quiet_optuna():
        study = _study(problem, until - runner.simulations, problem.seed + number - 1)
        known = [*enumerate(base_trials), *_made_before(base_trials, runner.trials)]
        for index, trial in known:
            study.enqueue_trial(_values_of(index, trial.deployment, problem))
        stale = -(len(known) // ASK_BATCH)  # batches of known trials do not count
        while runner.simulations < until and not runner.stopped and stale < STALE_BATCHES:
            before = runner.simulations
            _run_batch(study, problem, base_trials, runner, until)
            stale = stale + 1 if runner.simulations == before or stale < 0 else 0
    return CacheSearch(stale == STALE_BATCHES, varied)


def _made_before(base_trials: Sequence[Trial], trials: Sequence[Trial]) -> list[tuple[int, Trial]]:
    """Earlier stage-3 trials of the deployments of ``base_trials``, each with its deployment's index there."""
    places = {_without_cache(trial.deployment): index for index, trial in reversed(list(enumerate(base_trials)))}
    base_numbers = {trial.number for trial in base_trials}
    others = [
        trial for trial in trials if trial.stage == STAGE and trial.comparable and trial.number not in base_numbers
    ]
    named = [(places.get(_without_cache(trial.deployment)), trial) for trial in others]
    return [(index, trial) for index, trial in named if index is not None]


def count_settings(problem: Problem, varied: Iterable[DeploymentSpec], trials: Sequence[Trial]) -> tuple[int, int]:
    """(settings of the deployments' memory, buildable or not; settings that were simulated).

    Only simulations of the complete trace count. Deployments that differ in their memory alone count once.
    """
    engines = {_without_cache(deployment): deployment.pool.engine.name for deployment in varied}
    steps = _memory_steps(*problem.space.cache.memory_fraction) + 1
    total = sum(steps * problem.tier_choices(engine).count() for engine in engines.values())
    complete = {trial.deployment.model_dump_json(): trial.deployment for trial in trials if trial.slice_fraction == 1.0}
    tried = sum(_without_cache(spec) in engines and _is_offered(problem, spec) for spec in complete.values())
    return total, tried


def _without_cache(deployment: DeploymentSpec) -> str:
    """Key of a deployment without its memory settings."""
    return with_cache(deployment, memory_fraction=1.0, choice=TierChoice((), MovementSpec(), "lru")).model_dump_json()


def _is_offered(problem: Problem, deployment: DeploymentSpec) -> bool:
    """True if stage 3 could propose a deployment's memory settings."""
    pool, (low, high) = deployment.pool, problem.space.cache.memory_fraction
    step = (pool.engine.memory_fraction - low) / MEMORY_STEP
    on_grid = abs(step - round(step)) < 1e-6 and 0 <= round(step) <= _memory_steps(low, high)
    choices = problem.tier_choices(pool.engine.name)
    try:
        choices.decisions_of(pool)
    except NotOffered:
        return False
    return on_grid and (bool(pool.tiers) or pool.engine.eviction == choices.starting_eviction)


def has_choices(problem: Problem) -> bool:
    """True if the space leaves stage 3 something to choose."""
    engines = problem.space.execution.engines
    steps = _memory_steps(*problem.space.cache.memory_fraction)
    return steps > 0 or any(problem.tier_choices(engine).count() > 1 for engine in engines)


def memory_fractions(space: CacheSpace) -> list[float]:
    """The memory fractions of a space, ascending: its steps, and the start of stages 1 and 2."""
    low, high = space.memory_fraction
    steps = {round(low + step * MEMORY_STEP, 6) for step in range(_memory_steps(low, high) + 1)}
    return sorted(steps | {starting_memory_fraction(space)})


def _memory_steps(low: float, high: float) -> int:
    """Steps from the lower to the upper bound of the memory fraction."""
    return math.floor((high - low) / MEMORY_STEP + 1e-9)


def _study(problem: Problem, trials: int, seed: int) -> optuna.Study:
    import optuna

    sampler: optuna.samplers.BaseSampler
    if trials < NSGA_FROM:
        sampler = optuna.samplers.TPESampler(
            seed=seed, multivariate=True, group=True, constant_liar=True, n_startup_trials=2 * ASK_BATCH
        )
    else:
        sampler = optuna.samplers.NSGAIISampler(seed=seed)
    return optuna.create_study(directions=["minimize"] * len(problem.objectives), sampler=sampler)


def _run_batch(
    study: optuna.Study, problem: Problem, base_trials: Sequence[Trial], runner: TrialRunner, until: int
) -> None:
    """Ask for a batch, simulate the deployments that can be built, tell the results in order."""
    suggested = [study.ask() for _ in range(ASK_BATCH)]
    deployments = [_suggest(trial, problem, base_trials) for trial in suggested]
    jobs = [Job(STAGE, deployment, parameters_of(deployment)) for deployment in deployments]
    built = [job for job in jobs if all(problem.planner.can_build(pool) for pool in job.deployment.pools)]
    done = {id(job): trial for job, trial in zip(built, runner.run(built, until), strict=True)}
    for trial, job in zip(suggested, jobs, strict=True):
        _tell(study, trial, done.get(id(job)), problem.objectives)


def _suggest(trial: optuna.Trial, problem: Problem, base_trials: Sequence[Trial]) -> DeploymentSpec:
    """Let the sampler choose; decisions with a single option are skipped."""
    low, high = problem.space.cache.memory_fraction
    base = base_trials[trial.suggest_categorical("base", list(range(len(base_trials))))].deployment
    step = trial.suggest_int("memory_step", 0, _memory_steps(low, high))

    def ask(name: str, options: Sequence[Any]) -> Any:
        if len(options) == 1:
            return options[0]
        if Decision(name, (), None).is_size:
            return options[trial.suggest_int(name, 0, len(options) - 1)]
        return trial.suggest_categorical(_parameter(name, options), options)

    choice = problem.tier_choices(base.pool.engine.name).choose(ask)
    return with_cache(base, memory_fraction=round(low + step * MEMORY_STEP, 6), choice=choice)


def _parameter(name: str, options: Sequence[Any]) -> str:
    """The sampler's name of a choice: options that depend on the engine or KV connector make another choice."""
    return f"{name} of {', '.join(map(str, options))}"


def _values_of(index: int, deployment: DeploymentSpec, problem: Problem) -> dict[str, Any]:
    """The sampler's values that would give a deployment of stage 2."""
    pool = deployment.pool
    step = (pool.engine.memory_fraction - problem.space.cache.memory_fraction[0]) / MEMORY_STEP
    values: dict[str, Any] = {"base": index, "memory_step": round(step)}
    with contextlib.suppress(NotOffered):  # tiers of another engine: the sampler chooses others
        for made in problem.tier_choices(pool.engine.name).decisions_of(pool):
            if made.is_size:
                values[made.name] = made.options.index(made.value)
            else:
                values[_parameter(made.name, made.options)] = made.value
    return values


def _tell(study: optuna.Study, suggested: optuna.Trial, done: Trial | None, objectives: Sequence[str]) -> None:
    """Tell a trial's objectives, minimised, and its distance from each bound; at most zero is feasible."""
    from optuna.trial import TrialState

    if done is None or done.error:
        study.tell(suggested, state=TrialState.FAIL)
        return
    for check in done.slo:
        suggested.set_constraint(check.label, min(check.violation, _INFINITE_VIOLATION))
    study.tell(suggested, minimised([done], objectives)[0].tolist())
