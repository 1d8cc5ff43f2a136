"""The first screen and the tables with bars: gauges, trades, the deciding picture, thresholds."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest

from hisearch.report.data.confidence import ChanceConstrained, Confidence, Priced, Rule
from hisearch.report.data.inputs import SoFar
from hisearch.report.figures.decision import NARROW, WIDE, Named, decision, use_of
from hisearch.report.figures.tornado import tornado
from hisearch.report.pages import answer, page, reasons
from hisearch.report.pages.html import render
from hisearch.report.pages.trades import price_change, trades
from hisearch.report.words.terms import violation_of
from hisearch.score.terms import TermCheck
from hisearch.search.confidence.device_bandwidth import BandwidthWin
from hisearch.search.model.deployments import hardware
from hisearch.search.model.trial import Recommendation, Trial, price_of
from hisearch.search.select.other_hardware import OtherHardware, hardware_kind
from hisearch.specs.deployments.speculation import SpeculationSpec
from tests.report.test_report_html import confidence_of


def test_a_gauge_has_value_bound_interval_and_chance_to_scale(build_input: Any) -> None:
    data = build_input(confidence=confidence_of(build_input()))
    first, second, rejected = answer.gauges(data)
    assert first.bar is not None
    check = data.recommendation.trial.slo[0]
    assert first.bar.value == pytest.approx(first.bar.bound * check.value_s / check.bound_s, abs=0.01)
    assert (first.interval, first.chance, first.verdict.words) == ("0.500 s to 90.0 s", "53 %", "unsure")
    assert (first.bar.high, first.bar.beyond) == (100.0, True), "an interval that leaves the gauge says so"
    assert second.bar is not None
    assert (second.bar.low, second.bar.beyond, second.verdict.words) == (None, False, "met")
    assert rejected.bar is None


def test_a_missed_term_fills_its_gauge_at_most(build_input: Any) -> None:
    data = build_input()
    trial = dataclasses.replace(data.recommendation.trial, slo=(TermCheck("ttft_p99", float("inf"), 2.0),))
    gauge = answer.gauges(dataclasses.replace(data, recommendation=Recommendation(trial, "")))[0]
    assert gauge.bar is not None
    assert (gauge.bar.value, gauge.bar.beyond, gauge.verdict.kind) == (100.0, True, "miss")


def test_the_three_trades_are_what_they_say(build_input: Any) -> None:
    data = build_input()
    best = data.recommendation.trial
    cheaper, likelier, faster = trades(data)
    assert cheaper.trial is not None
    assert price_of(cheaper.trial) == min(price_of(t) for t in data.trials if t.meets_slo)
    assert cheaper.change.startswith("−$")
    assert likelier.trial is None
    assert "not looked into" in likelier.effect
    assert faster.trial is not None
    assert faster.trial.metrics["ttft_p99_s"] < best.metrics["ttft_p99_s"]
    assert trades(build_input(feasible=False)) == ()


def test_a_trade_says_what_it_drafts_where_the_recommendation_does_otherwise(build_input: Any) -> None:
    data = build_input()
    drafts = SpeculationSpec(method="ngram", draft_tokens=2, acceptance=[0.5, 0.5])

    def drafting(trial: Trial) -> Trial:
        pool = trial.deployment.pool
        pools = [pool.model_copy(update={"engine": pool.engine.model_copy(update={"speculation": drafts})})]
        return dataclasses.replace(trial, deployment=trial.deployment.model_copy(update={"pools": pools}))

    faster = trades(data)[2]
    assert faster.trial is not None
    assert faster.hardware == hardware(faster.trial.deployment)
    front = tuple(drafting(trial) if trial == faster.trial else trial for trial in data.front)
    assert trades(dataclasses.replace(data, front=front))[2].hardware == f"{faster.hardware}, 2 drafted tokens (ngram)"
    best = Recommendation(drafting(data.recommendation.trial), "")
    without = trades(dataclasses.replace(data, recommendation=best))[2]
    assert without.hardware == f"{faster.hardware}, without drafted tokens"


def test_what_costs_less_than_the_cheapest_likely_enough_is_no_faster_choice(build_input: Any) -> None:
    data = build_input()
    best = data.recommendation.trial
    quick = dataclasses.replace(
        best, number=99, metrics={**best.metrics, "ttft_p99_s": 0.001, "usd_per_hour": price_of(best) / 2}
    )
    data = dataclasses.replace(data, trials=(*data.trials, quick), front=(*data.front, quick))
    plain, required = (
        dataclasses.replace(data, confidence=Confidence(chance=0.95, satisfied=satisfied)) for satisfied in (None, True)
    )
    assert trades(plain)[2].trial == quick
    assert trades(required)[2].trial != quick


def test_the_surer_one_is_the_chance_constrained_recommendation(build_input: Any) -> None:
    data = build_input()
    other = next(trial for trial in data.front if price_of(trial) > price_of(data.recommendation.trial))
    stated = ChanceConstrained(other.number, "", 0.91, (0.83, 0.95), 64)
    data = dataclasses.replace(data, confidence=Confidence(chance=0.6, draws=64, chance_constrained=stated))
    likelier = trades(data)[1]
    assert likelier.trial is other
    assert likelier.effect == "91 % likely to hold the SLO, not 60 %"
    sure = trades(dataclasses.replace(data, confidence=Confidence(chance=0.97, draws=64)))[1]
    assert sure.effect == "Not needed: it holds with 97 %."


@pytest.mark.parametrize(("dollars_less", "named"), [(0.0, False), (1.0, True)])
def test_the_nominally_cheapest_is_named_beside_a_trade_where_it_costs_less(
    build_input: Any, dollars_less: float, named: bool
) -> None:
    data = build_input()
    trade = trades(data)[0].trial
    assert trade is not None
    between = Priced(trade.number, price_of(trade), 0.72)
    nominal = Priced(data.recommendation.trial.number, price_of(trade) - dollars_less, 0.31)
    known = Confidence(chance=0.97, draws=64, between=between, nominal=nominal)
    cheaper = trades(dataclasses.replace(data, confidence=known))[0]
    assert cheaper.trial is trade
    assert cheaper.effect.startswith("72 % likely to hold the SLO, not 97 %")
    assert ("; the cheapest, $" in cheaper.effect) == named
    assert cheaper.verdict.sign == "?", "as in the tables of the other tabs"
    rows = reasons.alternatives(dataclasses.replace(data, confidence=known)).rows
    assert {row.verdict.sign for row in rows if row.number == trade.number} == {"?"}


def test_where_nothing_cheaper_meets_the_slo_the_nearest_miss_is_named(build_input: Any) -> None:
    data = build_input()
    cheapest = min((t for t in data.trials if t.meets_slo), key=lambda trial: (price_of(trial), trial.number))
    cheaper = trades(dataclasses.replace(data, recommendation=Recommendation(cheapest, "")))[0]
    assert cheaper.trial is not None
    assert cheaper.verdict.sign == "✗"
    assert cheaper.effect == violation_of(cheaper.trial)
    assert cheaper.effect.startswith("misses T")
    far = [
        trial if trial.meets_slo else dataclasses.replace(trial, slo=(TermCheck("ttft_p99", 4.1, 2.0), *trial.slo[1:]))
        for trial in data.trials
    ]
    far_data = dataclasses.replace(data, trials=tuple(far), recommendation=Recommendation(cheapest, ""))
    assert trades(far_data)[0].effect == "No cheaper one comes near the SLO."


@pytest.mark.parametrize(
    ("simulations", "words"),
    [(40, "So far: 40 of at most 60 simulations, "), (62, "So far: 62 simulations, some beyond the search&#39;s 60, ")],
)
def test_before_the_end_nothing_is_said_to_be_left_out(build_input: Any, simulations: int, words: str) -> None:
    so_far = SoFar(simulations, 60, "stage 4", "10:00", "10:05", 1.0, "hisearch run --resume RUN")
    data = build_input(so_far=so_far)
    source = render(data)
    assert words in source
    assert trades(data)[1].effect == "Follows when the study ends."
    assert "was not looked into" not in source[source.index('id="answer"') : source.index('id="why"')]


def test_changes_of_price(build_input: Any) -> None:
    best = build_input().recommendation.trial
    usd = best.metrics["usd_per_hour"]
    dearer = dataclasses.replace(best, metrics={**best.metrics, "usd_per_hour": 1.5 * usd})
    assert price_change(best, best) == "same price"
    assert price_change(dearer, best).endswith(" (+50 %)")
    assert price_change(dearer, best).startswith("+$")


@pytest.mark.parametrize("size", [WIDE, NARROW])
def test_labels_of_the_deciding_picture_cover_neither_each_other_nor_marks(build_input: Any, size: Any) -> None:
    for seed in range(6):
        data = build_input(seed=seed)
        shown = [data.recommendation.trial, *(t.trial for t in trades(data) if t.trial is not None)]
        unique = {trial.number: trial for trial in shown}.values()
        named = [Named("chosen", trial, ("Recommended", "$21.00 an hour, 62 % likely")) for trial in unique]
        drawn = decision(data, named, size)
        assert drawn is not None
        boxes = [box_of(mark) for mark in drawn.marks]
        for box in boxes:
            assert box[0] >= 0
            assert box[2] <= size.width
        for a, b in itertools.combinations(boxes, 2):
            assert not overlap(a, b)
        for box in boxes:
            assert not any(overlap(box, (m.x - 6, m.y - 6, m.x + 6, m.y + 6)) for m in drawn.marks)


def box_of(mark: Any) -> tuple[float, float, float, float]:
    width = 6.5 * max(len(text) for text, _ in mark.texts)
    left = {"start": mark.text_x, "middle": mark.text_x - width / 2, "end": mark.text_x - width}[mark.anchor]
    return left, mark.texts[0][1] - 11, left + width, mark.texts[-1][1] + 2


def overlap(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return min(a[2], b[2]) - max(a[0], b[0]) > 1 and min(a[3], b[3]) - max(a[1], b[1]) > 1


def test_below_the_line_of_the_picture_every_latency_term_is_met(build_input: Any) -> None:
    data = build_input()
    for trial in data.trials:
        latencies = [check for check in trial.slo if isinstance(check, TermCheck)]
        assert (use_of(trial) <= 1.0) == all(check.holds for check in latencies)
    drawn = decision(data, [Named("chosen", data.recommendation.trial, ("Recommended",))])
    assert drawn is not None
    assert drawn.marks[0].y > drawn.bound, "the recommendation lies below it"


def test_the_ladder_has_the_recommendation_between_misses_and_dearer_ones(build_input: Any) -> None:
    data = build_input()
    rungs = reasons.ladder(data).rungs
    kinds = [rung.kind for rung in rungs]
    assert kinds.count("chosen") == 1
    assert "miss" in kinds[: kinds.index("chosen")]
    assert all(0 < rung.share <= 1 for rung in rungs)
    assert all(("misses" in rung.verdict.words) == (rung.kind == "miss") for rung in rungs)


def test_alternatives_are_sorted_by_price_and_name_their_roles(build_input: Any) -> None:
    data = build_input(confidence=confidence_of(build_input()))
    table = reasons.alternatives(data)
    assert table is not None
    by_number = {trial.number: trial for trial in data.trials}
    prices = [price_of(by_number[row.number]) for row in table.rows]
    assert prices == sorted(prices)
    assert sum(row.chosen for row in table.rows) == 1
    assert table.columns[0] == "Cost"
    assert table.columns[-1] == "Chance to hold"
    assert all(len(row.cells) == len(table.columns) for row in table.rows)
    assert any("Best value" in row.roles for row in table.rows)


def test_rules_that_look_up_to_a_price_name_it(build_input: Any) -> None:
    data = build_input()
    rules = tuple(Rule(rule, 1, "", "") for rule in ("lowest_latency", "best_value"))
    for limit_usd, words in ((42.0, "Lowest latency up to $42.00"), (None, "Lowest latency")):
        known = Confidence(rules=rules, rules_within_usd_per_hour=limit_usd)
        table = reasons.alternatives(dataclasses.replace(data, confidence=known))
        assert table is not None
        (roles,) = (row.roles for row in table.rows if row.number == 1)
        assert words in roles
        assert "Best value" in roles
        assert ("up to" in str(roles)) == (limit_usd is not None)


def test_other_hardware_says_when_it_would_win(build_input: Any) -> None:
    data = build_input()
    best, missed = data.recommendation.trial, next(trial for trial in data.trials if not trial.feasible)
    dearer = next(trial for trial in data.trials if trial.meets_slo and price_of(trial) > price_of(best))
    fared = (
        OtherHardware("with pim", dearer, "pim", "USD/hour", 0.6, 0.25, 7),
        OtherHardware("with a slow pim", dearer, "slow-pim", "USD/hour", 0.6, None),
        OtherHardware("too slow", missed),
        OtherHardware("x with a pim too slow", missed, "pim", "USD/hour", 0.6),
        OtherHardware("x with cxl too slow", missed, "cxl", "USD/hour", 0.6),
        OtherHardware("ruled out", None),
    )
    wins = (
        BandwidthWin("with pim", "pim", 3, 9.0, 1.52),
        BandwidthWin("with a slow pim", "slow-pim", 3, 9.0, None),
        BandwidthWin("x with a pim too slow", "pim", 1, 9.0, 2.0),
        BandwidthWin("x with cxl too slow", "cxl", 3, 9.0, None),
    )
    shown = dataclasses.replace(data, other_hardware=fared, confidence=Confidence(bandwidths=wins))
    rows = reasons.hardware_rows(shown)
    assert [row.wins for row in rows] == [
        "pim at $0.25 per hour or less, now $0.60; 3 replicas do with 1.5 times its bandwidth",
        "not even with slow-pim for nothing; not with 4 times its bandwidth either",
        violation_of(missed),
        f"{violation_of(missed)}; 1 replica does with 2.0 times the bandwidth of pim",
        f"{violation_of(missed)}; not with 4 times the bandwidth of cxl",
        "not simulated on the whole trace",
    ]
    assert [row.meets for row in rows] == [True, True, False, False, False, False]
    assert [row.trials for row in rows] == [7, 0, 0, 0, 0, 0]
    assert "How other hardware fared" in render(shown)


def test_other_hardware_wins_at_the_price_of_what_is_likely(build_input: Any) -> None:
    data = build_input()
    best = data.recommendation.trial
    dearer = next(trial for trial in data.trials if trial.meets_slo and price_of(trial) > price_of(best))
    kind = hardware_kind(dearer.deployment)
    row = {"item": "h200", "now_usd": 3.5, "usd": 3.24, "dearer": False, "trial": dearer.number, "held": 8, "draws": 8}
    known = Confidence(sensitivity={"prices": [row]})
    (shown,) = reasons.hardware_rows(
        dataclasses.replace(data, other_hardware=(OtherHardware(kind, dearer),), confidence=known)
    )
    assert shown.wins == f"h200 at $3.24 or less, now $3.50: {hardware(dearer.deployment)} holds in 8 of 8 draws"
    # Price and bandwidth stand together, whichever way the price was found.
    both = dataclasses.replace(known, bandwidths=(BandwidthWin(kind, "pim", 2, 9.0, 1.5),))
    fared = (OtherHardware(kind, dearer, "pim", "USD/hour", 0.6, 0.1),)
    (both_ways,) = reasons.hardware_rows(dataclasses.replace(data, other_hardware=fared, confidence=both))
    assert both_ways.wins == f"{shown.wins}; 2 replicas do with 1.5 times the bandwidth of pim"
    unlooked = Confidence(sensitivity={"prices": [row | {"draws": 0}]})
    (shown,) = reasons.hardware_rows(
        dataclasses.replace(data, other_hardware=(OtherHardware(kind, dearer),), confidence=unlooked)
    )
    assert shown.wins == "by no price of its own"


def test_thresholds_are_sorted_by_how_close_they_are(build_input: Any) -> None:
    assert tornado(build_input()) is None
    drawn = tornado(build_input(confidence=confidence_of(build_input())))
    assert drawn is not None
    assert [(row.name, row.open) for row in drawn.swings] == [
        ("Price of h200", False),
        ("Decode slower", False),
        ("More load", False),
        ("Host work slower", True),
    ]
    widths = [row.width for row in drawn.swings]
    assert widths == sorted(widths)
    assert widths[-1] == 50.0
    assert [row.change for row in drawn.settings] == ["2048 → 8192"]
    assert all(row.drawn_left is None for row in drawn.swings)
    assert drawn.level == ""


def test_the_band_of_a_threshold_is_what_the_draws_put_on_it(build_input: Any) -> None:
    known = dataclasses.replace(confidence_of(build_input()), level=0.9, drawn={"decode": (0.99, 9.0), "host": (1, 1)})
    drawn = tornado(build_input(confidence=known))
    assert drawn is not None
    bands = {row.name: (row.drawn_left, row.drawn_width) for row in drawn.swings}
    end = float(drawn.end.removesuffix("%").strip()) / 100
    left = 50 - 50 * 0.01 / end
    assert bands["Decode slower"] == (pytest.approx(left, abs=0.6), pytest.approx(100 - left, abs=0.6))
    assert bands["Host work slower"] == (50.0, 0.0)
    assert bands["More load"] == (None, None)
    assert "Grey: 90 % of the draws." in render(build_input(confidence=known)).replace("\N{NO-BREAK SPACE}", " ")


def test_the_front_shows_price_latency_goodput_and_chance_before_settings(build_input: Any) -> None:
    titles = [title for title, _ in page.front_table(build_input(confidence=confidence_of(build_input()))).columns]
    assert titles[:6] == [
        "Trial", "Cost (USD/hour)", "TTFT p99 (s)", "Goodput (requests/s)", "Latency margin", "Chance to hold",
    ]  # fmt: skip
    assert titles.index("Chance to hold") < titles.index("Accelerators")
    assert "Chance to hold" not in [title for title, _ in page.front_table(build_input()).columns]


def test_every_caution_has_a_line_and_a_tab(build_input: Any) -> None:
    cut = (
        "The budget of 3 simulations ended the search before it had tried a, b and 2 more: a cheaper one may. Raise x."
    )
    formats = "It serves fp8 weights (the checkpoint has bf16): answers differ. Evaluate them."
    data = build_input(
        confidence=confidence_of(build_input()), cut_short=cut, cut_short_brief="the budget: a cheaper one may",
        formats=formats, formats_brief="fp8 weights: answers differ", not_exported="No flag for it.",
    )  # fmt: skip
    lines = {caution.title: (caution.brief, caution.tab) for caution in page.cautions(data)}
    assert lines["Search cut short"] == ("the budget: a cheaper one may", "provenance")
    assert lines["Changes the model"] == ("fp8 weights: answers differ", "trades")
    assert lines["May miss the SLO"][1] == "sensitivity"
    assert all(brief and len(brief.split()) <= 25 for brief, _ in lines.values())


def test_marks_that_coincide_are_one_mark_with_all_names(build_input: Any) -> None:
    data = build_input()
    best = data.recommendation.trial
    other = next(trial for trial in data.trials if trial.meets_slo and price_of(trial) != price_of(best))
    names = [
        Named("chosen", best, ("Recommendation", "$9 an hour")),
        Named("cheaper", other, ("Cheaper", "$5 an hour")),
    ]
    separate = decision(data, names)
    assert separate is not None
    assert len(separate.marks) == 2
    twice = decision(data, [*names, Named("surer", best, ("Surer", "$9 an hour"))])
    assert twice is not None
    assert [mark.key for mark in twice.marks] == ["chosen", "cheaper"]
    assert [line for line, _ in twice.marks[0].texts] == ["Recommendation = surer", "$9 an hour"]
    equal_plan = dataclasses.replace(best, number=max(trial.number for trial in data.trials) + 1)
    next_to = dataclasses.replace(data, trials=(*data.trials, equal_plan))
    near = decision(next_to, [names[0], Named("cheaper", equal_plan, ("Cheaper", "$8.99 an hour"))])
    assert near is not None
    assert [line for line, _ in near.marks[0].texts] == ["Recommendation ≈ cheaper", "$9 an hour"]
