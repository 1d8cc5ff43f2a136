"""What decides feasibility: rejections as a term, undefined TPOT, percentiles of few requests."""

import dataclasses
import json
import math

import numpy as np
import pytest

from hisearch.score.evaluate import evaluate
from hisearch.score.percentiles import Latencies, requests_needed
from hisearch.score.quantities import notes
from hisearch.score.terms import RejectionCheck, TermCheck, check_from_json, check_to_dict, worst_margin
from hisearch.simulate.results.result import Result
from hisearch.simulate.results.tables import Outcome
from hisearch.specs.studies.slo import SloSpec, SloTerm
from tests.score.results import random_result

TPOT = SloTerm(metric="tpot_s", percentile=99, at_most_s=0.2)
TTFT = SloTerm(metric="ttft_s", percentile=99, at_most_s=1e6)


def single_token(result: Result) -> Result:
    """The same requests with one output token each."""
    requests = dataclasses.replace(
        result.requests,
        output_tokens=np.ones_like(result.requests.output_tokens),
        finish_s=result.requests.first_token_s,
    )
    return dataclasses.replace(result, requests=requests)


def test_rejections_are_the_last_check_with_their_count_and_reasons() -> None:
    result = random_result(0, rejected=5)
    over = np.zeros(200, dtype=bool)
    over[[3, 198, 199]] = True  # request 3 finished: it is not counted
    score = evaluate(result, SloSpec(terms=[TTFT]), over_window=over)
    check = score.slo[-1]
    assert check == RejectionCheck(0.0, 200, {"over_window": 2, "over_kv_memory": 3})
    assert (check.label, check.value, check.requests) == ("rejected_fraction", 0.025, 5)
    assert score.metrics["rejected_fraction"] == check.value
    assert not check.holds
    assert not score.feasible
    assert "Rejected: 5 of 200 requests rejected: 2 with more tokens" in score.warnings[-1]
    assert "model's window, 3 with more tokens than a worker's whole KV memory" in score.warnings[-1]


def test_the_note_on_requests_beyond_the_window_names_it_and_the_way_out() -> None:
    over = np.ones(200, dtype=bool)
    score = evaluate(random_result(0, rejected=5), SloSpec(terms=[TTFT]), over_window=over, window_tokens=131_072)
    assert score.warnings[-1].endswith(
        "5 with more tokens, prompt and declared output together, than the model's window of 131,072 (`hisearch trace "
        "import --max-tokens 131072` leaves them out)"
    )
    assert "of 131,072" not in RejectionCheck(0.0, 9, {"over_kv_memory": 1}, window_tokens=131_072).note


def test_reasons_are_distinguished_only_where_the_window_is_known() -> None:
    check = evaluate(random_result(0, rejected=5), SloSpec(terms=[TTFT])).slo[-1]
    assert isinstance(check, RejectionCheck)
    assert check.reasons == {"too_large": 5}


@pytest.mark.parametrize(
    ("bound", "rejected", "margin", "violation"),
    [(0.0, 0, None, 0.0), (0.0, 5, None, 0.05), (0.1, 5, 0.5, -0.05), (0.04, 5, -0.25, 0.01)],
)
def test_margin_and_violation_of_rejections(
    bound: float, rejected: int, margin: float | None, violation: float
) -> None:
    check = RejectionCheck(bound, 100, {"too_large": rejected} if rejected else {})
    assert check.margin == (None if margin is None else pytest.approx(margin))
    assert check.violation == pytest.approx(violation)
    assert check.holds == (violation <= 0)
    assert bool(check.note) == (rejected > 0)


def test_tpot_without_a_second_token_is_undefined_and_its_term_holds() -> None:
    score = evaluate(single_token(random_result(0)), SloSpec(terms=[TTFT, TPOT]))
    check = score.slo[1]
    assert isinstance(check, TermCheck)
    assert (check.value_s, check.margin, check.violation, check.holds) == (None, None, 0.0, True)
    assert "no request has a second output token" in check.note
    assert all(score.metrics[f"tpot_{point}_s"] is math.nan for point in ("mean", "p50", "p90", "p95", "p99"))
    assert score.feasible
    assert score.metrics["attainment"] == 1.0
    assert score.worst_margin == score.slo[0].margin
    assert worst_margin(score.slo[1:]) == math.inf


def test_tpot_of_nothing_served_is_missed_not_undefined() -> None:
    score = evaluate(single_token(random_result(0, count=10, in_flight=10)), SloSpec(terms=[TPOT]))
    assert score.slo[0].value_s == math.inf
    assert not score.feasible


@pytest.mark.parametrize(
    ("percent", "needed"), [(50, 2), (75, 4), (90, 10), (95, 20), (99, 100), (99.9, 1000), (99.5, 200), (100, 1)]
)
def test_requests_that_a_percentile_needs(percent: float, needed: int) -> None:
    assert requests_needed(percent) == needed
    if percent < 100:
        # Of one less, it lies between the two largest values.
        values = Latencies.of(np.arange(needed - 1, dtype=float), 0)
        assert values.percentile(percent) >= needed - 3


@pytest.mark.parametrize(("count", "thin"), [(99, True), (100, False)])
def test_a_percentile_of_few_requests_is_noted(count: int, thin: bool) -> None:
    result = random_result(0, count=count + 3, rejected=3)
    score = evaluate(result, SloSpec(terms=[TTFT], max_rejected_fraction=0.5))
    expected = f"rests on {count} requests; of fewer than 100, percentile 99 is little more than the slowest one"
    assert (score.slo[0].note == expected) == thin
    assert any(line.startswith("TTFT p99: rests on") for line in score.warnings) == thin
    assert score.warnings == notes(score.slo)


def test_checks_survive_json_and_tell_machines_the_verdict() -> None:
    checks = (
        TermCheck("ttft_p99", math.inf, 2.0),
        TermCheck("tpot_p99", None, 0.05, "undefined"),
        RejectionCheck(0.1, 40, {"over_window": 1}),
    )
    back = tuple(check_from_json(json.loads(json.dumps(dataclasses.asdict(check)))) for check in checks)
    assert back == checks
    rejected = check_to_dict(checks[2])
    assert (
        rejected.items()
        >= {
            "label": "rejected_fraction",
            "value": 0.025,
            "bound": 0.1,
            "requests": 1,
            "arrived": 40,
            "holds": True,
            "reasons": {"over_window": 1},
        }.items()
    )
    assert check_to_dict(checks[1])["margin"] is None


def test_outcomes_other_than_rejection_are_no_rejections() -> None:
    result = random_result(0, in_flight=3, rejected=2, unreached=5)
    check = evaluate(result, SloSpec(terms=[TTFT])).slo[-1]
    assert isinstance(check, RejectionCheck)
    assert check.arrived == int((result.requests.outcome != Outcome.UNREACHED).sum()) == 195
    assert check.requests == 2
