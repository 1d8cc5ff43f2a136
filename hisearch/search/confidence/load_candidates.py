"""Deployments whose largest loads are looked for after a search, and the load at which that begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hisearch.score.capacity import Capacity
from hisearch.search.model.problem import Problem
from hisearch.search.model.trial import Trial
from hisearch.search.refine.inputs import Expectations
from hisearch.search.select.rules import HEADROOM_CANDIDATES, TABLE_CANDIDATES, headroom_candidates
from hisearch.search.stages.execution_report import ExecutionReport
from hisearch.specs.studies.study import RecommendSpec


def load_candidates(
    problem: Problem,
    execution: ExecutionReport,
    trials: Sequence[Trial],
    best: Trial,
    limit_usd: float,
    known: Mapping[int, Capacity],
) -> tuple[list[tuple[Trial, float]], int]:
    """Trials of unknown largest loads, each with the load to begin with; and how many there are at most.

    Where the study's rule goes by the load, those of the highest rate by stage 1's estimates. Else a table names one:
    of the widest margins within ``limit_usd``. Loads are taken to go with rates, from the known one of ``best``.
    """
    rule = problem.recommend
    if rule.rule != "most_headroom":
        within = RecommendSpec(rule="most_headroom", usd_per_hour=limit_usd)
        of_table = headroom_candidates(trials, within, TABLE_CANDIDATES)
        return [(trial, 1.0) for trial in of_table if trial.number not in known], TABLE_CANDIDATES
    expectations = Expectations(problem, [*execution.sized, *execution.sides])
    rates = {trial.number: expectations.rate_rps(trial.deployment) for trial in trials}
    own_rate, own_load = rates[best.number], known[best.number].load if best.number in known else 1.0
    candidates = headroom_candidates(trials, rule, expected=lambda trial: rates[trial.number])
    return [
        (trial, own_load * rates[trial.number] / own_rate if own_rate > 0 else 1.0)
        for trial in candidates
        if trial.number not in known
    ], HEADROOM_CANDIDATES
