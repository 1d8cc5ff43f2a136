from __future__ import annotations

from pathlib import Path

import pytest

from tests.specs.files import STUDY, write


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory outside the repository that holds ``studies/mine.yaml`` and its trace."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "studies/mine.yaml", STUDY)
    (tmp_path / "studies/trace.csv").write_text("arrival_s,input_tokens,output_tokens\n0,10,10\n")
    return tmp_path
