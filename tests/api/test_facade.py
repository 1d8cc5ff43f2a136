"""The names that ``hisearch`` exports: each does what its command does, and refuses wrong input before it begins."""

from __future__ import annotations

import importlib
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import hisearch
from hisearch.api.deployments.workload import load_trace
from hisearch.api.studies.result import StudyResult
from hisearch.search.records.journal import JournalError
from hisearch.specs.errors import SpecError
from tests.cli.documents import DEPLOYMENT, WORKLOAD

#: Most seconds for a process to begin its search, kernels compiled or not.
BEGIN_S = 120.0
#: Settings of a study that ends after some trials.
SHORT = ["spec.budget.simulations=12", "spec.confidence={draws: 0, what_if: 0}"]


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    """A deployment and, beside it, a workload."""
    (tmp_path / "pair.yaml").write_text(DEPLOYMENT)
    (tmp_path / "visits.yaml").write_text(WORKLOAD)
    return tmp_path / "pair.yaml"


@pytest.mark.parametrize("name", sorted(set(hisearch.__all__) - {"__version__"}))
def test_public_names_are_those_of_their_modules(name: str) -> None:
    value = getattr(hisearch, name)
    assert value is getattr(importlib.import_module(value.__module__), name)
    assert value.__doc__
    assert name in dir(hisearch)


def test_other_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'load_stduy'"):
        hisearch.load_stduy  # noqa: B018


def test_a_stored_run_is_what_the_run_returned(result: StudyResult) -> None:
    stored = hisearch.load_run(result.run_dir)
    assert stored.trials == result.trials
    assert stored.front == result.front
    assert stored.recommendation == result.recommendation
    assert stored.confidence == result.confidence
    assert (stored.stopped, stored.caution, stored.failure) == (result.stopped, result.caution, None)
    assert stored.kept_in is None
    assert stored.report_input() == result.report_input()


def test_a_stored_run_writes_the_same_documents(result: StudyResult, tmp_path: Path) -> None:
    (tmp_path / "confidence.json").write_bytes((result.run_dir / "confidence.json").read_bytes())
    assert hisearch.load_run(result.run_dir).write(tmp_path) == ()
    for name in ("study.yaml", "provenance.json", "trials.parquet", "front.csv", "candidates.csv", "closeup.json"):
        assert (tmp_path / name).read_bytes() == (result.run_dir / name).read_bytes(), name


def test_a_killed_process_goes_on_to_the_same_trials(study_file: Path, tmp_path: Path) -> None:
    undisturbed = hisearch.load_study(study_file, SHORT).run(workers=1, run_dir=tmp_path / "undisturbed")
    folder = tmp_path / "run"
    journal = folder / "journal.jsonl"
    arguments = f"workers=1, run_dir={str(folder)!r}"
    program = f"import hisearch; hisearch.load_study({str(study_file)!r}, {SHORT}).run({arguments})"
    process = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + BEGIN_S
        while process.poll() is None and time.monotonic() < until:
            if journal.is_file() and journal.read_bytes().count(b"\n") > 5:
                break
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    if process.returncode == -signal.SIGKILL:  # else it was faster than the kill
        with pytest.raises(FileNotFoundError, match="the run has not ended"):
            hisearch.load_run(folder)
    resumed = hisearch.load_study(study_file, SHORT).run(workers=1, run_dir=folder, resume=True)
    assert resumed.trials == undisturbed.trials
    assert resumed.provenance["run"]["replayed"] > 0
    assert (folder / "front.csv").read_bytes() == (undisturbed.run_dir / "front.csv").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"resume": True}, "resume needs the run folder"),
        ({"workers": 0}, "workers"),
        ({"backend": "slurm"}, "no backend 'slurm'; known: threads, loky, dask"),
        ({"backend": "dask"}, "needs a scheduler's address"),
        ({"scheduler": "tcp://localhost:1"}, "needs a scheduler's address"),
    ],
)
def test_a_study_refuses_what_it_cannot_run_with(
    study_file: Path, tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    folder = None if arguments.get("resume") else tmp_path / "run"
    with pytest.raises(ValueError, match=message):
        hisearch.load_study(study_file).run(run_dir=folder, **arguments)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_a_run_is_not_resumed(study_file: Path, tmp_path: Path) -> None:
    with pytest.raises(JournalError, match=r"found no journal\.jsonl"):
        hisearch.load_study(study_file).run(run_dir=tmp_path, resume=True)
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match="is a file"):
        hisearch.load_study(study_file).run(run_dir=tmp_path / "file" / "run")


def test_documents_that_are_not_there_are_named(study_file: Path, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="quickstrat"):
        hisearch.load_study("quickstrat")
    with pytest.raises(SpecError, match="budgte"):
        hisearch.load_study(study_file, ["spec.budgte.simulations=5"])
    with pytest.raises(FileNotFoundError, match="not a run folder"):
        hisearch.load_run(tmp_path)


def test_runs_are_compared_from_python(result: StudyResult) -> None:
    comparison = hisearch.compare_runs(result, result.run_dir)
    assert (comparison.kind, comparison.same_workload) == ("runs", True)
    assert (comparison.changes, comparison.question) == ((), ())
    assert all(figure.a == figure.b for figure in comparison.figures)
    assert comparison.fronts is not None
    assert (comparison.fronts.a_beaten, comparison.fronts.b_beaten) == (0, 0)


def test_deployments_are_compared_from_python(pair: Path) -> None:
    other = pair.with_name("three.yaml")
    other.write_text(DEPLOYMENT.replace("replicas: 2", "replicas: 3"))
    comparison = hisearch.compare_deployments(pair, other, pair.with_name("visits.yaml"), seeds=2, limit=60)
    assert comparison.seeds == (0, 1)
    assert [(change.key, change.a, change.b) for change in comparison.changes] == [("pools.0.replicas", "2", "3")]
    assert "goodput_rps" not in {figure.name for figure in comparison.figures}, "there is no SLO"
    with pytest.raises(ValueError, match="seeds: expected at least 1"):
        hisearch.compare_deployments(pair, other, pair.with_name("visits.yaml"), seeds=0)


def test_a_measurement_goes_with_a_trial_of_the_run(result: StudyResult) -> None:
    with pytest.raises(ValueError, match="no trial 9999; there are"):
        hisearch.verify_run(result, [], trial=9999)


def test_a_simulation_from_python(pair: Path) -> None:
    simulated = hisearch.simulate_deployment(pair, pair.with_name("visits.yaml"))
    assert simulated.feasible is None
    assert {"goodput_rps", "attainment"}.isdisjoint(simulated.metrics)
    judged = hisearch.simulate_deployment(pair, pair.with_name("visits.yaml"), slo="interactive-chat", log=True)
    assert judged.feasible is not None
    assert judged.metrics.items() >= simulated.metrics.items()
    assert len(judged.requests_frame()) == sum(judged.outcomes().values()) == len(judged.trace)
    assert set(judged.series()["worker"]) == {0, 1}
    assert judged.to_dict()["requests"] == judged.models[0].to_dict(with_slo=True)["requests"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"horizon_s": 0.0}, "horizon_s must be a positive number"), ({"load": 0.0}, "load")],
)
def test_a_simulation_refuses_what_is_not_positive(pair: Path, settings: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        hisearch.simulate_deployment(pair, pair.with_name("visits.yaml"), **settings)  # type: ignore[arg-type]


def test_settings_are_for_deployments_that_are_not_resolved_yet(pair: Path) -> None:
    resolved = hisearch.simulate_deployment(pair, pair.with_name("visits.yaml")).resolved
    with pytest.raises(ValueError, match="resolved already"):
        hisearch.simulate_deployment(resolved, pair.with_name("visits.yaml"), overrides=["spec.pools.0.replicas=3"])


def test_a_workload_says_its_own_format(pair: Path) -> None:
    visits = pair.with_name("visits.yaml")
    assert len(hisearch.load_trace(visits, limit=7)) == 7
    with pytest.raises(ValueError, match="no trace format 'parket'"):
        hisearch.load_trace(visits, format="parket")
    with pytest.raises(ValueError, match="columns is for trace files"):
        hisearch.load_trace(visits, columns={"arrival_s": "ts"})


def test_hosts_of_ffn_accelerators_are_among_the_nodes(tmp_path: Path) -> None:
    """Four attention workers of four H100 fill two hosts; every two of them have FFN accelerators of their own."""
    path = tmp_path / "apart.yaml"
    path.write_text(
        "apiVersion: hisearch/v1\nkind: Deployment\nmetadata: {name: apart}\nspec:\n  model: llama-3.1-70b\n"
        "  profile: roofline\n  pools:\n    - accelerator: h100-sxm\n      replicas: 4\n      tensor_parallel: 4\n"
        "      engine: {name: vllm}\n      devices: {attention_ffn: {attention: 2, ffn: 4}}\n"
    )
    trace = load_trace("chat-multiturn", limit=40)
    for ffn, nodes in ((4, 3), (8, 4), (16, 6)):
        settings = [f"spec.pools.0.devices.attention_ffn.ffn={ffn}"]
        energy = hisearch.simulate_deployment(path, trace, overrides=settings).to_dict()["energy"]
        # 16 of attention and two groups of FFN accelerators, in hosts of eight.
        assert energy["nodes"] == nodes, ffn
        assert energy["mean_w_per_node"] == pytest.approx(energy["mean_w"] / nodes)
