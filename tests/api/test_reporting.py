"""The report of an unfinished run: it shows what the journal holds and leaves the run unchanged."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from hisearch.api.run_folder import has_ended
from hisearch.api.studies.reporting import input_so_far
from hisearch.api.studies.result import StudyResult
from hisearch.api.studies.stored_run import load_run
from hisearch.api.studies.study import Study, load_study
from hisearch.search.records.journal import JournalError, read_so_far
from tests import chromium
from tests.cli.conftest import Hisearch
from tests.cli.documents import STUDY


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> StudyResult:
    folder = tmp_path_factory.mktemp("ended")
    (folder / "small.yaml").write_text(STUDY)
    return load_study(folder / "small.yaml").run(workers=2, run_dir=folder / "run")


def unfinished_run(ended: StudyResult, folder: Path, lines: int, torn: bytes = b"") -> Path:
    """A run folder after ``lines`` simulations, with the next line partly written."""
    folder.mkdir()
    shutil.copy(ended.run_dir / "study.yaml", folder)
    kept = (ended.run_dir / "journal.jsonl").read_bytes().splitlines(keepends=True)[: lines + 1]
    (folder / "journal.jsonl").write_bytes(b"".join(kept) + torn)
    return folder


def test_a_journal_knows_all_trials_as_the_run_numbered_them(ended: StudyResult) -> None:
    progress = read_so_far(ended.run_dir / "journal.jsonl")
    assert progress.trials == ended.trials
    assert progress.unknown == ()
    assert progress.simulations == sum(trial.simulations for trial in ended.trials)


@pytest.mark.parametrize("lines", [0, 1, 9, 17])
def test_the_report_holds_what_the_journal_does(
    hisearch: Hisearch, ended: StudyResult, tmp_path: Path, lines: int
) -> None:
    run = unfinished_run(ended, tmp_path / "run", lines, b'{"key":"half a li')
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    ran = hisearch("report", run, "--out", tmp_path / "so far.html", "--json")
    assert ran.code == 0
    assert ran.json["so_far"]["simulations"] == lines
    assert ran.json["so_far"]["budget"] == 24
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before
    page = (tmp_path / "so far.html").read_text(encoding="utf-8")
    assert f"So far: {lines} of at most 24 simulations, stage" in page
    assert f"hisearch run --resume {run}" in page
    data = input_so_far(run)
    assert {trial.number for trial in data.trials} <= {trial.number for trial in ended.trials}
    assert all(trial == ended.trials[trial.number] for trial in data.trials)
    assert ("Cheapest so far that meets the SLO" in page) == any(t.feasible and t.comparable for t in data.trials)
    for of_the_end in ("How sure", "At other loads", "Deploy "):
        assert of_the_end not in page


def test_it_is_written_where_the_last_report_will_be(hisearch: Hisearch, ended: StudyResult, tmp_path: Path) -> None:
    run = unfinished_run(ended, tmp_path / "run", 12)
    ran = hisearch("report", run)
    assert ran.code == 0
    assert ran.out.strip() == str(run / "report.html")
    assert "so far, 12 of at most 24 simulations, stage " in ran.err


def test_a_run_that_was_looked_at_goes_on_to_the_same_end(
    hisearch: Hisearch, ended: StudyResult, tmp_path: Path
) -> None:
    run = unfinished_run(ended, tmp_path / "run", 12, b'{"key":"half')
    assert hisearch("report", run).code == 0
    result = load_study(run / "study.yaml").run(workers=2, run_dir=run, resume=True)
    assert result.trials == ended.trials
    assert read_so_far(run / "journal.jsonl").trials == ended.trials
    assert "So far: " not in (run / "report.html").read_text(encoding="utf-8")


def test_a_run_that_is_gone_on_with_has_not_ended(
    ended: StudyResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    shutil.copytree(ended.run_dir, run)
    assert has_ended(run)
    seen: list[bool] = []

    def fail(*_: object, **__: object) -> None:
        seen.append(has_ended(run))
        raise RuntimeError("killed")

    monkeypatch.setattr("hisearch.search.driver.search", fail)
    with pytest.raises(RuntimeError, match="killed"):
        load_study(run / "study.yaml").run(workers=1, run_dir=run, resume=True)
    assert seen == [False]


def test_a_run_that_had_ended_is_there_until_it_ends_anew(
    hisearch: Hisearch, ended: StudyResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed repeatedly while it is resumed: export, compare and verify keep the earlier result."""
    run = tmp_path / "run"
    shutil.copytree(ended.run_dir, run)
    assert ended.recommendation is not None

    def killed(*_: object, **__: object) -> None:
        raise RuntimeError("killed")

    monkeypatch.setattr("hisearch.search.driver.search", killed)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="killed"):
            load_study(run / "study.yaml", ["spec.confidence.draws=8"]).run(workers=1, run_dir=run, resume=True)
        assert not has_ended(run)
        journal = (run / "journal.jsonl").read_bytes() + b'{"key":"half'
        (run / "journal.jsonl").write_bytes(journal)  # as if another process were writing it
        loaded = load_run(run)
        assert loaded.kept_in == run / "ended"
        assert loaded.trials == ended.trials
        assert loaded.recommendation == ended.recommendation
        assert loaded.confidence == ended.confidence
        assert (run / "journal.jsonl").read_bytes() == journal
        exported = hisearch("export", run, "--out", tmp_path / "out")
        assert exported.code == 0
        assert "this is what it had come to when it ended" in exported.err
        assert (tmp_path / "out/deployment.yaml").read_bytes() == (run / "recommended/deployment.yaml").read_bytes()
        compared = hisearch("compare", run, ended.run_dir)
        assert compared.code == 0
        assert "it is compared as it was when it ended" in compared.err
    monkeypatch.undo()
    again = load_study(run / "study.yaml").run(workers=1, run_dir=run, resume=True)
    assert has_ended(run)
    assert not (run / "ended").exists()
    assert again.trials == ended.trials
    assert load_run(run).kept_in is None


def test_nothing_has_been_simulated(hisearch: Hisearch, ended: StudyResult, tmp_path: Path) -> None:
    run = unfinished_run(ended, tmp_path / "run", 0)
    (run / "journal.jsonl").write_bytes(b"")
    assert hisearch("report", run).code == 0
    assert "no simulation has ended" in (run / "report.html").read_text(encoding="utf-8")
    (run / "journal.jsonl").unlink()
    ran = hisearch("report", run)
    assert (ran.code, "has not begun to simulate" in ran.err) == (1, True)


def test_what_an_earlier_version_did_not_note_is_counted(ended: StudyResult, tmp_path: Path) -> None:
    run = unfinished_run(ended, tmp_path / "run", 6)
    path = run / "journal.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    older = [{key: row[key] for key in row if key not in ("number", "job")} for row in rows[:4]]
    path.write_text("".join(json.dumps(row) + "\n" for row in (*older, *rows[4:])))
    data = input_so_far(run)
    assert data.so_far is not None
    assert (data.so_far.simulations, data.so_far.unknown, len(data.trials)) == (6, 3, 3)


def test_a_number_given_again_leaves_both_trials(ended: StudyResult, tmp_path: Path) -> None:
    run = unfinished_run(ended, tmp_path / "run", 4)
    path = run / "journal.jsonl"
    head, *rows = [json.loads(line) for line in path.read_text().splitlines()]
    numbers = [row["number"] for row in rows]
    rows[-1]["number"] = rows[0]["number"]
    path.write_text("".join(json.dumps(row) + "\n" for row in (head, *rows)))
    progress = read_so_far(path)
    assert len(progress.trials) == 4
    assert progress.latest is not None
    assert progress.latest.number == numbers[0]
    assert progress.trials[-1].deployment == ended.trials[numbers[0]].deployment


def test_a_damaged_journal_is_named(ended: StudyResult, tmp_path: Path) -> None:
    run = unfinished_run(ended, tmp_path / "run", 3)
    path = run / "journal.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    lines[2] = lines[2].replace('"stage"', '"stag"')
    path.write_text("".join(lines))
    with pytest.raises(JournalError, match=r"journal\.jsonl:3: not a trial"):
        read_so_far(path)


def test_no_trace_is_read(ended: StudyResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = unfinished_run(ended, tmp_path / "run", 12)
    monkeypatch.setattr(Study, "trace", property(lambda _: pytest.fail("the trace was read")))
    assert input_so_far(run).highlighted is not None


def test_the_age_of_the_last_simulation_is_said(hisearch: Hisearch, ended: StudyResult, tmp_path: Path) -> None:
    run = unfinished_run(ended, tmp_path / "run", 5)
    before = (run / "journal.jsonl").stat().st_mtime - 3 * 3600
    os.utime(run / "journal.jsonl", (before, before))
    assert hisearch("report", run).code == 0
    assert "3 h before this page was made" in (run / "report.html").read_text(encoding="utf-8")


@pytest.mark.browser
@pytest.mark.skipif(chromium.PROGRAM is None, reason="no Chromium on PATH: the report was NOT looked at by a browser")
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_it_is_drawn_without_complaints(ended: StudyResult, tmp_path: Path, width: int, dark: bool) -> None:
    from hisearch.report.pages.html import write_report

    run = unfinished_run(ended, tmp_path / "run", 17)
    write_report(input_so_far(run), tmp_path / "report.html")
    with chromium.Browser(tmp_path, width=width, dark=dark) as browser:
        browser.open((tmp_path / "report.html").as_uri(), "document.documentElement.dataset.drawn === 'answer'")
        for tab in browser.run("[...document.querySelectorAll('[role=tab]')].map(tab => tab.hash.slice(1))"):
            browser.run(f"document.getElementById('tab-{tab}').click()")
            browser.wait(f"document.documentElement.dataset.drawn === '{tab}'")
            assert browser.run("document.documentElement.scrollWidth") <= width
        assert browser.problems == []
        pictures = Path(__file__).parents[2] / "build" / "pictures"
        pictures.mkdir(parents=True, exist_ok=True)
        browser.picture(pictures / f"report-so-far-{width}.png")
