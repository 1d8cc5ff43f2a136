"""What a README calls the deployment that it stands beside."""

from __future__ import annotations

from typing import Any

import pytest

from hisearch.export.standing import standing_of
from hisearch.score.terms import RejectionCheck, TermCheck
from hisearch.search.trial import Trial


@pytest.fixture
def trial(build_deployment: Any) -> Any:
    def build(number: int = 4, *, ttft_s: float = 1.0, **changes: Any) -> Trial:
        checks = (TermCheck("ttft_p99", ttft_s, 2.0), TermCheck("tpot_p99", 0.04, 0.05), RejectionCheck(0.0, 100))
        feasible = all(check.holds for check in checks)
        return Trial(number, 2, build_deployment(), {}, {"usd_per_hour": 1.0}, checks, feasible, **changes)

    return build


def test_the_recommendation_is_called_so(trial: Any) -> None:
    found = standing_of(trial(), trial())
    assert (found.name, found.title) == ("recommended", "Recommended deployment")
    assert len(found.lines) == 3
    assert standing_of(trial(), trial(7)).title == "Trial 4, which meets the SLO"


def test_a_trial_that_misses_says_so_term_by_term(trial: Any) -> None:
    found = standing_of(trial(ttft_s=3.0), trial(7))
    assert (found.name, found.title) == ("trial-4", "Trial 4, which does NOT meet the SLO")
    assert found.lines[0] == "ttft_p99 3 s of at most 2 s: missed by 50%"
    assert "left" in found.lines[1]


def test_what_was_not_the_studys_own_workload_is_said(trial: Any) -> None:
    part = standing_of(trial(slice_fraction=0.25), None)
    assert part.title == "Trial 4, which meets the SLO on the first 25% of the trace only"
    assert "whether it meets the SLO on all of it is not known" in part.lines[0]
    loaded = standing_of(trial(load=1.5, ttft_s=3.0), None)
    assert loaded.title == "Trial 4, which does NOT meet the SLO at 1.5 times the study's load"
    assert "1.5 times the study's load" in loaded.lines[0]


def test_a_failed_trial_says_why(trial: Any) -> None:
    found = standing_of(trial(error="no room"), None)
    assert "failed" in found.title
    assert found.lines == ("It failed: no room",)
