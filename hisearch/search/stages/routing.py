"""Stage 2: replicas and routers, simulated on growing slices of the trace.

Every slice is replayed from the trace's beginning with the same seed, so that all deployments meet the same requests
(common random numbers). On the slices contenders are sized and routers compared, and the better half goes on; on the
whole trace the remaining ones are sized again and each of their routers tried, then with fewer and more replicas.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from hisearch.search.evaluate.runner import TrialRunner
from hisearch.search.model.candidates import Kept
from hisearch.search.model.deployments import parameters_of
from hisearch.search.model.job import Job
from hisearch.search.model.pair_sizing import Counts
from hisearch.search.model.problem import Problem
from hisearch.search.model.routing_configs import RoutingConfig
from hisearch.search.select.pareto import distinct, ranked
from hisearch.search.stages.ending import UNTRIED_ROUTERS, UNTRIED_SIZES
from hisearch.search.stages.shortlist import (
    ShortlistEntry,
    deployment,
    estimated,
    kind_of,
    offsets,
    shortlist_entry,
    sizer,
)

STAGE = 2

#: Each slice is this many times as long as the one before.
GROWTH = 3

#: A slice shorter than this says too little about a tail; a study with a smaller budget replays the whole trace only.
LEAST_SLICE_REQUESTS = 600
LEAST_BUDGET_FOR_SLICES = 100

#: Share of stage 2's simulations that slices may take.
SLICE_SHARE = 0.5


def slices(requests: int, budget: int) -> list[float]:
    """Fractions of the trace for the rungs, growing, the last one 1.0."""
    fractions = [1.0]
    while budget >= LEAST_BUDGET_FOR_SLICES and requests * fractions[0] / GROWTH >= LEAST_SLICE_REQUESTS:
        if len(fractions) == 3:
            break
        fractions.insert(0, fractions[0] / GROWTH)
    return fractions


def search_routing(problem: Problem, candidates: Sequence[Kept], runner: TrialRunner, until: int) -> None:
    """Run stage 2; the trials are the ledger's.

    Args:
        problem: the question.
        candidates: survivors of stage 1, best first.
        runner: runs the simulations.
        until: simulations at which the stage must stop.
    """
    shortlist = [shortlist_entry(problem, candidate) for candidate in candidates]
    rungs = slices(problem.demand.requests, problem.budget.simulations)
    slice_until = runner.simulations + int((until - runner.simulations) * SLICE_SHARE)
    for rung, fraction in enumerate(rungs[:-1]):
        _size(problem, shortlist, fraction, runner, slice_until)
        if rung > 0 or len(rungs) == 2:
            _compare_routers(problem, shortlist, fraction, runner, slice_until)
            _size(problem, shortlist, fraction, runner, slice_until)  # a better router may need fewer replicas
        shortlist = _promote(shortlist, problem.objectives)
    for one in shortlist:  # a trace's beginning is often its quieter part: sessions have yet to build up
        one.guess = tuple(max(counts) for counts in zip(one.guess, estimated(one.candidate), strict=True))
    _size(problem, shortlist, 1.0, runner, until)
    _try_offsets(problem, shortlist, runner, until)


def simulate_as_sized(problem: Problem, candidates: Sequence[Kept], runner: TrialRunner, until: int) -> None:
    """What stands for the stage where it is left out: each candidate once, with the replicas that stage 1 expects."""
    shortlist = [shortlist_entry(problem, candidate) for candidate in candidates]
    runner.run([_job(problem, one, one.guess, one.routing_configs[0], 1.0) for one in shortlist], until)


def _job(problem: Problem, one: ShortlistEntry, counts: Counts, routing_config: RoutingConfig, fraction: float) -> Job:
    found = deployment(problem, one.candidate, counts, routing_config)
    return Job(STAGE, found, parameters_of(found), slice_fraction=fraction)


def _size(
    problem: Problem, shortlist: Sequence[ShortlistEntry], fraction: float, runner: TrialRunner, until: int
) -> None:
    """Find the fewest workers of all contenders in lockstep, one simulation each at a time."""
    sizers = [sizer(problem, one) for one in shortlist]
    for one in shortlist:
        one.tried = []
    while asking := [(c, s, s.next) for c, s in zip(shortlist, sizers, strict=True) if s.next is not None]:
        jobs = [_job(problem, c, counts, c.routing_configs[0], fraction) for c, _, counts in asking]
        done = runner.run(jobs, until, UNTRIED_SIZES if fraction == 1.0 else "")
        for (one, sizing, counts), trial in zip(asking, done, strict=True):
            if trial is None or trial.error:
                sizing.stop()
                continue
            one.tried.append(trial)
            sizing.report(counts, trial)
    for one, sizing in zip(shortlist, sizers, strict=True):
        one.fewest = sizing.fewest
        if one.tried:
            one.guess = sizing.best_guess


def _compare_routers(
    problem: Problem, shortlist: Sequence[ShortlistEntry], fraction: float, runner: TrialRunner, until: int
) -> None:
    """Try every arm at the contenders' sizes and keep the better half of each one's arms, best first.

    Every contender gets its first arm before any gets its second. Arms that the budget left out have not lost: they
    stay in the race, behind the others.
    """
    sharing = [c for c in shortlist if c.shares and not c.beyond_help]
    most = max((len(c.routing_configs) for c in sharing), default=0)
    asked = [(c, c.routing_configs[place]) for place in range(most) for c in sharing if place < len(c.routing_configs)]
    trials = runner.run([_job(problem, c, c.counts, routing_config, fraction) for c, routing_config in asked], until)
    for one in sharing:
        of_it = [(a, t) for (owner, a), t in zip(asked, trials, strict=True) if owner is one]
        by_number = {t.number: (a, t) for a, t in of_it if t is not None and not t.error}
        if not by_number:
            continue
        best = distinct(ranked([trial for _, trial in by_number.values()], problem.objectives))
        one.tried.extend(trial for trial in best if trial not in one.tried)
        kept = [by_number[trial.number][0] for trial in best[: math.ceil(len(best) / 2)]]
        one.routing_configs = kept + [routing_config for routing_config, trial in of_it if trial is None]


def _promote(shortlist: Sequence[ShortlistEntry], objectives: Sequence[str]) -> list[ShortlistEntry]:
    """The better half, and the best of every accelerator with every engine; of equal ones the first.

    All of them where the budget did not reach each one: those it left out have not lost.
    """
    if not all(one.tried for one in shortlist):
        return list(shortlist)
    best_trial: dict[int, ShortlistEntry] = {}
    for one in shortlist:
        order = ranked(one.tried, objectives)
        if order:
            best_trial[order[0].number] = one
    order = ranked([trial for c in shortlist for trial in c.tried if best_trial.get(trial.number) is c], objectives)
    ordered = [best_trial[trial.number] for trial in distinct(order)]
    kept = ordered[: math.ceil(len(ordered) / 2)]
    kept.extend(_first_of_each(ordered, kept))
    return [one for one in ordered if one in kept]


def _first_of_each(ordered: Iterable[ShortlistEntry], kept: Sequence[ShortlistEntry]) -> list[ShortlistEntry]:
    """The first contender of every kind that ``kept`` does not hold yet."""
    seen = {kind_of(one.candidate) for one in kept}
    found = []
    for one in ordered:
        if kind_of(one.candidate) not in seen:
            seen.add(kind_of(one.candidate))
            found.append(one)
    return found


def _try_offsets(problem: Problem, shortlist: Sequence[ShortlistEntry], runner: TrialRunner, until: int) -> None:
    """On the whole trace: each arm at the size found, then the first ones at the sizes beside it.

    Contenders take turns, so that a budget that ends early leaves none without its most promising routers.
    """
    beside = {id(one): offsets(problem, one) for one in shortlist}
    most = max((len(one.routing_configs) for one in shortlist), default=0)
    jobs: list[Job] = []
    for turn in range(max((len(found) for found in beside.values()), default=0)):
        for place in range(most if turn == 0 else math.ceil(most / 2)):
            for one in shortlist:
                counts = beside[id(one)][turn] if turn < len(beside[id(one)]) else None
                if counts is not None and not one.beyond_help and place < len(one.routing_configs):
                    jobs.append(_job(problem, one, counts, one.routing_configs[place], 1.0))
    runner.run(jobs, until, UNTRIED_ROUTERS)
