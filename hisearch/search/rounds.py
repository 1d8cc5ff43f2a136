"""The search's rounds: stages 2 and 3 for groups of candidates, then the front and the comparisons."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from hisearch.search.evaluate.runner import TrialRunner
from hisearch.search.model.candidates import Candidate, Kept
from hisearch.search.model.deployments import on_engine, parameters_of
from hisearch.search.model.job import Job
from hisearch.search.model.problem import Problem
from hisearch.search.model.trial import Trial
from hisearch.search.refine.alternatives import search_alternatives, size_alternatives
from hisearch.search.refine.cheaper import cheaper_candidates
from hisearch.search.refine.frontier import Frontier
from hisearch.search.refine.local_search import STAGE, descend, local_search
from hisearch.search.refine.raising import Raising
from hisearch.search.refine.tier_tries import try_tiers
from hisearch.search.select.failure import refuted
from hisearch.search.select.pareto import front
from hisearch.search.select.recommend import recommended
from hisearch.search.stages.cache import search_cache
from hisearch.search.stages.ending import Untried
from hisearch.search.stages.execution_report import ExecutionReport
from hisearch.search.stages.routing import STAGE as ROUTING
from hisearch.search.stages.routing import search_routing, simulate_as_sized
from hisearch.search.stages.shortlist import configs_of, deployment
from hisearch.specs.deployments.deployment import DeploymentSpec

#: Simulations that stage 2 may use per candidate; sets how many candidates a budget allows.
SIMULATIONS_PER_CANDIDATE = 24
LEAST_CANDIDATES = 4

#: Share of the simulations held back for the steps after the stages: alternatives, and the recommendation's neighbours.
#: What they do not use goes to further rounds.
COMPARISON_SHARE = 0.2

#: Share of the simulations that widen the front after stages 2 and 3 have found its start.
FRONT_SHARE = 0.6

#: With fewer simulations than this, all go to the stages before: the front needs a starting point.
LEAST_FRONT_SIMULATIONS = 32

#: With fewer simulations than this, no further round begins: they would not suffice to size a candidate.
LEAST_ROUND_SIMULATIONS = 8


#: Candidates that are simulated where stage 1 has ruled out every worker: to measure the miss, and to refute it.
NEAREST = 8

#: Most simulations at a time for candidates that the budget did not reach and that may be cheaper.
CHEAPER_SIMULATIONS = 4

#: Share of a round's simulations for stage 2; stage 3 gets the rest.
ROUTING_SHARE = 0.6

#: Simulations that stage 3 leaves for removing replicas from its best deployment.
DESCENT_SIMULATIONS = 2


def none_can_serve(trials: Sequence[Trial]) -> bool:
    """True if the model's window rejects more requests than the SLO allows; all deployments share the window."""
    return any(trial.comparable and trial.rejects_beyond_window for trial in trials)


class Rounds:
    """The stages and the steps after them, in rounds, with a record of the untried part of stage 3.

    proven: stage 1 has ruled out every worker, and no simulation of the nearest ones refutes it; the search then ends.
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
        self.proven = False
        self.cache_ended, self.cache_begun = True, False
        self.cache_bases: list[DeploymentSpec] = []
        self._problem, self._execution, self._runner, self._checkpoint = problem, execution, runner, checkpoint
        self._begun = self._number = self._comparisons = self._frontiers = 0
        self._frontier = Frontier(problem, _known_workers(execution))
        self._raising = Raising(problem, execution) if problem.asks_load and "front" not in without else None

    @property
    def _over(self) -> bool:
        return self.proven or bool(self._runner.stopped) or none_can_serve(self._runner.trials)

    def may_serve(self, trials: Sequence[Trial], deployments: Sequence[DeploymentSpec]) -> Sequence[DeploymentSpec]:
        """See ``Frontier.may_serve``."""
        return self._frontier.may_serve(trials, deployments)

    def run(self, until: int) -> None:
        """Run rounds for as many candidates as the budget allows, then comparisons; repeat both with what is left.

        A remainder too small for a further round widens the front. What the front does not need goes to neighbours of
        the recommendation that probably miss the SLO.
        """
        if self._execution.hopeless:
            self._measure_nearest(until)
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

    def _measure_nearest(self, until: int) -> None:
        """Simulate the candidates that miss stage 1's bounds by least; the search ends unless one meets all latencies.

        The bounds hold at zero load, for any number of replicas and for any cache. The nearest of all also gets as many
        replicas as are allowed, which refutes a bound that is too strict.
        """
        runner = self._runner
        nearest = self._execution.kept[: min(NEAREST, max(until - runner.simulations, 1))]
        runner.progress.started("2 nearest to the SLO", len(nearest) + 1)
        simulate_as_sized(self._problem, nearest, runner, until)
        if isinstance(first := nearest[0], Candidate):
            config = configs_of(self._problem, first)[0]
            largest = deployment(self._problem, first, (first.max_replicas,), config)
            runner.run([Job(ROUTING, largest, parameters_of(largest))], until)
        measured = any(trial.comparable for trial in runner.trials)
        self.proven = measured and not runner.stopped and not refuted(runner.trials)
        self._end_stage()

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
        comparisons = len(problem.space.execution.engines) + problem.space.execution.max_replicas
        most = max(min(share + comparisons, sims_left), 0)
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
        if "cache" not in self._without and not none_can_serve(runner.trials):
            before = runner.simulations
            saved = try_tiers(problem, runner, until - DESCENT_SIMULATIONS)
            done = search_cache(problem, runner, until - DESCENT_SIMULATIONS, saved, self._number)
            self.cache_begun |= runner.simulations > before
            self.cache_ended = done.ended
            self.cache_bases += done.bases
        descend(problem, runner, until)
        self._end_stage()

    def _widen(self, until: int) -> None:
        """Widen the front by more replicas, where the load counts, and by a surrogate's expectations of all the space.

        More replicas get half of the simulations, and what the surrogate leaves.
        """
        runner = self._runner
        if self._front_ended:
            return
        self._frontiers += 1
        runner.progress.started(_titled("4 front", self._frontiers), max(until - runner.simulations, 0))
        if self._raising is not None:
            self._raising.run(runner, runner.simulations + (until - runner.simulations) // 2)
        self._frontier.widen(runner, until)
        if self._raising is not None:
            self._raising.run(runner, until)
        self._front_ended_at = self._front_numbers() if runner.simulations < until else ()
        self._end_stage()

    @property
    def _front_ended(self) -> bool:
        """True if the front was widened until no gain was expected, and has not moved since."""
        ended_at = self._front_ended_at
        return "front" in self._without or (bool(ended_at) and ended_at == self._front_numbers())

    def _front_numbers(self) -> tuple[int, ...]:
        return tuple(trial.number for trial in front(self._runner.considered, self._problem.objectives))

    def price_alternatives(self, until: int) -> None:
        """Search the alternatives whose prices are reported, with simulations held back for them."""
        if "comparisons" in self._without or self._over:
            return
        runner = self._runner
        runner.progress.started("4 alternatives", max(until - runner.simulations, 0))
        self._try_cheaper(until)
        size_alternatives(self._problem, self._execution.sized, runner, until)
        for last in (until - CHEAPER_SIMULATIONS, until):  # the trials since may let others hope
            search_alternatives(self._problem, runner, last, self._frontier.may_serve)
            self._try_cheaper(until)
        self._end_stage()

    def _try_cheaper(self, until: int) -> None:
        """Simulate the candidates that the budget did not reach and that may be cheaper than the recommendation."""
        problem, runner = self._problem, self._runner
        best = recommended(runner.considered, problem.objectives)
        if best is None:
            return
        deployments = cheaper_candidates(problem, self._execution.kept, runner.considered, best, self.may_serve)
        jobs = [Job(STAGE, deployment, parameters_of(deployment)) for deployment in deployments]
        runner.run(jobs, min(until, runner.simulations + CHEAPER_SIMULATIONS))

    def _compare(self, until: int) -> None:
        """Try alternatives on other hardware and engines, then the neighbours, until the recommendation stands."""
        problem, runner, seen = self._problem, self._runner, -1
        if "comparisons" in self._without:
            return
        self._comparisons += 1
        runner.progress.started(_titled("4 comparisons", self._comparisons), max(until - runner.simulations, 0))
        while (best := recommended(runner.considered, problem.objectives)) is not None and best.number != seen:
            seen = best.number
            sims_left = until - runner.simulations
            size_alternatives(problem, self._execution.sized, runner, until - sims_left // 2)
            local_search(problem, runner, until, self._frontier.may_serve)
            size_alternatives(problem, self._execution.sized, runner, until)
            if runner.stopped:
                break
        self._end_stage()

    def _compare_unlikely(self, until: int) -> None:
        """Try the neighbours expected to miss the SLO, with the simulations that are left, if any.

        Where the load counts, also more replicas of what comparisons made the recommendation.
        """
        if "comparisons" in self._without:
            return
        self._comparisons += 1
        sims_left = max(until - self._runner.simulations, 0)
        self._runner.progress.started(_titled("4 comparisons", self._comparisons), sims_left)
        local_search(self._problem, self._runner, until)
        if self._raising is not None:
            self._raising.raise_recommended(self._runner)
        self._end_stage()

    def _end_stage(self) -> None:
        self._runner.progress.finished()
        self._checkpoint(self._runner.trials)


def _known_workers(execution: ExecutionReport) -> list[Candidate]:
    """Workers that a surrogate may propose: those without a shortfall (or all, if none), and the pools' sides."""
    return ([c for c in execution.sized if not c.shortfall] or execution.sized) + list(execution.sides)


def _titled(stage: str, number: int) -> str:
    return stage if number == 1 else f"{stage}, round {number}"


def _try_other_engines(problem: Problem, runner: TrialRunner, until: int) -> None:
    """Simulate the cheapest feasible deployment on every other engine of the space, to compare like with like."""
    best = recommended(runner.considered, problem.objectives)
    if best is None:
        return
    jobs = []
    execution, ours = problem.space.execution, best.deployment
    for engine in execution.engines:
        if engine in {pool.engine.name for pool in ours.pools}:
            continue
        try:
            deployment = on_engine(
                ours, engine, problem.page_tokens(engine), problem.space.execution.versions.get(engine, "")
            )
        except ValueError:  # the engine refuses these settings: there is no equivalent to compare with
            continue
        jobs.append(Job(best.stage, deployment, parameters_of(deployment)))
    runner.run(jobs, until, Untried.ENGINES)
