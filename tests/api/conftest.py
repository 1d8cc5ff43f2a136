"""A small study, run once for all tests of the API that only look at its result."""

from __future__ import annotations

from pathlib import Path

import pytest

from hisearch.api.studies.result import StudyResult
from hisearch.api.studies.study import load_study
from tests.api.documents import STUDY
from tests.cli.conftest import hisearch, workdir

__all__ = ["hisearch", "workdir"]


@pytest.fixture(scope="session")
def study_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("study") / "small.yaml"
    path.write_text(STUDY)
    return path


@pytest.fixture(scope="session")
def result(study_file: Path) -> StudyResult:
    return load_study(study_file).run(workers=1, run_dir=study_file.parent / "run")
