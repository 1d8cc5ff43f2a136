import math
import time
from dataclasses import replace

import numpy as np
import pytest

from hisearch.score.evaluate import evaluate
from hisearch.score.percentiles import Latencies
from hisearch.simulate.results.result import Result
from hisearch.simulate.results.tables import Outcome
from hisearch.specs.studies.slo import SloSpec, SloTerm
from tests.score.results import random_result

SLO = SloSpec(
    terms=[
        SloTerm(metric="ttft_s", percentile=95, at_most_s=2.5),
        SloTerm(metric="tpot_s", percentile=99, at_most_s=0.2),
    ],
    max_rejected_fraction=0.05,
)


def good_one_by_one(result: Result, slo: SloSpec) -> int:
    """Requests that finished within every bound, counted the slow way."""
    good = 0
    for index, outcome in enumerate(result.requests.outcome):
        if outcome != Outcome.FINISHED:
            continue
        table = result.requests
        values = {
            "ttft_s": table.first_token_s[index] - table.arrival_s[index],
            "tpot_s": (table.finish_s[index] - table.first_token_s[index]) / max(table.output_tokens[index] - 1, 1),
            "e2e_s": table.finish_s[index] - table.arrival_s[index],
        }
        good += all(values[term.metric] <= term.at_most_s for term in slo.terms)
    return good


@pytest.mark.parametrize("seed", range(5))
def test_percentiles_and_rates_equal_brute_force(seed: int) -> None:
    result = random_result(seed, rejected=4)
    score = evaluate(result, SLO, usd_per_hour=36.0)
    finished = result.requests.finished
    several = finished & (result.requests.output_tokens >= 2)
    for stem, values in (
        ("ttft", result.requests.ttft_s[finished]),
        ("tpot", result.requests.tpot_s[several]),
        ("e2e", result.requests.e2e_s[finished]),
    ):
        assert score.metrics[f"{stem}_mean_s"] == pytest.approx(values.mean())
        for percent in (50, 90, 95, 99):
            assert score.metrics[f"{stem}_p{percent}_s"] == pytest.approx(np.percentile(values, percent), rel=1e-12)
    good = good_one_by_one(result, SLO)
    assert 0 < good < finished.sum()
    assert score.metrics["goodput_rps"] == pytest.approx(good / 120.0)
    assert score.metrics["attainment"] == pytest.approx(good / 200)
    assert score.metrics["throughput_rps"] == pytest.approx(196 / 120.0)
    assert score.metrics["rejected_fraction"] == pytest.approx(0.02)
    tokens = (result.requests.input_tokens + result.requests.output_tokens)[finished].sum()
    assert score.metrics["total_tokens_per_s"] == pytest.approx(tokens / 120.0)
    assert score.metrics["usd_per_million_tokens"] == pytest.approx(36.0 / 3600 * 120 / tokens * 1e6)
    assert score.metrics["joules_per_token"] == pytest.approx((1000 + 2 * 70 * 120) / tokens)
    assert score.metrics["utilisation"] == pytest.approx(80 / 240)


def test_terms_say_value_bound_and_verdict() -> None:
    result = random_result(1)
    score = evaluate(result, SLO)
    values = result.requests.ttft_s
    assert score.slo[0].value_s == pytest.approx(np.percentile(values, 95))
    assert score.slo[0].label == "ttft_p95"
    assert score.feasible == all(check.holds for check in score.slo)
    assert score.worst_margin == min(1 - check.value_s / check.bound_s for check in score.slo[:2])
    assert math.isnan(score.metrics["usd_per_hour"])


def test_figures_have_every_percentile_that_the_slo_states() -> None:
    odd = SLO.model_copy(update={"terms": [SloTerm(metric="e2e_s", percentile=97.5, at_most_s=1.0)]})
    score = evaluate(random_result(1), odd)
    assert score.metrics["e2e_p97.5_s"] == score.slo[0].value_s
    assert "ttft_p97.5_s" not in score.metrics


def test_too_many_rejections_are_infeasible_however_fast_the_rest() -> None:
    loose = SLO.model_copy(update={"terms": [SloTerm(metric="e2e_s", percentile=50, at_most_s=1e6)]})
    assert evaluate(random_result(0, rejected=10), loose).feasible
    assert not evaluate(random_result(0, rejected=11), loose).feasible


def test_a_front_end_without_time_left_is_said() -> None:
    result = random_result(0)
    assert evaluate(replace(result, front_end_busy=0.8), SLO).warnings == evaluate(result, SLO).warnings
    score = evaluate(replace(result, front_end_busy=1.14), SLO)
    assert score.metrics["front_end_busy"] == 1.14
    assert "busy 114 % of the time" in score.warnings[-1]
    assert score.feasible == evaluate(result, SLO).feasible


def test_unfinished_requests_count_as_infinitely_late() -> None:
    result = random_result(3, in_flight=20)
    metrics = evaluate(result, SLO).metrics
    ordered = np.append(np.sort(result.requests.ttft_s[result.requests.finished]), [np.inf] * 20)
    assert metrics["ttft_p90_s"] == math.inf  # rank 179.1 lies between the last finished one and an unfinished one
    assert metrics["ttft_p50_s"] == pytest.approx((ordered[99] + ordered[100]) / 2)
    assert metrics["ttft_mean_s"] == math.inf
    assert metrics["attainment"] == pytest.approx(good_one_by_one(result, SLO) / 200)


def test_requests_that_never_arrived_do_not_count() -> None:
    with_rest = evaluate(random_result(4, unreached=50), SLO).metrics
    assert math.isfinite(with_rest["ttft_p99_s"])
    assert with_rest["attainment"] == pytest.approx(good_one_by_one(random_result(4, unreached=50), SLO) / 150)


def test_nothing_served_is_infinitely_slow_and_dear() -> None:
    score = evaluate(random_result(5, count=10, rejected=10), SLO, usd_per_hour=1.0)
    assert not score.feasible
    assert score.metrics["ttft_p50_s"] == math.inf
    assert score.metrics["usd_per_million_tokens"] == math.inf
    assert score.metrics["goodput_rps"] == 0.0
    assert score.worst_margin == -math.inf


def test_percentile_on_an_order_statistic_before_the_unfinished_is_finite() -> None:
    values = Latencies.of(np.array([3.0, 1.0, 2.0]), unfinished=2)
    assert values.percentile(50) == 3.0
    assert values.percentile(51) == math.inf
    assert values.percentile(100) == math.inf


def test_scoring_a_long_trace_is_a_matter_of_milliseconds() -> None:
    result = random_result(0, count=12_000)
    evaluate(result, SLO)
    fastest = math.inf
    for _ in range(5):
        start = time.perf_counter()
        evaluate(result, SLO)
        fastest = min(fastest, time.perf_counter() - start)
    assert fastest < 0.02
