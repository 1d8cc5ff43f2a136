"""Another tool's prediction next to ours: run where it is installed, counted on the rows that both price."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hisearch.cli.main import app
from hisearch.validate.silicon.peer import PeerPricer
from hisearch.validate.silicon.pricing import NotPriced, Pricer
from tests.latency.fake_aic import install_aggregated
from tests.validate.test_silicon import only_row, write

ROW = {"model": "Qwen/Qwen3-32B", "tp": "2.0", "concurrency": "8"}


@pytest.fixture(autouse=True)
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    install_aggregated(tmp_path / "package", monkeypatch)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "aiconfigurator_core"]:
        del sys.modules[name]


def test_a_row_is_asked_for_as_it_ran(tmp_path: Path) -> None:
    price = PeerPricer(Pricer("roofline")).price(only_row(tmp_path, **ROW))
    assert price.ttft_s == pytest.approx(0.256)
    assert price.tpot_s == pytest.approx(0.1e-3 * 8 * 2)


def test_what_it_cannot_price_is_not_counted(tmp_path: Path) -> None:
    peer = PeerPricer(Pricer("roofline"))
    with pytest.raises(NotPriced, match=r"knows no model meta-llama/Meta-Llama-3\.1-8B"):
        peer.price(only_row(tmp_path))
    rows, out = write(tmp_path / "rows.csv", ROW, {}), tmp_path / "out.csv"
    ran = CliRunner().invoke(app, ["validate", "silicon", str(rows), "--json", "--quiet", "--rows", str(out)])
    report = json.loads(ran.stdout)
    assert report["all"]["n"] == report["dense"]["n"] == 2
    assert report["peer"]["tool"] == "aiconfigurator-core 0.12.0"
    assert report["peer"]["theirs"]["n"] == report["peer"]["ours"]["n"] == 1
    assert report["peer"]["theirs"]["ttft_bias"] == pytest.approx(0.256 / 0.020 - 1)
    with out.open(newline="") as file:
        written = list(csv.DictReader(file))
    assert [row["aiconfigurator_ttft_ms"] for row in written] == ["256.0000", ""]
