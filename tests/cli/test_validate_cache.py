"""``hisearch validate cache`` and ``hisearch trace stats --curve``."""

import dataclasses
from pathlib import Path

import pytest

from hisearch.api.workload import load_trace
from hisearch.traces.stats import curve_capacities
from hisearch.validate.cache import cache_points
from tests.cli.conftest import Hisearch


def test_points(hisearch: Hisearch, here: Path) -> None:
    arguments = ("validate", "cache", "visits.yaml", "--capacity-tokens", "1600, 16_000", "--policy", "lru,belady")
    data = hisearch(*arguments, "--page", 8, "--json").json
    trace = load_trace("visits.yaml")
    expected = cache_points(trace, [1600, 16000], ["lru", "belady"], page_tokens=8)
    assert data["points"] == [dataclasses.asdict(point) for point in expected]
    assert (data["digest"], data["requests"], data["page_tokens"]) == (trace.digest, 120, 8)
    shown = hisearch(*arguments)
    assert shown.code == 0
    assert "pages of 16 tokens" in shown.out
    assert "belady (oracle)" in shown.out


def test_outputs_are_stored_where_asked_for(hisearch: Hisearch, here: Path) -> None:
    arguments = ("validate", "cache", "visits.yaml", "--capacity-tokens", 10**9, "--page", 1, "--json")
    without, stored = hisearch(*arguments).json, hisearch(*arguments, "--outputs").json
    assert stored["include_outputs"]
    assert stored["points"][0]["hit_tokens"] > without["points"][0]["hit_tokens"] > 0


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (("--capacity-tokens", "0"), 2, "expected whole numbers of tokens from 1"),
        (("--capacity-tokens", "1,,2"), 2, "not '1,,2'"),
        (("--capacity-tokens", "many"), 2, "not 'many'"),
        (("--capacity-tokens", "15"), 1, "error: capacity_tokens: expected at least one page of 16 tokens, got 15"),
        (("--capacity-tokens", "99", "--policy", "lur"), 2, "no cache policy 'lur'; did you mean 'lru'"),
        (("--policy", "lru"), 2, "--capacity-tokens"),
        (("--capacity-tokens", "99", "--page", "0"), 2, "--page"),
    ],
)
def test_errors(hisearch: Hisearch, here: Path, arguments: tuple[str, ...], code: int, expected: str) -> None:
    ran = hisearch("validate", "cache", "visits.yaml", *arguments)
    assert (ran.code, ran.out) == (code, "")
    assert expected in ran.err


def test_curve(hisearch: Hisearch, here: Path) -> None:
    data = hisearch("trace", "stats", "visits.yaml", "--curve", "--curve-html", "curve.html", "--json").json
    capacities = curve_capacities(load_trace("visits.yaml"))
    assert [point["capacity_tokens"] for point in data["curve"]] == capacities
    assert data["curve"][-1]["hit_rate"] == data["lru"][-1]["hit_rate"]
    page = (here / "curve.html").read_text()
    assert "visits: hit rate of an LRU cache of 16-token blocks" in page
    assert 'src="http' not in page
    shown = hisearch("trace", "stats", "visits.yaml", "--curve")
    assert f"{capacities[-1]:,}" in shown.out
    assert "█" in shown.out
    assert "curve" not in hisearch("trace", "stats", "visits.yaml", "--json").json
