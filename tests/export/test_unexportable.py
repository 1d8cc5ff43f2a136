"""A recommendation that no command line can express does not end its run."""

from __future__ import annotations

from pathlib import Path

import pytest

from hisearch.api.studies.stored_run import load_run
from hisearch.api.studies.study import load_study
from hisearch.export.engines.launch import ExportError
from hisearch.report.pages.page import cautions
from tests.cli.documents import STUDY

SETTINGS = (
    "spec.space.cache.eviction=[fifo]",
    "spec.space.execution.engines=[sglang]",
    "spec.space.execution.accelerators=[h100-sxm]",
    "spec.workload.trace.generator.requests=60",
    "spec.budget.simulations=6",
)


def test_the_run_says_why_instead(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(STUDY)
    result = load_study(tmp_path / "small.yaml", SETTINGS).run(workers=1, run_dir=tmp_path / "run")
    assert result.recommendation is not None
    assert not (tmp_path / "run" / "recommended").exists()
    reason = (tmp_path / "run" / "recommended.txt").read_text()
    assert "has no --radix-eviction-policy fifo; it takes lru, lfu, slru or priority" in reason
    texts = {caution.title: caution.text for caution in cautions(result.report_input())}
    assert texts["No launch scripts"].startswith(reason.strip().removesuffix("."))
    assert "hisearch export RUN --trial N" in texts["No launch scripts"]
    assert "No launch scripts" in (tmp_path / "run" / "report.html").read_text()
    with pytest.raises(ExportError, match="no --radix-eviction-policy fifo"):
        load_run(tmp_path / "run").export(tmp_path / "out")
    assert not list(tmp_path.glob("out/*"))
