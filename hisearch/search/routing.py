"""Stage 2: replicas and routers, simulated on growing slices of the trace.

Every slice is replayed from the trace's beginning with the same seed, so that all deployments meet the same requests
(common random numbers). On the slices contenders are sized and routers compared, and the better half goes on; on the
whole trace the remaining ones are sized again and each of their routers tried, then with fewer and more replicas.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hisearch.search.deployments import arms_by_promise, deployment_of, parameters_of, router_arms
from hisearch.search.ending import UNTRIED_ROUTERS, UNTRIED_SIZES
from hisearch.search.execution import Candidate
from hisearch.search.job import Job
from hisearch.search.ledger import Ledger
from hisearch.search.pareto import distinct, ranked
from hisearch.search.problem import Problem
from hisearch.search.sizing import Sizing
from hisearch.search.trial import Trial
from hisearch.specs.routing import RouterSpec

STAGE = 2

#: Each slice is this many times as long as the one before.
GROWTH = 3

#: A slice shorter than this says too little about a tail; a study with a smaller budget replays the whole trace only.
LEAST_SLICE_REQUESTS = 600
LEAST_BUDGET_FOR_SLICES = 100

#: Share of stage 2's simulations that slices may take.
SLICE_SHARE = 0.5


@dataclass(eq=False)
class Contender:
    """A candidate on its way through the stage.

    routers: arms still in the race, the first one is used for sizing. guess: replicas to start sizing at.
    fewest: replicas that met the SLO on the latest slice, or None. tried: its trials there.
    """

    candidate: Candidate
    routers: list[RouterSpec]
    guess: int
    fewest: int | None = None
    tried: list[Trial] = field(default_factory=list)

    @property
    def replicas(self) -> int:
        """Where to try routers: the fewest that met the SLO, else the largest tried."""
        return self.fewest if self.fewest is not None else self.guess

    @property
    def beyond_help(self) -> bool:
        """True where its worker rejected too many requests on the latest slice: no replica or router changes that."""
        return any(trial.rejects_too_many for trial in self.tried)


def slices(requests: int, budget: int) -> list[float]:
    """Fractions of the trace for the rungs, growing, the last one 1.0."""
    fractions = [1.0]
    while budget >= LEAST_BUDGET_FOR_SLICES and requests * fractions[0] / GROWTH >= LEAST_SLICE_REQUESTS:
        if len(fractions) == 3:
            break
        fractions.insert(0, fractions[0] / GROWTH)
    return fractions


def search_routing(problem: Problem, candidates: Sequence[Candidate], ledger: Ledger, until: int) -> None:
    """Run stage 2; the trials are the ledger's.

    Args:
        problem: the question.
        candidates: survivors of stage 1, best first.
        ledger: runs the simulations.
        until: simulations at which the stage must stop.
    """
    arms = arms_by_promise(problem.space.routing)
    contenders = [Contender(c, list(arms), min(max(c.replicas, 1), c.max_replicas)) for c in candidates]
    rungs = slices(problem.demand.requests, problem.budget.simulations)
    slice_until = ledger.simulations + int((until - ledger.simulations) * SLICE_SHARE)
    for rung, fraction in enumerate(rungs[:-1]):
        _size(problem, contenders, fraction, ledger, slice_until)
        if rung > 0 or len(rungs) == 2:
            _compare_routers(problem, contenders, fraction, ledger, slice_until)
            _size(problem, contenders, fraction, ledger, slice_until)  # a better router may need fewer replicas
        contenders = _promote(contenders, problem.objectives)
    for contender in contenders:  # a trace's beginning is often its quieter part: sessions have yet to build up
        contender.guess = max(contender.guess, contender.candidate.replicas)
    _size(problem, contenders, 1.0, ledger, until)
    _try_offsets(problem, contenders, ledger, until)


def simulate_as_sized(problem: Problem, candidates: Sequence[Candidate], ledger: Ledger, until: int) -> None:
    """What stands for the stage where it is left out: each candidate once, with the replicas that stage 1 expects."""
    arms = arms_by_promise(problem.space.routing)
    contenders = [Contender(c, arms[:1], c.replicas) for c in candidates]
    ledger.run([_job(problem, contender, contender.guess, arms[0], 1.0) for contender in contenders], until)


def _job(problem: Problem, contender: Contender, replicas: int, router: RouterSpec, fraction: float) -> Job:
    pool = contender.candidate.pool
    # A single replica gets everything whatever the policy: name the first arm, so that equal runs are recognised.
    chosen = router if replicas > 1 else router_arms(problem.space.routing)[0]
    deployment = deployment_of(problem.model, problem.profile, pool, replicas, chosen)
    return Job(STAGE, deployment, parameters_of(deployment), slice_fraction=fraction)


def _size(problem: Problem, contenders: Sequence[Contender], fraction: float, ledger: Ledger, until: int) -> None:
    """Find the fewest replicas of all contenders in lockstep, one simulation each at a time."""
    sizings = [Sizing(contender.guess, contender.candidate.max_replicas) for contender in contenders]
    for contender in contenders:
        contender.tried = []
    while asking := [(c, s, s.next) for c, s in zip(contenders, sizings, strict=True) if s.next is not None]:
        jobs = [_job(problem, c, replicas, c.routers[0], fraction) for c, _, replicas in asking]
        done = ledger.run(jobs, until, UNTRIED_SIZES if fraction == 1.0 else "")
        for (contender, sizing, replicas), trial in zip(asking, done, strict=True):
            if trial is None or trial.error:
                sizing.stop()
                continue
            contender.tried.append(trial)
            sizing.tell(replicas, trial.serves, trial.service_violation, healable=not trial.rejects_too_many)
    for contender, sizing in zip(contenders, sizings, strict=True):
        contender.fewest = sizing.fewest
        if contender.tried:
            contender.guess = sizing.best_guess


def _compare_routers(
    problem: Problem, contenders: Sequence[Contender], fraction: float, ledger: Ledger, until: int
) -> None:
    """Try every router arm at the contenders' sizes and keep the better half of each one's arms, best first.

    Every contender gets its first arm before any gets its second. Arms that the budget left out have not lost: they
    stay in the race, behind the others.
    """
    sharing = [c for c in contenders if c.replicas > 1 and not c.beyond_help]
    most = max((len(c.routers) for c in sharing), default=0)
    asked = [(c, c.routers[place]) for place in range(most) for c in sharing if place < len(c.routers)]
    trials = ledger.run([_job(problem, c, c.replicas, router, fraction) for c, router in asked], until)
    for contender in sharing:
        of_it = [(r, t) for (owner, r), t in zip(asked, trials, strict=True) if owner is contender]
        by_number = {t.number: (r, t) for r, t in of_it if t is not None and not t.error}
        if not by_number:
            continue
        best = distinct(ranked([trial for _, trial in by_number.values()], problem.objectives))
        contender.tried.extend(trial for trial in best if trial not in contender.tried)
        kept = [by_number[trial.number][0] for trial in best[: math.ceil(len(best) / 2)]]
        contender.routers = kept + [router for router, trial in of_it if trial is None]


def _promote(contenders: Sequence[Contender], objectives: Sequence[str]) -> list[Contender]:
    """The better half, and the best of every accelerator with every engine; of equal ones the first.

    All of them where the budget did not reach each one: those it left out have not lost.
    """
    if not all(contender.tried for contender in contenders):
        return list(contenders)
    best_trial: dict[int, Contender] = {}
    for contender in contenders:
        order = ranked(contender.tried, objectives)
        if order:
            best_trial[order[0].number] = contender
    order = ranked([trial for c in contenders for trial in c.tried if best_trial.get(trial.number) is c], objectives)
    ordered = [best_trial[trial.number] for trial in distinct(order)]
    kept = ordered[: math.ceil(len(ordered) / 2)]
    kept.extend(_first_of_each(ordered, kept))
    return [contender for contender in ordered if contender in kept]


def _kind(contender: Contender) -> tuple[str, str]:
    """Accelerator and engine: of each pair one stays in the race, so that runner-ups are compared like with like."""
    pool = contender.candidate.pool
    return pool.accelerator, pool.engine.name


def _first_of_each(ordered: Iterable[Contender], kept: Sequence[Contender]) -> list[Contender]:
    """The first contender of every kind that ``kept`` does not hold yet."""
    seen = {_kind(contender) for contender in kept}
    found = []
    for contender in ordered:
        if _kind(contender) not in seen:
            seen.add(_kind(contender))
            found.append(contender)
    return found


def _try_offsets(problem: Problem, contenders: Sequence[Contender], ledger: Ledger, until: int) -> None:
    """On the whole trace: each router at the size found, then the first ones with one replica less and extra ones.

    Contenders take turns, so that a budget that ends early leaves none without its most promising routers.
    """
    offsets = dict.fromkeys([0, -1, *problem.space.routing.extra_replicas])
    most = max((len(contender.routers) for contender in contenders), default=0)
    jobs: list[Job] = []
    for offset in offsets:
        for place in range(most if offset == 0 else math.ceil(most / 2)):
            for contender in contenders:
                if contender.beyond_help or place >= len(contender.routers):
                    continue
                replicas = contender.replicas + offset
                if 1 <= replicas <= contender.candidate.max_replicas:
                    jobs.append(_job(problem, contender, replicas, contender.routers[place], 1.0))
    ledger.run(jobs, until, UNTRIED_ROUTERS)
