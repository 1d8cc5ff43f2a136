"""The written report: self-contained, escaped, small enough."""

from __future__ import annotations

import html.parser
import json
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from hisearch.report.data.confidence import Candidate, Confidence, Rule
from hisearch.report.pages.html import render, write_report
from hisearch.report.words.settings import settings
from hisearch.score.quantities import usd
from hisearch.score.terms import TermCheck
from hisearch.search.model.trial import Recommendation

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"


class Page(html.parser.HTMLParser):
    """Collects tags with their attributes, and the text of scripts with an id."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.scripts: dict[str, str] = {}
        self._inside = ""
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        self._inside = self.tags[-1][1].get("id", "") if tag == "script" else ""

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.scripts[self._inside] = self.scripts.get(self._inside, "") + data

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.tags if name == tag]


def without_plotly(source: str) -> str:
    """The page without the library's own code, which mentions tags and addresses of its own."""
    return re.sub(r'<script type="text/plain".*?</script>', "", source, flags=re.DOTALL)


def test_file_is_whole_offline_and_at_most_6_mb(build_input: Any, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report(build_input(5000, progress={n: float(n) for n in range(5000)}), path)
    assert list(tmp_path.iterdir()) == [path]
    assert path.stat().st_size <= 6_000_000
    source = path.read_text(encoding="utf-8")
    assert source.count("plotly.js v") == 1
    page = Page(without_plotly(source))
    assert not page.all("link")
    assert not [a for _, a in page.tags if "src" in a]
    assert not [a["href"] for _, a in page.tags if not a.get("href", "#").startswith("#")]
    assert "http:" not in without_plotly(source)
    assert "https:" not in without_plotly(source)
    policy = next(a["content"] for a in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "'unsafe-inline'" not in policy.split("script-src")[1].split(";")[0]


def test_the_answer_comes_first_and_every_tab_has_a_link(build_input: Any) -> None:
    data = build_input()
    source = without_plotly(render(data))
    page = Page(source)
    panels = [a["id"] for a in page.all("section")]
    assert panels == ["answer", "why", "trades", "sensitivity", "load", "cache", "time", "trials", "provenance"]
    assert [a["href"] for a in page.all("a") if a.get("id", "").startswith("tab-")] == [f"#{key}" for key in panels]
    answer = source[source.index('id="answer"') : source.index('id="why"')]
    for text in ("Recommendation", usd(data.recommendation.trial.metrics["usd_per_hour"]), "✓ met", "Cheaper", "Surer"):
        assert text in answer
    assert source.count("⚠ assumed") == 2
    assert data.provenance.warnings[0] in source
    assert len(re.findall(r"<tr[^>]*><td data-key", source)) == len(data.front)


def test_a_tab_without_content_is_left_out(build_input: Any) -> None:
    page = Page(without_plotly(render(build_input(closeup=None, headroom=None, costs=()))))
    assert not {"load", "cache", "time"} & {a["id"] for a in page.all("section")}


def test_links_lead_to_a_place_on_the_page(build_input: Any) -> None:
    for data in (build_input(), build_input(feasible=False), build_input(formats="It serves fp8: other answers.")):
        page = Page(without_plotly(render(data)))
        places = {a["id"] for _, a in page.tags if "id" in a}
        assert {a["href"].removeprefix("#") for a in page.all("a") if a.get("href", "").startswith("#")} <= places
        assert len([a["id"] for _, a in page.tags if "id" in a]) == len(places), "an id is used twice"


def test_the_report_is_short(build_input: Any) -> None:
    """Words that are seen: not the numbers of figures, settings and sentences that unfold."""
    source = without_plotly(render(build_input(confidence=confidence_of(build_input()))))
    body = source[source.index("<body>") :]
    for hidden in (r"<script.*?</script>", r"<details.*?</details>", r"<noscript.*?</noscript>", r"<svg.*?</svg>"):
        body = re.sub(hidden, " ", body, flags=re.DOTALL)
    body = re.sub(r'<tr class="[^"]*more.*?</tr>', " ", body, flags=re.DOTALL)
    words = [word for word in re.sub(r"<[^>]*>", " ", body).split() if re.search(r"[^\W\d_]{2}", word)]
    assert len(words) < 1500


def test_every_figure_table_and_region_is_named(build_input: Any) -> None:
    page = Page(without_plotly(render(build_input())))
    drawn = [a for a in page.all("div") if "data-figure" in a]
    assert sorted(a["data-figure"] for a in drawn) == sorted([
        "pareto",
        "plane-ttft_p99-goodput",
        "plane-ttft_p99-usd_per_hour",
        "plane-goodput-usd_per_hour",
        "parallel",
        "importance",
        "progress",
        "capacity",
        "latencies",
        "classes",
        "ideal",
        "tier-use",
        "tier-room",
        "tiers",
        "costs",
        "workers",
    ])  # fmt: skip
    assert all(len(a["aria-label"]) > 40 for a in drawn)
    assert set(json.loads(page.scripts["plots"])["figures"]) == {a["data-figure"] for a in drawn}
    assert len(page.all("caption")) == len(page.all("table"))
    assert len(page.all("main")) == len(page.all("header")) == len(page.all("nav")) == 1
    assert all(a.get("aria-label") or a.get("aria-hidden") for a in page.all("svg"))
    assert all(a.get("aria-label") or a.get("aria-labelledby") for a in page.all("div") if a.get("role") == "region")


def test_nothing_feasible_names_the_nearest_miss(build_input: Any) -> None:
    data = build_input(feasible=False)
    source = without_plotly(render(data))
    assert f"{data.failure} The nearest miss is" in source
    answer = source[source.index('id="answer"') : source.index('id="why"')]
    assert answer.count("✗ missed") == 2
    assert answer.count("✓ met") == 1
    assert "No front, as nothing meets the SLO" in source
    assert "all miss the SLO." in source
    for claim in ("within the SLO", "Bold marks are the front", "Green: the front", "Front, stage", "✓ meets the SLO"):
        assert claim not in source
    assert 'id="trades"' not in source
    assert "Why nothing meets the SLO" in source


def test_a_miss_beyond_twice_its_bound_is_not_offered(build_input: Any) -> None:
    data = build_input(feasible=False)
    nearest = data.nearest_miss
    far = replace(nearest, slo=(TermCheck("ttft_p99", 22.5, 2.0), *nearest.slo[1:]))
    source = without_plotly(render(replace(data, nearest_miss=far))).replace("\N{NO-BREAK SPACE}", " ")
    answer = source[source.index('id="answer"') : source.index('id="why"')]
    assert "Nothing comes near: the closest, " in answer
    assert "misses TTFT p99 by 1,025.0 %." in answer
    for offer in ("The nearest miss is", "a month", '<dl class="big">'):
        assert offer not in answer


def test_no_trial_at_all_still_makes_a_report(build_input: Any) -> None:
    empty = build_input(
        trials=(),
        front=(),
        recommendation=None,
        nearest_miss=None,
        failure="No deployment was simulated.",
        headroom=None,
        closeup=None,
        costs=(),
        progress={},
    )
    source = without_plotly(render(empty))
    assert "No deployment was simulated." in source
    assert not [a for a in Page(source).all("div") if "data-figure" in a]


def confidence_of(data: Any) -> Confidence:
    """Everything that a finished study knows, of a recommendation that may miss its SLO."""
    chosen, other = data.recommendation.trial, data.front[-1]
    sensitivity = {
        "steps": [{"what": "decode", "holds": 1.08, "missed": 1.1, "term": "tpot_p99", "instead": None},
                  {"what": "host work", "holds": 2.0, "missed": None, "term": ""}],
        "prices": [{"item": "h200", "now_usd": 3.5, "usd": 3.6, "dearer": True, "trial": other.number}],
        "settings": [{"setting": "chunk_tokens", "ours": "2048", "instead": "8192", "trial": other.number,
                      "feasible": True, "worst_margin": 0.2}],
    }  # fmt: skip
    return Confidence(
        {"ttft_p99": 0.53, "tpot_p99": 0.975}, {"goodput_rps": (5.5, 6.5), "ttft_p99_s": (0.5, 90.0)},
        0.8, "It holds in <b>half</b> of 64 draws.", False,
        (Candidate(chosen.number, 8, 0.5, 0.25, (0.25, 0.75)), Candidate(other.number, 8, 1.0, 0.0, (0.75, 1.0))),
        (Rule("cheapest", chosen.number, "It is cheap.", "Half the baseline."),
         Rule("best_value", other.number, "The knee.", "")),
        "$42.00 per hour, 2 × the cheapest that meets the SLO",
        {"steps": ("If decode is 6 % slower, 4 replicas are needed.",), "load": ("Holds up to 1.2 ×.",)},
        {"draws": 64, "baseline": 5}, 0.53, (0.43, 0.63), 64, sensitivity=sensitivity,
    )  # fmt: skip


def test_how_sure_it_is_stands_beside_each_term(build_input: Any) -> None:
    assert " % <small>likely" not in without_plotly(render(build_input()))
    data = build_input(confidence=confidence_of(build_input()))
    source = without_plotly(render(data)).replace("\N{NO-BREAK SPACE}", " ")
    answer = source[source.index('id="answer"') : source.index('id="why"')]
    for text in ("53 % <small>likely", "80 % interval: 43–63 %", "34 of 64 draws", "0.500 s to 90.0 s", "? unsure"):
        assert text in answer, text
    assert answer.index("May miss the SLO") < answer.index("53 % <small>likely"), "cautions come first"


def test_what_would_change_the_answer_is_a_tab_of_its_own(build_input: Any) -> None:
    assert 'href="#sensitivity"' in without_plotly(render(build_input())), "which settings matter is known of trials"
    source = without_plotly(render(build_input(confidence=confidence_of(build_input()))))
    source = source.replace("\N{NO-BREAK SPACE}", " ")
    for text in (
        "<p>It holds in &lt;b&gt;half&lt;/b&gt; of 64 draws.</p>",
        "Decode slower", "+10 %", "TPOT p99 is missed", "beyond +100 %", "Price of h200", "+2.9 %", "More load",
        "2048 → 8192", "<li>If decode is 6 % slower, 4 replicas are needed.</li>", "64 for draws and 5 for baseline",
        "75–100 %", "Best value", "5.50 to 6.50 with a probability of 80 %",
    ):  # fmt: skip
        assert text in source, text


def test_the_settings_behind_every_mark_are_on_the_page_once(build_input: Any) -> None:
    data = build_input()
    trials = json.loads(Page(without_plotly(render(data))).scripts["plots"])["trials"]
    assert {int(number) for number in trials["rows"]} == {trial.number for trial in data.trials}
    for trial in data.trials[::37]:
        row = trials["rows"][str(trial.number)]
        shown = {n: v[i] for n, v, i in zip(trials["names"], trials["values"], row, strict=True)}
        expected = settings(trial.deployment)
        assert list(shown) == list(expected)
        assert shown["accelerator"] == expected["accelerator"]
        assert shown["replicas"] == str(expected["replicas"])
    assert all(len(set(values)) == len(values) for values in trials["values"])


def hostile_input(build_input: Any, build_record: Any, build_trial: Any) -> Any:
    data = build_input(60)
    built = (build_trial(60, 1, random.Random(seed), accelerator=HOSTILE) for seed in range(100))
    trial = next(trial for trial in built if trial.feasible)
    return build_input(
        60,
        title=HOSTILE,
        study=HOSTILE,
        workload=HOSTILE,
        model_id=HOSTILE,
        trials=(*data.trials, trial),
        front=(*data.front, trial),
        recommendation=Recommendation(trial, HOSTILE, ((data.front[0], HOSTILE),)),
        costs=tuple(replace(row, trial=trial.number, parts=((HOSTILE, 2.0),)) for row in data.costs[:1]),
        closeup=replace(data.closeup, tiers=(replace(data.closeup.tiers[0], name=HOSTILE),), notes=(HOSTILE,)),
        provenance=build_record(warnings=(HOSTILE,), versions={HOSTILE: HOSTILE}, inputs={HOSTILE: HOSTILE}),
    )


def test_names_are_escaped_in_the_page_and_in_the_figures(
    build_input: Any, build_record: Any, build_trial: Any
) -> None:
    source = without_plotly(render(hostile_input(build_input, build_record, build_trial)))
    assert "alert(1)" in source
    assert "<script>alert" not in source
    page = Page(source)
    assert not page.all("img")
    assert len(page.all("script")) == 4  # Plotly is left out
    plots = json.loads(page.scripts["plots"])
    assert any("&lt;/script&gt;" in text for text in plots["texts"])
    assert "<" not in page.scripts["plots"]
