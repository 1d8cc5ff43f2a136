"""Every ``python`` block of README and pages runs unchanged, with the files that the page assumes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hisearch
from hisearch.api.studies.result import StudyResult
from hisearch.api.studies.study import Study
from tests.docs.given import provide
from tests.docs.pages import PAGES, ROOT, Snippet, blocks

BLOCKS = [block for page in PAGES for block in blocks(page, "python")]

#: What keeps a study of a page short.
SHORT = (
    "spec.budget.simulations=24", "spec.workload.limit=300", "spec.confidence.draws=0", "spec.confidence.what_if=0",
)  # fmt: skip


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone's folder: studies are small, figures are not shown, estimators are forgotten afterwards."""
    from hisearch.latency import estimator

    def load(path: str, overrides: Any = ()) -> Study:
        return loader(path, (*overrides, *SHORT))

    loader: Callable[..., Study] = hisearch.load_study
    monkeypatch.chdir(tmp_path)
    (tmp_path / "studies").symlink_to(ROOT / "studies")
    monkeypatch.setattr(hisearch, "load_study", load, raising=False)
    monkeypatch.setattr("plotly.graph_objects.Figure.show", lambda figure: figure.to_json())
    monkeypatch.setattr(estimator, "_FACTORIES", dict(estimator._FACTORIES))
    return tmp_path


def _given(block: Snippet) -> dict[str, Any]:
    """Names that a block's page has introduced, and files."""
    if block.page.name == "report.md":
        from tests.report.conftest import make_input

        return {"data": make_input()}
    if block.page.name == "traces.md":
        provide(["trace", "stats", "conversation_trace.jsonl.gz"], shutil.rmtree)
    return {}


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_block_runs(block: Snippet, place: Path) -> None:
    names: dict[str, Any] = {"__name__": "page"} | _given(block)
    exec(compile(block.text, str(block), "exec"), names)
    result = names.get("result")
    if isinstance(result, StudyResult):
        assert result.recommendation is not None
        assert (result.run_dir / "recommended-vllm" / "README.md").is_file()


def test_a_block_that_fails_is_found(place: Path) -> None:
    broken = Snippet(ROOT / "README.md", 1, "import hisearch\nhisearch.load_studies('x')\n")
    with pytest.raises(AttributeError, match="load_studies"):
        test_a_block_runs(broken, place)


def test_there_are_some() -> None:
    assert {block.page.name for block in BLOCKS} >= {"report.md", "search.md", "latency.md", "traces.md"}
