"""What the result of a study gives: exports, figures, the report's input."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from hisearch.api.studies.result import StudyResult
from hisearch.specs.studies.study import ConfidenceSpec, RecommendSpec
from tests.search.fakes import OBJECTIVES, make_trial


def test_exports_by_engine_and_into_a_folder(result: StudyResult, tmp_path: Path) -> None:
    elsewhere = replace(result, run_dir=tmp_path / "run", kept_in=result.run_dir)
    for engine in ("sglang", "vllm"):
        files = elsewhere.export(engine)
        assert any(f"{engine}/run.sh" in str(path) for path in files)
        assert all(path.is_relative_to(tmp_path / "run" / f"recommended-{engine}") for path in files)
    assert all(path.is_relative_to(tmp_path / "out") for path in result.export(tmp_path / "out"))


def test_figures_are_drawn(result: StudyResult) -> None:
    for figure in (
        result.figure.pareto(),
        result.figure.parallel(),
        result.figure.progress(),
        result.figure.capacity(),
    ):
        assert len(figure.data) > 0


def test_costs_in_the_report_add_up_to_the_trials(result: StudyResult) -> None:
    by_number = {trial.number: trial for trial in result.trials}
    rows = result.report_input().costs
    assert rows[0].trial == result.report_input().highlighted.number
    for row in rows:
        assert sum(usd for _, usd in row.parts) == pytest.approx(by_number[row.trial].metrics["usd_per_hour"])


def test_an_engine_that_was_not_tried_is_no_engine_that_misses() -> None:
    trials = (make_trial(0, 1.0, 5.0, 4.0), make_trial(1, 3.0, 5.0, 2.0, feasible=False, engine="vllm"))
    space = SimpleNamespace(spec=SimpleNamespace(execution=SimpleNamespace(engines=["sglang", "vllm"])))
    study = SimpleNamespace(objectives=OBJECTIVES, recommend=RecommendSpec(), confidence=ConfidenceSpec())
    resolved = SimpleNamespace(space=space, study=study)
    result = SimpleNamespace(trials=trials, recommendation=None, resolved=resolved, confidence=None)

    def best(engine: str | None) -> int:
        return StudyResult.choice_on(result, engine).trial.number  # type: ignore[arg-type]

    assert best("sglang") == best(None) == 0
    with pytest.raises(ValueError, match="no deployment on vllm meets the SLO"):
        best("vllm")
    with pytest.raises(ValueError, match="no deployment on trtllm was tried: the space has sglang and vllm"):
        best("trtllm")
