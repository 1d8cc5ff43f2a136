"""Runs the three stages in order and builds the search's outcome."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hisearch.score.capacity import Capacity
from hisearch.score.evaluate import Score
from hisearch.search.evaluate.runner import TrialRunner
from hisearch.search.leftovers import ending_of
from hisearch.search.model.job import Job
from hisearch.search.model.problem import Problem
from hisearch.search.model.trial import Recommendation, Trial
from hisearch.search.rounds import Rounds
from hisearch.search.select.headroom import headroom, largest_load
from hisearch.search.select.pareto import front
from hisearch.search.select.recommend import nearest_miss, recommend, recommended
from hisearch.search.stages.ending import Ending, Untried
from hisearch.search.stages.execution_report import ExecutionReport
from hisearch.search.stages.screening import combinations, screen
from hisearch.specs.studies.study import AT_OTHER_LOADS
from hisearch.specs.wording import counted

#: Most candidates that stage 1 passes on.
MOST_CANDIDATES = 40

#: Simulations beyond the budget for alternatives whose prices are reported, as a share of it: other accelerator, other
#: engine, the checkpoint's formats. Chosen. Held back from the budget they cost the search itself: a tenth
#: took 0.8 % of the exhaustive hypervolume on the space of docs/notes/2026-11-search-proof.md.
ALTERNATIVES_SHARE = 0.1
LEAST_FOR_ALTERNATIVES = 64

#: Most simulations for the capacity of the recommendation.
CAPACITY_SIMULATIONS = 8


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

    def as_interrupted(self) -> SearchOutcome:
        """The same where an interrupt came before the answer was checked."""
        return replace(self, ending=replace(self.ending, stopped="interrupted"))


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

    rounds = Rounds(problem, execution, runner, checkpoint, without)
    rounds.run(budget - reserve)
    if recommended(runner.trials, problem.objectives) is None:
        rounds.use_up(budget)
    searched = runner.simulations
    # Beyond the budget, for the alternatives whose prices are reported.
    more = round(budget * ALTERNATIVES_SHARE) if budget >= LEAST_FOR_ALTERNATIVES else 0
    if more:
        spare = max(budget - reserve - searched, 0)
        runner.extend(spare + more)
        rounds.price_alternatives(searched + spare + more)
        runner.extend(max(budget - searched, 0))
    for_alternatives = runner.simulations - searched

    recommendation = recommend(runner.trials, problem.objectives)
    headroom_sims = min(CAPACITY_SIMULATIONS, budget - searched)
    # With objectives at other loads every trial has a capacity of its own; a larger population is no larger load.
    looked_for = not AT_OTHER_LOADS.isdisjoint(problem.objectives) or not problem.demand.scales_with_load
    if recommendation is not None and headroom_sims > 0 and not runner.stopped and not looked_for:
        runner.progress.started("capacity", headroom_sims)
        _look_for_headroom(recommendation.trial, runner, problem.most_load)
        runner.progress.finished()
        checkpoint(runner.trials)
    return SearchOutcome(
        execution=execution,
        trials=tuple(runner.trials),
        front=tuple(front(runner.trials, problem.objectives)),
        recommendation=recommendation,
        nearest_miss=nearest_miss(runner.trials) if recommendation is None else None,
        headroom=headroom(runner.trials, recommendation.trial) if recommendation is not None else None,
        ending=ending_of(problem, runner, execution, recommendation, rounds, for_alternatives),
    )


def _execution_stage(problem: Problem, runner: TrialRunner) -> ExecutionReport:
    runner.progress.started("1 execution", combinations(problem))
    report = screen(problem, MOST_CANDIDATES, runner.progress.advanced)
    runner.progress.advanced(0, f"{len(report.kept):,} of {counted(report.combinations, 'combination')} kept")
    runner.progress.finished()
    return report


class _BudgetSpentError(Exception):
    """The budget does not allow another simulation."""


def _look_for_headroom(best: Trial, runner: TrialRunner, most_load: float) -> None:
    """Simulate the recommended deployment at larger loads, as far as the budget allows."""

    def score_at(load: float) -> Score:
        job = Job(best.stage, best.deployment, best.parameters, load=load)
        trial = runner.run([job], what=Untried.LOADS)[0]
        if trial is None:
            raise _BudgetSpentError
        return Score(trial.metrics, trial.slo, trial.feasible)

    with contextlib.suppress(_BudgetSpentError):
        largest_load(score_at, most_load)
