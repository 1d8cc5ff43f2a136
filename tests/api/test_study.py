"""A study on the real simulator, small enough for a test."""

import json
import os
from pathlib import Path

import pandas as pd
import pytest

from hisearch.api.studies.result import StudyResult
from hisearch.api.studies.study import load_study
from hisearch.search.records.journal import JournalError


def test_engines_are_prepared_with_and_without_tiers(study_file: Path) -> None:
    assert load_study(study_file).variants == [
        ("sglang", "", None),
        ("sglang", "", "hicache"),
        ("vllm", "", None),
        ("vllm", "", "offload"),
    ]


def test_the_run_folder_holds_everything(result: StudyResult) -> None:
    names = {path.name for path in result.run_dir.iterdir()}
    assert names == {
        "study.yaml", "provenance.json", "journal.jsonl", "study.db", "trials.parquet", "candidates.csv", "front.csv",
        "closeup.json", "confidence.json", "confidence.jsonl", "report.html", "recommended",
        "inputs", "run.lock",
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


@pytest.mark.slow
def test_l6_two_workers_write_the_same_trials(result: StudyResult, study_file: Path, tmp_path: Path) -> None:
    other = load_study(study_file).run(workers=2, run_dir=tmp_path / "run")
    assert (other.run_dir / "trials.parquet").read_bytes() == (result.run_dir / "trials.parquet").read_bytes()


@pytest.mark.slow
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
