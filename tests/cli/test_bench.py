"""``hisearch bench``: its form, not its figures."""

import pytest

from hisearch.api import bench
from tests.cli.conftest import Hisearch

_KEYS = {"name", "requests", "steps", "wall_s", "requests_per_s", "peak_rss_bytes"}


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


def test_table(hisearch: Hisearch) -> None:
    ran = hisearch("bench", "import", "--repeat", 1)
    assert "peak RSS (MiB)" in ran.out
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
    assert {"mooncake-like", "chat-multiturn", "coder-6h", "import"} <= set(bench.default_names())
    assert "mooncake-conversation" in bench.default_names("trace.jsonl.gz")
