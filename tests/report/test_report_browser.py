"""The report in a real browser: every figure drawn, hover, filters and picking work, nothing is asked of the network.

Pictures at desktop and phone width, light and dark, are kept in ``build/pictures``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hisearch.report.pages.html import write_report
from tests import chromium
from tests.report.test_report_html import confidence_of, hostile_input

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        chromium.PROGRAM is None, reason="no Chromium on PATH: the report was NOT looked at by a browser"
    ),
]

PICTURES = Path(__file__).parents[2] / "build" / "pictures"
TABS = ("answer", "why", "trades", "sensitivity", "load", "cache", "time", "trials", "provenance")
READY = "document.documentElement.dataset.drawn === 'answer'"
FIGURES = 16

#: Labels of the open tab that lie on each other, and what sticks out of the page.
UNTIDY = """(() => {
  const out = [], wide = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > wide) out.push('scrolls sideways');
  for (const figure of document.querySelectorAll('section:not([hidden]) :is(svg.decision, .plot)')) {
    const texts = [...figure.querySelectorAll('text')].map((text) => [text.textContent, text.getBoundingClientRect()])
      .filter(([text, box]) => text && box.width);
    texts.forEach(([text, a], i) => texts.slice(i + 1).forEach(([other, b]) => {
      const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (across > 2 && down > 5 && text !== other) out.push(`${text} | ${other}`);
    }));
  }
  for (const element of document.querySelectorAll('section:not([hidden]) *')) {
    if (element.closest('svg, .plot, .scroll, details:not([open]), .hidden')) continue;
    if (element.getBoundingClientRect().right > wide + 1) out.push(`${element.tagName} ${element.className}`);
  }
  for (const cell of document.querySelectorAll('section:not([hidden]) tbody th')) {
    const box = cell.getBoundingClientRect();
    if (box.width && (box.width < 40 || box.height > 8 * box.width)) out.push(`squeezed: ${cell.textContent}`);
  }
  for (const name of document.querySelectorAll('.gpus b span')) {
    if (name.getClientRects().length > 1) out.push(`wraps: ${name.textContent}`);
  }
  for (const row of document.querySelectorAll('#prices tbody tr')) {
    if (row.offsetHeight > 110) out.push(`tall: ${row.textContent}`);
  }
  return out;
})()"""

#: What a screen reader or a keyboard misses: names, ids used twice, tabs that are none, text without contrast.
INACCESSIBLE = """(() => {
  const out = [], seen = new Set();
  for (const element of document.querySelectorAll('[id]')) {
    if (seen.has(element.id)) out.push(`id twice: ${element.id}`);
    seen.add(element.id);
  }
  for (const element of document.querySelectorAll('button, a, select, input')) {
    const name = element.getAttribute('aria-label') || element.textContent || element.closest('label')?.textContent;
    if (!element.closest('.modebar') && !name?.trim()) out.push(`no name: ${element.outerHTML}`);
  }
  for (const svg of document.querySelectorAll('section svg:not(.plot svg)')) {
    if (!svg.closest('[aria-hidden]') && !svg.getAttribute('aria-label')) out.push('a picture without a text');
  }
  const light = (colour) => {
    const parts = colour.match(/[\\d.]+/g).slice(0, 3).map((part) => part / 255);
    const [r, g, b] = parts.map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    const colour = getComputedStyle(element).backgroundColor;
    return /, 0\\)$|transparent/.test(colour) && element.parentElement ? ground(element.parentElement) : colour;
  };
  const walk = document.createTreeWalker(document.querySelector('section:not([hidden])'), NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const element = walk.currentNode.parentElement;
    if (!walk.currentNode.textContent.trim() || element.closest('svg, .plot, script')) continue;
    const [a, b] = [light(getComputedStyle(element).color), light(ground(element))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) out.push(`contrast: ${element.textContent.slice(0, 40)}`);
  }
  return out;
})()"""


def show(browser: chromium.Browser, tab: str) -> None:
    """Open a tab, and wait for its figures."""
    browser.run(f"document.getElementById('tab-{tab}').click()")
    browser.wait(f"document.documentElement.dataset.drawn === '{tab}'")


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
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with everything that a finished study knows."""
    from tests.report.conftest import make_input

    path = tmp_path_factory.mktemp("whole") / "report.html"
    cautions = {
        "formats": "It serves fp8 weights: answers differ.",
        "cut_short": "The budget ended it: a cheaper one may.",
    }
    write_report(make_input(confidence=confidence_of(make_input()), **cautions), path)
    return path


@pytest.fixture(scope="module")
def opened(report: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Browser]:
    """The report at desktop width, with all trials' figures."""
    with chromium.Browser(tmp_path_factory.mktemp("browser")) as browser:
        browser.open(report.as_uri(), READY)
        show(browser, "trials")
        yield browser


@pytest.fixture
def page(opened: chromium.Browser) -> chromium.Browser:
    """The same with no filter set and no mark picked, whatever another test did."""
    show(opened, "trials")
    opened.run("document.querySelector('#controls [type=reset]').click()")
    opened.run("document.getElementById('picked').hidden || document.querySelector('#picked button').click()")
    opened.wait(f"{RING} === 0 && {SHOWN} === `${{{MARKS}}} of ${{{MARKS}}} shown`")
    return opened


@pytest.mark.parametrize(
    ("width", "height", "dark"),
    [
        (390, 844, True),
        pytest.param(820, 1180, False, marks=pytest.mark.slow),
        pytest.param(1400, 900, False, marks=pytest.mark.slow),
        (1920, 1080, True),
    ],
)
def test_every_tab_is_tidy_and_accessible(whole: Path, tmp_path: Path, width: int, height: int, dark: bool) -> None:
    with chromium.Browser(tmp_path, width=width, height=height, dark=dark) as browser:
        browser.open(whole.as_uri(), READY)
        assert browser.run("[...document.querySelectorAll('[role=tab]')].map(tab => tab.hash.slice(1))") == list(TABS)
        PICTURES.mkdir(parents=True, exist_ok=True)
        for tab in TABS:
            show(browser, tab)
            assert browser.run(UNTIDY) == [], tab
            assert browser.run(INACCESSIBLE) == [], tab
            assert "could not be drawn" not in browser.run("document.querySelector('main').innerText")
            browser.picture(PICTURES / f"report-{tab}-{width}.png")
        assert browser.run("document.querySelectorAll('[data-figure].js-plotly-plot').length") == FIGURES
        assert browser.problems == []
        assert [url for url in browser.requests if not url.startswith(("file:", "data:", "blob:"))] == []


def test_the_first_screen_needs_no_scrolling(whole: Path, tmp_path: Path) -> None:
    with chromium.Browser(tmp_path, width=1400, height=900) as browser:
        browser.open(whole.as_uri(), READY)
        assert browser.run("document.querySelector('.trade').getBoundingClientRect().bottom") <= 900
        assert browser.run("typeof Plotly") == "undefined", "the first screen waits for no library"


def test_tabs_follow_keys_addresses_and_history(whole: Path, tmp_path: Path) -> None:
    chosen = "document.querySelector('[aria-selected=true]').hash"
    key = "document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {{key: '{}', bubbles: true}}))"
    with chromium.Browser(tmp_path) as browser:
        browser.open(whole.as_uri() + "#prices", "document.documentElement.dataset.drawn === 'provenance'")
        assert browser.run(chosen) == "#provenance"
        browser.open(whole.as_uri() + "#trials?accelerator=h200&feasible=1", f"{SHOWN}.includes(' of ')")
        browser.wait("document.querySelector('#controls [name=accelerator]').value === 'h200'")
        assert browser.run("document.querySelector('#controls [name=feasible]').checked")
        browser.run("document.getElementById('tab-trials').focus()")
        browser.run(key.format("ArrowRight"))
        assert (browser.run(chosen), browser.run("document.activeElement.hash")) == ("#provenance", "#provenance")
        browser.run(key.format("ArrowRight"))
        assert browser.run(chosen) == "#answer"
        browser.run(key.format("End"))
        assert browser.run("location.hash") == "#provenance"
        assert browser.run("document.querySelectorAll('[role=tab][tabindex=\"0\"]').length") == 1
        browser.run("history.back()")
        browser.wait(f"{chosen} === '#answer'")


def test_a_bar_ends_beyond_the_dashes_where_the_bound_is_missed(whole: Path, tmp_path: Path) -> None:
    with chromium.Browser(tmp_path) as browser:
        browser.open(whole.as_uri() + "#sensitivity", "document.documentElement.dataset.drawn === 'sensitivity'")
        rows = browser.run(
            "[...document.querySelectorAll('.settings .bar')].map(cell => [parseFloat(cell.textContent) / 100, "
            "...[...cell.querySelectorAll('i')].map(bar => bar.getBoundingClientRect())"
            ".flatMap(box => [box.left, box.right])])"
        )
        assert rows
        for use, start, end, at, _ in rows:
            assert (end - start) / (at - start) == pytest.approx(use, abs=0.02)


def test_the_colour_scheme_can_be_chosen(whole: Path, tmp_path: Path) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    with chromium.Browser(tmp_path) as browser:
        browser.open(whole.as_uri(), READY)
        light = browser.run(ground)
        browser.run("document.getElementById('theme').click()")
        assert browser.run(ground) != light
        assert browser.run("document.getElementById('theme').getAttribute('aria-label')") == "Light colours"
        browser.run("document.getElementById('theme').click()")
        assert browser.run(ground) == light


def test_paper_and_a_page_without_scripts_show_everything(whole: Path, tmp_path: Path) -> None:
    shown = "[...document.querySelectorAll('section.panel')].filter(panel => panel.offsetHeight > 50).length"
    with chromium.Browser(tmp_path) as browser:
        browser.open(whole.as_uri(), READY)
        assert browser.run(shown) == 1
        browser.run("window.dispatchEvent(new Event('beforeprint'))")
        assert browser.run(shown) == len(TABS)
        assert browser.run("document.querySelectorAll('[data-figure].js-plotly-plot').length") == FIGURES
        browser.run("window.dispatchEvent(new Event('afterprint'))")
        assert browser.run(shown) == 1
    text = re.sub(r"<script.*?</script>", "", whole.read_text(encoding="utf-8"), flags=re.DOTALL)
    path = tmp_path / "silent.html"
    path.write_text(text, encoding="utf-8")
    with chromium.Browser(tmp_path / "second", width=390) as browser:
        browser.open(path.as_uri(), "document.readyState === 'complete'")
        assert browser.run(shown) == len(TABS)
        assert browser.run("document.documentElement.scrollWidth") <= 390


def test_long_names_and_digests_leave_each_other_room_on_a_phone(
    build_input: Any, build_record: Any, tmp_path: Path
) -> None:
    inputs = {
        f"/home/somebody/with/a/long/name/profiles/accelerators/{n}.yaml": "0123456789abcdef" * 4 for n in range(3)
    }
    path = tmp_path / "report.html"
    write_report(build_input(provenance=build_record(inputs=inputs)), path)
    with chromium.Browser(tmp_path, width=390) as browser:
        browser.open(path.as_uri() + "#provenance", "document.readyState === 'complete'")
        browser.run("document.querySelectorAll('details').forEach(details => { details.open = true; })")
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
        browser.open(path.as_uri(), READY)
        for tab in browser.run("[...document.querySelectorAll('[role=tab]')].map(tab => tab.hash.slice(1))"):
            show(browser, tab)
        assert browser.problems == []
        assert browser.run("document.querySelectorAll('[data-figure].js-plotly-plot').length") == FIGURES
        browser.run("document.querySelector('#front tr.chosen button.pick').click()")
        assert "<img src=x" in browser.run("document.getElementById('picked').textContent")
        assert browser.run("document.querySelectorAll('img').length") == 0
