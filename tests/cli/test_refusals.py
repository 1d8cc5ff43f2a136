"""Error messages: one line that names file, line, key, and what to do."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path

import pytest

from hisearch.api.provenance import profile_note
from hisearch.cli import compilation
from hisearch.search.records.journal import JournalError
from hisearch.specs.documents.resolve import load_study
from tests.cli.conftest import Hisearch
from tests.cli.documents import STUDY


@pytest.fixture
def broken(workdir: Path) -> Path:
    """A trace that was cut off while it was copied."""
    rows = [{"timestamp": 100 * n, "input_length": 500, "output_length": 20, "hash_ids": [n]} for n in range(3000)]
    packed = gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode())
    (workdir / "cut.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    head = "apiVersion: hisearch/v1\nkind: Workload\nmetadata: {name: cut}\nspec:\n"
    (workdir / "cut.yaml").write_text(f"{head}  file:\n    path: cut.jsonl.gz\n    format: mooncake\n")
    return workdir


def test_a_trace_that_cannot_be_read_says_what_named_it(hisearch: Hisearch, broken: Path) -> None:
    words = "cut.jsonl.gz: broken gzip archive: Compressed file ended before the end-of-stream marker was reached"
    named = f"{words} (named by cut.yaml:6: spec.file.path)"
    study = STUDY[: STUDY.index("    trace:")] + "    trace: cut.yaml\n" + STUDY[STUDY.index("  slo:") :]
    (broken / "by_workload.yaml").write_text(study)
    (broken / "by_path.yaml").write_text(study.replace("cut.yaml", "cut.jsonl.gz"))
    for arguments, expected in (
        (("run", "by_workload.yaml", "--out", "r"), named),
        (("trace", "stats", "cut.yaml"), named),
        (("run", "by_path.yaml", "--out", "r"), f"{words} (named by by_path.yaml:7: spec.workload.trace)"),
        (("trace", "stats", "cut.jsonl.gz"), words),
    ):
        ran = hisearch(*arguments)
        assert ran.code == 1
        assert ran.err.splitlines()[-1] == f"hisearch: error: {expected}"


@pytest.mark.parametrize(
    ("word", "misspelt", "key"),
    [
        ("accelerators:", "acelerators:", "spec.space.execution.acelerators"),
        ("  slo:\n", "  slos:\n", "spec.slos"),
        ("{metric: ttft_s,", "{metrik: ttft_s,", "spec.slo.terms.0.metrik"),
        ("metadata:", "metdata:", "metdata"),
    ],
)
def test_a_misspelt_key_is_one_line(hisearch: Hisearch, workdir: Path, word: str, misspelt: str, key: str) -> None:
    (workdir / "typo.yaml").write_text(STUDY.replace(word, misspelt, 1))
    ran = hisearch("run", "typo.yaml")
    assert ran.code == 1
    (line,) = ran.err.splitlines()
    assert f"{key}: unknown key; did you mean '{word.strip(' {:,').split(':')[0].strip()}'?" in line


def test_a_misspelt_key_hides_no_other_problem(hisearch: Hisearch, workdir: Path) -> None:
    text = STUDY.replace("accelerators:", "acelerators:").replace("  model: llama-3.1-8b\n", "")
    (workdir / "typo.yaml").write_text(text)
    lines = hisearch("run", "typo.yaml").err.splitlines()
    assert len(lines) == 2
    assert any("spec.model: required, and missing" in line for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("spec.seed=1", "spec.seed is 0 in {study}, and 1 now"),
        ("spec.workload.load=1.5", "spec.workload.load is 1 in {study}, and 1.5 now"),
        ("spec.model=llama-3.1-70b", "spec.model is llama-3.1-8b in {study}, and llama-3.1-70b now"),
    ],
)
def test_another_studys_folder_says_what_differs(
    hisearch: Hisearch, workdir: Path, setting: str, expected: str
) -> None:
    assert hisearch("run", "small.yaml", "--set", "spec.budget.simulations=1", "--out", "r", "-q").code in {0, 1, 99}
    before = {path.name: path.read_bytes() for path in Path("r").iterdir() if path.is_file()}
    ran = hisearch("run", "small.yaml", "--set", setting, "--resume", "r", "-q")
    assert ran.code == 1
    (line,) = ran.err.splitlines()
    assert line.endswith(f"{expected.format(study=Path('r') / 'study.yaml')}; choose another folder")
    assert {path.name: path.read_bytes() for path in Path("r").iterdir() if path.is_file()} == before


def test_another_program_is_named(hisearch: Hisearch, workdir: Path) -> None:
    from hisearch.api.studies.study import load_study as load

    assert hisearch("run", "small.yaml", "--set", "spec.budget.simulations=1", "--out", "r", "-q").code in {0, 1, 99}
    facts = json.loads(Path("r/provenance.json").read_text())
    facts["versions"]["hisearch"] = "0.0.1"
    Path("r/provenance.json").write_text(json.dumps(facts))
    head, *rows = Path("r/journal.jsonl").read_text().splitlines(keepends=True)
    Path("r/journal.jsonl").write_text(json.dumps(json.loads(head) | {"inputs": "0" * 64}) + "\n" + "".join(rows))
    study = load("r/study.yaml")
    with pytest.raises(JournalError, match=r"the study is the same, but hisearch was 0\.0\.1, and is "):
        study.run(workers=1, run_dir="r", resume=True)
    Path("r/provenance.json").unlink()
    with pytest.raises(JournalError, match="the study is the same, but hisearch's kernels were others"):
        study.run(workers=1, run_dir="r", resume=True)


def test_a_study_without_any_trial_names_profiles_that_its_steps_would_have(workdir: Path) -> None:
    note = profile_note(load_study("small.yaml"), None)
    assert note.evidence == "fitted"
    assert note.name.endswith("(auto; errs most of the space's 4)")
    loaded = load_study(
        "small.yaml", ("spec.space.execution.accelerators=[h100-sxm]", "spec.space.execution.engines=[vllm]")
    )
    assert profile_note(loaded, None).name == "vllm-h100-sxm (auto)"


def test_compilation_is_reported_with_its_time_until_it_ends(
    compiled_kernels: set[tuple[str, str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compilation, "INTERVAL_S", 0.05)
    compilation.note_compilation()
    compilation._watch([])
    time.sleep(0.4)
    compiled_kernels.add(("fleet.cluster", "run"))
    time.sleep(0.4)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("hisearch: compiling kernels: the event loop (about a minute")
    assert lines[1] == "hisearch: compiling kernels: 0 s"
    assert lines[-1] == "hisearch: these kernels are compiled, after 0 s"
    compiled_kernels.clear()
    compilation.end_notes()
    compilation.note_compilation()
    compilation._watch([])
    compilation.end_notes()
    capsys.readouterr()
    time.sleep(0.2)
    assert capsys.readouterr().err == ""


def test_a_foreign_files_controls_do_not_reach_the_terminal(hisearch: Hisearch, workdir: Path) -> None:
    name = "ar\x1b[31mri\x9bval\u202e"
    (workdir / "hostile.csv").write_text(f"{name},b\n1,2\n", encoding="utf-8")
    done = hisearch("trace", "stats", "hostile.csv")
    assert done.code == 1
    shown = done.out + done.err
    assert not set("\x1b\x9b\u202e") & set(shown)
    assert "\\x1b[31mri\\x9bval\\u202e" in shown


def test_more_workers_than_a_machine_holds_are_refused(hisearch: Hisearch) -> None:
    done = hisearch("run", "quickstart", "--workers", "100000")
    assert done.code == 1
    assert "workers: expected 1 to" in done.err
