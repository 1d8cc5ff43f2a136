"""One pool compared with disaggregated prefill and decode: KV transfers and their links are reported."""

from __future__ import annotations

import pytest

from hisearch.api.compare import compare_deployments
from hisearch.api.deployments.deployment import simulate_deployment
from hisearch.api.deployments.workload import load_trace


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
