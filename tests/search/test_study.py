"""A study on the real simulator, small enough for a test."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

import hisearch
from hisearch.api.deployments.replay import Replay
from hisearch.api.run_folder import replace_with
from hisearch.api.studies.closeup import Subject
from hisearch.api.studies.result import StudyResult
from hisearch.api.studies.study import load_study
from hisearch.hardware.prices import CostBreakdown
from hisearch.report.data.closeup import SHARES
from hisearch.search.evaluate.simulation import Simulation
from hisearch.search.model.trial import Trial
from hisearch.search.records.journal import JournalError
from hisearch.simulate.plans.fleet import FleetPlan, PoolPlan
from hisearch.specs.deployments.deployment import DeploymentSpec

STUDY = """\
apiVersion: hisearch/v1
kind: Study
metadata: {name: small}
spec:
  model: llama-3.1-8b
  workload:
    trace:
      generator:
        requests: 200
        arrivals: {process: poisson, rate_rps: 20.0}
        first_input: {distribution: lognormal, mean_log: 6.0, sigma_log: 0.5, max_tokens: 4000}
        output: {distribution: constant, scale_tokens: 40}
  slo:
    terms:
      - {metric: ttft_s, percentile: 99, at_most_s: 1.0}
      - {metric: tpot_s, percentile: 99, at_most_s: 0.1}
  space:
    execution:
      accelerators: [h100-sxm, l40s]
      engines: [sglang, vllm]
      tensor_parallel: [1]
      chunk_tokens: [2048]
      max_running_requests: [128]
      max_replicas: 8
    cache: {tiers: [{media: [ddr5], gib: [0, 64]}]}
  budget: {simulations: 40, seconds: 300}
"""


@pytest.fixture(scope="module")
def study_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("study") / "small.yaml"
    path.write_text(STUDY)
    return path


@pytest.fixture(scope="module")
def result(study_file: Path) -> StudyResult:
    return load_study(study_file).run(workers=1, run_dir=study_file.parent / "run")


def test_engines_are_prepared_with_and_without_tiers(study_file: Path) -> None:
    assert load_study(study_file).variants == [
        ("sglang", None),
        ("sglang", "hicache"),
        ("vllm", None),
        ("vllm", "offload"),
    ]


def test_the_run_folder_holds_everything(result: StudyResult) -> None:
    names = {path.name for path in result.run_dir.iterdir()}
    assert names == {
        "study.yaml", "provenance.json", "journal.jsonl", "study.db", "trials.parquet", "candidates.csv", "front.csv",
        "closeup.json", "confidence.json", "confidence.jsonl", "report.html", "recommended",
    }  # fmt: skip
    facts = json.loads((result.run_dir / "provenance.json").read_text())
    assert facts["budget"]["simulations_used"] == len(result.trials)
    assert facts["seeds"] == {"study": 0}
    assert {"hisearch", "numpy", "numba", "optuna", "python"} <= set(facts["versions"])
    assert len(facts["trace"]["digest"]) == 64
    frame = pd.read_parquet(result.run_dir / "trials.parquet")
    pd.testing.assert_frame_equal(frame, result.to_pandas())
    assert len(pd.read_csv(result.run_dir / "front.csv")) == len(result.front) > 0
    scripts = list((result.run_dir / "recommended").rglob("run.sh"))
    assert scripts
    assert all(os.access(script, os.X_OK) for script in scripts)


def test_the_recommendation_meets_the_slo(result: StudyResult) -> None:
    recommendation = result.recommend()
    assert recommendation is not None
    assert recommendation == result.recommendation
    assert all(check.holds for check in recommendation.trial.slo)
    assert recommendation.trial.metrics["ttft_p99_s"] <= 1.0


def test_l6_two_workers_write_the_same_trials(result: StudyResult, study_file: Path, tmp_path: Path) -> None:
    other = load_study(study_file).run(workers=2, run_dir=tmp_path / "run")
    assert (other.run_dir / "trials.parquet").read_bytes() == (result.run_dir / "trials.parquet").read_bytes()


def test_l9_a_torn_run_resumes_to_the_same_trials(result: StudyResult, study_file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    journal = (result.run_dir / "journal.jsonl").read_bytes()
    (folder / "journal.jsonl").write_bytes(journal[: len(journal) // 2])
    resumed = load_study(study_file).run(run_dir=folder, resume=True)
    assert resumed.trials == result.trials
    assert 0 < resumed.provenance["run"]["replayed"] < len(result.trials)
    assert (folder / "trials.parquet").read_bytes() == (result.run_dir / "trials.parquet").read_bytes()


def test_a_run_folder_is_not_overwritten(result: StudyResult, study_file: Path) -> None:
    with pytest.raises(JournalError, match="resume"):
        load_study(study_file).run(run_dir=result.run_dir)
    with pytest.raises(JournalError, match="another model"):
        load_study(study_file, ["spec.seed=1"]).run(run_dir=result.run_dir, resume=True)
    with pytest.raises(ValueError, match="run_dir"):
        load_study(study_file).run(resume=True)


def test_exports_by_engine_and_into_a_folder(result: StudyResult, tmp_path: Path) -> None:
    for engine in ("sglang", "vllm"):
        files = result.export(engine)
        assert any(f"{engine}/run.sh" in str(path) for path in files)
        assert all(path.is_relative_to(result.run_dir / f"recommended-{engine}") for path in files)
    assert all(path.is_relative_to(tmp_path / "out") for path in result.export(tmp_path / "out"))


def test_figures_are_drawn(result: StudyResult) -> None:
    for figure in (
        result.figure.pareto(),
        result.figure.parallel(),
        result.figure.progress(),
        result.figure.capacity(),
    ):
        assert len(figure.data) > 0


def test_an_slo_that_nothing_meets_leaves_a_nearest_miss(study_file: Path, tmp_path: Path) -> None:
    impossible = ["spec.slo.terms.0.at_most_s=0.0001", "spec.budget.simulations=12"]
    outcome = load_study(study_file, impossible).run(run_dir=tmp_path / "run")
    assert outcome.recommendation is None
    assert outcome.nearest_miss is not None
    assert outcome.nearest_miss.worst_margin < 0
    assert not (outcome.run_dir / "recommended").exists()
    assert (outcome.run_dir / "report.html").stat().st_size > 0
    with pytest.raises(ValueError, match="no deployment meets the SLO"):
        outcome.export(tmp_path / "out")


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "front.csv"
    path.write_text("old")

    def fail(temporary: Path) -> None:
        temporary.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        replace_with(path, fail)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_closer_look_agrees_with_its_trial(result: StudyResult) -> None:
    """The closer look simulates again: at load 1 it must give the figures of the trial."""
    assert result.closeup is not None
    assert result.recommendation is not None
    trial = result.recommendation.trial
    assert result.closeup.trial == trial.number
    nominal = next(point for point in result.closeup.loads if point.load == 1.0)
    assert (nominal.attainment, nominal.goodput_rps) == (trial.metrics["attainment"], trial.metrics["goodput_rps"])
    assert nominal.terms == trial.slo
    ttft = next(curve for curve in result.closeup.latencies if curve.metric == "ttft")
    assert ttft.values_s[SHARES.index(0.99)] == pytest.approx(trial.metrics["ttft_p99_s"], rel=1e-3)
    timeline = result.closeup.timeline
    assert timeline is not None
    assert len(timeline.workers) == trial.deployment.pool.replicas
    busy_s = sum(timeline.interval_s * sum(worker.busy) for worker in timeline.workers)
    whole_s = trial.metrics["utilisation"] * trial.metrics["makespan_s"] * len(timeline.workers)
    assert busy_s == pytest.approx(whole_s, rel=1e-2)


def test_costs_in_the_report_add_up_to_the_trials(result: StudyResult) -> None:
    by_number = {trial.number: trial for trial in result.trials}
    rows = result.report_input().costs
    assert rows[0].trial == result.report_input().highlighted.number
    for row in rows:
        assert sum(usd for _, usd in row.parts) == pytest.approx(by_number[row.trial].metrics["usd_per_hour"])


def test_another_deployment_s_closer_look_is_refused(result: StudyResult, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(result.run_dir, folder)
    assert hisearch.load_run(folder).closeup == result.closeup
    assert result.closeup is not None
    other = replace(result.closeup, trial=result.closeup.trial + 1)
    (folder / "closeup.json").write_text(other.to_json(), encoding="utf-8")
    with pytest.raises(ValueError, match=rf"closeup\.json: trial: expected {result.closeup.trial}, got {other.trial}"):
        hisearch.load_run(folder)


def test_sizes_of_a_tier_that_the_engine_refuses_are_not_looked_at(study_file: Path) -> None:
    """SGLang's host pool must exceed its device pool: half of this tier would not."""
    study = load_study(study_file)
    simulation = Simulation(study.world())
    deployment = DeploymentSpec.model_validate(
        {
            "model": "llama-3.1-8b",
            "pools": [
                {
                    "accelerator": "h100-sxm",
                    "engine": {"name": "sglang", "chunk_tokens": 2048, "max_running_requests": 128},
                    "tiers": [{"medium": "ddr5", "gib": 64}],
                }
            ],
        }
    )
    fleet = FleetPlan((PoolPlan(simulation.plan(deployment.pool)),), deployment.router)
    replay = Replay(deployment, fleet, [CostBreakdown(1.0, 0.0, 1)], study.resolved.slo.spec)
    subject = Subject(Trial(0, 3, deployment, {}), simulation, replay)
    assert subject.resized(0, 0.5) is None
    larger = subject.resized(0, 1.5)
    assert larger is not None
    assert larger.tiers[0].capacity_tokens == pytest.approx(1.5 * replay.plan.tiers[0].capacity_tokens, rel=2e-2)
