"""One pool compared with disaggregated prefill and decode: KV transfers and their links are reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from hisearch.api.compare import compare_deployments
from hisearch.api.deployments.deployment import simulate_deployment
from hisearch.api.deployments.workload import load_trace
from hisearch.specs.documents.catalogue import Catalogue


def test_kv_transfers_are_counted_as_transfers() -> None:
    pair = ("qwen3-32b-h100-tp2", "qwen3-32b-h100-prefill-decode")
    comparison = compare_deployments(*pair, "chat-multiturn", seeds=1, limit=300)
    transfers = {row.name: row for row in comparison.times}["transfers"]
    assert transfers.b_s > 0.0
    assert sum(row.b_s for row in comparison.times) == pytest.approx(comparison.figure("e2e_mean_s").b)  # type: ignore[union-attr]
    link = {driver.name: driver for driver in comparison.drivers}["busiest link"]
    disaggregated = simulate_deployment(pair[1], load_trace("chat-multiturn", limit=300)).to_dict()
    assert link.b == pytest.approx(max(row["network_utilisation"] for row in disaggregated["pools"]))
    assert link.b > 0.0


@pytest.mark.parametrize(
    ("load", "says"),
    [
        pytest.param(0.08, {"goodput_rps": "neither", "throughput_rps": "neither"}, id="both-keep-up"),
        pytest.param(6.0, {"goodput_rps": "B", "throughput_rps": "B"}, id="one-falls-behind"),
    ],
)
def test_a_load_that_both_keep_up_with_decides_their_rates(load: float, says: dict[str, str], tmp_path: Path) -> None:
    text = Catalogue().locate("Deployment", "qwen3-32b-h100-tp2").read_text()
    files = []
    for replicas in (4, 16):
        files.append(tmp_path / f"{replicas}.yaml")
        files[-1].write_text(text.replace("replicas: 4", f"replicas: {replicas}"))
    comparison = compare_deployments(*files, "chat-multiturn", slo="interactive-chat", seeds=1, limit=3000, load=load)
    figures = {figure.name: figure for figure in comparison.figures}
    assert figures["throughput_rps"].a != figures["throughput_rps"].b
    assert {name: figures[name].better for name in says} == says
    assert any("kept up" in note for note in comparison.notes) == (says["throughput_rps"] == "neither")
