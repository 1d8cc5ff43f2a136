"""The three stages in a row, and what they come to."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hisearch.score.capacity import Capacity, capacity
from hisearch.score.evaluate import Score
from hisearch.search.cache import search_cache
from hisearch.search.deployments import on_engine, parameters_of
from hisearch.search.ending import (
    UNTRIED_CACHE,
    UNTRIED_CACHE_SETTINGS,
    UNTRIED_ENGINES,
    UNTRIED_LOADS,
    Ending,
    in_order,
    untried_candidates,
    untried_replicas,
)
from hisearch.search.execution import Candidate, ExecutionReport, group_count, search_execution
from hisearch.search.job import Job
from hisearch.search.ledger import Ledger
from hisearch.search.pareto import front
from hisearch.search.problem import Problem
from hisearch.search.recommend import nearest_miss, recommend
from hisearch.search.routing import search_routing
from hisearch.search.trial import Recommendation, Trial
from hisearch.specs.wording import counted

#: Simulations that stage 2 may ask for per candidate: how many candidates a budget carries.
SIMULATIONS_PER_CANDIDATE = 24
LEAST_CANDIDATES = 4
MOST_CANDIDATES = 40

#: Share of the simulations left to stage 2; the capacity of the recommendation gets this many at most, stage 3 the
#: rest.
ROUTING_SHARE = 0.6
CAPACITY_SIMULATIONS = 8

#: Simulations that stage 3 leaves for taking replicas off its best deployment.
DESCENT_SIMULATIONS = 2

#: Largest load at which the recommendation's capacity is looked for.
MAX_LOAD = 8.0


@dataclass(frozen=True)
class SearchOutcome:
    """What a search found.

    execution: stage 1's report. trials: every simulation, in order. front: see ``hisearch.search.pareto.front``.
    recommendation: None where nothing is feasible; nearest_miss is then set. headroom: capacity of the recommendation,
    None where the budget did not allow to look for it. ending: whether the budget cut the search short, and where.
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
        """What ended the search before it had simulated all that it wanted to; see ``Ending``."""
        return self.ending.stopped


class NothingFitsError(ValueError):
    """No combination of a search space can be built; says why, and by how many bytes the nearest does not fit."""

    def __init__(self, report: ExecutionReport) -> None:
        nearest = f"; nearest: {report.nearest_fit}" if report.nearest_fit else ""
        super().__init__(f"no deployment of the search space can be built: {report.summary()}{nearest}")


def search(
    problem: Problem, ledger: Ledger, checkpoint: Callable[[Sequence[Trial]], None] = lambda _: None
) -> SearchOutcome:
    """Search a space.

    Args:
        problem: the question.
        ledger: runs the simulations, within its budget.
        checkpoint: called with all trials so far at the end of each stage.

    Raises:
        NothingFitsError: no combination of the space can be built at all.
    """
    budget = problem.budget.simulations
    reserve = min(CAPACITY_SIMULATIONS, budget // 10)
    execution = _execution_stage(problem, ledger)
    if not execution.kept:
        raise NothingFitsError(execution)

    untried_cache = _rounds(problem, execution.kept, ledger, budget - reserve, checkpoint)

    recommendation = recommend(ledger.trials, problem.objectives)
    room = min(CAPACITY_SIMULATIONS, budget - ledger.simulations)
    if recommendation is not None and room > 0 and not ledger.stopped and problem.demand.scales_with_load:
        ledger.progress.started("capacity", room)
        _look_for_headroom(recommendation.trial, ledger)
        ledger.progress.finished()
        checkpoint(ledger.trials)
    return SearchOutcome(
        execution=execution,
        trials=tuple(ledger.trials),
        front=tuple(front(ledger.trials, problem.objectives)),
        recommendation=recommendation,
        nearest_miss=nearest_miss(ledger.trials) if recommendation is None else None,
        headroom=headroom(ledger.trials, recommendation.trial) if recommendation is not None else None,
        ending=_ending(problem, ledger, execution, recommendation, untried_cache),
    )


def _ending(
    problem: Problem,
    ledger: Ledger,
    execution: ExecutionReport,
    recommendation: Recommendation | None,
    untried_cache: str,
) -> Ending:
    """What the budget left out of a search, and which limit it was."""
    candidates, found = "", [untried_cache]
    if not _none_can_serve(ledger.trials):
        candidates = untried_candidates(execution.kept, ledger.trials)
        found.extend(ledger.untried())
    if recommendation is not None:
        best = recommendation.trial
        found.append(untried_replicas(best, ledger.trials))
        if problem.demand.scales_with_load and headroom(ledger.trials, best) is None:
            found.append(UNTRIED_LOADS)
    untried = tuple([candidates] * bool(candidates) + in_order(found)) if ledger.trials else (candidates,)
    by_simulations = "simulations" if untried else ""
    stopped = by_simulations if ledger.stopped in {"", "simulations"} else ledger.stopped
    return Ending(stopped, untried, problem.budget)


def _none_can_serve(trials: Sequence[Trial]) -> bool:
    """True where the model's window, which all deployments share, rejects more requests than the SLO allows."""
    return any(trial.comparable and trial.rejects_beyond_window for trial in trials)


def _execution_stage(problem: Problem, ledger: Ledger) -> ExecutionReport:
    ledger.progress.started("1 execution", group_count(problem))
    report = search_execution(problem, MOST_CANDIDATES, ledger.progress.advanced)
    ledger.progress.advanced(0, f"{len(report.kept):,} of {counted(report.combinations, 'combination')} kept")
    ledger.progress.finished()
    return report


def _rounds(
    problem: Problem,
    candidates: Sequence[Candidate],
    ledger: Ledger,
    until: int,
    checkpoint: Callable[[Sequence[Trial]], None],
) -> str:
    """Stages 2 and 3 for as many candidates as the budget carries, best first, then with what is left for the next.

    Returns:
        What of stage 3 the budget left out, in words; "" where nothing.
    """
    begun, number, untried = 0, 0, ""
    while begun < len(candidates) and not ledger.stopped and not _none_can_serve(ledger.trials):
        room = until - ledger.simulations
        if number > 0 and room < SIMULATIONS_PER_CANDIDATE:
            break
        number += 1
        least = LEAST_CANDIDATES if number == 1 else 1
        group = candidates[begun : begun + max(room // SIMULATIONS_PER_CANDIDATE, least)]
        begun += len(group)
        again = "" if number == 1 else f", round {number}"

        share = round(room * ROUTING_SHARE)
        ledger.progress.started(f"2 routing{again}", max(min(share + _most_comparisons(problem), room), 0))
        search_routing(problem, group, ledger, ledger.simulations + share)
        _try_other_engines(problem, ledger, until)
        _descend(problem, ledger, until)
        ledger.progress.finished()
        checkpoint(ledger.trials)

        ledger.progress.started(f"3 cache tiers{again}", max(until - ledger.simulations, 0))
        if not _none_can_serve(ledger.trials) and not search_cache(problem, ledger, until - DESCENT_SIMULATIONS):
            begun_before = any(trial.stage == 3 for trial in ledger.trials)
            untried = UNTRIED_CACHE_SETTINGS if begun_before else UNTRIED_CACHE
        _descend(problem, ledger, until)
        ledger.progress.finished()
        checkpoint(ledger.trials)
    return untried


def _most_comparisons(problem: Problem) -> int:
    """Most simulations that stage 2's winner gets after the stage: on other engines, and with fewer replicas."""
    return len(problem.space.execution.engines) + problem.space.execution.max_replicas


def _try_other_engines(problem: Problem, ledger: Ledger, until: int) -> None:
    """Simulate the cheapest feasible deployment on every other engine of the space, to compare like with like."""
    best = recommend(ledger.trials, problem.objectives)
    if best is None:
        return
    jobs = []
    for engine in problem.space.execution.engines:
        try:
            deployment = on_engine(best.trial.deployment, engine)
        except ValueError:  # the engine refuses these settings: there is no like to compare with
            continue
        jobs.append(Job(best.trial.stage, deployment, parameters_of(deployment)))
    ledger.run(jobs, until, UNTRIED_ENGINES)


def _descend(problem: Problem, ledger: Ledger, until: int) -> None:
    """Take replicas off the recommended deployment until it misses the SLO."""
    done: set[int] = set()
    while (found := recommend(ledger.trials, problem.objectives)) is not None and found.trial.number not in done:
        best, pool = found.trial, found.trial.deployment.pool
        if pool.replicas == 1:
            return
        done.add(best.number)
        fewer = best.deployment.model_copy(update={"pools": [pool.model_copy(update={"replicas": pool.replicas - 1})]})
        trial = ledger.run([Job(best.stage, fewer, parameters_of(fewer))], until)[0]
        # Where replicas cost nothing, fewer of them are no better: the winner stays, and so does the answer.
        if trial is None or (trial.feasible and trial.metrics["usd_per_hour"] >= best.metrics["usd_per_hour"]):
            return


class _BudgetSpentError(Exception):
    """The budget does not allow another simulation."""


def _look_for_headroom(best: Trial, ledger: Ledger) -> None:
    """Simulate the recommended deployment at larger loads, as far as the budget goes."""

    def score_at(load: float) -> Score:
        job = Job(best.stage, best.deployment, best.parameters, load=load)
        trial = ledger.run([job], what=UNTRIED_LOADS)[0]
        if trial is None:
            raise _BudgetSpentError
        return Score(trial.metrics, trial.slo, trial.feasible)

    with contextlib.suppress(_BudgetSpentError):
        capacity(score_at, growth=1.5, max_load=MAX_LOAD, relative_tolerance=0.1)


def headroom(trials: Sequence[Trial], best: Trial) -> Capacity | None:
    """Largest load that a deployment was seen to carry, and the smallest that it was not; None where none was tried."""
    same = [t for t in trials if t.deployment == best.deployment and t.slice_fraction == 1.0 and not t.error]
    others = [trial for trial in same if trial.load != 1.0]
    if not others:
        return None
    carried = max((trial for trial in same if trial.feasible), key=lambda trial: trial.load)
    missed = min((trial.load for trial in same if not trial.feasible), default=math.inf)
    return Capacity(carried.load, carried.metrics["goodput_rps"], missed, len(others))
