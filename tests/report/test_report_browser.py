"""The report in a real browser: every figure drawn, hover, filters and picking work, nothing is asked of the network.

Pictures at desktop and phone width, light and dark, are kept in ``build/pictures``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hisearch.report.html import write_report
from tests import chromium
from tests.report.test_report_html import hostile_input

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        chromium.PROGRAM is None, reason="no Chromium on PATH: the report was NOT looked at by a browser"
    ),
]

PICTURES = Path(__file__).parents[2] / "build" / "pictures"
ALL_DRAWN = "document.documentElement.dataset.drawn === 'all'"
FIGURES = 15

#: Marks of trials in a figure in the plane, without the ring around the picked one.
MARKS = (
    """document.querySelector("[data-figure^='plane-']").data.slice(0, -1).reduce((sum, t) => sum + t.x.length, 0)"""
)
RING = """document.querySelector("[data-figure^='plane-']").data.at(-1).x.length"""
SHOWN = "document.getElementById('shown').textContent"


def choose(name: str, value: str) -> str:
    """Script that chooses a filter's value as a user would."""
    return (
        f"(() => {{ const select = document.querySelector('#controls select[name=\"{name}\"]'); "
        f"select.value = '{value}'; select.dispatchEvent(new Event('change')); }})()"
    )


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.report.conftest import make_input

    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(make_input(), path)
    return path


@pytest.mark.parametrize(
    ("name", "width", "dark"), [("desktop", 1280, False), ("dark", 1280, True), ("phone", 390, False)]
)
def test_every_figure_is_drawn_at_every_width(report: Path, tmp_path: Path, name: str, width: int, dark: bool) -> None:
    with chromium.Browser(tmp_path, width=width, dark=dark) as browser:
        browser.open(report.as_uri(), ALL_DRAWN)
        assert browser.problems == []
        assert [url for url in browser.requests if not url.startswith(("file:", "data:", "blob:"))] == []
        drawn = "document.querySelectorAll('[data-figure].js-plotly-plot').length"
        assert browser.run(drawn) == FIGURES
        assert browser.run("document.documentElement.scrollWidth") <= width
        assert "could not be drawn" not in browser.run("document.querySelector('main').innerText")
        PICTURES.mkdir(parents=True, exist_ok=True)
        browser.picture(PICTURES / f"report-{name}.png")


def test_long_names_and_digests_leave_each_other_room_on_a_phone(
    build_input: Any, build_record: Any, tmp_path: Path
) -> None:
    inputs = {
        f"/home/somebody/with/a/long/name/profiles/accelerators/{n}.yaml": "0123456789abcdef" * 4 for n in range(3)
    }
    path = tmp_path / "report.html"
    write_report(build_input(provenance=build_record(inputs=inputs)), path)
    with chromium.Browser(tmp_path, width=390) as browser:
        browser.open(path.as_uri(), ALL_DRAWN)
        assert browser.run("document.documentElement.scrollWidth") <= 390
        heights = "[...document.querySelectorAll('.pairs tr')].map(row => row.offsetHeight)"
        assert max(browser.run(heights)) < 200


def test_the_text_is_there_within_two_seconds(report: Path, tmp_path: Path) -> None:
    with chromium.Browser(tmp_path) as browser:
        browser.open(report.as_uri(), ALL_DRAWN)
        painted_ms = browser.run("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    assert painted_ms < 2000


def test_filters_narrow_every_figure_and_can_be_undone(report: Path, tmp_path: Path) -> None:
    with chromium.Browser(tmp_path) as browser:
        browser.open(report.as_uri(), ALL_DRAWN)
        every = browser.run(MARKS)
        assert browser.run(SHOWN) == f"{every} of {every} shown"
        browser.run(choose("accelerator", "h200"))
        browser.wait(f"{MARKS} < {every}")
        fewer = browser.run(MARKS)
        assert browser.run(SHOWN) == f"{fewer} of {every} shown"
        space = "document.querySelector('[data-figure=pareto]').data.slice(0, -1).reduce((n, t) => n + t.x.length, 0)"
        browser.wait(f"{space} === {fewer}")
        browser.run("document.querySelector('#controls [name=feasible]').click()")
        browser.wait(f"{MARKS} < {fewer}")
        browser.run("document.querySelector('#controls [type=reset]').click()")
        browser.wait(f"{MARKS} === {every}")
        assert browser.problems == []


def test_dragging_along_a_parallel_axis_filters_the_others(report: Path, tmp_path: Path) -> None:
    with chromium.Browser(tmp_path) as browser:
        browser.open(report.as_uri(), ALL_DRAWN)
        every = browser.run(MARKS)
        lines = "document.querySelector('[data-figure=parallel]')"
        browser.run(f"Plotly.restyle({lines}, {{'dimensions[0].constraintrange': [[[-0.3, 0.3]]]}}, 0).then(() => 1)")
        browser.wait(f"{MARKS} < {every}")
        assert browser.run(MARKS) > 0
        browser.run("document.querySelector('#controls [type=reset]').click()")
        browser.wait(f"{MARKS} === {every}")


def test_hover_and_click_show_the_whole_configuration(report: Path, tmp_path: Path) -> None:
    with chromium.Browser(tmp_path) as browser:
        browser.open(report.as_uri(), ALL_DRAWN)
        figure = "document.querySelector(\"[data-figure^='plane-']\")"
        browser.run(f"{figure}.scrollIntoView({{behavior: 'instant', block: 'center'}})")
        highlighted = f"[...{figure}.querySelectorAll('.scatterlayer .trace')].at(-2).querySelector('path.point')"
        centre = "(b => [b.x + b.width / 2, b.y + b.height / 2])"
        x, y = browser.run(f"{centre}({highlighted}.getBoundingClientRect())")
        browser.move(x, y)
        text = f"({figure}.querySelector('.hoverlayer')?.textContent ?? '')"
        browser.wait(f"{text}.includes('Trial')")
        hover = browser.run(text)
        assert "tensor parallel: " in hover
        assert "running requests: " in hover
        assert browser.run(RING) == 0
        browser.click(x, y)
        browser.wait("!document.getElementById('picked').hidden")
        panel = browser.run("document.getElementById('picked').innerText")
        assert "meets the SLO" in panel
        assert "memory fraction" in panel
        browser.wait(f"{RING} === 1")
        browser.run("document.querySelector('#picked button').click()")
        browser.wait(f"{RING} === 0")
        browser.run("document.querySelector('#front button.pick').click()")
        browser.wait(f"{RING} === 1")
        assert browser.problems == []


def test_names_from_the_user_run_nothing(build_input: Any, build_record: Any, build_trial: Any, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report(hostile_input(build_input, build_record, build_trial), path)
    with chromium.Browser(tmp_path) as browser:
        browser.open(path.as_uri(), ALL_DRAWN)
        assert browser.problems == []
        assert browser.run("document.querySelectorAll('[data-figure].js-plotly-plot').length") == FIGURES
        browser.run("document.querySelector('#front tr.chosen button.pick').click()")
        assert "<img src=x" in browser.run("document.getElementById('picked').textContent")
        assert browser.run("document.querySelectorAll('img').length") == 0
