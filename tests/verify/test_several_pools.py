"""``hisearch verify`` of deployments with several pools: prompts and outputs apart, and unequal workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from hisearch.api.study import StudyResult, load_study
from hisearch.api.verify import verify_run
from hisearch.specs.profile import CorrectionSpec
from tests.verify.documents import STUDY, measure, write_guidellm, write_sglang

APART = "unified: false\n      apart: {fabrics: [roce-200], decode_policies: [power_of_two]}"
MIXED = "unified: false\n      mixed: {policies: [power_of_two]}"


def study(tmp_path_factory: pytest.TempPathFactory, name: str, pools: str, accelerators: str) -> StudyResult:
    folder = tmp_path_factory.mktemp(name)
    text = STUDY.replace("    cache: {tiers: []}\n", f"    cache: {{tiers: []}}\n    pools:\n      {pools}\n")
    (folder / "study.yaml").write_text(text.replace("[l40s]", accelerators))
    return load_study(folder / "study.yaml").run(workers=2, run_dir=folder / "run")


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> StudyResult:
    return study(tmp_path_factory, "apart", APART, "[l40s]")


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> StudyResult:
    return study(tmp_path_factory, "mixed", MIXED, "[l40s, a100-80gb]")
