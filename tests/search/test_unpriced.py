"""Workers that the latency profile cannot price are left out with its reason; the others go on."""

from __future__ import annotations

from dataclasses import replace

from hisearch.latency.costs import CompiledCosts
from hisearch.search.stages.execution import search_execution
from hisearch.specs.deployments.deployment import PoolSpec
from tests.search.fakes import FakePlanner, make_problem


class _OfOneWidth(FakePlanner):
    """A profile that knows steps on one accelerator of each worker alone."""

    def costs(self, pool: PoolSpec) -> CompiledCosts:
        if pool.tensor_parallel > 1:
            raise ValueError("steps were not logged")
        return super().costs(pool)


def test_what_cannot_be_priced_is_counted() -> None:
    problem = make_problem()
    unrestricted = search_execution(problem, keep=4)
    report = search_execution(replace(problem, planner=_OfOneWidth()), keep=4)
    assert {candidate.pool.tensor_parallel for candidate in report.sized} == {1}
    wider = sum(candidate.pool.tensor_parallel > 1 for candidate in unrestricted.sized)
    assert report.skipped["steps were not logged"] == wider > 0
    assert len(report.sized) + wider == len(unrestricted.sized)
