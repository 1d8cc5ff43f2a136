"""The report's words, numbers and figure data, apart from any drawing."""

from __future__ import annotations

import dataclasses
import math
import random
from typing import Any

import pytest

from hisearch.report import page
from hisearch.report.describe import NOT_USED, sentence, settings
from hisearch.report.points import MAX_FAINT, parallel_data, pareto_data, progress_data
from hisearch.report.quantities import percent, quantity, significant, usd
from hisearch.search.trial import TermCheck


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.012345, "0.0123"),
        (4.567, "4.57"),
        (18432.4, "18,432"),
        (0.0, "0"),
        (-2.5, "−2.50"),
        (math.inf, "∞"),
        (math.nan, "n/a"),
    ],
)
def test_significant(value: float, text: str) -> None:
    assert significant(value) == text


def test_shares_and_dollars() -> None:
    assert percent(0.1234) == "12.3 %"
    assert percent(0.99999) == "> 99.9 %"
    assert percent(1.0) == "100.0 %"
    assert usd(14.943) == "$14.94"
    assert usd(10908.6) == "$10,909"


def test_quantities_carry_unit_and_direction() -> None:
    tpot = quantity("tpot_p99")
    assert (tpot.title, tpot.show(0.0368), tpot.good) == ("TPOT p99 (ms)", "36.8 ms", "lower is better")
    assert quantity("goodput").good == "higher is better"
    assert quantity("usd_per_hour").show(7.844) == "$7.84/hour"
    assert quantity("ttft_p99.9").meaning.endswith("99.9th percentile")
    ordinals = [quantity(f"e2e_p{p}").meaning.split(", ")[1].split()[0] for p in (1, 11, 22, 50)]
    assert ordinals == ["1st", "11th", "22nd", "50th"]
    with pytest.raises(KeyError):
        quantity("colour")


def test_the_sentence_says_what_how_many_and_what_it_costs(build_input: Any) -> None:
    data = build_input()
    trial = data.recommendation.trial
    text = sentence(trial, data.model_id)
    pool = trial.deployment.pool
    assert text.startswith(f"{pool.replicas} replicas of Qwen/Qwen3-32B on ")
    assert f"{pool.replicas * pool.tensor_parallel} × {pool.accelerator}" in text
    hourly = trial.metrics["usd_per_hour"]
    assert f"{usd(hourly)} per hour, {usd(hourly * 730)} per month" in text


def test_settings_have_the_same_keys_for_every_deployment(build_input: Any) -> None:
    seen = [settings(trial.deployment) for trial in build_input().trials]
    assert len({tuple(one) for one in seen}) == 1
    round_robin = next(t for t in build_input().trials if t.deployment.router.policy == "round_robin")
    assert settings(round_robin.deployment)["cache threshold"] == NOT_USED


def test_slo_rows_give_value_bound_margin_and_verdict(build_input: Any) -> None:
    trial = dataclasses.replace(
        build_input().trials[0],
        slo=(TermCheck("ttft_p99", 1.5, 2.0), TermCheck("tpot_p99", 0.06, 0.05), TermCheck("e2e_p50", math.inf, 9.0)),
        metrics={"rejected_fraction": 0.02},
    )
    rows = page.slo_rows(trial, 0.01)
    assert [row.met for row in rows] == [True, False, False, False]
    assert [row.margin for row in rows] == [
        "25.0 % to spare",
        "exceeds by 20.0 %",
        "never reached",
        "exceeds by 100.0 %",
    ]
    assert (rows[1].value, rows[1].bound) == ("60.0 ms", "≤ 50 ms")
    assert page.slo_rows(trial, 0.0)[-1].margin == "some rejected"


def test_caution_when_the_margin_is_smaller_than_the_error(build_input: Any, build_record: Any) -> None:
    assert page.caution(build_input()) is None
    profile = build_record().profile
    doubtful = build_input(provenance=build_record(profile=dataclasses.replace(profile, relative_error=0.9)))
    assert "smaller than the latency profile's stated error (90.0 %)" in str(page.caution(doubtful))


def test_runner_ups_name_what_changes(build_input: Any) -> None:
    data = build_input()
    for option, (trial, trade) in zip(page.options(data), data.recommendation.runner_ups, strict=True):
        assert option.trade == trade
        names = [name for name, _, _ in option.differences]
        assert names == ["TTFT p99", "Goodput", "Cost"]
        cheaper = trial.metrics["usd_per_hour"] < data.recommendation.trial.metrics["usd_per_hour"]
        assert option.differences[2][2].endswith("better" if cheaper else "worse")


def test_pareto_data_classifies_every_comparable_trial(build_input: Any) -> None:
    data = build_input()
    trials = list(data.trials)
    trials[0] = dataclasses.replace(trials[0], slice_fraction=0.1)
    trials[1] = dataclasses.replace(trials[1], metrics={}, error="does not fit", feasible=False)
    trials[3] = dataclasses.replace(trials[3], metrics=trials[3].metrics | {"ttft_p99_s": math.inf}, feasible=False)
    data = dataclasses.replace(data, trials=tuple(trials))
    drawn = pareto_data(data)
    numbers = {point.number for point in drawn.points}
    assert len(numbers) == len(drawn.points) == 297
    assert not numbers & {0, 1, 3}
    status = {point.number: point.status for point in drawn.points}
    assert status[data.recommendation.trial.number] == "highlighted"
    assert sum(s in ("front", "highlighted") for s in status.values()) == len(data.front)
    assert all((status[t.number] == "infeasible") == (not t.feasible) for t in data.trials if t.number in numbers)
    assert [axis.bound for axis in drawn.axes] == [2.0, None, None]


def test_faint_points_are_thinned_and_counted(build_input: Any) -> None:
    data = build_input(3000, progress={})
    drawn = pareto_data(data)
    assert sum(point.status in ("infeasible", "dominated") for point in drawn.points) == MAX_FAINT
    assert drawn.omitted == 3000 - len(data.front) - MAX_FAINT


def test_parallel_leaves_out_settings_that_do_not_differ_or_repeat(build_input: Any) -> None:
    parallel = parallel_data(build_input())
    titles = [dimension.title for dimension in parallel.dimensions]
    assert titles[-3:] == ["TTFT p99 (s)", "Goodput (requests/s)", "Cost (USD/hour)"]
    assert {"accelerator", "engine", "memory fraction", "host tier (GiB)"} <= set(titles)
    assert not {"KV page (tokens)", "KV format", "host medium"} & set(titles)
    lengths = {len(dimension.values) for dimension in parallel.dimensions}
    assert lengths == {len(parallel.statuses)}
    assert parallel.statuses[-1] == "highlighted"
    for dimension in parallel.dimensions:
        assert all(math.isfinite(value) for value in dimension.values)
        low, high = min(dimension.values), max(dimension.values)
        assert all(low - 1e-9 <= at <= high + 1e-9 for at, _ in dimension.ticks)
        assert len(dimension.ticks) >= 2


def test_progress_is_a_share_of_the_last_value(build_input: Any) -> None:
    progress = progress_data(build_input(progress={0: 0.0, 10: 2.0, 20: 4.0}))
    assert progress.share == (0.0, 0.5, 1.0)
    assert progress.stages == ((0, 1), (100, 2), (200, 3))


def test_contradicting_parts_are_refused(build_input: Any, build_trial: Any) -> None:
    stray = build_trial(999, 1, random.Random(0))
    with pytest.raises(ValueError, match="trial 999 is on the front but not among the trials"):
        build_input(front=(stray,))
    with pytest.raises(ValueError, match="two to four objectives"):
        build_input(objectives=("goodput",))
    with pytest.raises(ValueError, match="without a value of tpot_p50"):
        build_input(objectives=("ttft_p99", "tpot_p50"))
