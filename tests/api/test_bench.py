"""``hisearch bench``: its form, not its figures."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hisearch.api import bench
from hisearch.api.bench import comparisons, latency
from hisearch.api.bench.cases import plan_of
from hisearch.specs.documents.catalogue import Catalogue
from tests.cli.conftest import Hisearch

_KEYS = {"name", "requests", "steps", "wall_s", "requests_per_s", "peak_rss_bytes"}
_ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_json_form(hisearch: Hisearch) -> None:
    ran = hisearch("bench", "chat-multiturn", "import", "--repeat", 2, "--json", "--quiet")
    assert (ran.code, ran.err) == (0, "")
    simulated, started = ran.json["benchmarks"]
    for row in (simulated, started):
        assert set(row) >= _KEYS
        assert row["wall_s"]["min"] <= row["wall_s"]["median"] <= row["wall_s"]["max"]
        assert row["peak_rss_bytes"] > 2**20
    assert simulated["requests_per_s"] == pytest.approx(simulated["requests"] / simulated["wall_s"]["median"])
    assert simulated["steps"] > 0
    assert (started["requests"], started["steps"], started["requests_per_s"]) == (None, None, None)
    assert ran.json["machine"]["cores"] >= 1
    assert set(ran.json["machine"]["versions"]) == {"python", "hisearch", "numba", "numpy"}


def test_step_costs_are_timed_whatever_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latency, "EVALUATIONS", 1000)
    compared = latency.step_cost(2)
    assert [point.label for point in compared.points] == [
        f"{tables}, {batch}"
        for tables in ("roofline", "scaled", "tables")
        for batch in ("decodes alone", "with a prompt")
    ]
    assert compared.ratio == max(1e9 * point.request_s for point in compared.points) > 0


@pytest.mark.slow
def test_stage_1_is_timed_on_a_thousand_combinations() -> None:
    combinations, steps = latency.screening()()
    assert combinations >= 1000
    assert steps is None


@pytest.mark.slow
def test_table_and_verdict(hisearch: Hisearch) -> None:
    ran = hisearch("bench", "import", "long-prompts-vllm", "--repeat", 1)
    assert "peak RSS (MiB)" in ran.out
    assert "long-prompts-vllm: " in ran.out
    assert "(time, long over short; goal: at most 2" in ran.out
    assert "import, 1 times" in ran.err


def test_unknown_names_and_files(hisearch: Hisearch) -> None:
    assert hisearch("bench", "warp").code == 2
    assert hisearch("bench", "import", "--trace", "x.jsonl").code == 2
    missing = hisearch("bench", "mooncake-conversation", "--trace", "nowhere.jsonl", "-q")
    assert missing.code == 1
    assert "benchmark mooncake-conversation failed: no file at nowhere.jsonl" in missing.err
    with pytest.raises(ValueError, match="no benchmark 'warp'"):
        bench.measure("warp")
    with pytest.raises(ValueError, match="repeat"):
        bench.measure("import", repeat=0)


def test_what_runs_by_default() -> None:
    assert bench.COMPILE not in bench.default_names()
    assert {
        "mooncake-like",
        "chat-multiturn",
        "coder-6h",
        "coder-6h-vllm",
        "million",
        "flat",
        "threads",
        "import",
    } <= set(bench.default_names())
    assert "mooncake-conversation" in bench.default_names("trace.jsonl.gz")


@pytest.mark.parametrize("name", ["coder-6h", "coder-6h-vllm"])
def test_the_reference_job_is_one_node_with_fp8_weights(name: str) -> None:
    plan = plan_of(bench.CASES[name], Catalogue())
    assert plan.memory.weights_bytes == pytest.approx(480e9 / 8, rel=0.03)  # of one rank


def test_points_are_timed_in_turns_after_a_warm_up() -> None:
    ran: list[str] = []

    def run(label: str) -> tuple[int, int]:
        ran.append(label)
        return (10, 20) if label == "a" else (30, 40)

    points = comparisons.time_in_turns({"a": lambda: run("a"), "b": lambda: run("b")}, 2)
    assert ran == ["a", "b"] * 3
    assert [(point.label, point.requests, point.steps, len(point.wall_s)) for point in points] == [
        ("a", 10, 20, 2),
        ("b", 30, 40, 2),
    ]


def test_flat_takes_heads_of_one_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparisons, "_FLAT_REQUESTS", (500, 1_000))
    compared = comparisons.flat("million-vllm", 1)
    assert [point.requests for point in compared.points] == [500, 1_000]
    short, long = (point.request_s for point in compared.points)
    assert compared.ratio == pytest.approx(max(short, long) / min(short, long))


def test_long_prompts_take_the_same_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparisons, "_LONG_REQUESTS", 2_000)
    short, long = comparisons.long_prompts("million-vllm", 1).points
    assert long.steps == pytest.approx(short.steps, rel=0.01)


def test_threads_need_their_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "enough_cores", lambda: False)
    monkeypatch.setattr(comparisons, "enough_cores", lambda: False)
    assert "threads" not in bench.default_names()
    with pytest.raises(ValueError, match="needs 2 cores"):
        comparisons.threads("chat-multiturn", 1)


def test_a_goal_is_met_from_its_own_side() -> None:
    assert comparisons.Comparison("", (), 1.4, 1.5).met
    assert not comparisons.Comparison("", (), 1.6, 1.5).met
    assert comparisons.Comparison("", (), 1.9, 1.8, more_is_better=True).met
    assert not comparisons.Comparison("", (), 1.7, 1.8, more_is_better=True).met


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_performance", _ROOT / "docs" / "generate_performance.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _results() -> dict[str, Any]:
    wall_s = {"median": 0.25, "min": 0.2, "max": 0.3}
    point = {"label": "short", "requests": 1_000, "steps": 9, "wall_s": wall_s, "us_per_request": 250.0}
    row = {"requests": 1_000, "steps": 9, "wall_s": wall_s, "requests_per_s": 4e3, "peak_rss_bytes": 2**28, "repeat": 7}
    compared = {
        "quantity": "time", "points": [point], "ratio": 2.5, "goal": 2.0, "more_is_better": False, "met": False,
    }  # fmt: skip
    rows = [
        row | {"name": "coder-6h"},
        row | {"name": "long-prompts", "comparison": compared},
        row | {"name": "import"},
    ]
    machine = {
        "cpu": "Abacus", "cores": 2, "memory_bytes": 2**34, "system": "Linux", "versions": {"python": "3"},
        "date": "2026-01-02", "load_average_1min": 0.5,
    }  # fmt: skip
    return {"benchmarks": rows, "machine": machine}


def test_the_page_is_written_between_its_markers_alone() -> None:
    generator = _generator()
    before = (_ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    results = json.loads(json.dumps(_results()))
    after = generator.page(before, results)
    assert "2 cores of Abacus, 16 GiB" in after
    assert (
        "| `coder-6h` | 8 x h200, sglang | 1,000 | 9 | 0.250 | 0.200 to 0.300 | 0.1, missed | 4,000 | 256 | 300 |"
        in after
    )
    assert "| `long-prompts` | time | 2.50 | at most 2, missed | short 250.00 us (200.00 to 300.00) |" in after
    assert _outside(after) == _outside(before)
    assert generator.page(after, results) == after


def _outside(page: str) -> list[str]:
    """The page's lines but for those between markers."""
    kept, inside = [], False
    for line in page.splitlines():
        inside = inside and line != "<!-- end -->"
        if not inside:
            kept.append(line)
        inside = inside or line.startswith("<!-- measured:")
    return kept


def test_a_page_without_its_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="expected the sections machine, simulations"):
        _generator().page("no markers", _results())
