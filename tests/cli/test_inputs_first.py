"""On an empty kernel cache, input errors are reported before anything is compiled."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from hisearch.api.studies.study import load_study
from hisearch.simulate import engine
from tests.cli.conftest import Hisearch
from tests.cli.documents import STUDY
from tests.cli.test_refusals import broken as broken


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which no kernel of an engine was ever compiled, and none may be."""

    def refuse(*_: Any) -> Any:
        raise AssertionError("kernels were compiled before all inputs were checked")

    monkeypatch.setattr(engine, "is_prepared", lambda _: False)
    monkeypatch.setattr("hisearch.kernels.fleet.compilation.prepare", refuse)
    monkeypatch.setattr("hisearch.simulate.arrays.settings.config_of", refuse)


@pytest.fixture(scope="module")
def run_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which ``small.yaml`` was run."""
    folder = tmp_path_factory.mktemp("once")
    (folder / "small.yaml").write_text(STUDY)
    load_study(folder / "small.yaml", ["spec.budget.simulations=1"]).run(workers=1, run_dir=folder / "r")
    return folder / "r"


@pytest.fixture
def ended(run_once: Path, workdir: Path) -> Path:
    """A folder ``r`` in which ``small.yaml`` was run."""
    shutil.copytree(run_once, workdir / "r")
    return workdir


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "by_workload.yaml", "--out", "new"), "cut.jsonl.gz: broken gzip archive"),
        (("run", "small.yaml", "--out", "r"), "a run was already made in this folder"),
        (("run", "small.yaml", "--out", "small.yaml/r"), "expected a folder for the run"),
        (("run", "small.yaml", "--resume", "nowhere"), "expected the folder of a run to go on with"),
        (("run", "--resume", "nowhere"), "nowhere"),
        (("run", "small.yaml", "--set", "spec.seed=1", "--resume", "r"), "spec.seed is 0"),
        (("run", "small.yaml", "--resume", "torn"), "journal.jsonl:2: damaged: no finished simulation"),
        (("run", "small.yaml", "--set", "spec.slo=nothing", "--out", "new"), "spec.slo"),
        (("simulate", "pair.yaml", "--trace", "cut.jsonl.gz"), "cut.jsonl.gz: broken gzip archive"),
        (("simulate", "pair.yaml", "--trace", "missing.jsonl"), "missing.jsonl"),
        (("simulate", "pair.yaml", "--trace", "visits.yaml", "--slo", "nothing"), "nothing"),
        (("simulate", "pair.yaml", "--trace", "visits.yaml", "--requests", "gone/r.csv"), "gone/r.csv: no folder gone"),
        (("compare", "pair.yaml", "pair.yaml", "--trace", "missing.jsonl"), "missing.jsonl"),
        (("compare", "pair.yaml", "other.yaml", "--trace", "visits.yaml"), "other.yaml"),
        (("compare", "r", "nowhere"), "nowhere"),
        (("verify", "r", "--measured", "missing.json"), "missing.json"),
        (("verify", "nowhere", "--measured", "visits.yaml"), "nowhere"),
        (("export", "r", "--trial", "999"), "no trial 999"),
        (("validate", "e2e", "nowhere"), "nowhere"),
        (("validate", "silicon", "missing.csv"), "missing.csv"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_inputs_are_checked_before_kernels_are_compiled(
    hisearch: Hisearch,
    ended: Path,
    broken: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    study = STUDY[: STUDY.index("    trace:")] + "    trace: cut.yaml\n" + STUDY[STUDY.index("  slo:") :]
    (broken / "by_workload.yaml").write_text(study)
    torn = broken / "torn"
    torn.mkdir()
    head = (broken / "r" / "journal.jsonl").read_text().splitlines()[0]
    (torn / "journal.jsonl").write_text(f"{head}\nnot JSON\n")
    request.getfixturevalue("uncompiled")
    ran = hisearch(*arguments)
    assert ran.code == 1
    assert "compiling" not in ran.err
    assert message in ran.err
    assert not (broken / "new").exists()


def test_what_is_sound_is_compiled_and_that_is_said_first(hisearch: Hisearch, workdir: Path, uncompiled: None) -> None:
    """Good inputs do reach the compiler, and the note comes before it: the tests above check the right thing."""
    with pytest.raises(AssertionError, match="kernels were compiled"):
        hisearch("simulate", "pair.yaml", "--trace", "visits.yaml")
    with pytest.raises(AssertionError, match="kernels were compiled"):
        hisearch("run", "small.yaml", "--out", "new")
