"""Where a run's figures come from, and how the inputs of a stored run differ."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from hisearch.api.provenance import format_simulations, hisearch_version, price_notes, profile_note, what_differs
from hisearch.api.run_state import RunReader
from hisearch.api.studies.reporting import input_so_far
from hisearch.api.studies.result import StudyResult
from hisearch.api.studies.study import load_study
from hisearch.cli.views import run as run_view


def facts(whole: int, slices: int, other_loads: int, replayed: int) -> dict[str, Any]:
    counts = {"whole_trace": whole, "slices": slices, "other_loads": other_loads}
    return {"budget": {**counts, "trials": whole + slices + other_loads}, "run": {"replayed": replayed}}


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        ((1, 0, 0, 0), "1 simulation"),
        ((4, 5, 0, 0), "9 simulations: 4 of the whole trace and 5 of slices of it"),
        ((9, 0, 0, 9), "9 simulations; none of them new: all are stored ones of an earlier run"),
        (
            (4, 3, 2, 3),
            "9 simulations: 4 of the whole trace, 3 of slices of it and 2 at other loads; 3 of them stored ones of an "
            "earlier run",
        ),
    ],
)
def test_simulations_are_told_apart(counts: tuple[int, int, int, int], text: str) -> None:
    assert format_simulations(facts(*counts)) == text


def test_prices_and_profile_are_those_of_the_study(result: StudyResult) -> None:
    notes = {note.item: note for note in price_notes(result.resolved)}
    assert set(notes) == {"h100-sxm", "l40s", "ddr5"}
    assert notes["ddr5"].unit == "USD/GiB/hour"
    assert all(note.price > 0 and note.source for note in notes.values())
    assert result.recommendation is not None
    trial = result.recommendation.trial
    chosen, all_of_them = (profile_note(result.resolved, which) for which in (trial, None))
    assert chosen.relative_error <= all_of_them.relative_error
    assert result.status_of(trial).title


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (["spec.seed=1"], "spec.seed is 0 in {study}, and 1 now"),
        (
            ["spec.seed=1", "spec.workload.load=2"],
            "spec.workload.load is 1 in {study}, and 2 now; spec.seed differs too",
        ),
        ([], "the study is the same, but hisearch's kernels were others, or what a file stands for was"),
    ],
)
def test_the_first_key_that_differs_is_named(
    result: StudyResult, study_file: Path, tmp_path: Path, settings: list[str], text: str
) -> None:
    for name in ("study.yaml", "provenance.json"):
        shutil.copy(result.run_dir / name, tmp_path)
    resolved = load_study(study_file, settings).resolved
    assert what_differs(tmp_path, resolved) == text.format(study=tmp_path / "study.yaml")


def test_another_version_is_named(result: StudyResult, study_file: Path, tmp_path: Path) -> None:
    shutil.copy(result.run_dir / "study.yaml", tmp_path)
    (tmp_path / "provenance.json").write_text('{"versions": {"hisearch": "0.0.1"}}', encoding="utf-8")
    assert what_differs(tmp_path, load_study(study_file).resolved) == (
        f"the study is the same, but hisearch was 0.0.1, and is {hisearch_version()} now"
    )


def test_one_count_of_simulations_stands_everywhere(result: StudyResult) -> None:
    budget, total = result.provenance["budget"], result.simulations
    assert budget["simulations_used"] == budget["whole_trace"] + budget["slices"] + budget["other_loads"] == total
    assert budget["within_budget"] <= total
    text = format_simulations(result.provenance)
    assert text.startswith(f"{total:,} simulation")
    assert result.report_input().provenance.settings["Simulated"] == text
    assert run_view.to_dict(result)["simulations"] == total
    assert RunReader().state(result.run_dir).simulations == total
    assert input_so_far(result.run_dir).provenance.settings["Simulated"] == text
