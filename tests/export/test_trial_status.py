"""How a README describes the deployment of its folder."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hisearch.export.rendering import render
from hisearch.export.trial_status import Ground, rest_holds, trial_status
from hisearch.report.data.confidence import Candidate, Confidence
from hisearch.report.words.cautions import may_miss
from hisearch.report.words.templating import text as words
from hisearch.score.terms import RejectionCheck, TermCheck
from hisearch.search.model.deployments import resized
from hisearch.search.model.trial import Trial
from hisearch.specs.deployments.routing import RouterSpec
from hisearch.specs.studies.study import AvailabilitySpec

#: What the trials' figures rest on.
FITTED = Ground("vllm-h200 (auto)", "fitted", 0.066)


@pytest.fixture
def trial(build_deployment: Any) -> Any:
    def build(number: int = 4, *, ttft_s: float = 1.0, **changes: Any) -> Trial:
        checks = (TermCheck("ttft_p99", ttft_s, 2.0), TermCheck("tpot_p99", 0.04, 0.05), RejectionCheck(0.0, 100))
        feasible = all(check.holds for check in checks)
        return Trial(number, 2, build_deployment(), {}, {"usd_per_hour": 1.0}, checks, feasible, **changes)

    return build


def test_the_recommendation_is_called_so(trial: Any) -> None:
    status = trial_status(trial(), trial(), FITTED)
    assert (status.name, status.title) == ("recommended", "Recommended deployment")
    assert len(status.lines) == 3
    assert trial_status(trial(), trial(7), FITTED).title == "Trial 4, which meets the SLO"
    nearest = "Nearest deployment that was found, which"
    for satisfied, lasts, title in (
        (True, None, "Recommended deployment"),
        (True, True, "Recommended deployment"),
        (False, None, f"{nearest} meets the SLO with 38 % only"),
        (True, False, f"{nearest} misses the SLO where its load is carried on"),
    ):
        known = Confidence(chance=0.38, draws=64, satisfied=satisfied, lasts=lasts)
        assert trial_status(trial(), trial(), FITTED, known).title == title


def test_whether_the_rest_holds_is_what_was_simulated(trial: Any) -> None:
    def sized(number: int, replicas: int, router: str = "round_robin", **changes: Any) -> Trial:
        built = trial(number, **changes)
        deployment = resized(built.deployment, [replicas])
        routed = deployment.model_copy(update={"router": RouterSpec(policy=router)})
        return replace(built, deployment=routed)

    none_down = AvailabilitySpec()
    three, two, slow = sized(1, 3), sized(2, 2), sized(3, 2, ttft_s=3.0)
    assert rest_holds(three, [three], none_down) is None
    assert rest_holds(three, [three, sized(4, 2, "random"), sized(5, 2, slice_fraction=0.5)], none_down) is None
    assert rest_holds(three, [three, two], none_down) is True
    assert rest_holds(three, [slow, three], none_down) is False
    assert rest_holds(two, [two, sized(6, 1, "random", ttft_s=3.0)], none_down) is False, (
        "one replica has no router's choice"
    )
    assert rest_holds(two, [], AvailabilitySpec(replicas_down=1)) is True


def test_a_trial_that_misses_says_so_term_by_term(trial: Any) -> None:
    status = trial_status(trial(ttft_s=3.0), trial(7), FITTED)
    assert (status.name, status.title) == ("trial-4", "Trial 4, which does NOT meet the SLO")
    assert status.lines[0] == "TTFT p99 3 s of at most 2 s: missed by 50 %"
    assert "left" in status.lines[1]


def test_what_was_not_the_studys_own_workload_is_said(trial: Any) -> None:
    status = trial_status(trial(slice_fraction=0.25), None, FITTED)
    assert status.title == "Trial 4, which meets the SLO on the first 25 % of the trace only"
    assert "whether it meets the SLO on all of it is not known" in status.lines[0]
    loaded = trial_status(trial(load=1.5, ttft_s=3.0), None, FITTED)
    assert loaded.title == "Trial 4, which does NOT meet the SLO at 1.5 times the study's load"
    assert "1.5 times the study's load" in loaded.lines[0]


def test_a_failed_trial_says_why(trial: Any) -> None:
    status = trial_status(trial(error="no room"), None, FITTED)
    assert "failed" in status.title
    assert status.lines == ("It failed: no room",)


def _shown(status: Any) -> str:
    """The section of an export's README."""
    return render("trial_status.md.j2", status=status, benchmark=object())


def test_an_export_says_how_likely_the_slo_is_to_hold_and_what_to_do(trial: Any) -> None:
    """In the report's own words: the figures with their margins, their ranges, the probability, and what to do."""
    confidence = Confidence(
        {"ttft_p99": 0.53}, {"ttft_p99_s": (0.8, 2.4)}, level=0.9, chance=0.53, chance_range=(0.43, 0.63), draws=64
    )
    text = _shown(trial_status(trial(), trial(), FITTED, confidence))
    assert words("cautions", "chance", confidence) in text
    assert may_miss(confidence) in text
    assert "53 % (confidence interval 43 % to 63 %)" in text
    assert "| TTFT p99 | 1.00 s | 2 s | 50.0 % to spare | 0.800 s to 2.40 s | 53 % |" in text
    assert "| TPOT p99 | 40.0 ms | 50 ms | 20.0 % to spare |  |  |" in text
    assert "latency profile vllm-h200 (auto) (fitted, stated error of one step ±6.6 %)" in text
    assert "`hisearch verify RUN --measured guidellm.json`" in text
    probable = Confidence(level=0.9, chance=0.97, chance_range=(0.91, 0.99))
    assert "probability of 97 %" in _shown(trial_status(trial(), trial(), FITTED, probable))
    assert "--confidence" not in _shown(trial_status(trial(), trial(), FITTED, probable))


def test_another_trials_export_does_not_borrow_the_recommendations_probability(trial: Any) -> None:
    confidence = Confidence(
        candidates=(Candidate(4, 8, 0.75, 0.25),), level=0.9, chance=0.53, chance_range=(0.43, 0.63)
    )
    context = _shown(trial_status(trial(), trial(7), FITTED, confidence))
    assert "under 8 draws: it met the whole SLO in 6 of them" in context
    assert "53 %" not in context
    assert "`hisearch verify RUN --trial 4 --measured guidellm.json`" in context
    other = _shown(trial_status(trial(5), trial(7), FITTED, confidence))
    assert "that is known of the recommendation, trial 7, alone" in other
    assert "53 %" not in other


def test_a_margin_within_the_error_of_step_times_is_said(trial: Any) -> None:
    assert "was not looked into." in _shown(trial_status(trial(), trial(), FITTED))
    thin = _shown(trial_status(trial(ttft_s=1.98), trial(), FITTED))
    assert "The tightest margin (1.0 %) is smaller than the latency profile's stated error (6.6 %)" in thin
