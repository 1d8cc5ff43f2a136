"""Files that hisearch wrote, damaged since."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hisearch.base.json_file import read_json


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    path.write_text(json.dumps({"a": [1, 2.5, "ü"]}), encoding="utf-8")
    assert read_json(path) == {"a": [1, 2.5, "ü"]}


@pytest.mark.parametrize("kept", [0, 1, 9, 15])
def test_a_file_cut_off_is_named_with_its_line(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "kept.json"
    path.write_text(json.dumps({"a": 1, "b": 2}, indent=1)[:kept], encoding="utf-8")
    with pytest.raises(ValueError, match=r"kept\.json:\d: expected JSON as hisearch wrote it; .* column \d"):
        read_json(path)


def test_other_bytes_are_no_json(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"kept\.json: expected JSON as hisearch wrote it"):
        read_json(path)
