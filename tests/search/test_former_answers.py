"""A run with a new recommendation keeps the former one. An export error says whether the engine was tried."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from hisearch.api.runs.run_folder import ENDED, keep_former
from hisearch.api.studies.result import StudyResult
from hisearch.report.data.stored import CONFIDENCE
from tests.search.fakes import OBJECTIVES, make_trial


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


def test_an_engine_that_was_not_tried_is_no_engine_that_misses() -> None:
    trials = (make_trial(0, 1.0, 5.0, 4.0), make_trial(1, 3.0, 5.0, 2.0, feasible=False, engine="vllm"))
    space = SimpleNamespace(spec=SimpleNamespace(execution=SimpleNamespace(engines=["sglang", "vllm"])))
    study = SimpleNamespace(objectives=OBJECTIVES)
    result = SimpleNamespace(trials=trials, resolved=SimpleNamespace(space=space, study=study))

    def best(engine: str | None) -> int:
        return StudyResult.best_on(result, engine).number  # type: ignore[arg-type]

    assert best("sglang") == best(None) == 0
    with pytest.raises(ValueError, match="no deployment on vllm meets the SLO"):
        best("vllm")
    with pytest.raises(ValueError, match="no deployment on trtllm was tried: the space has sglang and vllm"):
        best("trtllm")
