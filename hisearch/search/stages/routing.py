"""Stage 2: replicas and routers, simulated on growing slices of the trace.

Every slice is replayed from the trace's beginning with the same seed, so that all deployments get the same requests
(common random numbers). On the slices, candidates are sized and routers compared, and the better half goes on. On the
complete trace the remaining ones are sized again and each of their routers is tried, then with fewer and more replicas.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from hisearch.search.evaluate.runner import TrialRunner
from hisearch.search.model.candidates import Kept
from hisearch.search.model.deployments import parameters_of
from hisearch.search.model.job import Job
from hisearch.search.model.problem import Problem
from hisearch.search.model.routing_configs import RoutingConfig
from hisearch.search.model.sizing import Counts
from hisearch.search.select.pareto import distinct, ranked
from hisearch.search.stages.ending import Untried
from hisearch.search.stages.shortlist import (
    ShortlistEntry,
    deployment,
    estimated,
    kind_of,
    offsets,
    report,
    shortlist_entry,
    sizer,
)

STAGE = 2

#: Each slice is this many times as long as the one before.
GROWTH = 3

#: A shorter slice says too little about a tail; a study with a smaller budget replays only the complete trace.
LEAST_SLICE_REQUESTS = 600
LEAST_BUDGET_FOR_SLICES = 100

#: Share of stage 2's simulations that slices may take.
SLICE_SHARE = 0.5


def slices(requests: int, budget: int) -> list[float]:
    """Growing fractions of the trace for the rungs, the last one 1.0."""
    fractions = [1.0]
    while budget >= LEAST_BUDGET_FOR_SLICES and requests * fractions[0] / GROWTH >= LEAST_SLICE_REQUESTS:
        if len(fractions) == 3:
            break
        fractions.insert(0, fractions[0] / GROWTH)
    return fractions


def search_routing(problem: Problem, candidates: Sequence[Kept], runner: TrialRunner, until: int) -> None:
    """Run stage 2; the trial runner keeps the trials.

    candidates: survivors of stage 1, best first. until: simulations at which the stage must stop.
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
    for entry in shortlist:  # a trace's beginning is often its quieter part: sessions have yet to build up
        entry.guess = tuple(max(counts) for counts in zip(entry.guess, estimated(entry.candidate), strict=True))
    _size(problem, shortlist, 1.0, runner, until)
    _try_offsets(problem, shortlist, runner, until)


def simulate_as_sized(problem: Problem, candidates: Sequence[Kept], runner: TrialRunner, until: int) -> None:
    """Replacement for a skipped stage: each candidate once, with the replicas that stage 1 expects."""
    shortlist = [shortlist_entry(problem, candidate) for candidate in candidates]
    runner.run([_job(problem, entry, entry.guess, entry.routing_configs[0], 1.0) for entry in shortlist], until)


def _job(
    problem: Problem, entry: ShortlistEntry, counts: Counts, routing_config: RoutingConfig, fraction: float
) -> Job:
    spec = deployment(problem, entry.candidate, counts, routing_config)
    return Job(STAGE, spec, parameters_of(spec), slice_fraction=fraction)


def _size(
    problem: Problem, shortlist: Sequence[ShortlistEntry], fraction: float, runner: TrialRunner, until: int
) -> None:
    """Find the fewest workers of all candidates in parallel, one simulation of each at a time."""
    sizers = [sizer(problem, entry) for entry in shortlist]
    for entry in shortlist:
        entry.tried = []
    while asking := [(c, s, s.next) for c, s in zip(shortlist, sizers, strict=True) if s.next is not None]:
        jobs = [_job(problem, c, counts, c.routing_configs[0], fraction) for c, _, counts in asking]
        done = runner.run(jobs, until, Untried.SIZES if fraction == 1.0 else "")
        for (entry, sizing, counts), trial in zip(asking, done, strict=True):
            if trial is None or trial.error:
                sizing.stop()
                continue
            entry.tried.append(trial)
            report(sizing, counts, trial)
    for entry, sizing in zip(shortlist, sizers, strict=True):
        entry.fewest = sizing.fewest
        if entry.tried:
            entry.guess = sizing.best_guess


def _compare_routers(
    problem: Problem, shortlist: Sequence[ShortlistEntry], fraction: float, runner: TrialRunner, until: int
) -> None:
    """Try every routing configuration at the candidates' sizes; keep each candidate's better half, best first.

    Every candidate gets its first configuration before any gets its second. Configurations that the budget left out
    have not lost: they stay in the race, behind the others.
    """
    sharing = [c for c in shortlist if c.shares and not c.beyond_help]
    most = max((len(c.routing_configs) for c in sharing), default=0)
    tries = [(c, c.routing_configs[place]) for place in range(most) for c in sharing if place < len(c.routing_configs)]
    trials = runner.run([_job(problem, c, c.counts, routing_config, fraction) for c, routing_config in tries], until)
    for entry in sharing:
        results = [(a, t) for (owner, a), t in zip(tries, trials, strict=True) if owner is entry]
        by_number = {t.number: (a, t) for a, t in results if t is not None and not t.error}
        if not by_number:
            continue
        best = distinct(ranked([trial for _, trial in by_number.values()], problem.objectives))
        entry.tried.extend(trial for trial in best if trial not in entry.tried)
        kept = [by_number[trial.number][0] for trial in best[: math.ceil(len(best) / 2)]]
        entry.routing_configs = kept + [routing_config for routing_config, trial in results if trial is None]


def _promote(shortlist: Sequence[ShortlistEntry], objectives: Sequence[str]) -> list[ShortlistEntry]:
    """The better half, and the best of every accelerator with every engine; of equal ones the first.

    All of them if the budget did not reach each one: those left out have not lost.
    """
    if not all(entry.tried for entry in shortlist):
        return list(shortlist)
    best_trial: dict[int, ShortlistEntry] = {}
    for entry in shortlist:
        order = ranked(entry.tried, objectives)
        if order:
            best_trial[order[0].number] = entry
    order = ranked([trial for c in shortlist for trial in c.tried if best_trial.get(trial.number) is c], objectives)
    ordered = [best_trial[trial.number] for trial in distinct(order)]
    kept = ordered[: math.ceil(len(ordered) / 2)]
    kept.extend(_first_of_each(ordered, kept))
    return [entry for entry in ordered if entry in kept]


def _first_of_each(ordered: Iterable[ShortlistEntry], kept: Sequence[ShortlistEntry]) -> list[ShortlistEntry]:
    """The first candidate of every kind that ``kept`` does not hold yet."""
    seen = {kind_of(entry.candidate) for entry in kept}
    firsts = []
    for entry in ordered:
        if kind_of(entry.candidate) not in seen:
            seen.add(kind_of(entry.candidate))
            firsts.append(entry)
    return firsts


def _try_offsets(problem: Problem, shortlist: Sequence[ShortlistEntry], runner: TrialRunner, until: int) -> None:
    """On the complete trace: each routing configuration at the size found, then the first ones at adjacent sizes.

    Candidates take turns, so that each gets its most promising routers even if the budget ends early.
    """
    sizes = {id(entry): offsets(problem, entry) for entry in shortlist}
    most = max((len(entry.routing_configs) for entry in shortlist), default=0)
    jobs: list[Job] = []
    for turn in range(max((len(counts_list) for counts_list in sizes.values()), default=0)):
        for place in range(most if turn == 0 else math.ceil(most / 2)):
            for entry in shortlist:
                counts = sizes[id(entry)][turn] if turn < len(sizes[id(entry)]) else None
                if counts is not None and not entry.beyond_help and place < len(entry.routing_configs):
                    jobs.append(_job(problem, entry, counts, entry.routing_configs[place], 1.0))
    runner.run(jobs, until, Untried.ROUTERS)
