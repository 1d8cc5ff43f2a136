"""The closer look at a recommended deployment: its file, its figures and their words; confidence; importance."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hisearch.report.data.closeup import SHARES, LoadPoint, read_closeup
from hisearch.report.data.confidence import ChanceConstrained, Confidence, read_confidence
from hisearch.report.figures import closeup as draw
from hisearch.report.figures.closeup_drawings import closeup_drawings, first_break
from hisearch.report.figures.importance import LEAST_TRIALS, importance, omega_squared
from hisearch.report.figures.tornado import tornado
from hisearch.report.pages.page import load_fact, load_words
from hisearch.score.capacity import Capacity
from hisearch.score.terms import LimitCheck, RejectionCheck, TermCheck
from hisearch.search.model.demand import Rates


def test_the_file_gives_back_what_was_written(build_closeup: Any, tmp_path: Path) -> None:
    terms = (TermCheck("ttft_p99", math.inf, 2.0), RejectionCheck(0.0, 50, {"over_window": 1}))
    closeup = replace(build_closeup(), loads=(LoadPoint(1.0, 0.5, 2.0, terms),), notes=("load 3: stuck",))
    path = tmp_path / "closeup.json"
    path.write_text(closeup.to_json(), encoding="utf-8")
    assert read_closeup(path) == closeup


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda data: data | {"closeup": 99}, r"closeup: Input should be 1, got 99"),
        (lambda data: data | {"loads": [{"load": "fast"}]}, r"loads\.0\.load: Input should be a valid number"),
        (lambda data: [data], r"closeup\.json: Input should be an object, got "),
    ],
)
def test_another_file_is_refused(build_closeup: Any, tmp_path: Path, change: Any, complaint: str) -> None:
    path = tmp_path / "closeup.json"
    path.write_text(json.dumps(change(json.loads(build_closeup().to_json()))), encoding="utf-8")
    with pytest.raises(ValueError, match=complaint):
        read_closeup(path)


def test_a_file_from_before_tiers_were_looked_at_is_read(build_closeup: Any, build_input: Any, tmp_path: Path) -> None:
    data = json.loads(build_closeup().to_json())
    del data["tier_uses"], data["tier_timeline"]
    path = tmp_path / "closeup.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    older = read_closeup(path)
    assert older == replace(build_closeup(), tier_uses=(), tier_timeline=None)
    drawn = [drawing.key for drawing, _ in closeup_drawings(build_input(closeup=older))]
    assert "tiers" in drawn
    assert not {"tier-use", "tier-room"} & set(drawn)


def test_a_file_from_before_percentiles_were_asked_for_is_of_p99(build_closeup: Any, tmp_path: Path) -> None:
    path = tmp_path / "closeup.json"
    text = build_closeup().to_json()
    assert "ttft_s" in text
    path.write_text(text.replace('"ttft_s"', '"ttft_p99_s"').replace(',"ttft_percentile":99.0', ""), encoding="utf-8")
    assert read_closeup(path) == build_closeup()


def test_a_torn_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "closeup.json"
    path.write_text('{"closeup": 1,\n "tri', encoding="utf-8")
    with pytest.raises(ValueError, match=r"closeup\.json: Invalid JSON: EOF while parsing a string at line 2"):
        read_closeup(path)


def test_the_first_term_to_break_is_named(build_input: Any, build_closeup: Any) -> None:
    def words(*loads: LoadPoint) -> str:
        closeup = replace(build_closeup(), loads=loads)
        return first_break(build_input(closeup=closeup, headroom=closeup.headroom))

    assert words(*build_closeup().loads) == (
        "Every term holds up to 1 times the study's load; at 1.5 times, the first to break is TPOT p99 (54.0 ms of at "
        "most 50 ms)."
    )
    easy = LoadPoint(2.0, 1.0, 1.0, (TermCheck("ttft_p99", 1.0, 2.0),))
    hard = LoadPoint(1.0, 1.0, 1.0, (TermCheck("ttft_p99", 3.0, 2.0),))
    assert words(easy) == "Every term holds at every load that was simulated, up to 2 times the study's."
    assert words(easy, hard) == (
        "Already at 1 times, what is missed is TTFT p99 (3.00 s of at most 2 s). It is the other way round at 2."
    )
    assert words(LoadPoint(1.0, 1.0, 1.0)) == ""


def test_how_far_the_load_may_grow(build_input: Any) -> None:
    (fact,) = load_fact(build_input())
    assert fact == ("As simulated holds up to", "1 ×", "this load", "at 1.5 × TPOT p99 breaks")
    assert load_fact(build_input(headroom=Capacity(3.0, 1.0, math.inf, 4)))[0].value == "≥ 3 ×"
    assert load_fact(build_input(headroom=None)) == ()
    assert load_fact(build_input(headroom=Capacity(0.0, 0.0, 0.5, 4))) == ()


def test_loads_in_requests_per_second(build_input: Any, build_closeup: Any) -> None:
    rates = Rates(18.2, 21.5)
    closeup = replace(build_closeup(), rates=rates)
    (fact,) = load_fact(build_input(closeup=closeup, headroom=Capacity(1.5, 1.0, 2.0, 4)))
    assert fact == (
        "As simulated holds up to",
        "27.3",
        "requests/s",
        "1.5 × this load, which is 18.2 on average, 21.5 in the busiest 60 s; at 2 × the SLO breaks",
    )
    assert load_fact(build_input(closeup=closeup, headroom=None)) == (
        ("Load", "18.2", "requests/s", "on average, 21.5 in the busiest 60 s"),
    )
    assert load_words(build_input(closeup=closeup, headroom=Capacity(3.0, 1.0, math.inf, 4))) == (
        "18.2 requests/s on average, 21.5 in the busiest 60 s. As simulated, the SLO holds up to 54.6 requests/s at "
        "least (3 × this load)."
    )
    assert load_words(build_input()) == ""


def test_the_first_screen_the_load_tab_and_the_sensitivities_tell_one_headroom(build_input: Any) -> None:
    """The search's figure, though the loads that were looked at around it are others."""
    data = build_input(headroom=Capacity(1.2, 1.0, 1.25, 9))
    assert load_fact(data)[0][1:] == ("1.2 ×", "this load", "at 1.25 × the SLO breaks")
    assert first_break(data) == ("Every term holds up to 1.2 times the study's load; at 1.25 times, the SLO is missed.")
    drawn = tornado(replace(data, confidence=Confidence(sensitivity={"next": None})))
    assert drawn is not None
    assert [swing.threshold for swing in drawn.swings] == ["+25 %"]


def test_a_queue_that_grows_has_a_column_of_its_own(build_input: Any, build_closeup: Any) -> None:
    terms = (TermCheck("ttft_p99", 1.0, 2.0),)
    loads = (LoadPoint(1.0, 1.0, 1.0, terms), LoadPoint(2.0, 1.0, 1.0, (*terms, LimitCheck("queue_growth", 0.5, 0.1))))
    drawing, _ = closeup_drawings(build_input(closeup=replace(build_closeup(), loads=loads)))[0]
    assert drawing.table is not None
    assert drawing.table.columns[3:] == ("TTFT p99", "Queue growth")
    assert [row[-1] for row in drawing.table.rows] == ["none", "0.500 requests/s (missed)"]


def test_the_use_of_a_bound_has_gaps_where_a_latency_has_no_value() -> None:
    points = [
        LoadPoint(1.0, 1.0, 1.0, (TermCheck("ttft_p99", 1.0, 2.0), TermCheck("tpot_p99", None, 0.05))),
        LoadPoint(2.0, 0.0, 0.0, (TermCheck("ttft_p99", math.inf, 2.0), RejectionCheck(0.0, 9))),
    ]
    assert draw.term_uses(points) == {"ttft_p99": [50.0, None], "tpot_p99": [None, None]}


def test_loads_are_drawn_in_order_with_a_line_per_term(build_closeup: Any) -> None:
    figure = draw.figure_loads(build_closeup().loads[::-1])
    assert [trace.name for trace in figure.data[:4]] == [
        "Good requests (%)",
        "Goodput (requests/s)",
        "TTFT p99",
        "TPOT p99",
    ]
    assert all(list(trace.x) == [0.5, 1.0, 1.5, 3.0] for trace in figure.data[:4])
    assert len(draw.figure_loads([LoadPoint(1.0, 0.5, 2.0)]).data) == 2


def test_a_cross_stands_where_the_slo_puts_it(build_input: Any) -> None:
    data = build_input()
    figure = draw.figure_latencies(data.closeup.latencies, data.slo)
    crosses = [(trace.x[0], trace.y[0]) for trace in figure.data if trace.mode == "markers"]
    assert crosses == [(2.0, 2.0), (0.05, 2.0)]
    curve = figure.data[0]
    assert curve.y[SHARES.index(0.99)] == 2.0
    assert len(curve.x) == len(SHARES) - 1


def test_a_dollar_for_more_of_a_tier_is_held_against_what_it_frees(build_closeup: Any) -> None:
    tier = build_closeup().tiers[0]
    less, chosen, _ = tier.points
    freed = 10.0 * (less.busy_s - chosen.busy_s) / 1800.0
    assert tier.returns()[0] == pytest.approx(freed / (chosen.usd_per_hour - less.usd_per_hour))
    free = replace(tier, points=tuple(replace(point, usd_per_hour=0.0) for point in tier.points))
    assert free.returns() == (None, None)


def test_every_figure_has_its_numbers_in_a_table(build_input: Any) -> None:
    drawn = closeup_drawings(build_input())
    keys = ["capacity", "latencies", "classes", "ideal", "tier-use", "tier-room", "tiers", "costs", "workers"]
    assert [drawing.key for drawing, _ in drawn] == keys
    for drawing, figure in drawn:
        assert figure.data
        assert drawing.table is not None
        assert drawing.table.rows
        assert {len(row) for row in drawing.table.rows} == {len(drawing.table.columns)}


def test_the_costs_table_adds_up(build_input: Any) -> None:
    data = build_input()
    table = next(drawing.table for drawing, _ in closeup_drawings(data) if drawing.key == "costs")
    usd = data.recommendation.trial.metrics["usd_per_hour"]
    assert table.columns[:4] == ("Deployment", "Accelerators", "ddr5", "In all")
    assert table.rows[0][3] == f"${usd:,.2f}"
    assert table.rows[0][-2:] == ("4.2", "3.1")


def test_confidence_is_read_strictly(tmp_path: Path) -> None:
    path = tmp_path / "confidence.json"
    assert read_confidence(path) is None
    document = {
        "terms": {"ttft_p99": 0.93},
        "intervals": {"goodput_rps": [5, 6.5]},
        "more": 1,
    }
    path.write_text(json.dumps(document), encoding="utf-8")
    assert read_confidence(path) == Confidence({"ttft_p99": 0.93}, {"goodput_rps": (5.0, 6.5)})
    earlier = {"surer": {"trial": 2, "sentence": "$9."}, "contenders": [], "all_terms": 0.5}
    path.write_text(json.dumps(earlier), encoding="utf-8")
    assert read_confidence(path) == Confidence(chance=0.5, chance_constrained=ChanceConstrained(2, "$9."))
    for wrong, complaint in (
        ({"terms": {"ttft_p99": 1.2}}, r"terms\.ttft_p99: Input should be less than or equal to 1, got 1\.2"),
        ({"terms": {"ttft_p99": True}}, r"terms\.ttft_p99: Input should be a valid number, got True"),
        ({"terms": []}, r"terms: Input should be an object, got \[\]"),
        ({"intervals": {"x": [2, 1]}}, r"intervals\.x: .*expected \[low, high\] with low at most high"),
        ({"intervals": {"x": [1]}}, r"intervals\.x\.1: Field required"),
        ({"level": "high"}, "level: Input should be a valid number, got 'high'"),
        ({"summary": 3}, "summary: Input should be a valid string, got 3"),
        ({"satisfied": 1}, "satisfied: Input should be a valid boolean, got 1"),
        ({"candidates": {}}, "candidates: Input should be a valid "),
        ({"contenders": [{"trial": 1.5}]}, r"contenders\.0\.trial: Input should be a valid integer, got 1\.5"),
        ({"rules": [{"rule": "cheapest", "trial": 1}]}, r"rules\.0\.reason: Field required"),
        ({"sentences": {"steps": "slow"}}, r"sentences\.steps: Input should be a valid .*, got 'slow'"),
        ({"simulations": {"draws": True}}, r"simulations\.draws: Input should be a valid integer, got True"),
        ([], r"Input should be an object, got \[\]"),
    ):
        path.write_text(json.dumps(wrong), encoding="utf-8")
        with pytest.raises(ValueError, match=complaint):
            read_confidence(path)


def test_omega_squared_knows_all_from_nothing() -> None:
    groups = np.arange(90) % 3
    assert omega_squared(groups.astype(float), groups) == pytest.approx(1.0)
    rng = np.random.default_rng(1)
    assert omega_squared(rng.normal(size=90), groups) < 0.1
    # By hand: means 1 and 3, within-group squares 2 and 2, so SSB 4, SST 8, MSW 2.
    assert omega_squared(np.array([0.0, 2.0, 2.0, 4.0]), np.array([0, 0, 1, 1])) == pytest.approx((4 - 2) / (8 + 2))
    assert omega_squared(np.zeros(8), np.arange(8) % 2) == 0.0


def test_what_sets_the_price_matters_most_for_the_price(build_input: Any) -> None:
    data = build_input()
    result = importance(data)
    assert result is not None
    assert result.objectives == data.objectives
    shares = dict(zip(result.settings, result.share, strict=True))
    cost = data.objectives.index("usd_per_hour")
    assert max(shares, key=lambda name: shares[name][cost]) in {"replicas", "tensor parallel"}
    assert all(0.0 <= share <= 1.0 for row in result.share for share in row)
    few = replace(data, trials=data.trials[: LEAST_TRIALS - 1], front=(), recommendation=None)
    assert importance(few) is None
