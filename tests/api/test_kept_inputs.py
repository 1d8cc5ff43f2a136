"""A run folder by itself: read and resumed where prices, profiles, the trace file and the working directory changed."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest

import hisearch as hs
from hisearch.api.run_lock import is_running, lock_run
from hisearch.api.studies.study import load_study
from hisearch.specs.documents.catalogue import shipped_root
from hisearch.specs.documents.kept import INPUTS, changed_since, keep_documents
from hisearch.specs.documents.references import kept_operators
from hisearch.specs.documents.resolved import KEPT_TRACE
from hisearch.specs.errors import SpecError

STUDY = """\
apiVersion: hisearch/v1
kind: Study
metadata: {name: kept}
spec:
  model: llama-3.1-8b
  workload: {trace: mine.csv}
  slo: {terms: [{metric: ttft_s, percentile: 95, at_most_s: 2}]}
  space:
    execution:
      engines: [vllm]
      accelerators: [h100-sxm]
      tensor_parallel: [1]
      max_replicas: 2
    profile: auto
  budget: {simulations: 12}
  confidence: {draws: 0, what_if: 0}
"""


@pytest.fixture(scope="module")
def run_there(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of a trace file, with the study and the trace beside it."""
    folder = tmp_path_factory.mktemp("kept")
    rng, time_s, rows = random.Random(3), 0.0, ["arrival_s,input_tokens,output_tokens"]
    for _ in range(60):
        time_s += rng.expovariate(4.0)
        rows.append(f"{time_s:.3f},{rng.randint(50, 900)},{rng.randint(10, 90)}")
    (folder / "mine.csv").write_text("\n".join(rows) + "\n")
    (folder / "mine.yaml").write_text(STUDY)
    load_study(folder / "mine.yaml").run(workers=1, run_dir=folder / "run")
    return folder


@pytest.fixture
def moved(run_there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the run, in a working directory of its own whose catalogue has another price for its accelerator."""
    shutil.copytree(run_there, tmp_path / "elsewhere")
    accelerators = tmp_path / "elsewhere/profiles/accelerators"
    accelerators.mkdir(parents=True)
    text = (shipped_root() / "profiles/accelerators/h100-sxm.yaml").read_text()
    price = load_study(run_there / "mine.yaml").resolved.accelerators["h100-sxm"].spec.price.usd_per_hour
    assert f"usd_per_hour: {price:g}" in text
    (accelerators / "h100-sxm.yaml").write_text(text.replace(f"usd_per_hour: {price:g}", "usd_per_hour: 9.25"))
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path / "elsewhere/run"


def test_a_run_is_read_with_its_own_prices(moved: Path, run_there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = hs.load_run(run_there / "run"), hs.load_run(moved)
    assert after.trials == before.trials
    assert after.recommendation == before.recommendation
    assert len(after.drift) == 1
    assert "h100-sxm costs $9.25 per hour in the catalogue now, $2.70 in this run" in after.drift[0]
    assert after.drift[0] in after.report_input().provenance.warnings
    assert after.export_trial(after.trials[0], moved.parent / "exported")
    monkeypatch.chdir(run_there)
    assert hs.load_run(moved).drift == ()


def test_a_run_is_resumed_with_its_own_prices(moved: Path) -> None:
    before = hs.load_run(moved)
    (moved / "provenance.json").unlink()
    journal = (moved / "journal.jsonl").read_bytes()
    (moved / "journal.jsonl").write_bytes(journal[: len(journal) // 2])
    resumed = load_study(moved / "study.yaml").run(run_dir=moved, resume=True, workers=1)
    assert resumed.trials == before.trials
    assert 0 < resumed.provenance["run"]["replayed"] < len(before.trials)


def test_the_trace_may_be_gone_or_another(moved: Path, run_there: Path) -> None:
    source = run_there / "mine.csv"
    kept = source.read_bytes()
    try:
        source.write_bytes(kept + b"99.0,1,1\n")
        changed = hs.load_run(moved)
        assert any("has changed: this run uses the trace that it has kept" in note for note in changed.drift)
        source.unlink()
        gone = hs.load_run(moved)
        assert any("is gone: this run uses the trace that it has kept" in note for note in gone.drift)
        assert gone.simulation.world.trace.digest == changed.simulation.world.trace.digest
        assert hs.load_run(moved).simulation.world.trace.digest == gone.provenance["trace"]["digest"]
        assert load_study(moved / "study.yaml").resolved.pins() == load_study(moved / "study.yaml").resolved.study.pins
        (moved / KEPT_TRACE).write_bytes(b"PK\x03\x04 not an archive")
        with pytest.raises(SpecError, match=r"own copy of .*mine\.csv, which is gone, cannot be used"):
            hs.load_run(moved)
        (moved / KEPT_TRACE).unlink()
        with pytest.raises(SpecError, match=r"mine\.csv"):
            hs.load_run(moved)
    finally:
        source.write_bytes(kept)


def test_the_kept_trace_is_that_of_the_same_question_only(moved: Path, run_there: Path) -> None:
    whole = load_study(moved / "study.yaml").trace
    assert len(load_study(moved / "study.yaml", ["spec.workload.limit=7"]).trace) == 7
    assert len(whole) == 60


def test_the_same_study_at_two_prices_is_compared(moved: Path) -> None:
    load_study(moved.parent / "mine.yaml").run(workers=1, run_dir=moved.parent / "dearer")
    comparison = hs.compare_runs(moved, moved.parent / "dearer")
    prices = {change.key: (change.a, change.b) for change in comparison.question}
    assert prices == {"prices.h100-sxm": ("$2.70 per hour", "$9.25 per hour")}
    assert comparison.fronts is not None


def test_damage_to_what_was_kept_is_found(moved: Path) -> None:
    copy = moved / INPUTS / "profiles/accelerators/h100-sxm.yaml"
    text = copy.read_text()
    copy.write_text(text + "\n# changed by hand\n")
    with pytest.raises(SpecError, match="has changed since it was pinned"):
        hs.load_run(moved)
    copy.unlink()
    with pytest.raises(SpecError, match=r"h100-sxm.yaml.*no such file: the run's own copy"):
        hs.load_run(moved)
    (moved / INPUTS / "index.json").write_text("[]")
    with pytest.raises(SpecError, match=r"index.json.*expected the index"):
        hs.load_run(moved)


def test_a_copy_without_pins_asks_at_todays_prices(moved: Path) -> None:
    copy = moved.parent / "again.yaml"
    copy.write_text((moved / "study.yaml").read_text().partition("  pins:")[0])
    assert load_study(copy).resolved.accelerators["h100-sxm"].spec.price.usd_per_hour == 9.25
    assert json.loads((moved / INPUTS / "index.json").read_text())["pins"]


def test_one_process_writes_to_a_run(run_there: Path) -> None:
    folder = run_there / "run"
    assert not is_running(folder)
    with lock_run(folder):
        assert is_running(folder)
        before = (folder / "journal.jsonl").read_bytes()
        for resume in (True, False):
            with pytest.raises(ValueError, match=r"a run is in progress here \(process \d+ on .*hisearch report"):
                load_study(folder / "study.yaml").run(run_dir=folder, resume=resume)
        assert (folder / "journal.jsonl").read_bytes() == before
        assert hs.load_run(folder).trials
    assert not is_running(folder)


def test_a_folder_of_others_is_refused(run_there: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("\\documentclass{book}")
    with pytest.raises(FileExistsError, match=r"expected a new or an empty folder for the run, found thesis.tex"):
        load_study(run_there / "mine.yaml").run(run_dir=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_an_answer_that_cannot_be_written_is_returned(
    run_there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", str(tmp_path))

    monkeypatch.setattr("hisearch.api.studies.result.StudyResult.write", full)
    result = load_study(run_there / "mine.yaml").run(workers=1, run_dir=tmp_path / "run")
    assert result.recommendation is not None
    assert "No space left on device" in result.unwritten


def test_measured_operators_are_beside_their_profile_and_kept_with_it(tmp_path: Path) -> None:
    (tmp_path / "cards/tables").mkdir(parents=True)
    (tmp_path / "cards/tables/gemm.csv").write_text("m,n,k,seconds\n")
    profile = (shipped_root() / "profiles/latency/roofline.yaml").read_text()
    profile = profile.replace("name: roofline", "name: ours").replace("spec:\n", "spec:\n  operators: tables\n", 1)
    (tmp_path / "cards/ours.yaml").write_text(profile)
    rows = "\n".join(f"{second},100,10" for second in range(20))
    (tmp_path / "mine.csv").write_text(f"arrival_s,input_tokens,output_tokens\n{rows}\n")
    (tmp_path / "mine.yaml").write_text(STUDY.replace("profile: auto", "profile: cards/ours.yaml"))
    study = load_study(tmp_path / "mine.yaml").resolved
    assert study.profile.spec.operators == str(tmp_path / "cards/tables")
    run = tmp_path / "run"
    run.mkdir()
    keep_documents([study], run)
    kept = next((run / INPUTS).rglob("gemm.csv"))
    (run / "study.yaml").write_text(study.to_yaml())
    shutil.rmtree(tmp_path / "cards")
    run.rename(tmp_path / "moved")
    moved = load_study(tmp_path / "moved/study.yaml").resolved
    assert Path(str(moved.profile.spec.operators)) == tmp_path / "moved" / kept.parent.relative_to(run)
    assert list(changed_since(tmp_path / "moved")) == []
    shutil.rmtree(kept_operators(moved.profile.path))
    with pytest.raises(SpecError, match="no folder or file of measured operators at"):
        load_study(tmp_path / "moved/study.yaml")
