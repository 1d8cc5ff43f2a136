"""A study of several models from Python."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import hisearch
from hisearch.api.fleet_study import FleetResult
from hisearch.api.run_folder import MODELS
from hisearch.search.records.journal import JournalError
from hisearch.specs.documents.resolve import load_deployment

WORKLOAD = """
      workload:
        trace:
          generator:
            requests: 60
            arrivals: {process: poisson, rate_rps: 5.0}
            first_input: {distribution: constant, scale_tokens: 400}
            output: {distribution: constant, scale_tokens: 20}
"""

STUDY = f"""\
apiVersion: hisearch/v1
kind: FleetStudy
metadata: {{name: both}}
spec:
  models:
    qwen3-32b: {WORKLOAD}
    llama-3.1-8b: {WORKLOAD}
  slo:
    terms: [{{metric: ttft_s, percentile: 99, at_most_s: 4.0}}]
  space:
    execution:
      accelerators: [h200]
      engines: [vllm]
      tensor_parallel: [1]
      chunk_tokens: [2048]
      max_running_requests: [128]
      max_replicas: 2
    routing: {{policies: [round_robin]}}
    cache: {{tiers: []}}
  objectives: [ttft_p99, usd_per_hour]
  budget: {{simulations: 8, seconds: 300}}
  confidence: {{draws: 0, what_if: 0}}
"""


@pytest.fixture(scope="module")
def study_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fleet") / "both.yaml"
    path.write_text(STUDY)
    return path


@pytest.fixture(scope="module")
def fleet(study_file: Path) -> FleetResult:
    return hisearch.load_fleet_study(study_file).run(workers=1, run_dir=study_file.parent / "run")


def test_each_model_has_its_part(fleet: FleetResult) -> None:
    assert list(fleet.results) == ["qwen3-32b", "llama-3.1-8b"]
    best = fleet.recommendation
    assert best is not None
    assert (fleet.missed, fleet.refusal, fleet.unsure) == ((), "", False)
    parts = [result.recommendation.trial for result in fleet.results.values() if result.recommendation is not None]
    assert best.figures["usd_per_hour"] == pytest.approx(sum(trial.metrics["usd_per_hour"] for trial in parts))
    assert [part.name for part in fleet.choices(best)] == list(fleet.results)
    assert fleet.whole is not None
    assert [share.model for share in fleet.whole.shares] == ["qwen3-32b", "llama-3.1-8b"]
    assert [pool.name for pool in fleet.whole.deployment.pools] == list(fleet.results)


def test_the_run_folder_says_what_the_result_does(fleet: FleetResult) -> None:
    data = json.loads((fleet.run_dir / "fleet.json").read_text())
    assert data == json.loads(json.dumps(fleet.to_dict()))
    assert [model["run_dir"] for model in data["models"]] == [f"{MODELS}/{name}" for name in fleet.results]
    assert len(fleet.to_pandas()) == len(fleet.front) == len(data["front"]) > 0
    report = fleet.report_input()
    assert (report.feasible, report.refused, len(report.parts), len(report.searches)) == (True, "", 2, 2)
    exported = fleet.run_dir / "recommended"
    assert load_deployment(exported / "deployment.yaml").deployment.pools == fleet.whole.deployment.pools  # type: ignore[union-attr]
    assert all((exported / name / "README.md").is_file() for name in fleet.results)


def test_a_resumed_fleet_simulates_nothing_again(fleet: FleetResult, study_file: Path) -> None:
    resumed = hisearch.load_fleet_study(study_file).run(workers=1, run_dir=fleet.run_dir, resume=True)
    assert resumed.recommendation == fleet.recommendation
    assert all(result.provenance["run"]["replayed"] == result.simulations for result in resumed.results.values())


def test_a_folder_without_a_fleet_is_not_resumed(study_file: Path, tmp_path: Path) -> None:
    with pytest.raises(JournalError, match=r"found no study\.yaml"):
        hisearch.load_fleet_study(study_file).run(run_dir=tmp_path, resume=True)


def test_a_fleets_folder_is_no_studys(fleet: FleetResult) -> None:
    with pytest.raises(ValueError, match="a run of several models; name the run of one of them"):
        hisearch.load_run(fleet.run_dir)


def test_nothing_is_recommended_where_one_model_misses(study_file: Path, tmp_path: Path) -> None:
    impossible = ["spec.slo.terms.0.at_most_s=0.0001", "spec.budget.simulations=4"]
    missed = hisearch.load_fleet_study(study_file, impossible).run(workers=1, run_dir=tmp_path / "run")
    assert (missed.recommendation, missed.whole, missed.front) == (None, None, ())
    assert missed.refusal == "Nothing that was simulated meets the SLO of qwen3-32b and llama-3.1-8b."
    assert not (missed.run_dir / "recommended").exists()
    assert missed.report_input().refused == missed.refusal


def test_replicas_may_be_down_in_the_pools_of_all_models(fleet: FleetResult, study_file: Path, tmp_path: Path) -> None:
    one_down = hisearch.load_fleet_study(study_file, ["spec.availability.replicas_down=1"])
    result = one_down.run(workers=1, run_dir=tmp_path / "down")
    assert result.whole is not None
    assert fleet.whole is not None
    assert [pool.replicas for pool in fleet.whole.deployment.pools] == [1, 1]
    assert [pool.replicas for pool in result.whole.deployment.pools] == [2, 2]
    # What is left is what serves without the wish, at twice the price.
    assert result.whole.score.feasible
    assert [len(share.result.workers.busy_s) for share in result.whole.shares] == [1, 1]
    for name in ("ttft_p99_s", "goodput_rps"):
        assert result.whole.score.metrics[name] == fleet.whole.score.metrics[name]
    for share, alone in zip(result.whole.shares, fleet.whole.shares, strict=True):
        assert share.cost.total == pytest.approx(2 * alone.cost.total)
    assert result.whole.score.metrics["usd_per_hour"] == pytest.approx(2 * fleet.whole.score.metrics["usd_per_hour"])
    assert any("with 1 replica of each pool away" in text for text in result.cautions)
    exported = result.run_dir / "recommended"
    assert [pool.replicas for pool in load_deployment(exported / "deployment.yaml").deployment.pools] == [2, 2]
    assert "but for 1 replica of each pool, which" in (exported / "README.md").read_text()
