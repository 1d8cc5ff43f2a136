"""What a search left untried when it ended, and which part of it may change the recommendation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hisearch.search.evaluate.runner import TrialRunner
from hisearch.search.model.problem import Problem
from hisearch.search.model.trial import Recommendation, Trial, price_of
from hisearch.search.refine.cheaper import cheaper_candidates, limit_usd
from hisearch.search.rounds import Rounds, none_can_serve
from hisearch.search.select.headroom import headroom
from hisearch.search.select.recommend import cheapest_usd
from hisearch.search.stages.cache import count_settings
from hisearch.search.stages.ending import (
    Ending,
    Untried,
    dropped_candidates,
    untried_candidates,
    untried_replicas,
    untried_settings,
)
from hisearch.search.stages.execution_report import ExecutionReport
from hisearch.specs.wording import counted

#: Cache tiers may still bring a cheaper deployment if the last one came within this share of the search's latest
#: simulations of the whole trace. Chosen: a search that found nothing cheaper in its second half has converged.
RECENT = 0.5


def ending_of(
    problem: Problem,
    runner: TrialRunner,
    execution: ExecutionReport,
    recommendation: Recommendation | None,
    rounds: Rounds,
    beyond_budget: int,
) -> Ending:
    """What the budget left untried, which limit applied, and what the search's own rules left out.

    beyond_budget: simulations that do not count against the budget.
    """
    settings = untried_settings(*count_settings(problem, rounds.cache_bases, runner.trials))
    first, rest = [], set[str]()
    if not none_can_serve(runner.trials) and not rounds.proven:
        first.append(untried_candidates(execution.kept, runner.trials))
        rest |= runner.untried()
    if not rounds.cache_ended:
        first.append(settings if rounds.cache_begun else Untried.CACHE)
    if recommendation is not None:
        best = recommendation.trial
        rest.add(untried_replicas(best, runner.trials))
        if problem.demand.scales_with_load and headroom(runner.trials, best) is None:
            rest.add(Untried.LOADS)
    untried = tuple(reason for reason in (*first, *(item for item in Untried if item in rest)) if reason)
    if not runner.trials:
        untried = untried[:1]
    left_out = (dropped_candidates(execution.kept, runner.trials), settings if rounds.cache_ended else "")
    by_simulations = "simulations" if untried else ""
    return Ending(
        stopped=by_simulations if runner.stopped in {"", "simulations"} else runner.stopped,
        untried=untried,
        budget=problem.budget,
        used=runner.simulations - beyond_budget,
        left_out=tuple(reason for reason in left_out if reason),
        likely=untried
        if recommendation is None
        else tuple(_likely(problem, runner, execution, recommendation, rounds, settings)),
        proven=rounds.proven,
        rule=problem.recommend.rule,
    )


def _likely(
    problem: Problem,
    runner: TrialRunner,
    execution: ExecutionReport,
    recommendation: Recommendation,
    rounds: Rounds,
    settings: str,
) -> Iterator[str]:
    """What of the untried may be better than the recommendation. settings: untried ones of the cache tiers, or "".

    Where the rule goes by the load, more replicas. Else it must cost less, where price is an objective. What the
    surrogate expects to miss the SLO by three deviations does not count, nor do cache settings once the second half of
    the search found nothing cheaper.
    """
    best, trials = recommendation.trial, runner.trials
    by_load = problem.recommend.rule == "most_headroom" and problem.asks_load
    if by_load and Untried.MOST in runner.untried():
        yield Untried.MOST
    unseen = [] if by_load else cheaper_candidates(problem, execution.kept, trials, best, rounds.may_serve)
    if unseen:
        yield f"{len(unseen):,} of {counted(len(execution.kept), 'candidate')} of stage 1"
    if not rounds.cache_begun and not rounds.cache_ended:
        yield Untried.CACHE
    elif not rounds.cache_ended and settings and _recently_cheaper(trials):
        yield settings
    if by_load:
        return
    limit = limit_usd(problem, best)
    cheaper = [
        (what, job.deployment)
        for what, job in runner.refused()
        if round(problem.planner.usd_per_hour(job.deployment), 6) < limit
    ]
    serving = {spec.model_dump_json() for spec in rounds.may_serve(trials, [spec for _, spec in cheaper])}
    likely = {what for what, spec in cheaper if spec.model_dump_json() in serving}
    likely.add(untried_replicas(best, trials))
    yield from (item for item in Untried if item in likely)


def _recently_cheaper(trials: Sequence[Trial]) -> bool:
    """True if a deployment cheaper than all before it was found within the last ``RECENT`` of the simulations."""
    comparable = [trial for trial in trials if trial.comparable]
    least_usd = cheapest_usd(comparable)
    first = next((i for i, trial in enumerate(comparable) if trial.meets_slo and price_of(trial) <= least_usd), 0)
    return first >= len(comparable) * (1 - RECENT)
