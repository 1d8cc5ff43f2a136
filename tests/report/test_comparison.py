"""Comparisons: intervals, the parts of a difference, words, the page."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import ttest_rel

from hisearch.report.data.comparison import (
    Change,
    Comparison,
    Driver,
    Fronts,
    MeanTimes,
    Side,
    changes_between,
    compare_figures,
    explain,
    time_rows,
)
from hisearch.report.data.intervals import bootstrap_interval, paired_interval
from hisearch.report.pages.comparison_page import bars, render_comparison
from hisearch.report.words import comparison_words as words
from hisearch.report.words.templating import text
from hisearch.score.stated import stated
from hisearch.score.terms import TermCheck

A = MeanTimes(queued_s=1.0, prefill_s=0.2, decode_s=5.0, missed_tokens=1000.0)
B = MeanTimes(queued_s=0.4, prefill_s=0.15, decode_s=5.3, missed_tokens=500.0)


def make_comparison() -> Comparison:
    """B is dearer and has the shorter TTFT; it queues less and decodes longer."""
    a = [{"usd_per_hour": 10.0, "ttft_p99_s": 1.9 + 0.1 * i, "tpot_p99_s": 0.04, "hit_rate": 0.3} for i in range(3)]
    b = [
        {"usd_per_hour": 12.5, "ttft_p99_s": 0.8 + 0.1 * i, "tpot_p99_s": 0.04 + 0.01 * (i - 1), "hit_rate": 0.5}
        for i in range(3)
    ]
    tpot = TermCheck("tpot_p99", 0.04, 0.05)
    return Comparison(
        kind="deployments",
        a=Side("a.yaml", "a.yaml", "2 × h100", (TermCheck("ttft_p99", 2.1, 2.0), tpot), False),
        b=Side("b.yaml", "b.yaml", "2 × <b>", (TermCheck("ttft_p99", 1.0, 2.0), tpot), True),
        workload="chat, 100 requests",
        same_workload=True,
        seeds=(0, 1, 2),
        question=(),
        changes=(Change("pools.0.replicas", "2", "<script>"),),
        figures=compare_figures(a, b),
        times=time_rows(A, B, 0.0, 0.1),
        parts=explain(A, B, 0.0, 0.1),
        drivers=(Driver("busiest link", 0.0, 0.5, "%"), Driver("evicted", 0.0, 0.0)),
        fronts=None,
        notes=(),
    )


def test_the_interval_is_student_s_of_the_pairs() -> None:
    rng = np.random.default_rng(3)
    a = rng.normal(5.0, 2.0, 6)
    b = a + rng.normal(0.3, 0.1, 6)
    expected = ttest_rel(b, a).confidence_interval(0.95)
    assert paired_interval(list(a), list(b)) == pytest.approx((expected.low, expected.high))


def test_no_interval_without_pairs_or_with_infinite_values() -> None:
    assert paired_interval([1.0], [2.0]) == (None, None)
    assert paired_interval([1.0, math.inf], [2.0, 3.0]) == (None, None)


def test_no_interval_of_what_never_varies() -> None:
    assert paired_interval([1.0, 2.0, 3.0], [1.5, 2.5, 3.5]) == (None, None)
    assert bootstrap_interval([1.0, 1.0], [3.0, 3.0]) == (None, None)
    rows = words.figure_rows(compare_figures([{"usd_per_hour": 2.0}] * 3, [{"usd_per_hour": 5.0}] * 3))
    assert rows == [("Cost per hour", "$2.00", "$5.00", "+$3.00 (+150.0 %)", "-", "A")]


def test_the_interval_of_a_recording_lies_around_it_and_does_not_shrink_with_draws() -> None:
    recorded, deviations = 0.3, np.random.default_rng(3).normal(size=2000)
    few, many = (
        bootstrap_interval([0.0] * (count + 1), [recorded, *(recorded + deviations[:count])]) for count in (20, 2000)
    )
    for low, high in (few, many):
        assert low is not None
        assert high is not None
        assert (low + high) / 2 == pytest.approx(recorded)
    # A standard normal law's 95 % interval, whatever the number of draws.
    assert many[1] - recorded == pytest.approx(1.96, rel=0.05)  # type: ignore[operator]
    assert few[1] - recorded > 1.2  # type: ignore[operator]


def test_figures_of_a_recording_are_its_own() -> None:
    figure = compare_figures([{"ttft_mean_s": 1.0}, {"ttft_mean_s": 4.0}], [{"ttft_mean_s": 2.0}] * 2, recorded=True)[0]
    assert (figure.a, figure.b, figure.better) == (1.0, 2.0, "unsure")


def test_which_side_is_better() -> None:
    better = {figure.name: figure.better for figure in make_comparison().figures}
    assert better == {"usd_per_hour": "A", "ttft_p99_s": "B", "tpot_p99_s": "unsure", "hit_rate": "B"}
    same = compare_figures([{"preemptions": 1.0}], [{"preemptions": 1.0}])
    assert {figure.name: figure.better for figure in same} == {"preemptions": "same"}
    (endless,) = compare_figures([{"e2e_p99_s": math.inf}], [{"e2e_p99_s": math.inf}])
    assert endless.better == "unsure"
    assert endless.relative is None


def test_the_parts_leave_no_remainder() -> None:
    parts = {part.name: part.difference_s for part in explain(A, B, 0.0, 0.1)}
    assert sum(parts.values()) == pytest.approx(B.total_s + 0.1 - A.total_s)
    assert parts["misses"] == pytest.approx(-500 * 0.2 / 1000)
    assert parts["prefill"] == pytest.approx(500 * (0.15 / 500 - 0.2 / 1000))
    assert parts["queueing"] == pytest.approx(-0.6)
    assert all(part.difference_s == 0 for part in explain(A, A, 0.0, 0.0))


def test_changes_name_each_leaf() -> None:
    a = {"pools": [{"replicas": 2, "tiers": []}], "router": {"policy": "random"}, "media": ["x", "y"]}
    b = {"pools": [{"replicas": 4, "tiers": [{"gib": 64.0}]}], "router": {"policy": "random"}, "media": ["x"]}
    assert changes_between(a, b) == (
        Change("pools.0.replicas", "2", "4"),
        Change("media", "x, y", "x"),
        Change("pools.0.tiers.0.gib", "", "64"),
    )
    assert changes_between(a, a) == ()


def test_the_summary_says_what_it_comes_to() -> None:
    assert words.summary(make_comparison()) == (
        "A misses the SLO (TTFT p99 2.10 s of at most 2 s); B meets the SLO. B costs $2.50 an hour more (25.0 %). B's "
        "TTFT p99 is 1.10 s shorter. TPOT p99 does not clearly differ. A request takes 250 ms less on average: "
        "queueing −600 ms, decode +300 ms, misses −100 ms and transfers +100 ms."
    )


def test_words_and_rows_are_of_the_percentiles_that_the_slo_states() -> None:
    a, b = (
        [{"ttft_p95_s": ttft, "ttft_p99_s": 9.0, "tpot_p99_s": 0.04, "e2e_p50_s": 5.0, "e2e_p97.5_s": 20.0}]
        for ttft in (1.9, 0.8)
    )
    terms = tuple(TermCheck(label, 1.0, 2.0) for label in ("e2e_p97.5", "ttft_p95", "e2e_p50"))
    labels = stated(check.label for check in terms)
    base = make_comparison()
    asking = replace(
        base, a=replace(base.b, slo=terms), b=replace(base.b, slo=terms[:1]), figures=compare_figures(a, b, labels)
    )
    assert [name for name, *_ in words.figure_rows(asking.figures)] == ["TTFT p95", "TPOT p99", "E2E p50", "E2E p97.5"]
    assert "B's TTFT p95 is 1.10 s shorter. E2E p97.5 and E2E p50 are the same." in words.summary(asking)
    assert "p99" not in words.summary(asking)


def test_a_percentile_that_one_side_alone_has_leaves_p99() -> None:
    compared = compare_figures([{"ttft_p99_s": 1.0, "ttft_p97_s": 1.0}], [{"ttft_p99_s": 1.0}], ["ttft_p97_s"])
    assert [figure.name for figure in compared] == ["ttft_p99_s"]


def test_a_deployment_against_itself_in_words() -> None:
    metrics = [{"usd_per_hour": 10.0, "ttft_p99_s": 1.9, "tpot_p99_s": 0.04}]
    itself = replace(
        make_comparison(), figures=compare_figures(metrics, metrics), parts=explain(A, A, 0.0, 0.0), changes=()
    )
    itself = replace(itself, a=itself.b)
    assert words.summary(itself) == "Both meet the SLO. Both cost $10.00 an hour. TTFT p99 and TPOT p99 are the same."
    assert "A and B are the same deployment" in render_comparison(itself)


@pytest.mark.parametrize(
    ("metric", "value", "text"),
    [
        ("usd_per_hour", -2.5, "−$2.50"),
        ("usd_per_hour", 0.001, "+$0.0010"),
        ("hit_rate", 0.125, "+12.5 points"),
        ("hit_rate", -0.0004, "0.0 points"),
        ("ttft_p99_s", -0.25, "−250 ms"),
        ("e2e_mean_s", 12.0, "+12.0 s"),
        ("goodput_rps", math.inf, "∞"),
    ],
)
def test_differences_carry_sign_and_unit(metric: str, value: float, text: str) -> None:
    assert words.show(metric, value, signed=True) == text


def test_what_is_nothing_on_both_sides_is_left_out() -> None:
    assert words.driver_rows(make_comparison()) == [("busiest link", "0.0 %", "50.0 %")]


def test_the_page_is_small_escaped_and_runs_nothing() -> None:
    page = render_comparison(make_comparison())
    assert len(page) < 60_000
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "2 × &lt;b&gt;" in page
    assert "script-src" not in page
    assert "default-src 'none'" in page
    assert page.count("<caption") == page.count("<table")
    assert not re.search(r"<th[^>]*></th>", page), "a heading without a text is none"
    for heading in ("In short", "What changed", "What came of it", "Why it differs", "What goes with it"):
        assert f">{heading}</h2>" in page


def test_bars_are_in_proportion() -> None:
    drawn = {bar.name: bar for bar in bars(make_comparison())}
    assert (drawn["queueing"].left, drawn["queueing"].width, drawn["queueing"].slower) == (0.0, 50.0, False)
    assert (drawn["decode"].left, drawn["decode"].width, drawn["decode"].slower) == (50.0, 25.0, True)


def test_runs_with_one_question_compare_their_fronts() -> None:
    comparison = replace(make_comparison(), kind="runs", fronts=Fronts(12, 9, 3, 0))
    assert text("comparison", "fronts", comparison.fronts) == (
        "A's front has 12 deployments, 3 of them beaten by one of B's; B's has 9, 0 of them beaten by one of A's."
    )


def test_chances_stand_beside_verdicts_as_simulated() -> None:
    sides = [Side(name, name, "", (), feasible=True, chance=chance) for name, chance in (("a", 0.48), ("b", 0.97))]
    said = text("comparison", "summary", ["meets the SLO"] * 2, [side.chance for side in sides], None, SPEEDS, [], 0.0)
    assert said.replace("\N{NO-BREAK SPACE}", " ") == (
        "As simulated, both meet the SLO. A holds it with 48 %, B with 97 %."
    )
    plain = text("comparison", "summary", ["meets the SLO"] * 2, [None, None], None, SPEEDS, [], 0.0)
    assert plain == "Both meet the SLO."


SPEEDS: dict[str, list[Any]] = {"different": [], "unsure": [], "same": []}
