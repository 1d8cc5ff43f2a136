"""What follows the search of a study on the real simulator, small enough for a test."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import hisearch
from hisearch.api.studies.conclude import uncertainty_of
from hisearch.api.studies.result import StudyResult
from hisearch.api.studies.study import load_study
from hisearch.report.data.stored import CONFIDENCE
from hisearch.search.confidence.assessment import Assessor
from hisearch.search.confidence.uncertainty import Uncertainty, normal_draws
from tests.cli.documents import CHECKED_STUDY

DRAWS = 16


@pytest.fixture(scope="module")
def study_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("study") / "small.yaml"
    path.write_text(CHECKED_STUDY + f"  confidence: {{draws: {DRAWS}, candidate_draws: 4}}\n")
    return path


@pytest.fixture(scope="module")
def result(study_file: Path) -> StudyResult:
    return load_study(study_file).run(workers=1, run_dir=study_file.parent / "run")


def record(result: StudyResult) -> dict[str, object]:
    data: dict[str, object] = json.loads((result.run_dir / CONFIDENCE).read_text())
    return data


def test_the_record_says_how_sure_and_what_it_took(result: StudyResult) -> None:
    data = record(result)
    assert result.recommendation is not None
    assert data["recommendation"]["trial"] == result.recommendation.trial.number  # type: ignore[index]
    assert data["draws"] == DRAWS
    assert set(data["terms"]) == {"ttft_p99", "tpot_p99", "rejected_fraction"}  # type: ignore[call-overload]
    assert 0.0 <= data["all_terms"] <= min(data["terms"].values())  # type: ignore[attr-defined, operator]
    low, high = data["intervals"]["ttft_p99_s"]  # type: ignore[index]
    assert low <= data["medians"]["ttft_p99_s"] <= high  # type: ignore[index]
    assert data["simulations"]["draws"] == DRAWS  # type: ignore[index]
    lines = (result.run_dir / "confidence.jsonl").read_text().splitlines()
    assert len(lines) - 1 <= sum(data["simulations"].values())  # type: ignore[attr-defined]
    assert data["sentences"]["steps"]  # type: ignore[index]
    assert [rule["rule"] for rule in data["rules"]][:3] == ["cheapest", "best_value", "lowest_latency"]  # type: ignore[attr-defined, index]
    assert len(result.trials) <= result.resolved.study.budget.simulations


def test_the_baseline_is_simulated_and_no_trial(result: StudyResult) -> None:
    recommendation = result.recommendation
    assert recommendation is not None
    assert recommendation.baseline is not None
    assert recommendation.baseline.number not in {trial.number for trial in result.trials}
    assert recommendation.against_baseline
    assert (
        recommendation.baseline.deployment.pools[0].accelerator == recommendation.trial.deployment.pools[0].accelerator
    )


def test_without_errors_a_draw_is_the_trial_itself(result: StudyResult, study_file: Path) -> None:
    """L7: without step-time errors, on the unchanged trace and at fixed prices, a draw gives the trial's figures."""
    assert result.recommendation is not None
    trial, simulation = result.recommendation.trial, result.simulation
    still = Uncertainty(simulation.world.trace, 0, np.zeros((2, 5)))
    assessor = Assessor(
        still,
        lambda deployment, draw: simulation.evaluate_disturbed(
            deployment, draw.trace, lambda costs: draw.disturbed(costs, 0.5)
        ),
    )
    assessment = assessor.assess([trial], [2], 0.9)[0]
    for name, ends in assessment.intervals.items():
        assert ends == (trial.metrics[name], trial.metrics[name]), name
    assert assessment.all_terms == float(trial.feasible)


def test_slower_steps_never_raise_the_share_of_good_requests_by_much(result: StudyResult) -> None:
    """Figures of the real simulator need not be monotone at every step; over a factor of 1.3 they are."""
    assert result.recommendation is not None
    trial, simulation = result.recommendation.trial, result.simulation
    from hisearch.search.confidence.uncertainty import with_factors

    values = [
        simulation.evaluate_disturbed(
            trial.deployment,
            simulation.world.trace,
            lambda costs, factor=factor: with_factors(costs, dict.fromkeys(("prefill", "decode", "host"), factor)),  # type: ignore[misc]
        ).metrics
        for factor in (1.0, 1.3, 1.69, 2.2)
    ]
    for name in ("tpot_p99_s", "ttft_p99_s", "e2e_mean_s"):
        column = [figures[name] for figures in values]
        assert column == sorted(column), name


def test_l6_workers_change_nothing(result: StudyResult, study_file: Path, tmp_path: Path) -> None:
    other = load_study(study_file).run(workers=2, run_dir=tmp_path / "run")
    assert record(other) == record(result)


@pytest.mark.parametrize("kept", [9, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 30))])
def test_l9_a_killed_conclusion_goes_on_where_it_was(
    result: StudyResult, study_file: Path, tmp_path: Path, kept: int
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(result.run_dir, folder)
    journal = folder / "confidence.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(lines[:kept]) + '{"key": "torn')
    (folder / CONFIDENCE).unlink()
    resumed = load_study(study_file).run(run_dir=folder, resume=True)
    assert record(resumed) == record(result)
    assert sorted(journal.read_text().splitlines()) == sorted(line.strip() for line in lines)


def test_a_stored_run_recommends_the_same(result: StudyResult) -> None:
    stored = hisearch.load_run(result.run_dir)
    ours, theirs = stored.recommendation, result.recommendation
    assert ours is not None
    assert theirs is not None
    assert (ours.trial, ours.reason, ours.rule, ours.runner_ups) == (
        theirs.trial, theirs.reason, theirs.rule, theirs.runner_ups,
    )  # fmt: skip
    assert ours.baseline is not None
    assert theirs.baseline is not None
    assert ours.baseline.metrics["usd_per_hour"] == theirs.baseline.metrics["usd_per_hour"]
    assert stored.outcome.headroom == result.outcome.headroom
    assert stored.report_input().confidence == result.report_input().confidence


def test_runner_ups_are_kept_with_the_run(result: StudyResult, tmp_path: Path) -> None:
    """Those of the run are shown, whatever this version would choose; runs that kept none have them chosen anew."""
    folder = tmp_path / "run"
    shutil.copytree(result.run_dir, folder)
    path, ours = folder / "confidence.json", result.recommendation
    assert ours is not None
    assert ours.runner_ups
    document = json.loads(path.read_text())
    document["recommendation"]["runner_ups"][0]["trade"] = "as it was put then"
    path.write_text(json.dumps(document))
    kept = hisearch.load_run(folder).recommendation
    assert kept is not None
    assert kept.runner_ups[0] == (ours.runner_ups[0][0], "as it was put then")
    assert kept.runner_ups[1:] == ours.runner_ups[1:]
    of_unknown = document["recommendation"]["runner_ups"][0] | {"trial": len(result.trials)}
    path.write_text(
        json.dumps(document | {"recommendation": document["recommendation"] | {"runner_ups": [of_unknown]}})
    )
    with pytest.raises(ValueError, match=rf"recommendation: expected trials of this run .*, got {len(result.trials)}"):
        hisearch.load_run(folder)
    del document["recommendation"]["runner_ups"]
    path.write_text(json.dumps(document))
    anew = hisearch.load_run(folder).recommendation
    assert anew is not None
    assert anew.runner_ups == ours.runner_ups


def test_the_report_shows_it(result: StudyResult) -> None:
    shown = result.report_input().confidence
    assert shown is not None
    page = (result.run_dir / "report.html").read_text()
    for expected in ('href="#sensitivity"', "What would change the answer", "Chance to hold", "Engine&#39;s defaults"):
        assert expected in page
    assert shown.sentences
    assert result.recommendation is not None
    assert [row.trial for row in shown.candidates].count(result.recommendation.trial.number) == 1
    assert [row.rule for row in shown.rules].count(result.recommendation.rule) == 1
    assert page.count('<tr class="chosen"><th scope="row">') == 2  # under Why and under Trades


def test_another_rule_and_a_probability_are_asked_of_a_finished_run(
    result: StudyResult, study_file: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(result.run_dir, folder)
    rule = ["spec.recommend={rule: best_value}"]
    best_value = load_study(study_file, rule).run(run_dir=folder, resume=True)
    assert best_value.recommendation is not None
    assert best_value.recommendation.rule == "best_value"
    assert hisearch.load_run(folder).recommendation.rule == "best_value"  # type: ignore[union-attr]
    impossible = ["spec.confidence.at_least=0.99", "spec.confidence.search=8", "spec.confidence.correlation=1.0"]
    strict = load_study(study_file, impossible).run(run_dir=folder, resume=True)
    assert strict.confidence is not None
    satisfied = strict.confidence.satisfied
    chance = record(strict)["all_terms"]
    assert strict.unsure == (satisfied is False)
    assert satisfied is False or chance >= 0.99  # type: ignore[operator]
    assert "A probability of at least 99 % is required" in strict.confidence.summary


@pytest.mark.parametrize(
    "rule",
    [
        "best_value",
        *(pytest.param(rule, marks=pytest.mark.slow) for rule in ("lowest_latency", "most_headroom", "least_energy")),
    ],
)
def test_a_probability_goes_with_every_rule_and_is_confirmed(
    result: StudyResult, study_file: Path, tmp_path: Path, rule: str
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(result.run_dir, folder)
    usd = "" if rule in {"best_value", "least_energy"} else ", usd_per_hour: 1000"
    settings = [
        f"spec.recommend={{rule: {rule}{usd}}}",
        "spec.confidence.at_least=0.5",
        "spec.confidence.fresh_draws=8",
    ]
    answer = load_study(study_file, settings).run(run_dir=folder, resume=True)
    data = record(answer)
    assert answer.recommendation is not None
    assert answer.recommendation.rule == rule
    assert data["satisfied"] == (data["all_terms"] >= 0.5)  # type: ignore[operator]
    confirmed = data["confirmed"]
    assert confirmed["draws"] == 8  # type: ignore[index]
    assert data["simulations"]["fresh draws"] == 8  # type: ignore[index]
    assert answer.confidence is not None
    assert "Under 8 fresh draws, by which it was not chosen" in answer.confidence.summary


def test_no_draws_and_no_what_ifs_leave_nothing_but_the_rules(study_file: Path, tmp_path: Path) -> None:
    nothing = ["spec.confidence.draws=0", "spec.confidence.what_if=0"]
    bare = load_study(study_file, nothing).run(run_dir=tmp_path / "run")
    data = record(bare)
    assert data["simulations"] == {}
    assert data["summary"] == ""
    assert bare.confidence is not None
    assert not bare.unsure
    assert "Chance to hold" not in (bare.run_dir / "report.html").read_text()


def test_prices_of_the_space_have_ranges(study_file: Path) -> None:
    study = load_study(study_file, ["spec.space.cache.tiers=[{media: [ddr5], gib: [0, 64]}]"])
    from hisearch.search.evaluate.simulation import Simulation

    price_ranges = {
        price_range.item: price_range
        for price_range in uncertainty_of(study.resolved, Simulation(study.world())).prices
    }
    assert set(price_ranges) == {"h100-sxm", "l40s", "ddr5"}
    price = price_ranges["h100-sxm"]
    assert (price.low, price.high) == pytest.approx((0.75 * price.usd, 1.25 * price.usd))
    certain = load_study(study_file, ["spec.confidence.assumed_price_error=0"])
    assert uncertainty_of(certain.resolved, Simulation(certain.world())).prices == ()
    assert len(normal_draws(0, 0)) == 0
    assert replace(price, low=1.0).low == 1.0
