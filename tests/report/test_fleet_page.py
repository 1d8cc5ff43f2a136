"""The page over a study of several models."""

import math
import re
from pathlib import Path

import pytest

from hisearch.report.figures.scatter import FRAME, Mark, Scatter
from hisearch.report.pages.fleet_page import Combined, FleetReport, ModelPart, SearchPart, render_fleet
from hisearch.report.words.terms import term_lines
from hisearch.score.quantities import quantity
from hisearch.score.terms import LimitCheck, RejectionCheck, TermCheck
from tests import chromium

AXES = ("ttft_p99", "goodput", "usd_per_hour")


def combined(usd: float, ttft_s: float, chosen: bool = False) -> Combined:
    words = ("7 × h200 · vLLM · fp8 weights · cache_aware", "1 × l40s · vLLM · fp8 weights")
    return Combined({"usd_per_hour": usd, "ttft_p99": ttft_s, "goodput": 22.0 + usd / 100}, words, chosen)


def part(name: str, met: bool = True) -> ModelPart:
    checks = (TermCheck("ttft_p99", 1.2 if met else 2.5, 2.0), RejectionCheck(0.0, 1000, {}))
    words = "7 × h200 · vLLM · fp8 weights · cache_aware"
    return ModelPart(name, words, 24.5, 14000, 0.991, term_lines(checks), f"models/{name}/report.html")


REPORT = FleetReport(
    name="both",
    description="Two models <behind> one router",
    axes=AXES,
    feasible=True,
    usd_per_hour=25.5,
    parts=(part("large"), part("small")),
    coupled=term_lines([LimitCheck("usd_per_hour", 25.5, 40.0, at_least=False)]),
    searches=(
        SearchPart("large", 200, 9, "the search came to its end", "", "models/large/report.html"),
        SearchPart("small", 180, 4, "the search came to its end", "", "models/small/report.html"),
    ),
    front=(combined(25.5, 3.8, chosen=True), *(combined(26.0 + k, 3.0 / (k + 1)) for k in range(45))),
    refused="",
    cautions=(),
)


def test_the_page_says_what_to_buy_and_leads_to_each_models_report() -> None:
    page = render_fleet(REPORT)
    assert "$25.50 per hour, $18,615 per month (730 hours) for 2 models" in page
    assert "every model meets its SLO" in page
    assert page.count('href="models/large/report.html"') == 2
    assert "Two models &lt;behind&gt; one router" in page
    assert "Limits on the whole" in page
    assert "6 more in front.csv" in page
    assert page.count("★") == 1
    assert "<script" not in page
    # Of the columns of figures the price is the first.
    assert re.findall(r'<th scope="col" class="n">([^<]*)</th>', page)[3] == "Cost (USD/hour)"


def test_an_slo_that_is_missed_is_reported() -> None:
    page = render_fleet(REPORT._replace(feasible=False, parts=(part("large"), part("small", met=False))))
    assert "not every model meets its SLO" in page
    assert page.count("✗ missed") == 1


def test_where_nothing_is_recommended_it_says_why() -> None:
    searches = (
        REPORT.searches[0]._replace(failure="its prompts are too long"),
        SearchPart("small", 0, 0, "not begun", "", ""),
    )
    refused = "Nothing that was simulated meets the SLO of large and small."
    page = render_fleet(
        REPORT._replace(refused=refused, feasible=False, parts=(), coupled=(), front=(), searches=searches)
    )
    assert "Nothing is recommended" in page
    assert refused in page
    assert "its prompts are too long" in page
    assert "not begun" in page
    assert "per month" not in page
    assert "<svg" not in page


def test_points_lie_within_the_axes_and_their_labels_are_round() -> None:
    marks = [Mark(27.3, 3.82, "a", True), Mark(41.0, 0.793, "b", False), Mark(30.0, math.inf, "c", False)]
    scatter = Scatter.of(marks, quantity("usd_per_hour"), quantity("ttft_p99"))
    assert scatter.beyond == 1
    assert [spot.text for spot in scatter.spots] == ["b", "a"]
    assert all(FRAME.left <= spot.x <= FRAME.right and FRAME.top <= spot.y <= FRAME.bottom for spot in scatter.spots)
    assert [tick.text for tick in scatter.across] == ["25", "30", "35", "40", "45"]
    assert [tick.text for tick in scatter.up] == ["0", "1", "2", "3", "4"]
    dearer, cheaper = scatter.spots
    assert dearer.x > cheaper.x
    assert dearer.y > cheaper.y  # less TTFT is farther down
    # The place of a point is that of the ticks around it.
    at = {tick.text: tick.at for tick in scatter.across}
    assert cheaper.x == pytest.approx(at["25"] + (27.3 - 25) / 5 * (at["30"] - at["25"]), abs=0.11)


def test_equal_values_have_an_axis_too() -> None:
    scatter = Scatter.of([Mark(3.0, 0.0, "a", True)] * 2, quantity("usd_per_hour"), quantity("ttft_p99"))
    assert len(scatter.across) >= 2
    assert all(math.isfinite(spot.x) and math.isfinite(spot.y) for spot in scatter.spots)
    assert Scatter.of([], quantity("usd_per_hour"), quantity("ttft_p99")).spots == ()


@pytest.mark.browser
@pytest.mark.skipif(chromium.PROGRAM is None, reason="no Chromium on PATH: the page was NOT looked at by a browser")
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_fits_a_browser(tmp_path: Path, width: int) -> None:
    path = tmp_path / "report.html"
    path.write_text(render_fleet(REPORT), encoding="utf-8")
    with chromium.Browser(tmp_path, width=width) as browser:
        browser.open(path.as_uri(), "document.querySelectorAll('svg.scatter circle').length > 0")
        assert browser.problems == []
        assert [url for url in browser.requests if not url.startswith("file:")] == []
        assert browser.run("document.documentElement.scrollWidth") <= width
        assert browser.run("document.querySelectorAll('svg.scatter circle').length") == 2 * len(REPORT.front)
