"""``hisearch validate cache`` and ``hisearch trace stats --curve``."""

import dataclasses
from pathlib import Path

import pytest

from hisearch.api.deployments.workload import load_trace
from hisearch.traces.stats import curve_capacities
from hisearch.validate.cache import cache_points
from hisearch.validate.cache_settings import ATTENTION_TOKENS, CacheSettings, mean_turn_tokens
from tests.cli.conftest import Hisearch


def test_points(hisearch: Hisearch, workdir: Path) -> None:
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


def test_outputs_are_stored_where_asked_for(hisearch: Hisearch, workdir: Path) -> None:
    arguments = ("validate", "cache", "visits.yaml", "--capacity-tokens", 10**9, "--page", 1, "--json")
    without, stored = hisearch(*arguments).json, hisearch(*arguments, "--outputs").json
    assert stored["include_outputs"]
    assert stored["points"][0]["hit_tokens"] > without["points"][0]["hit_tokens"] > 0


def test_settings_of_policies(hisearch: Hisearch, workdir: Path) -> None:
    arguments = ("validate", "cache", "visits.yaml", "--capacity-tokens", 16000, "--policy", "lru,tlru,ttl,gdsf,fifo")
    settings = ("--tail-tokens", 500, "--ttl", 60, "--reclaim", "periodic", "--reclaim-period", 10)
    data = hisearch(*arguments, *settings, "--json").json
    trace = load_trace("visits.yaml")
    expected = CacheSettings(
        tail_tokens=500, turn_tokens=mean_turn_tokens(trace), attention_tokens=ATTENTION_TOKENS, ttl_s=60.0,
        reclaim="periodic", reclaim_period_s=10.0,
    )  # fmt: skip
    assert data["settings"] == dataclasses.asdict(expected)
    assert data["given"] == ["reclaim", "reclaim_period_s", "tail_tokens", "ttl_s"]
    points = cache_points(trace, [16000], ["lru", "tlru", "ttl", "gdsf", "fifo"], settings=expected)
    assert data["points"] == [dataclasses.asdict(point) for point in points]
    assert [point.expired_tokens is None for point in points] == [True, True, False, True, True]
    shown = hisearch(*arguments, *settings).out
    assert f"tlru: {expected.turn_tokens:,} new tokens expected in a next prompt (the mean of this trace" in shown
    assert "expired tokens" in shown
    assert f"{points[2].expired_tokens:,}" in shown
    assert "expired" not in hisearch(*arguments[:-1], "lru").out


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
        (
            ("--capacity-tokens", "99", "--policy", "ttl", "--ttl", "0"),
            2,
            "--ttl: expected a positive number of seconds",
        ),
        (("--capacity-tokens", "99", "--policy", "tlru"), 2, "--tail-tokens: policy tlru needs it"),
        (("--capacity-tokens", "99", "--ttl", "9"), 2, "--ttl: goes with policy ttl, which is not asked for"),
    ],
)
def test_errors(hisearch: Hisearch, workdir: Path, arguments: tuple[str, ...], code: int, expected: str) -> None:
    ran = hisearch("validate", "cache", "visits.yaml", *arguments)
    assert (ran.code, ran.out) == (code, "")
    assert expected in ran.err


def test_curve(hisearch: Hisearch, workdir: Path) -> None:
    data = hisearch("trace", "stats", "visits.yaml", "--curve", "--curve-html", "curve.html", "--json").json
    capacities = curve_capacities(load_trace("visits.yaml"))
    assert [point["capacity_tokens"] for point in data["curve"]] == capacities
    assert data["curve"][-1]["hit_rate"] == data["lru"][-1]["hit_rate"]
    page = (workdir / "curve.html").read_text()
    assert "visits: hit rate of an LRU cache of 16-token blocks" in page
    assert 'src="http' not in page
    shown = hisearch("trace", "stats", "visits.yaml", "--curve")
    assert f"{capacities[-1]:,}" in shown.out
    assert "█" in shown.out
    assert "curve" not in hisearch("trace", "stats", "visits.yaml", "--json").json
