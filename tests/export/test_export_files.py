"""An export replaces its own files, and nobody else's."""

from __future__ import annotations

from pathlib import Path

import pytest

from hisearch.export.engines.launch import ExportError
from hisearch.export.files import MANIFEST, is_untouched, write_export

FIRST = {"README.md": "one", "vllm/run.sh": "#!/bin/sh\n", "alternatives/sglang/run.sh": "#!/bin/sh\n"}
SECOND = {"README.md": "two", "sglang/run.sh": "#!/bin/sh\n"}


def content(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file() and path.name != MANIFEST
    }


def test_a_second_export_leaves_nothing_of_the_first(tmp_path: Path) -> None:
    write_export(tmp_path, FIRST)
    assert is_untouched(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "alternatives" / "mine.txt").write_text("mine")
    assert write_export(tmp_path, SECOND) == [tmp_path / name for name in SECOND]
    assert content(tmp_path) == SECOND | {"notes.txt": "mine", "alternatives/mine.txt": "mine"}
    assert not (tmp_path / "vllm").exists()
    assert not (tmp_path / "alternatives" / "sglang").exists()
    assert not is_untouched(tmp_path)


@pytest.mark.parametrize("name", ["README.md", "vllm/run.sh"])
def test_a_file_that_was_changed_is_refused_and_all_stays(tmp_path: Path, name: str) -> None:
    write_export(tmp_path, FIRST)
    (tmp_path / name).write_text("changed")
    assert not is_untouched(tmp_path)
    before = content(tmp_path)
    with pytest.raises(ExportError, match=rf"holds {name}, not as an export wrote it: move it away"):
        write_export(tmp_path, SECOND)
    assert content(tmp_path) == before


@pytest.mark.parametrize("name", ["README.md", "deployment.yaml", MANIFEST])
def test_a_file_of_somebody_elses_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text('{"mine": 1}')
    with pytest.raises(ExportError, match=name):
        write_export(tmp_path, FIRST)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_link_in_the_way_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target.md"
    target.write_text("one")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "README.md").symlink_to(target)
    with pytest.raises(ExportError, match=r"README\.md"):
        write_export(tmp_path / "out", FIRST)
    assert target.read_text() == "one"


def test_a_manifest_names_no_file_outside(tmp_path: Path) -> None:
    outside = tmp_path / "outside.txt"
    outside.write_text("one")
    out = tmp_path / "out"
    write_export(out, {"README.md": "one"})
    (out / MANIFEST).write_text((out / MANIFEST).read_text().replace("README.md", "../outside.txt"))
    (out / "README.md").unlink()
    write_export(out, SECOND)
    assert outside.read_text() == "one"


def test_a_linked_folder_in_the_way_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "vllm").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ExportError, match=r"vllm/run\.sh"):
        write_export(tmp_path / "out", FIRST)
    assert list((tmp_path / "elsewhere").iterdir()) == []
