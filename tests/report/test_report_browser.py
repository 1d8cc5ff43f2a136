"""The report in a real browser: every figure drawn, hover, filters and picking work, nothing is asked of the network.

Pictures at desktop and phone width, light and dark, are kept in ``build/pictures``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hisearch.report.pages.html import write_report
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


@pytest.fixture(scope="module")
def opened(report: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Browser]:
    """The report at desktop width: software takes five seconds to draw it."""
    with chromium.Browser(tmp_path_factory.mktemp("browser")) as browser:
        browser.open(report.as_uri(), ALL_DRAWN)
        yield browser


@pytest.fixture
def page(opened: chromium.Browser) -> chromium.Browser:
    """The same with no filter set and no mark picked, whatever another test did."""
    opened.run("document.querySelector('#controls [type=reset]').click()")
    opened.run("document.getElementById('picked').hidden || document.querySelector('#picked button').click()")
    opened.wait(f"{RING} === 0 && {SHOWN} === `${{{MARKS}}} of ${{{MARKS}}} shown`")
    return opened


def test_every_figure_is_drawn_on_a_desktop(opened: chromium.Browser) -> None:
    _check_drawn(opened, "desktop", 1280)


@pytest.mark.parametrize(("name", "width", "dark"), [("dark", 1280, True), ("phone", 390, False)])
def test_every_figure_is_drawn_elsewhere(report: Path, tmp_path: Path, name: str, width: int, dark: bool) -> None:
    with chromium.Browser(tmp_path, width=width, dark=dark) as browser:
        browser.open(report.as_uri(), ALL_DRAWN)
        _check_drawn(browser, name, width)


def _check_drawn(browser: chromium.Browser, name: str, width: int) -> None:
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
        browser.open(path.as_uri(), "document.readyState === 'complete'")  # of its text alone
        assert browser.run("document.documentElement.scrollWidth") <= 390
        heights = "[...document.querySelectorAll('.pairs tr')].map(row => row.offsetHeight)"
        assert max(browser.run(heights)) < 200


def test_the_text_is_there_within_two_seconds(page: chromium.Browser) -> None:
    painted_ms = page.run("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    assert painted_ms < 2000


def test_filters_narrow_every_figure_and_can_be_undone(page: chromium.Browser) -> None:
    every = page.run(MARKS)
    assert page.run(SHOWN) == f"{every} of {every} shown"
    page.run(choose("accelerator", "h200"))
    page.wait(f"{MARKS} < {every}")
    fewer = page.run(MARKS)
    assert page.run(SHOWN) == f"{fewer} of {every} shown"
    space = "document.querySelector('[data-figure=pareto]').data.slice(0, -1).reduce((n, t) => n + t.x.length, 0)"
    page.wait(f"{space} === {fewer}")
    page.run("document.querySelector('#controls [name=feasible]').click()")
    page.wait(f"{MARKS} < {fewer}")
    page.run("document.querySelector('#controls [type=reset]').click()")
    page.wait(f"{MARKS} === {every}")
    assert page.problems == []


def test_dragging_along_a_parallel_axis_filters_the_others(page: chromium.Browser) -> None:
    every = page.run(MARKS)
    lines = "document.querySelector('[data-figure=parallel]')"
    page.run(f"Plotly.restyle({lines}, {{'dimensions[0].constraintrange': [[[-0.3, 0.3]]]}}, 0).then(() => 1)")
    page.wait(f"{MARKS} < {every}")
    assert page.run(MARKS) > 0
    page.run("document.querySelector('#controls [type=reset]').click()")
    page.wait(f"{MARKS} === {every}")


def test_hover_and_click_show_the_whole_configuration(page: chromium.Browser) -> None:
    figure = "document.querySelector(\"[data-figure^='plane-']\")"
    page.run(f"{figure}.scrollIntoView({{behavior: 'instant', block: 'center'}})")
    highlighted = f"[...{figure}.querySelectorAll('.scatterlayer .trace')].at(-2).querySelector('path.point')"
    centre = "(b => [b.x + b.width / 2, b.y + b.height / 2])"
    x, y = page.run(f"{centre}({highlighted}.getBoundingClientRect())")
    page.move(x, y)
    text = f"({figure}.querySelector('.hoverlayer')?.textContent ?? '')"
    page.wait(f"{text}.includes('Trial')")
    hover = page.run(text)
    assert "tensor parallel: " in hover
    assert "running requests: " in hover
    assert page.run(RING) == 0
    page.click(x, y)
    page.wait("!document.getElementById('picked').hidden")
    panel = page.run("document.getElementById('picked').innerText")
    assert "meets the SLO" in panel
    assert "memory fraction" in panel
    page.wait(f"{RING} === 1")
    page.run("document.querySelector('#picked button').click()")
    page.wait(f"{RING} === 0")
    page.run("document.querySelector('#front button.pick').click()")
    page.wait(f"{RING} === 1")
    assert page.problems == []


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
