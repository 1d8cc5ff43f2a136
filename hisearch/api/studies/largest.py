"""The largest rate of given accelerators: ``hisearch.largest_rate(study)``, what ``hisearch size --have`` does."""

from __future__ import annotations

import itertools
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hisearch.api.run_folder import NOT_EXPORTED, plain, write_text, write_tree
from hisearch.api.studies.climbing import climb, more_servers, with_engines
from hisearch.api.studies.largest_answer import AssuredRate, Compared, CurvePoint, LargestRate
from hisearch.export.engines.launch import ExportError
from hisearch.score.metrics import front_end_note, metric_of
from hisearch.score.quantities import quantity
from hisearch.score.steady_state import LEAST_SPAN_S
from hisearch.score.terms import Check, worst_check
from hisearch.search.confidence.baseline import default_engine
from hisearch.search.confidence.uncertainty import factors_of, normal_draws, with_factors
from hisearch.search.evaluate.simulation import Simulation
from hisearch.search.evaluate.sustained import Least
from hisearch.search.model.deployments import deployment_of, describe, parameters_of
from hisearch.search.model.job import TRIAL_ERRORS, Evaluation, Job
from hisearch.search.rate.assured import assured_load
from hisearch.search.rate.entrants import Entrant, entrants_of
from hisearch.search.rate.race import Carried, EvaluateAt, Race
from hisearch.search.stages.screening import screen
from hisearch.specs.checks.checks import left_out_formats
from hisearch.specs.deployments.deployment import DeploymentSpec
from hisearch.specs.deployments.pool import PoolSpec
from hisearch.specs.deployments.routing import RouterSpec
from hisearch.traces.changes.continuation import period_s

if TYPE_CHECKING:
    from hisearch.api.studies.study import Study
    from hisearch.latency.costs import CompiledCosts
    from hisearch.search.model.problem import Problem

#: Candidates that stage 1 keeps of each shape: all take part.
_ALL = 10_000

#: Shares of the largest rate at which the curve is simulated, beside the assured rate; factor on a looser SLO's bounds.
CURVE = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25)
LOOSER = 1.25

#: Most draws of step times, of those that the study asks for. What the simulation of one at a load takes: its verdict
#: is one of many, and need not be as sure as the leader's. Requests that stand alone tell it in two minutes: the
#: assured rate of an 8B model moves by at most 1.2 %. In conversations what is cached accumulates for longer.
MOST_DRAWS = 32
DRAW_OF_SINGLE = Least(2_000, 120.0)
DRAW_OF_TURNS = Least(2_000, LEAST_SPAN_S)

#: Work of a race, in events of the simulations: a minute of one core, at 1.6 million a second. It does not depend on
#: the machine. The race of 154 deployments of a 70B model on eight GPUs takes a quarter of it. The draws
#: have two minutes more.
MOST_EVENTS = 100_000_000
MOST_EVENTS_OF_DRAWS = 200_000_000


def largest_rate(
    study: Study, *, workers: int | None = None, seconds: float | None = None, run_dir: str | Path | None = None,
    around: bool = True,
) -> LargestRate:  # fmt: skip
    """Search the largest rate that a study's accelerators carry within its SLO.

    Args:
        study: its limits or its space say how many accelerators there are; its workload has a rate that can be raised.
        workers: threads; all cores where absent. The answer depends on it only where seconds end the race.
        seconds: wall time after which the race ends, however much work that is. Where absent, the race ends with its
            work, which is limited alike on all machines, or with the study's own seconds, whichever is first.
        run_dir: where the study, ``largest.json`` and the launch scripts are written; nowhere where absent.
        around: whether the rate of the study's required probability, the curve and the comparisons are simulated, too.

    Raises:
        SpecError: all first turns of the workload arrive at once: there is no rate.
        NothingFitsError: no deployment of the space can be built.
    """
    from hisearch.search.driver import NothingFitsError

    began = time.monotonic()
    world = study.world()
    if world.continuation is None:
        raise study.resolved.document.error(
            ("spec", "workload"),
            "all first turns arrive at once or agents wait for each other: there is no rate to raise",
        )
    # The space has no deployment of more accelerators: the limit would only refuse what one more would bring.
    limits = {name: limit for name, limit in world.limits.items() if name != "accelerators"}
    simulation = Simulation(replace(world, capacity=False, limits=limits))
    problem = study.problem(simulation)
    report = screen(problem, _ALL)
    entrants = entrants_of(problem, report)
    if not entrants:
        raise NothingFitsError(report)
    own_rps = len(world.trace) / period_s(world.trace) * world.load
    entrants = [replace(entrant, estimate_rps=entrant.estimate_rps / own_rps) for entrant in entrants]
    each = partial(_each, workers or os.cpu_count() or 1)
    limit_s = seconds or study.resolved.study.budget.wall_s

    def over(events: int) -> str:
        if seconds is None and simulation.events >= events:
            return "work"
        return "seconds" if time.monotonic() - began > limit_s else ""

    race = Race(simulation.evaluate_at, each, lambda: over(MOST_EVENTS))
    race.run(entrants)
    climb(problem, race)
    more_servers(problem, race)
    assured, most_events = None, simulation.events + MOST_EVENTS_OF_DRAWS
    if around and race.leader is not None:
        assured = _assured(study, simulation, race.leader, own_rps, each, lambda: over(most_events))
    answer = _Answer(study, problem, simulation, race, own_rps, assured, each).made(entrants, report_around=around)
    answer = replace(answer, wall_s=round(time.monotonic() - began, 3))
    return answer if run_dir is None else _written(answer, Path(run_dir))


def _each(threads: int, make: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    from joblib import Parallel, delayed

    pool = Parallel(n_jobs=threads if len(items) > 1 else 1, backend="threading")
    return list(pool(delayed(make)(item) for item in items))


def _assured(
    study: Study, simulation: Simulation, best: Carried, own_rps: float, each: Callable[..., list[bool]],
    over: Callable[[], str],
) -> AssuredRate | None:  # fmt: skip
    """The rate that the winner carries with the study's required probability; None if it requires none."""
    settings, deployment = study.resolved.study.confidence, best.deployment
    count = min(settings.draws, MOST_DRAWS)
    if settings.required is None or not count or best.load <= 0.0:
        return None
    normal = normal_draws(count, study.resolved.study.seed)
    alone = bool((study.trace.arrays.previous < 0).all())
    least = DRAW_OF_SINGLE if alone else DRAW_OF_TURNS

    def factors(costs: CompiledCosts, draw: int) -> dict[str, float]:
        return factors_of(costs, normal[draw], settings.correlation)

    plans = [
        simulation.disturbed(deployment, lambda costs, draw=draw: with_factors(costs, factors(costs, draw)))  # type: ignore[misc]
        for draw in range(count)
    ]
    own = simulation.fleet(deployment).pools[0].plan.costs
    slowest = sorted(range(count), key=lambda draw: -math.prod(factors(own, draw).values()))

    def holds(draw: int, load: float) -> bool:
        try:
            return simulation.evaluate_at(deployment, load, plans[draw], least=least).feasible
        except TRIAL_ERRORS:
            return False

    sure = assured_load(holds, slowest, settings.required, best.load, each=each, over=over)
    return AssuredRate(
        sure.load * own_rps, settings.required, sure.share, sure.share_first, count, sure.simulations, sure.ended
    )


def run_notes(runs: Sequence[Evaluation]) -> list[str]:
    """Warnings of runs of one deployment; on a busy front end the first alone, since each has its own share of time."""
    busy = [note for note in (front_end_note(run.metrics) for run in runs) if note]
    return [note for run in runs for note in run.warnings if note not in busy[1:] or note == busy[0]]


class _Variant(NamedTuple):
    """A deployment whose largest rate is told beside the winner's, and what simulates it."""

    what: str
    deployment: DeploymentSpec
    evaluate: EvaluateAt


class _Answer:
    """Builds the answer around the winner of a race."""

    def __init__(
        self, study: Study, problem: Problem, simulation: Simulation, race: Race, own_rps: float,
        assured: AssuredRate | None, each: Callable[..., list[Any]],
    ) -> None:  # fmt: skip
        self._study, self._problem, self._simulation = study, problem, simulation
        self._race, self._own_rps, self._assured, self._each = race, own_rps, assured, each
        self._runs: dict[float, Evaluation] = {}

    def made(self, entrants: Sequence[Entrant], *, report_around: bool) -> LargestRate:
        """The answer; see ``LargestRate``."""
        race, best = self._race, self._race.leader
        counts = (len(entrants), race.tried)
        if best is None or best.evaluation is None:
            return LargestRate(
                self._study, self._simulation, None, 0.0, math.inf, None, (), (), (), (), *counts, race.simulations,
                0.0, race.ended,
            )  # fmt: skip
        job = Job(4, best.deployment, parameters_of(best.deployment), load=best.load)
        groups = (
            [list(make(best)) for make in (self._relieved, self._simpler, self._more)] if report_around else [[]] * 3
        )
        rates = iter(self._each(partial(self._rate, best.load), [variant for group in groups for variant in group]))
        relieved, simpler, more = (tuple(itertools.islice(rates, len(group))) for group in groups)
        return LargestRate(
            self._study,
            self._simulation,
            best.evaluation.trial(0, job),
            best.load * self._own_rps,
            best.capacity.infeasible_load * self._own_rps,
            self._binds(best),
            relieved,
            self._curve(best) if report_around else (),
            simpler,
            more,
            *counts,
            race.simulations,
            0.0,
            race.ended,
            self._assured,
            self._warnings(best),
        )

    def _at(self, best: Carried, load: float) -> Evaluation:
        """The winner at a load, simulated to the end, once."""
        if load not in self._runs:
            self._runs[load] = self._simulation.evaluate_at(best.deployment, load, to_the_end=True)
        return self._runs[load]

    def _binds(self, best: Carried) -> Check | None:
        """The check that is missed most just above the largest load.

        It is simulated to its end there: a run that is given up has requests without an end, which miss every term.
        """
        if best.missed is None:
            return None
        runs = (self._at(best, best.capacity.infeasible_load), best.missed)
        missed = [[check for check in run.slo if not check.holds] for run in runs]
        return worst_check(missed[0] or missed[1])

    def _warnings(self, best: Carried) -> tuple[str, ...]:
        """Formats that were left out, and warnings of the runs at the assured load and at the largest; each once."""
        runs = [best.evaluation]
        if self._assured is not None and self._assured.rate_rps > 0.0:
            runs.insert(0, self._at(best, self._assured.rate_rps / self._own_rps))
        resolved, accelerators = self._study.resolved, self._simulation.world.accelerators
        left_out = left_out_formats(resolved.space.spec.execution, accelerators, resolved.model.spec)
        return tuple(dict.fromkeys([*left_out, *run_notes([run for run in runs if run is not None])]))

    def _relieved(self, best: Carried) -> Iterator[_Variant]:
        """The winner with a quarter more of each resource alone.

        Rates are compared, not terms at one load: above the edge several reliefs make all terms hold, or none does.
        """
        from hisearch.api.studies.limiting import reliefs

        fleet = self._simulation.fleet(best.deployment)
        for name, relieve in reliefs().items():
            pools = tuple(replace(pool, plan=relieve(pool.plan)) for pool in fleet.pools)
            yield _Variant(
                name, best.deployment, partial(self._simulation.evaluate_at, fleet=replace(fleet, pools=pools))
            )

    def _curve(self, best: Carried) -> tuple[CurvePoint, ...]:
        labels = [term.label for term in self._problem.slo.terms]

        def point(load: float) -> CurvePoint | None:
            try:
                evaluation = self._at(best, load)
            except TRIAL_ERRORS:
                return None
            values = {label: evaluation.metrics[metric_of(label)] for label in labels}
            growth = evaluation.metrics["queue_growth_rps"]
            return CurvePoint(load * self._own_rps, values, growth, evaluation.feasible)

        loads = {share * best.load for share in CURVE}
        if self._assured is not None and self._assured.rate_rps > 0.0:
            loads.add(self._assured.rate_rps / self._own_rps)
        return tuple(made for made in self._each(point, sorted(loads)) if made is not None)

    def _rate(self, start: float, variant: _Variant) -> Compared:
        """A variant's largest rate; the race's own counts stay."""
        largest = replace(self._race, evaluate=variant.evaluate, carried=[]).search(variant.deployment, start)
        return Compared(variant.what, largest.load * self._own_rps if largest is not None else math.nan)

    def _simpler(self, best: Carried) -> Iterator[_Variant]:
        """The engine's defaults, its default batch limits alone, and a plain router."""
        deployment = best.deployment
        defaults = self._defaults(deployment)
        split = "" if defaults is None else f", {defaults.pool.parallelism}"
        for what, spec in {
            f"the engine's defaults{split}": defaults,
            "its default budgets alone": with_engines(deployment, self._default_limits(deployment)),
            "a round-robin router alone": deployment.model_copy(update={"router": RouterSpec(policy="round_robin")})
            if max(pool.replicas for pool in deployment.pools) > 1
            else None,
        }.items():
            if spec is not None and spec != deployment:
                yield _Variant(what, spec, self._simulation.evaluate_at)

    def _default_limits(self, deployment: DeploymentSpec) -> list[dict[str, int]]:
        limits = []
        for pool in deployment.pools:
            memory = self._simulation.world.accelerators[pool.accelerator].memory_bytes
            usual = default_engine(pool.engine.name, memory)
            limits.append({"chunk_tokens": usual.chunk_tokens, "max_running_requests": usual.max_running_requests})
        return limits

    def _defaults(self, deployment: DeploymentSpec) -> DeploymentSpec | None:
        """The winner's engine with its defaults, as many replicas as fit.

        Each has the fewest ranks whose KV holds a request of the model's whole window, which vLLM demands of them; the
        most that can be built, where none does.
        """
        first = deployment.pools[0]
        memory = self._simulation.world.accelerators[first.accelerator].memory_bytes
        engine = default_engine(first.engine.name, memory, first.engine.version)
        window, widest = self._simulation.world.model.max_context_tokens, None
        for ranks in sorted(self._problem.space.execution.tensor_parallel):
            pool = PoolSpec(
                accelerator=first.accelerator, host=first.host, engine=engine, tensor_parallel=ranks,
                weight_dtype=first.weight_dtype,
            )  # fmt: skip
            most = self._problem.max_replicas(pool)
            if most > 0 and self._problem.planner.can_build(pool):
                router = RouterSpec(policy="round_robin")
                widest = deployment_of(self._problem.model, self._problem.profile, pool, most, router)
                if self._simulation.kv_capacity_tokens(pool) >= window:
                    break
        return widest

    def _more(self, best: Carried) -> Iterator[_Variant]:
        """One replica more of each pool in turn, and each latency term a quarter looser."""
        for index, pool in enumerate(best.deployment.pools):
            pools = list(best.deployment.pools)
            pools[index] = pool.model_copy(update={"replicas": pool.replicas + 1})
            gpus = f"{pool.parallelism.ranks} more {pool.accelerator}"
            what = gpus if len(pools) == 1 else f"{gpus} to the {pool.role} workers"
            larger = best.deployment.model_copy(update={"pools": pools})
            yield _Variant(what, larger, self._simulation.evaluate_at)
        terms = self._problem.slo.terms
        for index, term in enumerate(terms):
            looser = [*terms]
            looser[index] = term.model_copy(update={"at_most_s": LOOSER * term.at_most_s})
            world = replace(self._simulation.world, slo=self._problem.slo.model_copy(update={"terms": looser}))
            what = f"{quantity(term.label).label} of {LOOSER:g} × its bound"
            yield _Variant(what, best.deployment, Simulation(world).evaluate_at)


def _written(answer: LargestRate, folder: Path) -> LargestRate:
    """The run folder: the study, the answer, and the winner's launch scripts."""
    from hisearch.api.provenance import profile_note
    from hisearch.api.studies.exporting import export_trial
    from hisearch.export.trial_status import Ground, trial_status

    folder.mkdir(parents=True, exist_ok=True)
    answer = replace(answer, run_dir=folder)
    resolved = answer.study.resolved
    write_text(folder / "study.yaml", resolved.to_yaml())
    write_text(folder / "largest.json", json.dumps(plain(answer.to_dict()), indent=2, allow_nan=False) + "\n")
    trial = answer.trial
    if trial is not None:
        note = profile_note(resolved, trial)
        status = trial_status(trial, trial, Ground(note.name, note.evidence, note.relative_error))
        try:
            write_tree(
                folder / "recommended",
                lambda path: export_trial(resolved, answer.simulation, trial, path, status, ""),
            )
        except ExportError as error:
            write_text(folder / NOT_EXPORTED, f"The deployment was not exported: {error}\n")
    return answer


def described(answer: LargestRate) -> str:
    """The winner in one line; "" if nothing carries any rate."""
    return "" if answer.trial is None else describe(answer.trial.deployment)
