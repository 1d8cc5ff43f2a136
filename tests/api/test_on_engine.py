"""Which deployment on another engine is exported: by the study's rule, and likely enough where that is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hisearch.api.studies.on_engine import Asked, choose_on
from hisearch.report.data.confidence import Candidate, Confidence, Priced
from hisearch.search.model.trial import Trial
from hisearch.specs.studies.study import RecommendSpec, RuleName
from tests.search.fakes import OBJECTIVES, make_trial

#: The recommendation is on SGLang; trial 1 is the cheapest on vLLM, 2 the fastest and narrowest, 4 of least energy.
BEST = make_trial(0, 1.0, 5.0, 4.0)


def on_vllm(number: int, ttft_s: float, usd: float, watts: float) -> Trial:
    trial = make_trial(number, ttft_s, 5.0, usd, engine="vllm")
    return replace(trial, metrics=trial.metrics | {"mean_w": watts, "output_tokens_per_s": 100.0})


TRIALS = (
    BEST,
    on_vllm(1, 1.9, 3.0, 500.0),
    on_vllm(2, 0.4, 9.0, 700.0),
    on_vllm(3, 1.5, 4.5, 600.0),
    on_vllm(4, 1.4, 8.0, 300.0),
    make_trial(5, 2.5, 5.0, 1.0, engine="vllm", feasible=False),
)


@pytest.mark.parametrize(
    ("rule", "usd", "number"),
    [
        ("cheapest", None, 1),
        ("lowest_latency", 20.0, 2),
        ("lowest_latency", 8.5, 4),
        ("least_energy", None, 4),
        ("least_energy", 4.7, 1),
        ("most_headroom", None, 2),
    ],
)
def test_another_engine_s_deployment_is_chosen_by_the_study_s_rule(
    rule: RuleName, usd: float | None, number: int
) -> None:
    spec = RecommendSpec(rule=rule, usd_per_hour=usd)
    choice = choose_on("vllm", TRIALS, Asked(OBJECTIVES, spec, None, BEST, Confidence()))
    assert choice is not None
    assert choice.trial.number == number
    assert rule in choice.chosen_by
    assert "of 4 deployments on vllm that met the SLO" in choice.chosen_by


def test_the_most_headroom_is_that_of_the_largest_load_where_capacity_is_an_objective() -> None:
    loads = {"capacity_load": 3.0, "capacity_goodput_rps": 9.0, "capacity_missed_load": 3.1}
    trials = [replace(t, metrics=t.metrics | loads | {"capacity_load": 1.0 + t.number}) for t in TRIALS]
    spec = RecommendSpec(rule="most_headroom", usd_per_hour=8.5)
    choice = choose_on("vllm", trials, Asked(OBJECTIVES, spec, None, BEST, Confidence()))
    assert choice is not None
    assert choice.trial.number == 4
    assert "chosen by the rule most_headroom, of 4" in choice.chosen_by


def chosen(confidence: Confidence, rule: RecommendSpec | None = None) -> tuple[int, str]:
    choice = choose_on("vllm", TRIALS, Asked(OBJECTIVES, rule or RecommendSpec(), 0.9, BEST, confidence))
    assert choice is not None
    return choice.trial.number, choice.chosen_by


def test_what_is_known_to_be_too_unlikely_is_not_chosen() -> None:
    number, words = chosen(Confidence())
    assert number == 1
    assert words.endswith("how likely it is was not looked into, where 90 % are required")
    # The search up the prices passed trial 1 before it came to the recommendation.
    assert chosen(Confidence(satisfied=True, chance=0.95))[0] == 3
    nominal = Priced(1, 3.0, 0.4, (0.3, 0.5), 64)
    assert chosen(Confidence(nominal=nominal))[0] == 3
    assert chosen(Confidence(nominal=replace(nominal, chance_range=None)))[0] == 3


def test_what_is_known_to_be_likely_enough_is_chosen_first() -> None:
    known = Confidence(satisfied=True, chance=0.95, candidates=(Candidate(4, 8, 1.0, 0.0, (0.75, 1.0)),))
    number, words = chosen(known)
    assert number == 4
    assert "it is 75–100 % likely to meet it, where 90 % are required" in words


def test_where_all_are_too_unlikely_the_rule_alone_decides_and_that_is_said() -> None:
    rows = tuple(Candidate(number, 64, 0.2, 0.0, (0.1, 0.3)) for number in (2, 3, 4))
    number, words = chosen(Confidence(satisfied=True, chance=0.95, candidates=rows))
    assert number == 1
    assert "it comes before the recommendation by the rule cheapest" in words
    assert words.endswith("its own probability is not known, where 90 % are required")


def test_what_its_own_draws_show_is_said_of_it() -> None:
    rows = tuple(Candidate(number, 64, 0.2, 0.0, (0.1, 0.3)) for number in (1, 2, 3, 4))
    number, words = chosen(Confidence(satisfied=True, chance=0.95, candidates=rows))
    assert number == 1
    assert words.endswith("it is 20 % likely to meet it, where 90 % are required")


def test_without_any_on_the_engine_there_is_no_choice() -> None:
    assert choose_on("trtllm", TRIALS, Asked(OBJECTIVES, RecommendSpec(), 0.9, BEST, Confidence())) is None
