"""Stage 2: replicas and routers, simulated on growing slices of the trace.

Every slice is replayed from the trace's beginning with the same seed, so that all deployments meet the same requests
(common random numbers). On the slices contenders are sized and routers compared, and the better half goes on; on the
whole trace the remaining ones are sized again and each of their routers tried, then with fewer and more replicas.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from hisearch.search.evaluate.ledger import Ledger
from hisearch.search.model.arms import Arm
from hisearch.search.model.candidates import Kept
from hisearch.search.model.deployments import parameters_of
from hisearch.search.model.job import Job
from hisearch.search.model.pair_sizing import Counts
from hisearch.search.model.problem import Problem
from hisearch.search.select.pareto import distinct, ranked
from hisearch.search.stages.contenders import Contender, contender, deployment, estimated, kind_of, offsets, sizer
from hisearch.search.stages.ending import UNTRIED_ROUTERS, UNTRIED_SIZES

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


def search_routing(problem: Problem, candidates: Sequence[Kept], ledger: Ledger, until: int) -> None:
    """Run stage 2; the trials are the ledger's.

    Args:
        problem: the question.
        candidates: survivors of stage 1, best first.
        ledger: runs the simulations.
        until: simulations at which the stage must stop.
    """
    contenders = [contender(problem, candidate) for candidate in candidates]
    rungs = slices(problem.demand.requests, problem.budget.simulations)
    slice_until = ledger.simulations + int((until - ledger.simulations) * SLICE_SHARE)
    for rung, fraction in enumerate(rungs[:-1]):
        _size(problem, contenders, fraction, ledger, slice_until)
        if rung > 0 or len(rungs) == 2:
            _compare_routers(problem, contenders, fraction, ledger, slice_until)
            _size(problem, contenders, fraction, ledger, slice_until)  # a better router may need fewer replicas
        contenders = _promote(contenders, problem.objectives)
    for one in contenders:  # a trace's beginning is often its quieter part: sessions have yet to build up
        one.guess = tuple(max(counts) for counts in zip(one.guess, estimated(one.candidate), strict=True))
    _size(problem, contenders, 1.0, ledger, until)
    _try_offsets(problem, contenders, ledger, until)


def simulate_as_sized(problem: Problem, candidates: Sequence[Kept], ledger: Ledger, until: int) -> None:
    """What stands for the stage where it is left out: each candidate once, with the replicas that stage 1 expects."""
    contenders = [contender(problem, candidate) for candidate in candidates]
    ledger.run([_job(problem, one, one.guess, one.arms[0], 1.0) for one in contenders], until)


def _job(problem: Problem, one: Contender, counts: Counts, arm: Arm, fraction: float) -> Job:
    found = deployment(problem, one.candidate, counts, arm)
    return Job(STAGE, found, parameters_of(found), slice_fraction=fraction)


def _size(problem: Problem, contenders: Sequence[Contender], fraction: float, ledger: Ledger, until: int) -> None:
    """Find the fewest workers of all contenders in lockstep, one simulation each at a time."""
    sizers = [sizer(problem, one) for one in contenders]
    for one in contenders:
        one.tried = []
    while asking := [(c, s, s.next) for c, s in zip(contenders, sizers, strict=True) if s.next is not None]:
        jobs = [_job(problem, c, counts, c.arms[0], fraction) for c, _, counts in asking]
        done = ledger.run(jobs, until, UNTRIED_SIZES if fraction == 1.0 else "")
        for (one, sizing, counts), trial in zip(asking, done, strict=True):
            if trial is None or trial.error:
                sizing.stop()
                continue
            one.tried.append(trial)
            sizing.report(counts, trial)
    for one, sizing in zip(contenders, sizers, strict=True):
        one.fewest = sizing.fewest
        if one.tried:
            one.guess = sizing.best_guess


def _compare_routers(
    problem: Problem, contenders: Sequence[Contender], fraction: float, ledger: Ledger, until: int
) -> None:
    """Try every arm at the contenders' sizes and keep the better half of each one's arms, best first.

    Every contender gets its first arm before any gets its second. Arms that the budget left out have not lost: they
    stay in the race, behind the others.
    """
    sharing = [c for c in contenders if c.shares and not c.beyond_help]
    most = max((len(c.arms) for c in sharing), default=0)
    asked = [(c, c.arms[place]) for place in range(most) for c in sharing if place < len(c.arms)]
    trials = ledger.run([_job(problem, c, c.counts, arm, fraction) for c, arm in asked], until)
    for one in sharing:
        of_it = [(a, t) for (owner, a), t in zip(asked, trials, strict=True) if owner is one]
        by_number = {t.number: (a, t) for a, t in of_it if t is not None and not t.error}
        if not by_number:
            continue
        best = distinct(ranked([trial for _, trial in by_number.values()], problem.objectives))
        one.tried.extend(trial for trial in best if trial not in one.tried)
        kept = [by_number[trial.number][0] for trial in best[: math.ceil(len(best) / 2)]]
        one.arms = kept + [arm for arm, trial in of_it if trial is None]


def _promote(contenders: Sequence[Contender], objectives: Sequence[str]) -> list[Contender]:
    """The better half, and the best of every accelerator with every engine; of equal ones the first.

    All of them where the budget did not reach each one: those it left out have not lost.
    """
    if not all(one.tried for one in contenders):
        return list(contenders)
    best_trial: dict[int, Contender] = {}
    for one in contenders:
        order = ranked(one.tried, objectives)
        if order:
            best_trial[order[0].number] = one
    order = ranked([trial for c in contenders for trial in c.tried if best_trial.get(trial.number) is c], objectives)
    ordered = [best_trial[trial.number] for trial in distinct(order)]
    kept = ordered[: math.ceil(len(ordered) / 2)]
    kept.extend(_first_of_each(ordered, kept))
    return [one for one in ordered if one in kept]


def _first_of_each(ordered: Iterable[Contender], kept: Sequence[Contender]) -> list[Contender]:
    """The first contender of every kind that ``kept`` does not hold yet."""
    seen = {kind_of(one.candidate) for one in kept}
    found = []
    for one in ordered:
        if kind_of(one.candidate) not in seen:
            seen.add(kind_of(one.candidate))
            found.append(one)
    return found


def _try_offsets(problem: Problem, contenders: Sequence[Contender], ledger: Ledger, until: int) -> None:
    """On the whole trace: each arm at the size found, then the first ones at the sizes beside it.

    Contenders take turns, so that a budget that ends early leaves none without its most promising routers.
    """
    beside = {id(one): offsets(problem, one) for one in contenders}
    most = max((len(one.arms) for one in contenders), default=0)
    jobs: list[Job] = []
    for turn in range(max((len(found) for found in beside.values()), default=0)):
        for place in range(most if turn == 0 else math.ceil(most / 2)):
            for one in contenders:
                counts = beside[id(one)][turn] if turn < len(beside[id(one)]) else None
                if counts is not None and not one.beyond_help and place < len(one.arms):
                    jobs.append(_job(problem, one, counts, one.arms[place], 1.0))
    ledger.run(jobs, until, UNTRIED_ROUTERS)
