"""Text, numbers and figure data of the report, without any drawing."""

from __future__ import annotations

import dataclasses
import math
import random
from typing import Any

import pytest

from hisearch.export.servers.exported import summary
from hisearch.report.data.confidence import ChanceConstrained, Confidence
from hisearch.report.figures.points import MAX_FAINT, parallel_data, pareto_data, progress_data
from hisearch.report.pages import answer, page
from hisearch.report.words.settings import NOT_USED, settings, used_settings
from hisearch.report.words.templating import text as words
from hisearch.report.words.terms import term_lines
from hisearch.score.quantities import percent, quantity, significant, usd
from hisearch.score.terms import RejectionCheck, TermCheck
from hisearch.search.model.deployments import describe, describe_each
from hisearch.search.model.trial import Recommendation
from hisearch.specs.deployments.agent_memory import AgentMemorySpec
from hisearch.specs.deployments.deployment import DeploymentSpec


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.012345, "0.0123"),
        (4.567, "4.57"),
        (18432.4, "18,432"),
        (0.0, "0"),
        (-2.5, "−2.50"),
        (math.inf, "∞"),
        (math.nan, "-"),
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
    text = words("deployment", "sentence", trial, data.model_id)
    pool = trial.deployment.pool
    assert text.startswith(f"{pool.replicas} replicas of Qwen/Qwen3-32B on ")
    assert f"{pool.replicas * pool.tensor_parallel} × {pool.accelerator}" in text
    hourly = trial.metrics["usd_per_hour"]
    assert f"{usd(hourly)} per hour, {usd(hourly * 730)} per month" in text


def test_of_a_study_over_agents_it_is_said_how_many_and_with_which_memory(build_input: Any) -> None:
    trial = build_input().recommendation.trial
    assert "agents" not in words("deployment", "whole", trial, "m")
    agents = AgentMemorySpec.model_validate({"policy": "distance", "adapters": {"rank": 64}, "slots": 125})
    pool = trial.deployment.pool.model_copy(update={"agents": agents})
    deployment = trial.deployment.model_copy(update={"pools": [pool]})
    figures = {"agents": 1414.0, "agents_per_accelerator": 353.5, "usd_per_agent_hour": 0.00204, "accelerators": 4.0}
    agent_trial = dataclasses.replace(trial, deployment=deployment, metrics={**trial.metrics, **figures})
    assert ", adapters of rank 64 in 125 slots by policy distance" in words("deployment", "sentence", agent_trial, "m")
    assert words("deployment", "whole", agent_trial, "m").endswith(
        " As simulated it carries up to 1,414 agents within the SLO (354 per accelerator), at $0.0020 an hour each; "
        "margins and probabilities are of the workload's own number."
    )
    chosen = used_settings(deployment)
    assert (chosen["agents' policy"], chosen["agents' slots"], chosen["adapters"]) == ("distance", 125, "rank 64")
    assert "agents' policy" not in used_settings(trial.deployment)
    facts = {fact.name: fact.value for fact in page.key_facts(agent_trial)}
    assert facts["Cost of an agent"] == "$0.0020"
    assert "Agents per accelerator" in facts
    assert "Agents per accelerator" not in {fact.name for fact in page.key_facts(trial)}


def test_settings_have_the_same_keys_for_every_deployment(build_input: Any) -> None:
    seen = [settings(trial.deployment) for trial in build_input().trials]
    assert len({tuple(keys) for keys in seen}) == 1
    round_robin = next(t for t in build_input().trials if t.deployment.router.policy == "round_robin")
    assert settings(round_robin.deployment)["cache threshold"] == NOT_USED


def test_term_lines_give_value_bound_margin_verdict_and_note() -> None:
    lines = term_lines(
        (
            TermCheck("ttft_p99", 1.5, 2.0),
            TermCheck("tpot_p99", 0.06, 0.05),
            TermCheck("e2e_p50", math.inf, 9.0),
            TermCheck("tpot_p50", None, 0.05, "undefined"),
            RejectionCheck(0.01, 50, {"over_window": 1}),
            RejectionCheck(0.0, 50, {"over_window": 1}),
            RejectionCheck(0.0, 50),
        )
    )
    assert [line.verdict for line in lines] == ["met", "missed", "missed", "met", "missed", "missed", "met"]
    assert [line.margin for line in lines] == [
        "25.0 % to spare",
        "exceeds by 20.0 %",
        "never reached",
        "-",
        "exceeds by 100.0 %",
        "-",
        "-",
    ]
    assert (lines[1].value, lines[1].bound) == ("60.0 ms", "50 ms")
    assert (lines[3].value, lines[3].note) == ("-", "undefined")
    assert (lines[4].value, lines[4].bound) == ("1 of 50 (2.0 %)", "1 %")
    assert (lines[6].value, lines[6].bound) == ("none", "none")
    assert "1 of 50 requests rejected" in lines[5].note


def test_caution_when_the_margin_is_smaller_than_the_error(build_input: Any, build_record: Any) -> None:
    assert page.caution(build_input()) is None
    profile = build_record().profile
    uncertain = build_input(provenance=build_record(profile=dataclasses.replace(profile, relative_error=0.9)))
    assert "smaller than the latency profile's stated error (90.0 %)" in str(page.caution(uncertain))


def test_caution_says_what_is_noted_of_the_terms(build_input: Any) -> None:
    data = build_input()
    chosen = data.recommendation.trial
    checks = (*chosen.slo[:1], TermCheck("tpot_p99", None, 0.05, "undefined"), RejectionCheck(0.5, 9, {"too_large": 2}))
    noted = dataclasses.replace(chosen, slo=checks)
    text = page.caution(dataclasses.replace(data, recommendation=Recommendation(noted, "")))
    assert text is not None
    (only,) = page.cautions(dataclasses.replace(data, recommendation=Recommendation(noted, "")))
    assert (only.title, only.text) == ("SLO terms", text)
    assert text.startswith("TPOT p99: undefined. Rejected: 2 of 9 requests rejected: 2 with more tokens")


def test_a_recommendation_that_may_miss_its_slo_is_cautioned_of(build_input: Any) -> None:
    data = build_input()
    uncertain = Confidence(chance=0.53, chance_range=(0.43, 0.63))
    (first, *_) = page.cautions(dataclasses.replace(data, confidence=uncertain))
    assert first.title == "May miss the SLO"
    assert "meets the whole SLO with a probability of 53 % (confidence interval 43 % to 63 %)" in first.text
    assert "--confidence 0.9" in first.text
    assert "--resume RUN" in first.text
    named = dataclasses.replace(uncertain, chance_constrained=ChanceConstrained(3, "The cheapest found: 9."))
    (first, *_) = page.cautions(dataclasses.replace(data, confidence=named, run="runs/one"))
    assert "The cheapest found: 9. Measure before" in first.text
    assert first.text.endswith("have the likelier one recommended: hisearch run --resume runs/one --confidence 0.9.")
    none = dataclasses.replace(uncertain, chance_constrained=ChanceConstrained(None, "None of 8 looked at."))
    (first, *_) = page.cautions(dataclasses.replace(data, confidence=none))
    assert "None of 8 looked at. Measure it before" in first.text
    assert "the likelier one" not in first.text
    assert page.kind(dataclasses.replace(data, confidence=uncertain)) == "unsure"
    assert page.kind(data) == "ok"
    terms = dataclasses.replace(uncertain, terms={"ttft_p99": 0.53, "tpot_p99": 0.97})
    verdicts = [gauge.verdict for gauge in answer.gauges(dataclasses.replace(data, confidence=terms))]
    assert [(verdict.words, verdict.kind) for verdict in verdicts[:2]] == [("unsure", "unsure"), ("met", "ok")]
    unsatisfied = dataclasses.replace(uncertain, satisfied=False)
    assert "--confidence" not in page.cautions(dataclasses.replace(data, confidence=unsatisfied))[0].text
    for confidence in (Confidence(chance=0.95), Confidence(), None):
        titles = [caution.title for caution in page.cautions(dataclasses.replace(data, confidence=confidence))]
        assert "May miss the SLO" not in titles


def test_one_list_of_assumed_prices(build_record: Any) -> None:
    assert build_record().assumed_prices == ("h100-sxm", "ddr5")


def test_the_front_says_whether_it_meets_the_slo(build_input: Any) -> None:
    data, missed = build_input(), build_input(feasible=False)
    assert missed.front
    assert not any(trial.feasible for trial in missed.front)
    assert "within the SLO" in words("report", "front_caption", data)
    assert words("report", "front_caption", missed).endswith("all miss the SLO")
    assert "within" not in words("report", "front_caption", missed)
    assert (words("report", "front_heading", data), words("report", "front_heading", missed)) == (
        "The front",
        "No front, as nothing meets the SLO",
    )


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


def test_an_objective_that_is_undefined_for_all_gets_no_axis(build_input: Any) -> None:
    data = build_input(30, objectives=("ttft_p99", "tpot_p99", "usd_per_hour"))
    trials = tuple(dataclasses.replace(t, metrics=t.metrics | {"tpot_p99_s": math.nan}) for t in data.trials)
    drawn = pareto_data(dataclasses.replace(data, trials=trials))
    assert [axis.name for axis in drawn.axes] == ["ttft_p99", "usd_per_hour"]
    assert len(drawn.points) == 30


def test_outliers_off_the_front_do_not_stretch_the_axes(build_input: Any) -> None:
    data = build_input(100, objectives=("ttft_p99", "goodput", "usd_per_hour"))
    on_front = {trial.number for trial in data.front}
    far = next(trial for trial in data.trials if not trial.feasible and trial.number not in on_front)
    before = pareto_data(data)
    trials = tuple(
        dataclasses.replace(t, metrics=t.metrics | {"ttft_p99_s": 5000.0}) if t is far else t for t in data.trials
    )
    drawn = pareto_data(dataclasses.replace(data, trials=trials))
    assert drawn.axes[0].span[1] <= 1.3 * before.axes[0].span[1]
    assert drawn.beyond("ttft_p99") >= 1
    assert drawn.beyond("usd_per_hour") == before.beyond("usd_per_hour")
    kept = [p.values[0] for p in drawn.points if p.status in ("front", "highlighted")]
    assert max(*kept, 2.0) <= drawn.axes[0].span[1]
    high = max(parallel_data(dataclasses.replace(data, trials=trials)).dimensions[-3].values)
    assert high <= drawn.axes[0].span[1]


def test_a_short_tail_stays_in_view(build_input: Any) -> None:
    assert pareto_data(build_input()).beyond("goodput", "usd_per_hour") == 0


def test_one_far_cheaper_miss_does_not_make_an_axis_logarithmic(build_input: Any) -> None:
    """Most points decide the scale: here $22 to $110, although a deployment of $4 comes into view."""
    data = build_input(100, objectives=("ttft_p99", "goodput", "usd_per_hour"))
    far = next(trial for trial in data.trials if not trial.feasible)
    prices = {t.number: 4.0 if t is far else 22.0 + 2.2 * (t.number % 41) for t in data.trials}
    trials = {
        t.number: dataclasses.replace(t, metrics=t.metrics | {"usd_per_hour": prices[t.number]}) for t in data.trials
    }
    front = tuple(trials[t.number] for t in data.front)
    axis = pareto_data(dataclasses.replace(data, trials=tuple(trials.values()), front=front)).axes[2]
    assert axis.span == (4.0, 110.0)
    assert not axis.log


def test_parallel_has_no_more_axes_than_the_page_is_wide(build_input: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert parallel_data(build_input()).omitted == ()
    monkeypatch.setattr("hisearch.report.figures.points.MAX_DIMENSIONS", 6)
    parallel = parallel_data(build_input())
    assert len(parallel.dimensions) == 6
    assert {"chunk (tokens)"} <= set(parallel.omitted)
    assert "replicas" not in parallel.omitted


def test_faint_points_are_thinned_and_counted(build_input: Any) -> None:
    data = build_input(3000, progress={})
    drawn = pareto_data(data)
    assert sum(point.status in ("infeasible", "dominated") for point in drawn.points) == MAX_FAINT
    assert drawn.omitted == 3000 - len(data.front) - MAX_FAINT


def test_parallel_leaves_out_settings_that_do_not_differ_or_repeat(build_input: Any) -> None:
    parallel = parallel_data(build_input())
    titles = [dimension.title for dimension in parallel.dimensions]
    assert titles[-3:] == ["TTFT p99 (s)", "Goodput (requests/s)", "Cost (USD/hour)"]
    assert {"accelerator", "engine", "memory fraction", "tier 1 (GiB)"} <= set(titles)
    assert not {"KV page (tokens)", "KV format", "tier 1 medium", "tier 2 (GiB)"} & set(titles)
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


def test_attached_devices_are_named_wherever_a_deployment_is(build_input: Any) -> None:
    """Devices may be a quarter of the price: a sentence without them would get the wrong hardware bought."""
    trial = build_input().recommendation.trial
    assert settings(trial.deployment)["devices"] == NOT_USED
    devices = {"attached": {"pim": {"device": "hbm2-pim"}}, "operators": {"decode_attention": "pim"}}
    pool = trial.deployment.pool.model_dump() | {"devices": devices}
    with_device = dataclasses.replace(
        trial, deployment=DeploymentSpec.model_validate(trial.deployment.model_dump() | {"pools": [pool]})
    )
    assert ", each with 1 hbm2-pim (decode_attention), " in words("deployment", "sentence", with_device, "m")
    assert used_settings(with_device.deployment)["devices"] == "1 hbm2-pim (decode_attention)"
    assert summary(with_device.deployment.pool).endswith("simulated with 1 hbm2-pim (decode_attention) each")


def test_rows_of_the_front_that_read_alike_say_what_differs(build_input: Any) -> None:
    data = build_input()
    first = data.front[0]
    pool = first.deployment.pool
    engine = pool.engine.model_copy(update={"memory_fraction": 0.8765})
    other = dataclasses.replace(
        first,
        number=10_000,
        deployment=first.deployment.model_copy(update={"pools": [pool.model_copy(update={"engine": engine})]}),
    )
    both = dataclasses.replace(data, trials=(*data.trials, other), front=(first, other))
    table = page.front_table(both)
    place = [title for title, _ in table.columns].index("Differs in")
    differences = [cells[place].text for _, cells in table.rows]
    assert sorted(differences) == sorted([f"memory fraction {pool.engine.memory_fraction}", "memory fraction 0.8765"])
    assert all(len(cells) == len(table.columns) for _, cells in table.rows)
    alone = page.front_table(dataclasses.replace(data, front=(first,)))
    assert "Differs in" not in [title for title, _ in alone.columns]
    lines = describe_each([first.deployment, other.deployment])
    assert lines[0] != lines[1]
    assert all(line.startswith(describe(first.deployment)) for line in lines)
