"""The folder of a run: files come whole or not at all; a new recommendation keeps the former one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hisearch.api.run_folder import ENDED, keep_former, replace_with
from hisearch.report.data.stored import CONFIDENCE


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run that recommended trial 4 and is resumed."""
    (tmp_path / ENDED).mkdir()
    (tmp_path / ENDED / CONFIDENCE).write_text(json.dumps({"recommendation": {"trial": 4}}), encoding="utf-8")
    (tmp_path / "report.html").write_text("trial 4", encoding="utf-8")
    (tmp_path / "recommended").mkdir()
    (tmp_path / "recommended" / "README.md").write_text("trial 4", encoding="utf-8")
    return tmp_path


def test_the_same_answer_takes_the_place_of_the_former(run: Path) -> None:
    assert keep_former(run, 4) == ()
    assert (run / "report.html").is_file()


@pytest.mark.parametrize("recommended", [5, None])
def test_another_answer_keeps_the_former(run: Path, recommended: int | None) -> None:
    (run / "report.1.html").touch()
    kept = keep_former(run, recommended)
    assert [path.name for path in kept] == ["report.2.html", "recommended.1"]
    assert kept[0].read_text(encoding="utf-8") == (kept[1] / "README.md").read_text(encoding="utf-8") == "trial 4"
    assert keep_former(run, recommended) == ()  # killed before the new one was written


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
