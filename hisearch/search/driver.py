"""Runs the three stages in order and builds the search's outcome."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hisearch.score.capacity import Capacity, capacity
from hisearch.score.evaluate import Score
from hisearch.search.evaluate.runner import TrialRunner
from hisearch.search.model.candidates import Candidate, Kept
from hisearch.search.model.deployments import on_engine, parameters_of
from hisearch.search.model.job import Job
from hisearch.search.model.problem import Problem
from hisearch.search.model.trial import Recommendation, Trial, metric_of
from hisearch.search.refine.alternatives import size_alternatives
from hisearch.search.refine.frontier import Frontier
from hisearch.search.refine.local_search import descend, local_search
from hisearch.search.refine.tier_tries import try_tiers
from hisearch.search.select.pareto import front
from hisearch.search.select.recommend import nearest_miss, recommend
from hisearch.search.stages.cache import count_settings, search_cache
from hisearch.search.stages.ending import (
    UNTRIED_CACHE,
    UNTRIED_ENGINES,
    UNTRIED_LOADS,
    Ending,
    dropped_candidates,
    in_order,
    untried_candidates,
    untried_replicas,
    untried_settings,
)
from hisearch.search.stages.execution import ExecutionReport
from hisearch.search.stages.routing import search_routing, simulate_as_sized
from hisearch.search.stages.screening import combinations, screen
from hisearch.specs.deployments.deployment import DeploymentSpec
from hisearch.specs.studies.study import AT_OTHER_LOADS, CAPACITY
from hisearch.specs.wording import counted

#: Simulations that stage 2 may use per candidate; sets how many candidates a budget allows.
SIMULATIONS_PER_CANDIDATE = 24
LEAST_CANDIDATES = 4
MOST_CANDIDATES = 40

#: Share of the simulations held back for the steps after the stages: alternatives, and the recommendation's neighbours.
#: What they do not use goes to further rounds.
COMPARISON_SHARE = 0.2

#: Share of the simulations that widen the front after stages 2 and 3 have found its start.
FRONT_SHARE = 0.6

#: With fewer simulations than this, all go to the stages before: the front needs a starting point.
LEAST_FRONT_SIMULATIONS = 32

#: With fewer simulations than this, no further round begins: they would not suffice to size a candidate.
LEAST_ROUND_SIMULATIONS = 8

#: Share of a round's simulations for stage 2; stage 3 gets the rest. The capacity of the recommendation gets at most
#: CAPACITY_SIMULATIONS.
ROUTING_SHARE = 0.6
CAPACITY_SIMULATIONS = 8

#: Simulations that stage 3 leaves for removing replicas from its best deployment.
DESCENT_SIMULATIONS = 2

#: Largest load tried for the recommendation's capacity.
MAX_LOAD = 8.0


@dataclass(frozen=True)
class SearchOutcome:
    """Result of a search.

    execution: stage 1's report. trials: every simulation, in order. front: see ``hisearch.search.select.pareto.front``.
    recommendation: None if nothing is feasible; nearest_miss is then set. headroom: capacity of the recommendation,
    None if the budget left no simulations for it. ending: whether and where the budget cut the search short.
    """

    execution: ExecutionReport
    trials: tuple[Trial, ...]
    front: tuple[Trial, ...]
    recommendation: Recommendation | None
    nearest_miss: Trial | None
    headroom: Capacity | None
    ending: Ending

    @property
    def stopped(self) -> str:
        """The limit that ended the search early, or ""; see ``Ending``."""
        return self.ending.stopped


class NothingFitsError(ValueError):
    """No combination of a search space can be built; gives the reason and the nearest miss in bytes."""

    def __init__(self, report: ExecutionReport) -> None:
        nearest = f"; nearest: {report.nearest_fit}" if report.nearest_fit else ""
        super().__init__(f"no deployment of the search space can be built: {report.summary()}{nearest}")


#: Stages that a search can leave out, to measure their worth; see ``search``.
STAGES = ("execution", "routing", "cache", "front", "comparisons")


def search(
    problem: Problem,
    runner: TrialRunner,
    checkpoint: Callable[[Sequence[Trial]], None] = lambda _: None,
    *,
    without: Collection[str] = (),
) -> SearchOutcome:
    """Search a space.

    Args:
        problem: the question.
        runner: runs the simulations, within its budget.
        checkpoint: called with all trials so far at the end of each stage.
        without: some of ``STAGES``. Without "execution", candidates are drawn at random. Without "routing", each is
            simulated once, as stage 1 has sized it. The others are left out.

    Raises:
        NothingFitsError: no combination of the space can be built.
    """
    budget = problem.budget.simulations
    reserve = min(CAPACITY_SIMULATIONS, budget // 10)
    execution = _execution_stage(problem, runner)
    if "execution" in without:
        drawn = np.random.default_rng(problem.seed).permutation(len(execution.sized))[:MOST_CANDIDATES]
        execution = replace(execution, kept=[execution.sized[place] for place in drawn])
    if not execution.kept:
        raise NothingFitsError(execution)

    course = _Course(problem, execution, runner, checkpoint, without)
    course.run(budget - reserve)
    if recommend(runner.trials, problem.objectives) is None:
        course.use_up(budget)

    recommendation = recommend(runner.trials, problem.objectives)
    headroom_sims = min(CAPACITY_SIMULATIONS, budget - runner.simulations)
    # With objectives at other loads every trial has a capacity of its own; a larger population is no larger load.
    looked_for = not AT_OTHER_LOADS.isdisjoint(problem.objectives) or not problem.demand.scales_with_load
    if recommendation is not None and headroom_sims > 0 and not runner.stopped and not looked_for:
        runner.progress.started("capacity", headroom_sims)
        _look_for_headroom(recommendation.trial, runner)
        runner.progress.finished()
        checkpoint(runner.trials)
    return SearchOutcome(
        execution=execution,
        trials=tuple(runner.trials),
        front=tuple(front(runner.trials, problem.objectives)),
        recommendation=recommendation,
        nearest_miss=nearest_miss(runner.trials) if recommendation is None else None,
        headroom=headroom(runner.trials, recommendation.trial) if recommendation is not None else None,
        ending=_ending(problem, runner, execution, recommendation, course),
    )


def _ending(
    problem: Problem,
    runner: TrialRunner,
    execution: ExecutionReport,
    recommendation: Recommendation | None,
    course: _Course,
) -> Ending:
    """What the budget left untried, which limit applied, and what the search's own rules left out."""
    settings = untried_settings(*count_settings(problem, course.cache_bases, runner.trials))
    first, rest = [], set[str]()
    if not _none_can_serve(runner.trials):
        first.append(untried_candidates(execution.kept, runner.trials))
        rest |= runner.untried()
    if not course.cache_ended:
        first.append(settings if course.cache_begun else UNTRIED_CACHE)
    if recommendation is not None:
        best = recommendation.trial
        rest.add(untried_replicas(best, runner.trials))
        if problem.demand.scales_with_load and headroom(runner.trials, best) is None:
            rest.add(UNTRIED_LOADS)
    untried = tuple(reason for reason in (*first, *in_order(rest)) if reason)
    left_out = (dropped_candidates(execution.kept, runner.trials), settings if course.cache_ended else "")
    by_simulations = "simulations" if untried else ""
    return Ending(
        stopped=by_simulations if runner.stopped in {"", "simulations"} else runner.stopped,
        untried=untried if runner.trials else untried[:1],
        budget=problem.budget,
        used=runner.simulations,
        left_out=tuple(reason for reason in left_out if reason),
    )


def _none_can_serve(trials: Sequence[Trial]) -> bool:
    """True if the model's window rejects more requests than the SLO allows; all deployments share the window."""
    return any(trial.comparable and trial.rejects_beyond_window for trial in trials)


def _execution_stage(problem: Problem, runner: TrialRunner) -> ExecutionReport:
    runner.progress.started("1 execution", combinations(problem))
    report = screen(problem, MOST_CANDIDATES, runner.progress.advanced)
    runner.progress.advanced(0, f"{len(report.kept):,} of {counted(report.combinations, 'combination')} kept")
    runner.progress.finished()
    return report


class _Course:
    """The stages and the steps after them, in rounds, with a record of the untried part of stage 3.

    cache_begun: stage 3 simulated something. cache_ended: its last run had enough simulations. cache_bases: deployments
    that its rounds could have varied.
    """

    def __init__(
        self,
        problem: Problem,
        execution: ExecutionReport,
        runner: TrialRunner,
        checkpoint: Callable[[Sequence[Trial]], None],
        without: Collection[str] = (),
    ) -> None:
        self._without = without
        self._front_ended_at: tuple[int, ...] = ()
        self.cache_ended, self.cache_begun = True, False
        self.cache_bases: list[DeploymentSpec] = []
        self._problem, self._execution, self._runner, self._checkpoint = problem, execution, runner, checkpoint
        self._begun = self._number = self._comparisons = self._frontiers = 0
        self._frontier = Frontier(problem, _known_workers(execution))

    @property
    def _over(self) -> bool:
        return bool(self._runner.stopped) or _none_can_serve(self._runner.trials)

    def run(self, until: int) -> None:
        """Run rounds for as many candidates as the budget allows, then comparisons; repeat both with what is left.

        A remainder too small for a further round widens the front. What the front does not need goes to neighbours of
        the recommendation that probably miss the SLO.
        """
        while not self._over:
            sims_left = until - self._runner.simulations
            shared = until - round(sims_left * COMPARISON_SHARE)
            share = 0.0 if self._front_ended or sims_left < LEAST_FRONT_SIMULATIONS else FRONT_SHARE
            self._rounds(shared - round(sims_left * share), LEAST_ROUND_SIMULATIONS if self._number > 0 else 0)
            self._widen(shared)
            self._compare(until)
            left = round((until - self._runner.simulations) * (1 - COMPARISON_SHARE))
            if self._begun == len(self._execution.kept) or left < LEAST_ROUND_SIMULATIONS:
                break
        self._go_on_with_cache(until)
        if not self._over:
            self._widen(until)
            self._compare_unlikely(until)

    def _go_on_with_cache(self, until: int) -> None:
        """Continue stage 3 if it ran out of simulations, with those that are left, until it has no proposals."""
        while (
            not (self._over or self.cache_ended)
            and (sims_left := until - self._runner.simulations) >= LEAST_ROUND_SIMULATIONS
        ):
            self._number += 1
            self._cache(until - round(sims_left * COMPARISON_SHARE))
            self._widen(until)
            self._compare(until)

    def use_up(self, until: int) -> None:
        """Further rounds with the reserve: without a recommendation there is nothing to compare."""
        while self._begun < len(self._execution.kept) and until > self._runner.simulations and not self._over:
            self._rounds(until, 1)

    def _rounds(self, until: int, least_sims: int) -> None:
        """Stages 2 and 3 for as many candidates as the budget allows, best first, then for the next ones.

        Args:
            until: simulations at which to stop.
            least_sims: simulations that the first round needs to begin; further ones need those of a candidate.
        """
        candidates = self._execution.kept
        while self._begun < len(candidates) and not self._over:
            sims_left = until - self._runner.simulations
            if sims_left < least_sims:
                return
            least_sims = SIMULATIONS_PER_CANDIDATE
            self._number += 1
            least = LEAST_CANDIDATES if self._number == 1 else 1
            group = candidates[self._begun : self._begun + max(sims_left // SIMULATIONS_PER_CANDIDATE, least)]
            self._begun += len(group)
            self._route(group, sims_left, until)
            self._cache(until)

    def _route(self, group: Sequence[Kept], sims_left: int, until: int) -> None:
        """Stage 2; then its winner on other engines and with fewer replicas."""
        problem, runner, share = self._problem, self._runner, round(sims_left * ROUTING_SHARE)
        most = max(min(share + _most_comparisons(problem), sims_left), 0)
        runner.progress.started(_titled("2 routing", self._number), most)
        if "routing" in self._without:
            simulate_as_sized(problem, group, runner, runner.simulations + share)
        else:
            search_routing(problem, group, runner, runner.simulations + share)
        _try_other_engines(problem, runner, until)
        descend(problem, runner, until)
        self._end_stage()

    def _cache(self, until: int) -> None:
        """Stage 3, also for cheaper accelerators that serve only with tiers; then its winner with fewer replicas."""
        problem, runner = self._problem, self._runner
        runner.progress.started(_titled("3 cache tiers", self._number), max(until - runner.simulations, 0))
        if "cache" not in self._without and not _none_can_serve(runner.trials):
            before = runner.simulations
            saved = try_tiers(problem, runner, until - DESCENT_SIMULATIONS)
            done = search_cache(problem, runner, until - DESCENT_SIMULATIONS, saved, self._number)
            self.cache_begun |= runner.simulations > before
            self.cache_ended = done.ended
            self.cache_bases += done.bases
        descend(problem, runner, until)
        self._end_stage()

    def _widen(self, until: int) -> None:
        """Widen the front by a surrogate's expectations of the complete space."""
        runner = self._runner
        if self._front_ended:
            return
        self._frontiers += 1
        runner.progress.started(_titled("4 front", self._frontiers), max(until - runner.simulations, 0))
        self._frontier.widen(runner, until)
        self._front_ended_at = self._front_numbers() if runner.simulations < until else ()
        self._end_stage()

    @property
    def _front_ended(self) -> bool:
        """True if the front was widened until no gain was expected, and has not moved since."""
        ended_at = self._front_ended_at
        return "front" in self._without or (bool(ended_at) and ended_at == self._front_numbers())

    def _front_numbers(self) -> tuple[int, ...]:
        return tuple(trial.number for trial in front(self._runner.considered, self._problem.objectives))

    def _compare(self, until: int) -> None:
        """Try alternatives on other hardware and engines, then the neighbours, until the recommendation stands."""
        problem, runner, seen = self._problem, self._runner, -1
        if "comparisons" in self._without:
            return
        self._comparisons += 1
        runner.progress.started(_titled("4 comparisons", self._comparisons), max(until - runner.simulations, 0))
        while (best := recommend(runner.considered, problem.objectives)) is not None and best.trial.number != seen:
            seen = best.trial.number
            sims_left = until - runner.simulations
            size_alternatives(problem, self._execution.sized, runner, until - sims_left // 2)
            local_search(problem, runner, until, self._frontier.may_serve)
            size_alternatives(problem, self._execution.sized, runner, until)
            if runner.stopped:
                break
        self._end_stage()

    def _compare_unlikely(self, until: int) -> None:
        """Try the neighbours expected to miss the SLO, with the simulations that are left, if any."""
        if "comparisons" in self._without:
            return
        self._comparisons += 1
        sims_left = max(until - self._runner.simulations, 0)
        self._runner.progress.started(_titled("4 comparisons", self._comparisons), sims_left)
        local_search(self._problem, self._runner, until)
        self._end_stage()

    def _end_stage(self) -> None:
        self._runner.progress.finished()
        self._checkpoint(self._runner.trials)


def _known_workers(execution: ExecutionReport) -> list[Candidate]:
    """Workers that a surrogate may propose: those without a shortfall (or all, if none), and the pools' sides."""
    return ([c for c in execution.sized if not c.shortfall] or execution.sized) + list(execution.sides)


def _titled(stage: str, number: int) -> str:
    return stage if number == 1 else f"{stage}, round {number}"


def _most_comparisons(problem: Problem) -> int:
    """Most simulations for stage 2's winner after the stage: on other engines, and with fewer replicas."""
    return len(problem.space.execution.engines) + problem.space.execution.max_replicas


def _try_other_engines(problem: Problem, runner: TrialRunner, until: int) -> None:
    """Simulate the cheapest feasible deployment on every other engine of the space, to compare like with like."""
    best = recommend(runner.considered, problem.objectives)
    if best is None:
        return
    jobs = []
    execution, ours = problem.space.execution, best.trial.deployment
    for engine in execution.engines:
        if engine in {pool.engine.name for pool in ours.pools}:
            continue
        try:
            deployment = on_engine(ours, engine, problem.page_tokens(engine))
        except ValueError:  # the engine refuses these settings: there is no equivalent to compare with
            continue
        jobs.append(Job(best.trial.stage, deployment, parameters_of(deployment)))
    runner.run(jobs, until, UNTRIED_ENGINES)


class _BudgetSpentError(Exception):
    """The budget does not allow another simulation."""


def _look_for_headroom(best: Trial, runner: TrialRunner) -> None:
    """Simulate the recommended deployment at larger loads, as far as the budget allows."""

    def score_at(load: float) -> Score:
        job = Job(best.stage, best.deployment, best.parameters, load=load)
        trial = runner.run([job], what=UNTRIED_LOADS)[0]
        if trial is None:
            raise _BudgetSpentError
        return Score(trial.metrics, trial.slo, trial.feasible)

    with contextlib.suppress(_BudgetSpentError):
        capacity(score_at, growth=1.5, max_load=MAX_LOAD, relative_tolerance=0.1)


def headroom(trials: Sequence[Trial], best: Trial) -> Capacity | None:
    """Largest load that a deployment carried and smallest that it missed; None if no other load was tried."""
    if metric_of(CAPACITY) in best.metrics:
        figures = best.metrics
        missed = figures["capacity_missed_load"]
        return Capacity(figures["capacity_load"], figures["capacity_goodput_rps"], missed, best.simulations)
    same = [t for t in trials if t.deployment == best.deployment and t.slice_fraction == 1.0 and not t.error]
    others = [trial for trial in same if trial.load != 1.0]
    if not others:
        return None
    carried = max((trial for trial in same if trial.feasible), key=lambda trial: trial.load)
    missed = min((trial.load for trial in same if not trial.feasible), default=math.inf)
    return Capacity(carried.load, carried.metrics["goodput_rps"], missed, len(others))
