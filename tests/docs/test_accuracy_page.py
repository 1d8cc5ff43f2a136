"""The measured sections of both accuracy pages: their markers, their places, and absent data."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def accuracy() -> ModuleType:
    """``docs/generate_accuracy.py``, whose own modules lie next to its folder."""
    sys.path.insert(0, str(DOCS))
    try:
        return importlib.import_module("generate_accuracy")
    finally:
        sys.path.remove(str(DOCS))


def test_every_section_has_its_markers_on_the_page(accuracy: ModuleType) -> None:
    page = "\n".join(path.read_text(encoding="utf-8") for path in (accuracy.FRONT, accuracy.PAGE))
    marked = re.findall(r"^<!-- (\S+): written by docs/generate_accuracy\.py -->$", page, flags=re.MULTILINE)
    assert sorted(marked) == sorted(accuracy.SECTIONS)
    assert sorted(re.findall(r"^<!-- (\S+): end -->$", page, flags=re.MULTILINE)) == sorted(marked)


def test_a_section_is_written_between_its_markers_alone(accuracy: ModuleType) -> None:
    begin, end = accuracy.BEGIN.format("batch"), accuracy.END.format("batch")
    page = f"before\n{begin}\nold\n{end}\nafter\n"
    once = accuracy.written(page, "batch", "new")
    assert once == f"before\n{begin}\n\nnew\n\n{end}\nafter\n"
    assert accuracy.written(once, "batch", "new") == once


def test_the_picture_of_mlperf_has_a_point_for_every_cell_of_the_page(accuracy: ModuleType) -> None:
    page = accuracy.PAGE.read_text(encoding="utf-8")
    cells = re.findall(r"^\| \S+ \| \d+ × \S+ \| (\w+) \| (\w+) \| (\d+) \|.* ([\d.]+) \|$", page, flags=re.MULTILINE)
    named = [
        {"scenario": scenario, "engine": engine, "submissions": int(count), "ratio": float(ratio), "skipped": ""}
        for scenario, engine, count, ratio in cells
    ]
    assert len(named) > 30
    table = accuracy.mlperf_table
    text = table.figure(named)
    points = [element for element in ElementTree.fromstring(text).iter() if element.tag.endswith("circle")]
    assert len(points) == len(named)
    filled = sum(point.get("fill") != "white" for point in points)
    assert filled == sum(cell["submissions"] >= table.MANY for cell in named)
    assert (accuracy.IMAGES / table.FIGURE).read_text(encoding="utf-8") == text
    skipped = table.figure([*named, {"scenario": "Server", "skipped": "no answers"}])
    assert skipped == text


def test_what_needs_data_that_are_absent_is_named_and_left_alone(
    accuracy: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "accuracy.md"
    page.write_text("as it was", encoding="utf-8")
    monkeypatch.setattr(accuracy, "PAGE", page)
    monkeypatch.setattr(accuracy, "FRONT", page)
    needing = [name for name in accuracy.SECTIONS if name not in ("memory", "hosts", "expect")]
    monkeypatch.setattr(sys, "argv", ["generate_accuracy.py", "--write", "--shared", str(tmp_path), "--only", *needing])
    assert accuracy.main() == 1
    stderr = capsys.readouterr().err
    assert all(f"SKIPPED {name}: no " in stderr for name in needing)
    assert page.read_text(encoding="utf-8") == "as it was"


def test_fitted_host_work_is_carried_into_profiles_that_have_it_already_unchanged(
    accuracy: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = {
        name: (accuracy.PROFILES / name).read_text(encoding="utf-8") for name in ("vllm-b200.yaml", "roofline.yaml")
    }
    for name, text in shipped.items():
        (tmp_path / name).write_text(text.replace("step_s: 0", "step_s: 1", 1), encoding="utf-8")
    monkeypatch.setattr(accuracy, "PROFILES", tmp_path)
    accuracy.carry_hosts()
    assert (tmp_path / "vllm-b200.yaml").read_text(encoding="utf-8") == shipped["vllm-b200.yaml"]
    assert (tmp_path / "roofline.yaml").read_text(encoding="utf-8") != shipped["roofline.yaml"]


def test_a_part_of_the_tables_is_left_out_for_as_long_as_asked(accuracy: ModuleType) -> None:
    before = accuracy.operator_tables.attention_tables
    with accuracy.without(("skew", "late")):
        assert accuracy.operator_tables.attention_tables is not before
    assert accuracy.operator_tables.attention_tables is before


def test_planned_memory_is_listed_with_what_engines_logged(accuracy: ModuleType) -> None:
    page, table = accuracy.PAGE.read_text(encoding="utf-8"), accuracy.memory(accuracy.Data(DOCS, refit=False))
    assert table.count("\n") == 1 + len(accuracy.kv_logs.LOGGED)
    assert table in page
